"""The measuring itself: accuracy one word at a time, then rounds in which everybody takes their turn."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitocr.bench_inference.process import Entrant, Failed, Words, evenly, started
from vitocr.bench_inference.table import counted
from vitocr.errors import UserError
from vitocr.output import progress
from vitocr.text_metrics import summarise_text

PROTOCOL = "36"
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
    entrant: Entrant, words: Words, rows: Sequence[int], texts: Sequence[str], *, threads: int, batches: Sequence[int]
) -> dict[str, Any]:
    """One round of one reader. texts: what it read one by one, to see whether a batch changes its answers."""
    began = time.perf_counter()
    with started(entrant, words, threads=threads) as contender:
        contender.read(rows[:1], batch=1)
        figures: dict[str, Any] = {"cold_start_s": time.perf_counter() - began, "batch": {}}
        for batch in batches:
            contender.read(rows[: max(WARM_UP_WORDS, batch)], batch=batch)
            found = contender.read(rows, batch=batch)
            milliseconds = 1000 * np.array(found["seconds"])  # of every batch
            figures["batch"][str(batch)] = {
                "words_per_second": len(rows) / sum(found["seconds"]),
                "ms": float(np.median(milliseconds)),
                "ms_p99": float(np.quantile(milliseconds, 0.99)),
                "memory_mb": found["peak_bytes"] / 1e6,  # the most until here
                "changed": sum(texts[row] != text for row, text in zip(rows, found["texts"], strict=True)),
            }
    return figures


def summarise_rounds(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of every figure its median over the rounds, the lowest and the highest."""
    return {
        key: summarise_rounds([figures[key] for figures in rounds])
        if isinstance(value, Mapping)
        else {
            "median": statistics.median(values := [figures[key] for figures in rounds]),
            "low": min(values),
            "high": max(values),
        }
        for key, value in rounds[0].items()
    }


def ratios(rounds: Mapping[str, Sequence[Mapping[str, Any]]], ours: Sequence[str]) -> list[dict[str, Any]]:
    """How many times the words per second of each peer, and of the other forms, each of ours reads within a round."""
    found = []
    for number, our in enumerate(ours):
        for other in (name for name in rounds if name not in ours[number:]):
            pairs = list(zip(rounds[our], rounds[other], strict=True))
            times = {
                batch: [a["batch"][batch]["words_per_second"] / b["batch"][batch]["words_per_second"] for a, b in pairs]
                for batch in pairs[0][0]["batch"]
                if batch in pairs[0][1]["batch"]
            }
            found.append({"ours": our, "other": other, "times": times})
    return found


def compare(
    entrants: Sequence[Entrant],
    words: Words,
    *,
    threads: Sequence[int],
    batches: Sequence[int],
    rounds: int,
    timed: int,
) -> dict[str, Any]:
    """All that is measured, in plain types."""
    figures: dict[str, Any] = {"contenders": {}, "left_out": {}}
    texts: dict[str, list[str]] = {}
    for entrant in entrants:
        try:
            figures["contenders"][entrant.name], texts[entrant.name] = judge(entrant, words)
        except Failed as failed:
            if entrant.ours:
                raise
            figures["left_out"][entrant.name] = str(failed)
            print(f"{entrant.name} is left out: {failed}", file=sys.stderr, flush=True)
    running = [entrant for entrant in entrants if entrant.name in texts]
    if not running:
        raise UserError("None of the contenders runs here; above is why.")
    rows = np.random.default_rng(0).permutation(evenly(len(words.labels), timed)).tolist()
    figures["timed_words"], figures["rounds"], figures["ratios"] = len(rows), rounds, {}
    ours = [entrant.name for entrant in running if entrant.ours]
    for count in threads:
        measured: dict[str, list[dict[str, Any]]] = {entrant.name: [] for entrant in running}
        for number in range(rounds):
            # Another goes first in every round, so that none always follows the same one.
            turn = number % len(running)
            for entrant in running[turn:] + running[:turn]:
                print(f"round {number + 1} of {rounds} on {counted(count)}: {entrant.name}", file=sys.stderr)
                about = figures["contenders"][entrant.name]["about"]
                fit = batches if about["batches"] else [1]
                measured[entrant.name].append(
                    time_once(entrant, words, rows, texts[entrant.name], threads=count, batches=fit)
                )
        for name, of_rounds in measured.items():
            speed = figures["contenders"][name].setdefault("threads", {})
            speed[str(count)] = summarise_rounds(of_rounds) | {"rounds": of_rounds}
        figures["ratios"][str(count)] = ratios(measured, ours)
    return figures
