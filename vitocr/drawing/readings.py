"""A sheet of words and how they were read: the surest mistakes, the least sure right ones, and some at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unicodedata import east_asian_width

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitocr.drawing.classes import FAINT, INK, RIGHT, WRONG, legible
from vitocr.results import Failure, Reading
from vitocr.text_metrics import normalise

COLUMNS, ROWS = 6, 4  # of each band
WIDE, HIGH = 2.0, 0.95  # inches of a word and what stands below it
LETTERS = 21  # bold capitals of 9 points that fit below a word


def draw_readings(
    path: str | Path,
    images: Sequence[NDArray[np.uint8]],
    labels: Sequence[str],
    readings: Sequence[Reading | Failure],
    *,
    protocol: str,
    seed: int = 0,
) -> None:
    texts = [reading.text if isinstance(reading, Reading) else "" for reading in readings]
    sure = np.array([reading.confidence if isinstance(reading, Reading) else 0.0 for reading in readings])
    right = np.array([normalise(a, protocol) == normalise(b, protocol) for a, b in zip(texts, labels, strict=True)])
    order = np.argsort(sure, kind="stable")
    bands = [
        ("Wrong, and most sure of it", order[~right[order]][::-1]),
        ("Right, but least sure", order[right[order]]),
        ("At random", np.random.default_rng(seed).permutation(len(labels))),
    ]
    bands = [(title, rows[: COLUMNS * ROWS]) for title, rows in bands if len(rows)]
    heights = [0.5 + HIGH * -(-len(rows) // COLUMNS) for _, rows in bands]
    figure = Figure(figsize=(COLUMNS * WIDE + 0.4, sum(heights) + 0.3), dpi=110, facecolor="white")
    width, height = figure.get_size_inches()
    figure.text(
        1 - 0.2 / width, 1 - 0.3 / height, f"{100 * right.mean():.2f} % of {len(labels):,} right", ha="right",
        color=FAINT, fontsize=11,
    )  # fmt: skip
    names, font = legible([*texts, *labels])
    top = height - 0.15
    for (title, rows), band in zip(bands, heights, strict=True):
        figure.text(0.2 / width, (top - 0.25) / height, title, color=INK, fontsize=12, fontweight="bold", va="center")
        for place, row in enumerate(rows.tolist()):
            down, across = divmod(place, COLUMNS)
            left, bottom = 0.2 + across * WIDE, top - 0.5 - (down + 1) * HIGH
            axes = figure.add_axes((left / width, (bottom + 0.42) / height, (WIDE - 0.15) / width, 0.48 / height))
            axes.imshow(images[row], aspect="auto")
            axes.set_axis_off()
            colour = RIGHT if right[row] else WRONG
            said = f"{names[row] or '(nothing)'}  {100 * sure[row]:.0f} %"
            figure.text(left / width, (bottom + 0.3) / height, said, color=colour, fontsize=fitting(said, 9.0),
                        fontweight="bold", va="center", fontfamily=font)  # fmt: skip
            if not right[row]:
                label = f"is {names[len(texts) + row]}"
                figure.text(left / width, (bottom + 0.13) / height, label, color=INK, fontsize=fitting(label, 8.5),
                            va="center", fontfamily=font)  # fmt: skip
        top -= band
    figure.savefig(path, format="png")


def fitting(text: str, size: float) -> float:
    """The font size, at most `size` points, at which a text stays below its own word."""
    letters = sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
    return size * min(1.0, LETTERS / max(letters, 1))
