"""How good the answers are: accuracy with its uncertainty, per class, calibration. Numpy only, no model.

Arguments may be numpy arrays or torch tensors on any device; results are numpy arrays or plain floats
that JSON can hold. Sums run in float64, whatever precision the model ran in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def _floats(values: Any) -> Floats:
    if hasattr(values, "detach"):  # a tensor; numpy has no bfloat16
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def _ids(values: Any) -> NDArray[np.int64]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.int64)


def log_softmax(logits: Any) -> Floats:
    shifted = _floats(logits).copy()  # of the logits, which the caller keeps
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def accuracy(scores: Any, labels: Any, *, top: int = 1) -> float:
    """Share of rows whose label is among the `top` highest of `scores` (N, C), logits or probabilities."""
    ranked = np.argsort(-_floats(scores), axis=-1, kind="stable")[:, :top]
    return float((ranked == _ids(labels)[:, None]).any(axis=1).mean())


def confusion_matrix(predicted: Any, labels: Any, classes: int) -> NDArray[np.int64]:
    """Counts (C, C): row = the true class, column = the predicted one."""
    cells = _ids(labels) * classes + _ids(predicted)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def per_class_accuracy(matrix: NDArray[np.int64]) -> Floats:
    """Recall of every class from its confusion matrix; NaN for a class without examples."""
    totals = matrix.sum(axis=1)
    return np.where(totals > 0, np.diag(matrix) / np.maximum(totals, 1), np.nan)


def expected_calibration_error(probs: Any, labels: Any, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy over equal-width confidence bins, weighted by count."""
    probs = _floats(probs)
    confidence = probs.max(axis=1)
    correct = probs.argmax(axis=1) == _ids(labels)
    # Bin i is (i/bins, (i+1)/bins]: a confidence of exactly 1 belongs to the last.
    bin_of = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(bin_of, weights=confidence - correct, minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def nll(logits: Any, labels: Any) -> float:
    """Mean negative log likelihood of the true class, in nats."""
    ids = _ids(labels)
    return float(-log_softmax(logits)[np.arange(len(ids)), ids].mean())


def bootstrap_interval(correct: Any, *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of right/wrong answers.

    Resampling n answers with replacement makes the number of right ones binomial, so the resamples are
    drawn from that directly instead of by shuffling n rows ten thousand times.
    """
    answers = _floats(correct)
    means = np.random.default_rng(seed).binomial(len(answers), answers.mean(), size=10_000) / len(answers)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def summarise_classification(logits: Any, labels: Any, names: Sequence[str]) -> dict[str, Any]:
    """The figures of one split, in plain types. Classes without examples are left out of `per_class`."""
    logits, labels = _floats(logits), _ids(labels)
    if not len(labels):
        raise ValueError("No answers to summarise: the split is empty.")
    predicted = logits.argmax(axis=1)
    per_class = per_class_accuracy(confusion_matrix(predicted, labels, len(names)))
    summary: dict[str, Any] = {
        "images": len(labels),
        "accuracy": accuracy(logits, labels),
        "accuracy_95": list(bootstrap_interval(predicted == labels)),
        "nll": nll(logits, labels),
        "ece": expected_calibration_error(np.exp(log_softmax(logits)), labels),
    }
    if len(names) > 5:
        summary["top5_accuracy"] = accuracy(logits, labels, top=5)
    summary["per_class"] = {
        name: float(share) for name, share in zip(names, per_class, strict=True) if not np.isnan(share)
    }
    return summary
