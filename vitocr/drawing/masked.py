"""A sheet of pictures as they are, as pretraining shows them to the model, and as the model completes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitocr.drawing.classes import FAINT, INK

TITLES = ("as it is", "what is seen", "completed")
HIGH = 0.95  # inches of a picture
WIDEST = 12.0  # inches of the sheet, where that leaves room for at least one picture in a row


def draw_masked(
    path: str | Path,
    originals: NDArray[np.uint8],
    seen: NDArray[np.uint8],
    completed: NDArray[np.uint8],
    *,
    caption: str,
) -> None:
    """Each (n, h, w, 3) uint8."""
    count, height, width, _ = originals.shape
    high = HIGH if width <= 2 * height else 0.6  # words are wide
    wide = high * width / height
    group = 3 * (wide + 0.08) + 0.25
    columns = max(1, min(count, int((WIDEST - 0.2) / group)))
    rows = -(-count // columns)
    inches = (columns * group + 0.2, rows * (high + 0.08) + 0.85)
    figure = Figure(figsize=inches, dpi=120, facecolor="white")
    figure.text(0.2 / inches[0], 1 - 0.12 / inches[1], caption, color=INK, fontsize=8.5, va="top", linespacing=1.4)
    for place in range(count):
        down, across = divmod(place, columns)
        pictures: Sequence[NDArray[np.uint8]] = (originals[place], seen[place], completed[place])
        for number, (title, picture) in enumerate(zip(TITLES, pictures, strict=True)):
            left = 0.2 + across * group + number * (wide + 0.08)
            bottom = inches[1] - 0.75 - (down + 1) * high - down * 0.08
            axes = figure.add_axes((left / inches[0], bottom / inches[1], wide / inches[0], high / inches[1]))
            axes.imshow(picture, interpolation="nearest" if max(height, width) < 100 else "antialiased", aspect="auto")
            axes.set_axis_off()
            if down == 0:
                figure.text(left / inches[0], (bottom + high + 0.12) / inches[1], title, color=FAINT, fontsize=8.5,
                            va="center")  # fmt: skip
    figure.savefig(path, format="png")
