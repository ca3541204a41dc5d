"""Whether there is any text to read, told by the mean of an image's tokens: a logistic regression on it.

What a model reads out of a wall it may be sure of: a pole is a fine `I`. But the encoder knows more than its decoder
says. How likely it finds any text in an image, fitted on words and on images without any, goes into the confidence as
a factor (`Calibration.of_text`).

It stands in a model's description under `calibration`, as {"weights", "bias"}. Numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
FEWEST = 100  # images without text, and words, to fit on: fewer say little about hundreds of channels
DECAY = 3e-3  # keeps the weights small: there are nearly as many as images
DIGITS = 5  # of a weight that are stored


@dataclass(frozen=True)
class Presence:
    weights: Floats  # (D,)
    bias: float

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Presence:
        return cls(np.array(stored["weights"], dtype=np.float64), float(stored["bias"]))

    def to_dict(self) -> dict[str, Any]:
        return {"weights": [float(f"{w:.{DIGITS}g}") for w in self.weights], "bias": round(self.bias, DIGITS)}

    def __call__(self, summary: ArrayLike) -> Floats:
        """Means of tokens (..., D) to the probability (...) that there is text."""
        return share(np.asarray(summary, dtype=np.float64) @ self.weights + self.bias)


def share(logit: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(0.5 * logit))  # the logistic function, which so never overflows


def fit_presence(words: ArrayLike, blanks: ArrayLike) -> Presence:
    """Of means of tokens, (n, D) of words and (m, D) of images without text; both count alike, however many there are.

    Newton's method on standardised channels, with decay."""
    x = np.concatenate([np.asarray(words, dtype=np.float64), np.asarray(blanks, dtype=np.float64)])
    y = np.repeat([1.0, 0.0], [len(words), len(blanks)])  # type: ignore[arg-type]
    counts = np.where(y == 1, 0.5 / y.sum(), 0.5 / (1 - y).sum())  # sums to one
    middle, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = np.concatenate([(x - middle) / spread, np.ones((len(x), 1))], axis=1)  # (n + m, D + 1)
    decay = np.append(np.full(x.shape[1], 2 * DECAY), 0.0)
    found = np.zeros(z.shape[1])
    for _ in range(50):
        p = share(z @ found)
        gradient = z.T @ (counts * (p - y)) + decay * found
        hessian = (z * (counts * p * (1 - p))[:, None]).T @ z + np.diag(decay + 1e-9)
        step = np.linalg.solve(hessian, gradient)
        found -= step * min(1.0, 5.0 / max(np.abs(step).max(), 1e-12))  # far from the optimum Newton overshoots
        if np.abs(step).max() < 1e-8:
            break
    weights = found[:-1] / spread
    return Presence(weights, float(found[-1] - weights @ middle))
