"""Pixels: heat over a picture, filters as small pictures, the grid of grids, the plot of distances, and sheets.

A panel is a picture with a caption. Panels are what the page shows, each with its caption as text, and what a
sheet, the PNG file, sets side by side; so the two cannot tell different stories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib import colormaps, font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitocr.drawing.classes import FAINT, INK, legible

Picture = Image.Image
PAPER = (255, 255, 255)
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
WEAK, STRONG = np.array([255.0, 214.0, 30.0]), np.array([224.0, 16.0, 48.0])  # of heat: yellow, then red
BOX = (0, 96, 230)
DARK_INK, DARK_FAINT = "#e6eaef", "#93a1b0"  # of plots on a dark page


@dataclass(frozen=True)
class Panel:
    picture: Picture
    caption: str  # short: it stands below the picture
    alt: str  # what the picture shows, for those who cannot see it
    on_dark: Picture | None = None  # the same with light ink, where there is ink in the picture


@dataclass(frozen=True)
class Row:
    """Panels that belong together, under a title or none."""

    title: str
    panels: list[Panel]


# --- heat over an image ---------------------------------------------------------------------------------


def tile_size(pixels: NDArray[np.uint8]) -> tuple[int, int]:
    """Width and height at which an image is shown: large enough to be seen, words wider than photographs."""
    height, width = pixels.shape[:2]
    wide = int(min(max(144 * (width / height) ** 0.6, 96), 400))
    return wide, max(16, round(wide * height / width))


def enlarged(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Picture:
    """As large as asked for; small images stay the blocks of colour that the model is given."""
    smaller = pixels.shape[1] > size[0]
    return Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS if smaller else Image.Resampling.NEAREST)


def peak_ratio(share: NDArray[np.float32]) -> float:
    """How many times an even share the largest is."""
    return float(share.max() / max(share.mean(), 1e-12))


def spread(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    """Brightness with its contrast raised, four times at most, to fill 0 to 255: dim crops are to be read as well."""
    low, high = np.percentile(grey, (1, 99))
    gain = min(255 / max(float(high - low), 1e-6), 4.0)
    return np.clip(127.5 + (grey - (low + high) / 2) * gain, 0, 255).astype(np.float32)


def heat(pixels: NDArray[np.uint8], share: NDArray[np.float32]) -> Picture:
    """The image in grey, coloured where `share` (gh, gw) is more than even: yellow, and red at the peak.

    A map that is nearly even stays nearly grey: full colour takes a peak of twice the even share at least.
    """
    size = tile_size(pixels)
    image = np.asarray(enlarged(pixels, size), np.float32)
    grey = spread(image @ LUMINANCE)[..., None]  # (h, w, 1)
    # Mostly grey and neither black nor white, so that both colours stand out everywhere.
    ground = 75 + 0.15 * image + 0.38 * grey  # (h, w, 3), 75 to 210
    ratio = share / max(float(share.mean()), 1e-12)
    above = np.clip((ratio - 1) / (max(float(ratio.max()), 2.0) - 1), 0, 1).astype(np.float32)
    strength = np.asarray(Image.fromarray(above).resize(size, Image.Resampling.BILINEAR))[..., None]  # (h, w, 1)
    # Darker where the image is, so that what lies under the peak, a letter say, can still be seen.
    colour = (WEAK + (STRONG - WEAK) * strength) * (0.45 + 0.55 * grey / 255)
    opaque = 0.85 * np.sqrt(strength)
    return Image.fromarray((ground * (1 - opaque) + colour * opaque).round().astype(np.uint8))


def boxed(picture: Picture, box: Sequence[float]) -> Picture:
    """With a frame around `box`: x0, y0, x1, y1 in shares of the picture."""
    w, h = picture.size
    x0, y0, x1, y1 = box
    corners = (round(x0 * w), round(y0 * h), max(round(x1 * w) - 1, 1), max(round(y1 * h) - 1, 1))
    framed = picture.copy()
    ImageDraw.Draw(framed).rectangle(corners, outline=BOX, width=2)
    return framed


# --- what a model has learned ---------------------------------------------------------------------------


def filter_picture(component: NDArray[np.float32]) -> Picture:
    """A filter (channels, h, w) as a picture: grey is nothing, a light or dark colour is for or against it."""
    shown = component if len(component) == 3 else component.mean(axis=0, keepdims=True).repeat(3, axis=0)
    scaled = 0.5 + 0.5 * shown / max(float(np.abs(shown).max()), 1e-12)
    pixels = (255 * scaled).round().astype(np.uint8).transpose(1, 2, 0)
    scale = max(1, round(96 / math.sqrt(pixels.shape[0] * pixels.shape[1])))
    return Image.fromarray(pixels).resize((pixels.shape[1] * scale, pixels.shape[0] * scale), Image.Resampling.NEAREST)


def shown_positions(count: int) -> range:
    """Which rows (or columns) of positions get a panel: all of a few, every second, third, ... of many."""
    return range(count)[:: max(1, -(-count * count // 128))]


def similarity_picture(cosines: NDArray[np.float32]) -> Picture:
    """(gh, gw, gh, gw) as a grid of grids: a panel for a position, a cell in it for each other position.

    Positions on a line make one square instead: a row for each.
    """
    rows, columns = cosines.shape[:2]
    low = float(cosines.min())
    if rows == 1 or columns == 1:
        return coloured(cosines.reshape(rows * columns, -1), low, max(1, 480 // (rows * columns)))
    down, across = shown_positions(rows), shown_positions(columns)
    cell = max(1, 560 // (columns * len(across)))
    gap = 4
    wide, high = columns * cell, rows * cell
    sheet = Image.new("RGBA", (len(across) * (wide + gap) - gap, len(down) * (high + gap) - gap))
    for i, row in enumerate(down):
        for j, column in enumerate(across):
            sheet.paste(coloured(cosines[row, column], low, cell), (j * (wide + gap), i * (high + gap)))
    return sheet


def coloured(values: NDArray[np.float32], low: float, cell: int) -> Picture:
    share = (values - low) / max(1 - low, 1e-6)
    picture = Image.fromarray((colormaps["viridis"](np.clip(share, 0, 1)) * 255).round().astype(np.uint8), "RGBA")
    return picture.resize((picture.width * cell, picture.height * cell), Image.Resampling.NEAREST)


def distance_plot(distance: NDArray[np.float32], even: float, *, dark: bool = False) -> Picture:
    """(L, H) attention distances against depth: a dot a head, a line through the means of the layers."""
    ink, faint = (DARK_INK, DARK_FAINT) if dark else (INK, FAINT)
    dots, line = ("#ff9d5c", "#7db4ff") if dark else ("#c8322d", "#1f5fa8")
    figure = Figure(figsize=(3.6, 2.9), dpi=240, layout="constrained")
    axes: Any = figure.subplots()
    layers = np.arange(1, len(distance) + 1)
    axes.axhline(even, color=faint, linewidth=1.2, linestyle=(0, (4, 3)), label="even")
    axes.plot(layers, distance.mean(axis=1), color=line, linewidth=1.8, label="layer mean")
    axes.scatter(np.repeat(layers, distance.shape[1]), distance.ravel(), s=20, color=dots, label="a head", zorder=3)
    axes.set_ylim(0, 1.15 * max(float(distance.max()), even, 1.0))
    axes.set_xticks(layers if len(layers) <= 12 else layers[:: -(-len(layers) // 12)])
    axes.set_xlim(0.6, len(layers) + 0.4)
    axes.set_xlabel("layer", color=ink, fontsize=11)
    axes.set_ylabel("distance, pixels", color=ink, fontsize=11)
    axes.tick_params(colors=ink, labelsize=10, length=0)
    axes.grid(axis="y", color=faint, alpha=0.25, linewidth=0.6)
    axes.spines[:].set_visible(False)
    figure.legend(frameon=False, fontsize=10, labelcolor=ink, loc="outside upper left", ncols=3, handlelength=1.5)
    figure.patch.set_alpha(0 if dark else 1)  # a dark page has its own ground
    axes.patch.set_alpha(0)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba()).copy(), "RGBA")


# --- sheets ---------------------------------------------------------------------------------------------


@lru_cache
def font(family: str, size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    found = font_manager.findfont(font_manager.FontProperties(family=[family], weight="bold" if bold else "normal"))
    return ImageFont.truetype(found, size)


def wrapped(text: str, face: ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and face.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def sheet(title: str, text: str, rows: Sequence[Row], *, columns: int) -> Picture:
    """A picture of all panels under a title and a text, at most `columns` side by side; the sheet is the PNG file."""
    panels = [panel for row in rows for panel in row.panels]
    names, families = legible([title, text, *(row.title for row in rows), *(panel.caption for panel in panels)])
    title, text, *names = names
    row_titles, captions = names[: len(rows)], iter(names[len(rows) :])
    scale = max(1.0, max(panel.picture.width for panel in panels) / 560)  # letters as large as those of a plot
    margin, gap, line = round(24 * scale), round(12 * scale), round(19 * scale)
    large, strong = (font(families[-1], round(size * scale), bold=True) for size in (20, 14))
    plain = font(families[-1], round(14 * scale))
    columns = min(columns, max(len(row.panels) for row in rows))
    wide = max(panel.picture.width for panel in panels)
    wide = max(wide, *(int(plain.getlength(caption)) for caption in names[len(rows) :]))
    width = max(margin * 2 + columns * (wide + gap) - gap, 560)

    # Where everything goes is settled first, so that the height is known.
    words = wrapped(text, plain, width - 2 * margin)
    put: list[tuple[int, int, str, ImageFont.FreeTypeFont, str]] = [(margin, margin, title, large, INK)]
    put += [(margin, margin + round(1.7 * line) + n * line, said, plain, FAINT) for n, said in enumerate(words)]
    pictures: list[tuple[int, int, Picture]] = []
    y = margin + 2 * line + line * len(words)
    for row, row_title in zip(rows, row_titles, strict=True):
        if row_title:
            put.append((margin, y, row_title, strong, INK))
            y += line + 4
        for start in range(0, len(row.panels), columns):
            beside = row.panels[start : start + columns]
            for place, panel in enumerate(beside):
                x = margin + place * (wide + gap)
                pictures.append((x, y, panel.picture))
                put.append((x, y + panel.picture.height + 3, next(captions), plain, INK))
            y += max(panel.picture.height for panel in beside) + line + gap
    whole = Image.new("RGB", (width, y + margin - gap), PAPER)
    for x, y, picture in pictures:
        whole.paste(picture, (x, y), picture if picture.mode == "RGBA" else None)
    draw = ImageDraw.Draw(whole)
    for x, y, said, face, colour in put:
        draw.text((x, y), said, fill=colour, font=face)
    return whole
