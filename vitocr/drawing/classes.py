"""Pictures of how a model does: the confusion matrix, and a sheet of right and wrong answers.

Drawn through matplotlib's objects alone: no pyplot, so no global state and no window, and
nothing a notebook or a trainer has open is touched.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image

INK, FAINT, RIGHT, WRONG = "#1f2933", "#7b8794", "#1a7f4b", "#c8322d"
ANNOTATED, NAMED = 25, 60  # up to so many classes, cells get numbers and axes get names
COLUMNS, CELL = 8, 1.35  # of the sheet; inches


def draw_confusion(path: str | Path, matrix: NDArray[np.int64], names: Sequence[str]) -> None:
    """Rows are true classes, columns predicted ones, in percent of the row; the worst pairs are listed."""
    names, font = legible(names)
    count = len(names)
    totals = matrix.sum(axis=1, keepdims=True)
    share = 100 * matrix / np.maximum(totals, 1)
    side = min(max(0.52 * count, 4.0), 14.0)
    ticks = [_short(name, 24) for name in names] if count <= NAMED else []
    margin = 0.6 + 0.085 * max(map(len, ticks), default=0)  # inches, for the names
    width, height = margin + side + 3.1, margin + side + 0.5
    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    axes = figure.add_axes((margin / width, margin / height, side / width, side / height))

    # Errors are few beside the diagonal: a square-root scale keeps them visible.
    axes.imshow(np.sqrt(share), cmap="Blues", vmin=0, vmax=10)
    axes.set_title(
        f"{100 * np.trace(matrix) / max(matrix.sum(), 1):.2f} % of {matrix.sum():,} right",
        loc="left", color=INK, fontsize=12, fontweight="bold",
    )  # fmt: skip
    axes.set_xlabel("predicted", color=FAINT)
    axes.set_ylabel("true", color=FAINT)
    size = 9 if count <= ANNOTATED else 8 if count <= 40 else 6
    axes.set_xticks(range(len(ticks)), ticks, rotation=90, fontsize=size, fontfamily=font)
    axes.set_yticks(range(len(ticks)), ticks, fontsize=size, fontfamily=font)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    if count <= ANNOTATED:
        for row, column in np.argwhere(share >= 0.05):
            value = share[row, column]
            axes.text(
                column, row, f"{value:.0f}" if value >= 9.95 else f"{value:.1f}",
                ha="center", va="center", fontsize=8, color="white" if value > 35 else INK,
            )  # fmt: skip

    left = (margin + side + 0.3) / width
    top = (margin + side) / height
    figure.text(left, top, "Most often confused", va="top", color=INK, fontsize=10, fontweight="bold")
    for line, text in enumerate(_worst_pairs(matrix, names, limit=min(12, int(side / 0.25) - 1))):
        figure.text(
            left,
            top - (0.32 + 0.24 * line) / height,
            text,
            va="top",
            color=INK,
            fontsize=8.5,
            fontfamily=font,
        )
    _save(figure, path)


def _worst_pairs(matrix: NDArray[np.int64], names: Sequence[str], *, limit: int) -> list[str]:
    errors = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-errors, axis=None, kind="stable")[:limit]
    pairs = [divmod(int(cell), len(names)) for cell in order]
    return [f"{_short(names[t], 16)} → {_short(names[p], 16)}   {errors[t, p]:,}" for t, p in pairs if errors[t, p]]


def draw_samples(
    path: str | Path,
    images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
    labels: Any,
    probs: Any,
    names: Sequence[str],
    *,
    seed: int = 0,
) -> None:
    """A sheet of answers: the surest wrong ones, the least sure right ones, and some at random.

    images: uint8 (H, W, 3) each; labels: (N,) true ids; probs: (N, C).
    """
    names, font = legible(names)
    labels, probs = np.asarray(labels), np.asarray(probs)
    predicted, confidence = probs.argmax(axis=1), probs.max(axis=1)
    right = predicted == labels
    by_confidence = np.argsort(confidence, kind="stable")
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    bands = [
        ("Wrong, and most sure of it", by_confidence[~right[by_confidence]][::-1]),
        ("Right, but least sure", by_confidence[right[by_confidence]]),
        ("At random", shuffled),
    ]
    bands = [(title, rows[: 2 * COLUMNS]) for title, rows in bands if len(rows)]

    # Everything stands in one coordinate system, in inches from the top left corner.
    pitches = [CELL + (0.28 if right[rows].all() else 0.45) for _, rows in bands]  # wrong ones have two lines
    heights = [0.6 + pitch * -(-len(rows) // COLUMNS) for pitch, (_, rows) in zip(pitches, bands, strict=True)]
    width, height = COLUMNS * CELL + 0.48, sum(heights) + 0.1
    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    text: dict[str, Any] = {"fontfamily": font, "va": "center"}
    accuracy = f"{100 * right.mean():.2f} % of {len(labels):,} right" if len(labels) else "no answers"
    axes.text(width - 0.3, 0.35, accuracy, ha="right", fontsize=10, color=FAINT, va="center")

    y = 0.1
    for pitch, band_height, (title, rows) in zip(pitches, heights, bands, strict=True):
        axes.text(0.3, y + 0.25, title, fontsize=12, fontweight="bold", color=INK, **text)
        for place, row in enumerate(rows):
            left, top = 0.3 + CELL * (place % COLUMNS), y + 0.5 + pitch * (place // COLUMNS)
            side = CELL - 0.12
            axes.imshow(
                _framed(images[row], pixels=round(side * 120)),
                extent=(left, left + side, top + side, top), interpolation="none", aspect="auto",
            )  # fmt: skip
            caption = f"{_short(names[predicted[row]], 12)} {100 * confidence[row]:.0f} %"
            colour = RIGHT if right[row] else WRONG
            axes.text(left, top + side + 0.13, caption, fontsize=8.5, fontweight="bold", color=colour, **text)
            if not right[row]:
                truth = f"is {_short(names[labels[row]], 16)}"
                axes.text(left, top + side + 0.31, truth, fontsize=8.5, color=INK, **text)
        y += band_height
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    _save(figure, path)


def _framed(image: NDArray[np.uint8], *, pixels: int) -> Image.Image:
    """The image in a square of `pixels`, whole: small ones enlarged pixel by pixel, large ones smoothed."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    scale = pixels / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
    square = Image.new("RGB", (pixels, pixels), "#eef1f4")
    square.paste(picture, ((pixels - size[0]) // 2, (pixels - size[1]) // 2))
    return square


def _short(name: str, limit: int) -> str:
    """At most `limit` columns of text; Hangul and Chinese characters take two."""
    widths = np.cumsum([2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in name])
    return name if widths[-1] <= limit else name[: int(np.searchsorted(widths, limit))] + "…"


def _save(figure: Figure, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


# --- class names in any script ------------------------------------------------------------------------


def legible(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names, and fonts that can write them; what no installed font has is spelt in Latin letters."""
    default = "DejaVu Sans"  # comes with matplotlib
    missing = frozenset("".join(names)) - _characters_of(font_manager.findfont(default))
    font = _font_for(missing) if missing else None
    if missing and font is None:
        return ["".join(_spelt(c) if c in missing else c for c in name) for name in names], [default]
    return [*names], [default, font] if font else [default]


@lru_cache
def _characters_of(font_path: str) -> frozenset[str]:
    return frozenset(map(chr, FT2Font(font_path).get_charmap()))


@lru_cache
def _font_for(characters: frozenset[str]) -> str | None:
    """An installed font family that has all of `characters`."""
    for entry in font_manager.fontManager.ttflist:
        if entry.name.startswith("Last Resort"):  # has every character, as an empty box
            continue
        try:
            if characters <= _characters_of(entry.fname):
                return entry.name
        except (OSError, RuntimeError):  # listed by the system, but gone or damaged
            continue
    return None


def _spelt(character: str) -> str:
    """'고' -> 'go', 'ね' -> 'ne', anything else by its code point."""
    kind, _, sound = unicodedata.name(character, "").rpartition(" ")
    if kind in ("HANGUL SYLLABLE", "HIRAGANA LETTER", "KATAKANA LETTER"):
        return sound.lower()
    return f"U+{ord(character):04X}"
