"""`vitocr predict` over a folder of very many files: is its memory flat, and does a kill cost or double an answer?

    python bench/predict_many.py str-tiny                        # 100,000 files, CSV
    python bench/predict_many.py RUN --images 20000 --form json --words words/IIIT5k_train

The files are hard links to a few hundred crops (drawn here, or those of `--words`), a few of them torn. One run goes
through undisturbed: the memory it holds is looked at after the first 5,000 answers and at the end. Another is killed
(SIGKILL) in the middle and started again by the same command. Then every file must stand in its output exactly once,
and the two outputs must say the same. Prints one JSON object; ends with 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
CROPS = 300
TORN_EVERY = 1000
FLAT = 0.05  # by how much memory may grow between the first look and the end


def draw_crops(folder: Path) -> list[Path]:
    """Words as they might be photographed, as far as decoding and resizing them are concerned."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    paths = []
    for number in range(CROPS):
        word = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz0123456789"), rng.integers(2, 12)))
        height = int(rng.integers(20, 80))
        paper, ink = rng.integers(0, 256, (2, 3))
        image = Image.new("RGB", (max(8, height * len(word) // 2), height), tuple(paper.tolist()))
        font = ImageFont.load_default(0.7 * height)
        ImageDraw.Draw(image).text((2, height // 2), word, tuple(ink.tolist()), font, anchor="lm")
        paths.append(folder / f"{number}.jpg")
        image.save(paths[-1], quality=90)
    return paths


def crops_of(words: Path) -> list[Path]:
    found = sorted(path for path in words.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))[:CROPS]
    if not found:
        sys.exit(f"There is no crop in {words}.")
    return found


def make_files(folder: Path, crops: list[Path], count: int) -> list[str]:
    """`count` names in one folder, which take the room of a few hundred files."""
    folder.mkdir()
    own = [Path(shutil.copy(crop, folder.parent / f"crop{n}{crop.suffix}")) for n, crop in enumerate(crops)]
    torn = folder.parent / "torn.png"
    torn.write_bytes(b"these are not pixels")
    names = []
    for number in range(count):
        source = torn if number % TORN_EVERY == TORN_EVERY // 2 else own[number % len(own)]
        name = folder / f"{number:07}{source.suffix}"
        os.link(source, name)
        names.append(str(name))
    return names


class Watched(NamedTuple):
    seconds: float
    first_answer: float  # seconds until it was there
    early_rss: int  # bytes, after the first `early` answers
    last_rss: int  # bytes, the last time anybody could look
    messages: str


def watch(command: list[str], out: Path, *, early: int, kill_at: int | None = None) -> Watched:
    """Run a command that writes a line an answer to `out`; kill it once there are `kill_at` of them."""
    began = time.perf_counter()
    lines = seen = early_rss = last_rss = 0
    first_answer = 0.0
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(command, stdout=messages, stderr=messages, cwd=ROOT)
        while process.poll() is None:
            time.sleep(0.02)
            last_rss = rss_of(process.pid) or last_rss
            if out.exists() and (size := out.stat().st_size) > seen:
                with out.open("rb") as file:
                    file.seek(seen)
                    lines += file.read(size - seen).count(b"\n")
                seen = size
            first_answer = first_answer or (time.perf_counter() - began if lines > 1 else 0.0)
            if not early_rss and lines >= early:
                early_rss = last_rss
            if kill_at is not None and lines >= kill_at:
                process.kill()
                process.wait()
        messages.seek(0)
        said = messages.read().decode("utf-8", "replace")
    if process.returncode not in (0, 1, -9):  # 1: some files are torn
        sys.exit(f"{' '.join(command[:6])} ... ended with {process.returncode}:\n{said[-2000:]}")
    return Watched(time.perf_counter() - began, first_answer, early_rss, last_rss, said)


def rss_of(pid: int) -> int:
    """Bytes; 0 of a process that is about to end."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)


def answers_in(out: Path, form: str) -> list[tuple[str, str]]:
    """(source, text or name or error) of every entry."""
    with out.open(encoding="utf-8", newline="") as file:
        entries: Any = csv.DictReader(file) if form == "csv" else map(json.loads, file)
        return [
            (entry["source"], entry.get("text") or entry.get("name") or entry.get("error") or "") for entry in entries
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--form", choices=["csv", "json"], default="csv")
    parser.add_argument("--words", type=Path, help="a folder of crops to link to; default: words are drawn")
    parser.add_argument("--folder", type=Path, help="where the files go for the time being; default: a temporary one")
    args, more = parser.parse_known_args()
    model = str(Path(args.model).resolve()) if Path(args.model).exists() else args.model
    early = min(5000, args.images // 3)
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        home = Path(temporary)
        crops = crops_of(args.words) if args.words else draw_crops(home / "drawn")
        names = make_files(home / "images", crops, args.images)
        program = "from vitocr.cli import main; main()"
        command = [sys.executable, "-c", program, "predict", model, str(home / "images"), f"--{args.form}", *more]
        whole, killed = home / "whole", home / "killed"
        smooth = watch([*command, "--out", str(whole)], whole, early=early)
        broken = watch([*command, "--out", str(killed)], killed, early=early, kill_at=args.images // 2)
        left = len(killed.read_bytes().splitlines())
        again = watch([*command, "--out", str(killed)], killed, early=early)
        expected, found = answers_in(whole, args.form), answers_in(killed, args.form)
    counted = Counter(source for source, _ in found)
    growth = smooth.last_rss / smooth.early_rss - 1 if smooth.early_rss else float("nan")
    figures = {
        "model": args.model,
        "images": args.images,
        "form": args.form,
        "seconds": round(smooth.seconds, 1),
        "images_per_second": round(args.images / smooth.seconds, 1),
        "first_answer_s": round(smooth.first_answer, 2),
        "rss_mb_after": {str(early): round(smooth.early_rss / 1e6, 1), "all": round(smooth.last_rss / 1e6, 1)},
        "rss_growth": round(growth, 4),
        "killed_after_lines": left,
        "seconds_of_the_second_half": round(again.seconds, 1),
        "missing": sum(name not in counted for name in names),
        "twice": sum(count > 1 for count in counted.values()),
        "same_answers": sorted(expected) == sorted(found),
        "torn_files": sum(number % TORN_EVERY == TORN_EVERY // 2 for number in range(args.images)),
        "last_messages": again.messages.strip().splitlines()[-3:],
    }
    figures["ok"] = bool(
        growth <= FLAT and figures["same_answers"] and not figures["missing"] and not figures["twice"]
        and early < left < args.images
    )  # fmt: skip
    print(json.dumps(figures, indent=1))
    del broken
    sys.exit(0 if figures["ok"] else 1)


if __name__ == "__main__":
    main()
