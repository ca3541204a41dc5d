"""Confidence that means something: of the words read at 0.9, nine in ten should be right.

A model's own probability of a text is too high or too low by a regular amount. Two numbers, fitted on words it
was not trained on, set that right: logit(p) -> scale * logit(p) + shift (Platt scaling; with shift 0 it is the
temperature of a single decision). They keep the order, so no reading changes, and travel with the model.
Numpy only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitocr.errors import UserError

Floats = NDArray[np.float64]
FEWEST = 50  # words; two numbers from fewer would be chance
EPSILON = 1e-7  # a confidence nearer to 0 or 1 counts as this near


@dataclass(frozen=True)
class Calibration:
    scale: float = 1.0
    shift: float = 0.0
    words: int = 0  # that it was fitted on

    def __call__(self, confidence: ArrayLike) -> Floats:
        """The model's own confidence, 0 to 1, to the share of right readings to expect."""
        return sigmoid(self.scale * logit(confidence) + self.shift)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def logit(p: ArrayLike) -> Floats:
    p = np.clip(np.asarray(p, dtype=np.float64), EPSILON, 1 - EPSILON)
    return np.log(p) - np.log1p(-p)


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def fit_calibration(confidence: ArrayLike, right: ArrayLike) -> Calibration:
    """The scale and shift under which these answers, right or wrong, are the likeliest (Newton's method).

    As Platt did, right counts as a little less than 1 and wrong as a little more than 0: a model that made no
    mistake on a hundred words is not yet infallible.
    """
    x, y = logit(confidence), np.asarray(right, dtype=np.float64)
    if len(x) != len(y) or len(x) < FEWEST:
        raise UserError(f"Calibrating needs at least {FEWEST} words with their labels, not {len(x)}.")
    wins, losses = y.sum(), len(y) - y.sum()
    target = np.where(y > 0.5, (wins + 1) / (wins + 2), 1 / (losses + 2))
    inputs = np.stack([x, np.ones_like(x)], axis=1)  # (n, 2)
    weights = np.array([1.0, 0.0])
    for _ in range(100):
        p = sigmoid(inputs @ weights)
        gradient = inputs.T @ (p - target)
        hessian = (inputs * (p * (1 - p))[:, None]).T @ inputs + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        weights -= step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-12))  # far from the optimum Newton overshoots
        if np.abs(step).max() < 1e-9:
            break
    if weights[0] <= 0:  # surer when wrong than when right: only the share of right ones is known
        return Calibration(EPSILON, float(logit((wins + 1) / (len(y) + 2))), len(y))
    return Calibration(float(weights[0]), float(weights[1]), len(y))


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
