"""Writes the figures into docs/ideas.md and docs/ideas.ko.md, between their markers, from what the benches left:

    python bench/ideas_tables.py

So no figure of these pages is typed by hand. A bench leaves its figures (options.json, scaling.json, recompute.json,
pretraining.json, looks.json) in a folder of docs/records; where there are none, the page says how to get them.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import markdown

RECORDS = Path("docs/records")
PAGES = {"en": Path("docs/ideas.md"), "ko": Path("docs/ideas.ko.md")}
BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- /measured -->)", re.DOTALL)
Words = Mapping[str, str]  # of a page's language

ENGLISH = {
    "missing": "*Not measured yet:* `{command}`",
    "option": "option",
    "accuracy": "accuracy",
    "each seed": "each seed",
    "parameters": "parameters",
    "images": "images/s trained",
    "words": "words/s trained",
    "read": "words/s read",
    "peak": "peak memory",
    "about options": "{budget} each, one thread on one core, {seeds}; {measured}.",
    "seed": "one run each",
    "given": "All with `{words}`.",
    "tuned": "Fine-tuning alone with `{words}`.",
    "seeds": "mean of {n} seeds",
    "cifar10": "CIFAR-10, 10,000 test images",
    "str": "words of letters and digits, case ignored",
    "attention": "attention",
    "tokens": "{n} tokens",
    "exponents": "exponents: time, memory",
    "faster": "against dense",
    "times": "{x:.1f}x as fast at {n}",
    "about scaling": "Forward and backward pass of the attention alone, fp32, {heads} heads of {dim}, {threads} "
    "threads; an exponent of 2 is quadratic, of 1 linear.",
    "scaling picture": "Time and memory of attention by the number of tokens",
    "activations": "activations",
    "kept": "kept",
    "recomputed": "recomputed",
    "at most": "memory at most",
    "pass": "forward and backward",
    "about recompute": "{saved:.0f} % less memory for {added:+.0f} % time, gradients {same} ({depth} layers, batch "
    "{batch}, {precision}).",
    "same": "the same to the last bit",
    "different": "NOT the same",
    "on labels": "{budget} on {share:.0f} % of the labels",
    "one seed": "seed {n}",
    "mean": "mean",
    "from scratch": "from scratch",
    "fine-tuned": "fine-tuned",
    "linear probe": "linear probe",
    "about pretraining": "Pretrained for {budget} without labels. Fine-tuned against from scratch: {gain:+.2f} points.",
    "pretraining picture": "Pictures as they are, what is seen of them, and how they are completed",
    "characters": "characters",
    "number": "number",
    "beside": "peak inside the box or next to it",
    "inside": "inside",
    "all": "all",
    "of words read right": "of words read right",
    "anywhere": "by chance",
    "about looks": "{words} rendered words; next to the box is a cell of the {rows}x{columns} grid beside it.",
    "options picture": "Accuracy of every option after equal minutes, a dot a run",
}
KOREAN = {
    "missing": "*아직 측정하지 않았다:* `{command}`",
    "option": "옵션",
    "accuracy": "정확도",
    "each seed": "시드별",
    "parameters": "파라미터",
    "images": "학습 속도(장/초)",
    "words": "학습 속도(단어/초)",
    "read": "인식 속도(단어/초)",
    "peak": "최대 메모리",
    "about options": "각 {budget}, 코어 하나에 스레드 하나, {seeds}; {measured}.",
    "seed": "각 1회 실행",
    "given": "공통 옵션: `{words}`.",
    "tuned": "미세조정에만 쓴 옵션: `{words}`.",
    "seeds": "시드 {n}개 평균",
    "cifar10": "CIFAR-10 테스트 이미지 10,000장",
    "str": "영문자·숫자 단어, 대소문자 무시",
    "attention": "어텐션",
    "tokens": "토큰 {n}개",
    "exponents": "지수: 시간, 메모리",
    "faster": "dense 대비",
    "times": "{n}개에서 {x:.1f}배 빠름",
    "about scaling": "어텐션 연산만의 순전파와 역전파, fp32, 헤드 {heads}개 × {dim}차원, 스레드 {threads}개. "
    "지수 2는 제곱, 1은 선형 증가를 뜻한다.",
    "scaling picture": "토큰 수에 따른 어텐션의 시간과 메모리",
    "activations": "활성값",
    "kept": "모두 보관",
    "recomputed": "재계산",
    "at most": "최대 메모리",
    "pass": "순전파와 역전파",
    "about recompute": "메모리 {saved:.0f} % 절감, 시간 {added:+.0f} %, 그래디언트는 {same}({depth}층, 배치 {batch}, "
    "{precision}).",
    "same": "마지막 비트까지 같다",
    "different": "같지 않다",
    "on labels": "라벨 {share:.0f} %로 {budget} 학습",
    "one seed": "시드 {n}",
    "mean": "평균",
    "from scratch": "처음부터 학습",
    "fine-tuned": "미세조정",
    "linear probe": "선형 탐침",
    "about pretraining": "라벨 없이 {budget} 사전학습. 미세조정은 처음부터 학습한 것보다 {gain:+.2f}%p.",
    "pretraining picture": "원본, 모델에 보이는 부분, 모델이 복원한 결과",
    "characters": "글자",
    "number": "개수",
    "beside": "최댓값이 상자 안 또는 바로 옆",
    "inside": "상자 안",
    "all": "전체",
    "of words read right": "바르게 읽은 단어만",
    "anywhere": "우연 수준",
    "about looks": "렌더링한 단어 {words}개. 바로 옆이란 {rows}×{columns} 격자에서 상자에 맞닿은 칸을 말한다.",
    "options picture": "같은 시간 학습한 뒤 옵션별 정확도(점 하나가 실행 한 번)",
    # Labels of bench/options.py
    "CRNN + LSTM with attention": "CRNN + 어텐션 LSTM",
    "ViT + LSTM with attention": "ViT + 어텐션 LSTM",
    "ViT + permuted decoder": "ViT + 순열 디코더",
    "label smoothing 0.1": "라벨 스무딩 0.1",
    "none": "없음",
    "learned, from sines": "학습형, 사인파에서 출발",
    "learned, from noise": "학습형, 잡음에서 출발",
    "sinusoidal": "사인파",
    "rotary": "회전형(RoPE)",
    "plain, half of the patches at first": "기본, 초반에 패치 절반",
    "plain, all patches": "기본, 패치 전체",
    "hybrid": "하이브리드",
    "average": "평균",
    "class token": "클래스 토큰",
}
LANGUAGES: dict[str, Words] = {"en": ENGLISH, "ko": KOREAN}


def record(name: str, records: Path) -> dict[str, Any] | None:
    """What a bench left as `name`.json in any folder of the records."""
    found = sorted(records.glob(f"*/{name}.json"))
    if len(found) > 1:
        sys.exit(f"{' and '.join(map(str, found))}: keep one of them, so that it is clear which figures count")
    return json.loads(found[0].read_text(encoding="utf-8")) if found else None


def mega(size: float) -> str:
    return f"{size / 2**20:,.0f} MB"


def picture(alt: str, name: str, records: Path) -> str:
    """Of a picture in the records; nothing where there is none."""
    found = sorted(records.glob(f"*/{name}.png"))
    return f"\n![{alt}](records/{found[0].parent.name}/{name}.png)\n" if found else ""


# --- the tables -----------------------------------------------------------------------------------------


def options_table(group: Mapping[str, Any], words: Words) -> str:
    seeds = max(len(row["runs"]) for row in group["rows"])
    reads = group["task"] == "str"
    heading = [words["option"], words["accuracy"]]
    heading += [words["each seed"]] if seeds > 1 else []
    heading += [words["parameters"], words["words" if reads else "images"]]
    heading += [words["read"]] if reads else []
    lines = []
    for row in group["rows"]:
        runs = row["runs"]
        accuracies = [100 * run["accuracy"] for run in runs]
        peaks = [run["peak_bytes"] for run in runs if run["peak_bytes"]]
        line = [words.get(row["label"], row["label"]), f"{statistics.mean(accuracies):.2f} %"]
        line += [", ".join(f"{accuracy:.2f}" for accuracy in accuracies)] if seeds > 1 else []
        line += [f"{runs[0]['parameters'] / 1e6:.2f} M"]
        line += [f"{statistics.mean(run['trained_per_second'] for run in runs):,.0f}"]
        line += [f"{statistics.mean(run['used_per_second'] for run in runs):,.0f}"] if reads else []
        lines.append([*line, mega(max(peaks)) if peaks else "?"])
    about = words["about options"].format(
        budget=group["budget"],
        seeds=words["seeds"].format(n=seeds) if seeds > 1 else words["seed"],
        measured=words[group["task"]],
    )
    return f"{markdown([*heading, words['peak']], lines)}\n{about}{given(group['given'], words)}\n"


def given(options: Sequence[str], words: Words, told: str = "given") -> str:
    """What all runs of a table, or some, had on their command lines."""
    return f" {words[told].format(words=' '.join(options))}" if options else ""


def scaling_table(told: Mapping[str, Any], words: Words) -> str:
    kinds, settings = told["kinds"], told["settings"]
    lengths = next(iter(kinds.values()))["lengths"]
    shown = [at for at, n in enumerate(lengths) if at % 2 == 0 or n == lengths[-1]]  # no page is wide enough for all
    heading = [words["attention"], *(words["tokens"].format(n=f"{lengths[at]:,}") for at in shown)]
    lines = []
    for kind, row in kinds.items():
        cells = [f"{1000 * row['seconds'][at]:,.0f} ms, {mega(row['bytes'][at])}" for at in shown]
        exponents = f"{row['time_exponent']:.2f}, {row['memory_exponent']:.2f}"
        faster = words["times"].format(x=row["times_faster"], n="4,096") if "times_faster" in row else ""
        lines.append([kind, *cells, exponents, faster])
    table = markdown([*heading, words["exponents"], words["faster"]], lines)
    return f"{table}\n{words['about scaling'].format(**settings)}\n"


def recompute_table(told: Mapping[str, Any], words: Words) -> str:
    lines = [
        [words[way], mega(row["activation_bytes"]), f"{1000 * row['seconds']:,.0f} ms"]
        for way, row in told["ways"].items()
    ]
    about = words["about recompute"].format(
        saved=100 * told["memory_saved"],
        added=100 * told["time_added"],
        same=words["same" if told["same_gradients"] else "different"],
        precision=told["precision"],
        **told["settings"],
    )
    return f"{markdown([words['activations'], words['at most'], words['pass']], lines)}\n{about}\n"


def pretraining_table(told: Mapping[str, Any], words: Words) -> str:
    seeds = range(len(told["rows"][0]["accuracy"]))
    heading = [words["on labels"].format(budget=told["budget"], share=100 * told["fraction"])]
    lines = [
        [words[row["arm"]], *(f"{100 * value:.2f} %" for value in [*row["accuracy"], row["mean"]])]
        for row in told["rows"]
    ]
    table = markdown([*heading, *(words["one seed"].format(n=seed) for seed in seeds), words["mean"]], lines)
    about = words["about pretraining"].format(budget=told["pretrain"], gain=100 * told["gain"])
    return f"{table}\n{about}{given(told['words'], words)}{given(told['tuned'], words, 'tuned')}\n"


def looks_table(told: Mapping[str, Any], words: Words) -> str:
    lines = []
    for what in ("all", "of words read right"):
        found = told[what]
        if found is not None:
            shares = (f"{100 * found[name]:.1f} %" for name in ("inside or next to", "inside"))
            lines.append([words[what], f"{found['characters']:,}", *shares])
    lines.append([words["anywhere"], "", f"{100 * told['chance']:.1f} %", ""])
    rows, columns = told["grid"]
    table = markdown([words[name] for name in ("characters", "number", "beside", "inside")], lines)
    return f"{table}\n{words['about looks'].format(words=told['words'], rows=rows, columns=columns)}\n"


GROUPS = ("readers", "smoothing", "positions", "norm", "attention", "patches", "token")
# Table -> the script that measures it, what it leaves, and how that is told.
TABLES: dict[str, tuple[str, str, Callable[[Mapping[str, Any], Words], str]]] = {
    "scaling": ("attention_scaling.py", "scaling", scaling_table),
    "recompute": ("recompute.py", "recompute", recompute_table),
    "pretraining": ("pretraining.py", "pretraining", pretraining_table),
    "looks": ("looks.py runs/reader", "looks", looks_table),
    "options": ("options.py", "options", lambda told, words: ""),  # the picture alone
}


def block(name: str, words: Words, records: Path) -> str:
    """A table and its picture, or how to get them."""
    if name not in TABLES and name not in GROUPS:
        sys.exit(f"there is no table {name}: choose of {', '.join([*TABLES, *GROUPS])}")
    script, left, table = TABLES.get(name, (f"options.py --only {name}", "options", options_table))
    told = record(left, records)
    if told is not None and name in GROUPS:
        told = told["groups"].get(name)
    if told is None:
        return words["missing"].format(command=f"python bench/{script} --out docs/records/ideas") + "\n"
    return table(told, words) + (picture(words[f"{name} picture"], name, records) if f"{name} picture" in words else "")


def filled(text: str, language: str, records: Path = RECORDS) -> str:
    """The page with every table as the records have it."""
    return BLOCK.sub(lambda at: f"{at[1]}\n{block(at[2], LANGUAGES[language], records)}\n{at[3]}", text)


def main() -> None:
    for language, path in PAGES.items():
        if not path.exists():
            sys.exit(f"there is no {path} here: start this in the folder that holds docs/")
        path.write_text(filled(path.read_text(encoding="utf-8"), language), encoding="utf-8")
        print(f"wrote the tables of {path}")


if __name__ == "__main__":
    main()
