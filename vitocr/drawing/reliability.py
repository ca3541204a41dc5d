"""The reliability plot: how often answers were right, by how sure the model was of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from vitocr.drawing.classes import FAINT, INK, RIGHT, WRONG
from vitocr.metrics import expected_calibration_error

BINS = 15  # as the calibration error counts them


def draw_reliability(path: str | Path, before: ArrayLike, after: ArrayLike, right: ArrayLike, *, title: str) -> None:
    """before, after: (N,) confidences as the model gave them, and calibrated; right: (N,) whether it was."""
    figure = Figure(figsize=(8.4, 5.0), dpi=120, facecolor="white")
    good = np.asarray(right, dtype=np.float64)
    figure.text(0.07, 0.94, title, color=INK, fontsize=12, fontweight="bold")
    told = f"{100 * good.mean():.2f} % of {len(good):,} right"
    figure.text(0.97, 0.94, told, color=FAINT, fontsize=10, ha="right")
    for place, (name, values, colour) in enumerate((("as it is", before, WRONG), ("calibrated", after, RIGHT))):
        sure = np.asarray(values, dtype=np.float64)
        left = 0.07 + 0.49 * place
        error = expected_calibration_error(sure[:, None], good == 0)
        draw_curve(figure.add_axes((left, 0.34, 0.41, 0.48)), sure, good, colour)
        figure.text(left, 0.85, f"{name}: calibration error {100 * error:.2f} %", color=INK, fontsize=10)
        counts = figure.add_axes((left, 0.12, 0.41, 0.14))
        counts.hist(sure, bins=np.linspace(0, 1, BINS + 1).tolist(), color=colour, alpha=0.7)
        counts.set_xlabel("confidence", color=FAINT, fontsize=9)
        counts.set_xlim(0, 1)
        for axes in figure.axes[-2:]:
            axes.tick_params(length=0, colors=INK, labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("share of right answers", color=FAINT, fontsize=9)
    figure.axes[1].set_ylabel("answers", color=FAINT, fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def draw_curve(axes: Axes, sure: NDArray[np.float64], good: NDArray[np.float64], colour: str) -> None:
    """A point for each bin, its area by how many answers are in it, and the line on which all should lie."""
    which = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)
    counts = np.bincount(which, minlength=BINS)
    filled = counts > 0
    x = np.bincount(which, weights=sure, minlength=BINS)[filled] / counts[filled]
    y = np.bincount(which, weights=good, minlength=BINS)[filled] / counts[filled]
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=":")
    axes.plot(x, y, color=colour, linewidth=1)
    axes.scatter(x, y, s=6 + 160 * counts[filled] / counts.max(), color=colour, alpha=0.7, linewidths=0)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
