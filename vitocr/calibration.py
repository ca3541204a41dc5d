"""Confidence that means something: of the words read at 0.9, nine in ten should be right.

A model's own probability of a text is too high or too low by a regular amount. Two numbers, fitted on words it
was not trained on, set that right: logit(p) -> scale * logit(p) + shift (Platt scaling; with shift 0 it is the
temperature of a single decision). They keep the order, so no reading changes, and travel with the model.

Classes have a distribution to keep: there one number does it, the temperature that all logits are divided by
(Guo et al. 2017), and the order is kept as well.

Both stand in a model's description under `calibration`: of a model that reads {"scale", "shift", "words",
"threshold", "presence"}, of one that tells classes apart {"temperature", "images"}. Numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitocr.errors import UserError
from vitocr.metrics import log_softmax
from vitocr.presence import Presence

Floats = NDArray[np.float64]
FEWEST = 50  # words; two numbers from fewer would be chance
EPSILON = 1e-7  # a confidence nearer to 0 or 1 counts as this near
HOTTEST = 20.0  # a model that makes no mistake would be given any temperature down to 0, and a hopeless one infinity
ERRORS = (0.01, 0.02, 0.05)  # wanted shares of wrong answers, for which `vitocr eval` names thresholds


@dataclass(frozen=True)
class Calibration:
    scale: float = 1.0
    shift: float = 0.0
    words: int = 0  # that it was fitted on
    threshold: float = 0.0  # calibrated confidence below which there counts as nothing to read
    presence: Presence | None = None  # tells images without text; None: whatever is read is taken to be there

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Calibration:
        """What a description holds under `calibration`."""
        return cls(
            float(stored.get("scale", 1.0)),
            float(stored.get("shift", 0.0)),
            int(stored.get("words", 0)),
            float(stored.get("threshold", 0.0)),
            Presence.from_dict(stored["presence"]) if stored.get("presence") else None,
        )

    def __call__(self, confidence: ArrayLike) -> Floats:
        """The model's own confidence, 0 to 1, to the share of right readings to expect."""
        return sigmoid(self.scale * logit(confidence) + self.shift)

    def of_text(self, summaries: Sequence[ArrayLike]) -> float:
        """What a confidence is multiplied by, for there may be no text at all: the odds that there is, at most 1, so
        that words keep theirs. By the summaries of an image's parts: one part with text will do."""
        if self.presence is None:
            return 1.0
        there = max(float(self.presence(summary)) for summary in summaries)
        return 1.0 if there >= 0.5 else there / (1 - there)

    def to_dict(self) -> dict[str, Any]:
        stored = {"scale": self.scale, "shift": self.shift, "words": self.words, "threshold": self.threshold}
        return stored | ({"presence": self.presence.to_dict()} if self.presence is not None else {})


def logit(p: ArrayLike) -> Floats:
    p = np.clip(np.asarray(p, dtype=np.float64), EPSILON, 1 - EPSILON)
    return np.log(p) - np.log1p(-p)


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def fit_calibration(confidence: ArrayLike, right: ArrayLike, *, weights: ArrayLike | None = None) -> Calibration:
    """The scale and shift under which these answers, right or wrong, are the likeliest (Newton's method).
    weights: how much each counts, beside the others; by default all alike.

    As Platt did, right counts as a little less than 1 and wrong as a little more than 0: a model that made no
    mistake on a hundred words is not yet infallible.
    """
    x, y = logit(confidence), np.asarray(right, dtype=np.float64)
    if len(x) != len(y) or len(x) < FEWEST:
        raise UserError(f"Calibrating needs at least {FEWEST} words with their labels, not {len(x)}.")
    counts = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    counts = counts / counts.mean()
    wins, losses = (counts * y).sum(), (counts * (1 - y)).sum()
    target = np.where(y > 0.5, (wins + 1) / (wins + 2), 1 / (losses + 2))
    inputs = np.stack([x, np.ones_like(x)], axis=1)  # (n, 2)
    line = np.array([1.0, 0.0])
    for _ in range(100):
        p = sigmoid(inputs @ line)
        gradient = inputs.T @ (counts * (p - target))
        hessian = (inputs * (counts * p * (1 - p))[:, None]).T @ inputs + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        line -= step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))  # far from the optimum Newton overshoots
        if np.abs(step).max() < 1e-9:
            break
    if line[0] <= 0:  # surer when wrong than when right: only the share of right ones is known
        return Calibration(EPSILON, float(logit((wins + 1) / (len(y) + 2))), len(y))
    return Calibration(float(line[0]), float(line[1]), len(y))


class Operating(NamedTuple):
    """What a threshold gives: answers at least as sure as it are kept."""

    threshold: float
    kept: float  # share of all answers
    error: float  # share of wrong ones among those kept


def threshold_for(confidence: ArrayLike, right: ArrayLike, *, error: float) -> Operating | None:
    """The lowest threshold at which at most `error` of the answers kept are wrong; None where none does that."""
    sure, good = np.asarray(confidence, dtype=np.float64), np.asarray(right, dtype=bool)
    order = np.argsort(-sure, kind="stable")
    wrong = np.cumsum(~good[order]) / np.arange(1, len(order) + 1)
    last = np.append(sure[order][1:] < sure[order][:-1], True)  # answers equally sure are kept together
    fits = np.flatnonzero((wrong <= error) & last)
    if not len(fits):
        return None
    at = int(fits[-1])
    return Operating(float(sure[order][at]), (at + 1) / len(order), float(wrong[at]))


def operating_points(
    confidence: ArrayLike, right: ArrayLike, errors: Iterable[float] = ERRORS
) -> list[dict[str, float | None]]:
    """For each wanted error rate: the threshold, the share of answers it keeps, and their error. In plain types;
    None and 0 kept where no threshold gets there."""
    points: list[dict[str, float | None]] = []
    for wanted in errors:
        found = threshold_for(confidence, right, error=wanted)
        threshold, kept, error = found or (None, 0.0, None)
        points.append({"wanted": wanted, "threshold": threshold, "kept": kept, "error": error})
    return points


def threshold_for_blanks(confidence: ArrayLike, *, images: int, share: float) -> float:
    """The lowest threshold at which at most `share` of `images` that show nothing get an answer.

    confidence: of those among them that were answered with a text, wrongly.
    """
    surest_first = -np.sort(-np.asarray(confidence, dtype=np.float64))
    allowed = int(share * images)
    # Answers as sure as the threshold are given: it lies just above the surest that must not be.
    return float(np.nextafter(surest_first[allowed], 1.0)) if allowed < len(surest_first) else 0.0


def fit_temperature(logits: Any, labels: ArrayLike) -> float:
    """The temperature that makes logits (N, C) the likeliest for the true classes (N,), by Newton's method.

    The inverse of it is what is sought: in that the likelihood has one summit.
    """
    z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if len(z) != len(y) or len(z) < FEWEST:
        raise UserError(f"Calibrating needs at least {FEWEST} images with their classes, not {len(z)}.")
    coldness = 1.0
    for _ in range(100):
        shares = np.exp(log_softmax(coldness * z))
        mean = (shares * z).sum(axis=1)
        slope = float((mean - z[np.arange(len(y)), y]).mean())
        curvature = float(((shares * z**2).sum(axis=1) - mean**2).mean())
        # Far from the summit the parabola overshoots, and past 0 everything would be turned round.
        wanted = coldness - slope / max(curvature, 1e-12)
        before, coldness = coldness, float(np.clip(wanted, coldness / 2, coldness * 2))
        coldness = float(np.clip(coldness, 1 / HOTTEST, HOTTEST))
        if abs(coldness - before) < 1e-9 * before:
            break
    return 1 / coldness
