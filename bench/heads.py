"""Every head after equal minutes: accuracy, parameters, words a second. One table, one command:

    python bench/heads.py --budget 8m --test crops/IIIT5k_test --test crops/SVT_test --out docs/records/heads

Each run trains on rendered words (and on `--train` sources) with one thread on a core of its own, as many at a time
as there are cores; then each is read with, alone, one after the other. Words after `--` go to train.py.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADS = ("ctc", "transformer", "permuted", "lstm")


def start(head: str, args: argparse.Namespace, core: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
    folder = args.runs / head
    folder.mkdir(parents=True, exist_ok=True)
    options = [
        "task=str", f"head={head}", f"budget={args.budget}", "trainer=cpu", "trainer.devices=1", "trainer.threads=1",
        "logger=none", f"run_dir={folder / 'run'}", f"data.train=[{','.join(['render', *args.train])}]",
        f"data.test=[{','.join(args.test)}]",
    ]  # fmt: skip
    log = (folder / "log.txt").open("wb")
    command = [sys.executable, str(ROOT / "train.py"), *options, *words]
    return subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )


def train_all(args: argparse.Namespace, words: Sequence[str]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    todo = [head for head in HEADS if not (args.runs / head / "run" / "metrics.json").exists()]
    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    while todo or running:
        for core in cores:
            if core not in running and todo:
                head = todo.pop(0)
                print(f"{time.strftime('%H:%M:%S')} {head} on core {core} for {args.budget}", flush=True)
                running[core] = head, start(head, args, core, words)
        for core, (head, process) in list(running.items()):
            if process.poll() is not None:
                if process.returncode:
                    sys.exit(f"{head} failed; see {args.runs / head / 'log.txt'}")
                del running[core]
        time.sleep(1)


def read_with(head: str, args: argparse.Namespace) -> dict[str, object]:
    """Figures of a trained head, read anew so that no two share the machine."""
    run = args.runs / head / "run"
    command = [sys.executable, "-c", "from vitocr.cli import main; main()", "eval", str(run), "--json"]
    for path in args.test:
        command += ["--data", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
    measured = json.loads(done.stdout)
    trained = json.loads((run / "metrics.json").read_text())
    sets = measured.get("sets") or {Path(args.test[0]).name: measured}
    return {
        "head": head,
        "parameters": trained["parameters"],
        "trained_words_per_second": trained["train"]["images_per_second"],
        "accuracy": {name: summary["accuracy"]["36"] for name, summary in sets.items()},
        "words_per_second": min(summary["words_per_second"] for summary in sets.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="8m")
    parser.add_argument("--train", action="append", default=[], help="a source beside the rendered words; repeatable")
    parser.add_argument("--test", action="append", required=True, help="a source to measure on; repeatable")
    parser.add_argument("--runs", type=Path, default=Path("runs/heads"))
    parser.add_argument("--out", type=Path, required=True)
    args, words = parser.parse_known_args()
    train_all(args, [word for word in words if word != "--"])
    rows = [read_with(head, args) for head in HEADS]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "heads.json").write_text(json.dumps({"budget": args.budget, "rows": rows}, indent=1))
    names = list(rows[0]["accuracy"])  # type: ignore[call-overload]
    lines = [
        f"| head | parameters | {' | '.join(names)} | words/s read | words/s trained |",
        "|-" * (len(names) + 4) + "|",
    ]
    for row in rows:
        shares = " | ".join(f"{100 * row['accuracy'][name]:.1f} %" for name in names)  # type: ignore[index]
        lines.append(
            f"| {row['head']} | {row['parameters'] / 1e6:.2f} M | {shares} | "  # type: ignore[operator]
            f"{row['words_per_second']:.0f} | {row['trained_words_per_second']:.0f} |"
        )
    (args.out / "heads.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
