"""How well text was read: right words under named protocols, edit distances, calibration. Numpy only, no model.

Protocols, which are applied to reading and label alike:
- "36":    case folded, all but 0-9 and a-z taken out. What most papers report.
- "62":    all but 0-9, a-z and A-Z taken out.
- "94":    all but printable ASCII taken out, spaces too.
- "exact": every character counts (after Unicode NFC).
A word whose label has nothing left under a protocol cannot be judged by it: it is left out and counted.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitocr.calibration import operating_points
from vitocr.codec import PRESETS, nfc
from vitocr.errors import UserError, did_you_mean
from vitocr.metrics import bootstrap_interval, expected_calibration_error

PROTOCOLS = ("36", "62", "94", "exact")
_KEPT = {name: frozenset(PRESETS[name]) for name in ("36", "62", "94")}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def normalise(text: str, protocol: str) -> str:
    """What of a text counts under a protocol."""
    if protocol == "exact":
        return nfc(text)
    if protocol not in _KEPT:
        raise UserError(f"There is no protocol {protocol!r}.{did_you_mean(protocol, PROTOCOLS)} Choose of {PROTOCOLS}.")
    if protocol == "36":
        text = text.translate(_LOWER)  # ASCII only: `lower` makes an i of İ
    kept = _KEPT[protocol]
    return text if kept.issuperset(text) else "".join(character for character in text if character in kept)


def protocol_for(characters: Iterable[str]) -> str:
    """The narrowest protocol that sees all of these characters: how to judge a model that can write no others."""
    characters = frozenset(characters)
    return next((name for name in ("36", "62", "94") if characters <= _KEPT[name]), "exact")


def edit_distance(left: str, right: str) -> int:
    """The fewest insertions, deletions and substitutions that make one text of the other."""
    if left == right:
        return 0
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def edits(label: str, reading: str) -> list[tuple[str, str]]:
    """(written, read) of every character that was misread, on a shortest path; "" stands for none."""
    cost = np.empty((len(label) + 1, len(reading) + 1), dtype=np.int64)
    cost[:, 0], cost[0] = np.arange(len(label) + 1), np.arange(len(reading) + 1)
    for i, a in enumerate(label, 1):
        for j, b in enumerate(reading, 1):
            cost[i, j] = min(cost[i - 1, j] + 1, cost[i, j - 1] + 1, cost[i - 1, j - 1] + (a != b))
    found: list[tuple[str, str]] = []
    i, j = len(label), len(reading)
    while i or j:
        if i and j and cost[i, j] == cost[i - 1, j - 1] + (label[i - 1] != reading[j - 1]):
            i, j = i - 1, j - 1
            if label[i] != reading[j]:
                found.append((label[i], reading[j]))
        elif i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
            found.append((label[i], ""))
        else:
            j -= 1
            found.append(("", reading[j]))
    return found[::-1]


def right_words(readings: Sequence[str], labels: Sequence[str], protocol: str) -> np.ndarray:
    """(N,) 1.0 where a reading is right, 0.0 where it is wrong, NaN where the protocol leaves the word out."""
    if len(readings) != len(labels):
        raise ValueError(f"{len(readings)} readings of {len(labels)} labels")
    pairs = ((normalise(r, protocol), normalise(t, protocol)) for r, t in zip(readings, labels, strict=True))
    return np.array([float(r == t) if t else np.nan for r, t in pairs], dtype=np.float64)


def summarise_text(
    readings: Sequence[str],
    labels: Sequence[str],
    confidences: Sequence[float] | None = None,
    *,
    protocol: str = "exact",
    worst: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """The figures of one set, in plain types.

    `accuracy` holds all protocols (None where a protocol leaves every word out); what follows it is judged under
    `protocol`: "ned" is the mean of edit distance / length of the longer text, and "cer" all edit distances / all
    characters of the labels (both 0 at best), "ece" the calibration error of the confidences, `thresholds` the
    confidence from which on at most so many words are wrong and how many that keeps, `by_length` the accuracy for each
    length of label, `confusions` what was most often read as what. Keys that end in `_95` are bootstrap intervals.
    """
    if not len(labels):
        raise ValueError("No readings to summarise: the set is empty.")
    judged = {name: right_words(readings, labels, name) for name in PROTOCOLS}
    kept = {name: right[~np.isnan(right)] for name, right in judged.items()}
    summary: dict[str, Any] = {
        "n": len(labels),
        "accuracy": {name: float(right.mean()) if len(right) else None for name, right in kept.items()},
        "accuracy_95": {
            name: list(bootstrap_interval(right, seed=seed)) if len(right) else None for name, right in kept.items()
        },
        "left_out": {name: len(labels) - len(right) for name, right in kept.items()},
        "protocol": protocol,
    }
    rows = np.flatnonzero(~np.isnan(judged[protocol]))
    if not len(rows):
        return summary | {"ned": None, "cer": None}
    pairs = [(normalise(readings[row], protocol), normalise(labels[row], protocol)) for row in rows.tolist()]
    distances = np.array([edit_distance(*pair) for pair in pairs], dtype=np.float64)
    longer = np.array([max(map(len, pair)) for pair in pairs], dtype=np.float64)
    lengths = np.array([len(label) for _, label in pairs])
    summary["ned"], summary["ned_95"] = _ratio(distances / longer, np.ones(len(rows)), seed)
    summary["cer"], summary["cer_95"] = _ratio(distances, lengths.astype(np.float64), seed)
    right = judged[protocol][rows]
    if confidences is not None:
        sure = np.asarray(confidences, dtype=np.float64)[rows]
        # As of a classifier with one class, whose label it misses where the reading is wrong.
        summary["ece"] = expected_calibration_error(sure[:, None], right == 0)
        summary["thresholds"] = operating_points(sure, right == 1)
    summary["by_length"] = {
        str(length): {"n": int((lengths == length).sum()), "accuracy": float(right[lengths == length].mean())}
        for length in np.unique(lengths).tolist()
    }
    misread = Counter(edit for reading, label in pairs if reading != label for edit in edits(label, reading))
    summary["confusions"] = [
        {"label": written, "read": read, "count": count}
        for (written, read), count in sorted(misread.items(), key=lambda item: (-item[1], item[0]))[:worst]
    ]
    return summary


def _ratio(above: np.ndarray, below: np.ndarray, seed: int, *, resamples: int = 1000) -> tuple[float, list[float]]:
    """Sum over sum, and its 95 % percentile interval under resampling of rows."""
    random = np.random.default_rng(seed)
    values = np.empty(resamples)
    for at in range(resamples):
        rows = random.integers(len(above), size=len(above))
        values[at] = above[rows].sum() / below[rows].sum()
    return float(above.sum() / below.sum()), np.quantile(values, [0.025, 0.975]).tolist()


def summarise_sets(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of several sets, with their mean (every set counts alike) and weighted mean (every word does).

    Words and characters that a protocol left out weigh nothing; a set it left out whole is not in its mean.
    """
    together: dict[str, dict[str, Any]] = {"mean": {"accuracy": {}}, "weighted": {"accuracy": {}}}
    for protocol in PROTOCOLS:
        figures = [(s["accuracy"][protocol], s["n"] - s["left_out"][protocol]) for s in sets.values()]
        for how, value in zip(together, _means(figures), strict=True):
            together[how]["accuracy"][protocol] = value
    for key in ("ned", "cer"):
        # Where sets are weighed, a character of one counts as much as a character of another.
        figures = [(s[key], _words(s) if key == "ned" else _characters(s)) for s in sets.values()]
        for how, value in zip(together, _means(figures), strict=True):
            together[how][key] = value
    return {"sets": dict(sets), **together, "n": sum(s["n"] for s in sets.values())}


def _words(summary: Mapping[str, Any]) -> int:
    return int(summary["n"] - summary["left_out"][summary["protocol"]])


def _characters(summary: Mapping[str, Any]) -> int:
    return sum(int(length) * entry["n"] for length, entry in summary.get("by_length", {}).items())


def _means(figures: Sequence[tuple[float | None, int]]) -> tuple[float | None, float | None]:
    """Of (value, weight): the plain and the weighted mean."""
    known = [(value, weight) for value, weight in figures if value is not None]
    if not known:
        return None, None
    values, weights = zip(*known, strict=True)
    return float(np.mean(values)), float(np.average(values, weights=weights))
