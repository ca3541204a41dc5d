"""Sets a line of type: glyph masks pasted into one flat mask, with a box for every character.

The flat mask is where the ink is before any warp. Around the word there may be other words of the same sign and
rules; they are ink too, but have no boxes. `dress` adds what belongs to the lettering itself: strokes made thicker or
thinner, an outline, a shadow.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vitocr.data.render.fonts import CAPITAL_HEIGHT, Font
from vitocr.data.render.spec import Effects

Mask = NDArray[np.uint8]

PAD = 14  # around the ink: room for outlines, shadows and the warp's border


class Line(NamedTuple):
    mask: Mask  # (h, w)
    boxes: NDArray[np.float32]  # (n, 4) x0, y0, x1, y1 in pixels of the mask, around the ink of each character
    extent: tuple[float, float, float, float]  # x0, y0, x1, y1 of the word, without neighbours and rules


class Placed(NamedTuple):
    """A mask whose top left corner stands at (x, y), the pen having started at (0, 0) on the base line. A space has an
    empty mask and a box of its advance by the height of capitals."""

    mask: Mask
    x: int
    y: int
    width: int
    height: int


def set_line(rng: random.Random, font: Font, text: str, effects: Effects, others: list[str]) -> Line:
    """others: words to the left, right, above and below ("" for none), in the same font where it has them."""
    spacing = 0.0
    if rng.random() < effects.spacing:
        spacing = CAPITAL_HEIGHT * (rng.uniform(-0.05, 0.05) if rng.random() < 0.5 else rng.uniform(0.03, 0.4))
    jitter = CAPITAL_HEIGHT * 0.07 if rng.random() < effects.jitter else 0.0
    placed = _place(rng, font, text, spacing, jitter)
    word = _bounds(placed)
    x0, y0, x1, y1 = word
    room = [PAD, PAD, PAD, PAD]  # left, right, above, below
    around: list[Placed] = []
    for side, other in enumerate(others):
        if other and font.has(other):
            around.append(_beside(rng, side, word, _place(rng, font, other, spacing, 0.0), font.line_height))
            room[side] += int(1.1 * CAPITAL_HEIGHT)
    mask = np.zeros((y1 - y0 + room[2] + room[3], x1 - x0 + room[0] + room[1]), np.uint8)
    dx, dy = room[0] - x0, room[2] - y0
    for piece in around:
        _paste(mask, piece.mask, piece.x + dx, piece.y + dy)
    boxes = np.empty((len(placed), 4), np.float32)
    for row, (glyph, x, y, width, height) in enumerate(placed):
        _paste(mask, glyph, x + dx, y + dy)
        boxes[row] = (x + dx, y + dy, x + dx + width, y + dy + height)
    extent = (float(x0 + dx), float(y0 + dy), float(x1 + dx), float(y1 + dy))
    if rng.random() < effects.rule:
        _rule(rng, mask, extent)
    return Line(mask, boxes, extent)


def _place(rng: random.Random, font: Font, text: str, spacing: float, jitter: float) -> list[Placed]:
    """One for each character, along the base line."""
    placed = []
    pen = 0.0
    reached = -(10**6)
    for character in text:
        glyph = font.glyph(character)
        assert glyph is not None, f"{font.file.name} was chosen for {text!r} but lacks {character!r}"
        height, width = glyph.mask.shape
        if not height:
            placed.append(Placed(glyph.mask, round(pen), -CAPITAL_HEIGHT, max(1, int(glyph.advance)), CAPITAL_HEIGHT))
        else:
            x = round(pen) + glyph.left
            if spacing < 0 and x < reached - 1:  # set tight, but never one letter upon another
                pen += min(reached - 1 - x, -spacing)
                x = round(pen) + glyph.left
            y = glyph.top + (round(rng.gauss(0, jitter)) if jitter else 0)
            placed.append(Placed(glyph.mask, x, y, width, height))
            reached = x + width
        pen += glyph.advance + spacing
    return placed


def _bounds(placed: list[Placed]) -> tuple[int, int, int, int]:
    x0, y0 = min(item.x for item in placed), min(item.y for item in placed)
    return x0, y0, max(item.x + item.width for item in placed), max(item.y + item.height for item in placed)


def _beside(
    rng: random.Random, side: int, word: tuple[int, int, int, int], other: list[Placed], line_height: float
) -> Placed:
    """Another word as one mask, left (0) or right (1) of the word, or on the line above (2) or below (3) it."""
    left, top, right, bottom = _bounds(other)
    mask = np.zeros((bottom - top, right - left), np.uint8)
    for glyph, x, y, _, _ in other:
        _paste(mask, glyph, x - left, y - top)
    x0, y0, x1, y1 = word
    height, width = mask.shape
    if side < 2:
        gap = int(CAPITAL_HEIGHT * rng.uniform(0.25, 0.8))
        return Placed(mask, x0 - gap - width if side == 0 else x1 + gap, top, width, height)
    x = x0 + int(rng.uniform(-0.5, 0.5) * (x1 - x0))
    lead = int(line_height * rng.uniform(0.75, 1.1))
    # However narrow the lead, the lines do not touch: that would be a different text.
    y = min(top - lead, y0 - 2 - height) if side == 2 else max(top + lead, y1 + 2)
    return Placed(mask, x, y, width, height)


def _paste(mask: Mask, piece: Mask, x: int, y: int) -> None:
    """The brighter of the two where they overlap; whatever falls outside is left out."""
    height, width = piece.shape
    rows, columns = mask.shape
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + width, columns), min(y + height, rows)
    if left < right and top < bottom:
        spot = mask[top:bottom, left:right]
        np.maximum(spot, piece[top - y : bottom - y, left - x : right - x], out=spot)


def _rule(rng: random.Random, mask: Mask, extent: tuple[float, float, float, float]) -> None:
    x0, y0, x1, y1 = (int(edge) for edge in extent)
    gap, thick = rng.randint(3, 8), rng.randint(1, 4)
    if rng.random() < 0.5:
        cv2.line(mask, (x0 - gap, y1 + gap), (x1 + gap, y1 + gap), 255, thick)
    else:
        cv2.rectangle(mask, (x0 - gap, y0 - gap), (x1 + gap, y1 + gap), 255, thick)


class Dress(NamedTuple):
    layers: Mask  # (h, w, k): the face of the letters, then whatever lies behind it, nearest first
    behind: tuple[str, ...]  # what the layers after the first are: "outline", "shadow"


def dress(rng: random.Random, mask: Mask, effects: Effects) -> Dress:
    if rng.random() < effects.weight:
        kernel = _disc(1) if rng.random() < 0.6 else np.ones((2, 2), np.uint8)
        thicker = rng.random() < 0.6
        changed = cv2.dilate(mask, kernel) if thicker else cv2.erode(mask, kernel)
        # Hairlines must not vanish: a thinned stroke keeps a part of what it was.
        mask = changed if thicker else cv2.addWeighted(changed, 0.6, mask, 0.4, 0)
    layers, behind = [mask], []
    if rng.random() < effects.outline:
        layers.append(cv2.dilate(mask, _disc(rng.choice((1, 2, 2, 3, 4)))))
        behind.append("outline")
    if rng.random() < effects.shadow:
        layers.append(_shadow(rng, layers[-1]))
        behind.append("shadow")
    return Dress(np.stack(layers, axis=-1) if behind else mask[..., None], tuple(behind))


def _shadow(rng: random.Random, mask: Mask) -> Mask:
    kind = rng.random()
    dx, dy = rng.randint(-6, 6), rng.choice((1, 2, 3, 4, 5, -2, -4))
    if kind < 0.4:  # dropped
        moved = np.zeros_like(mask)
        _paste(moved, mask, dx, dy)
        return cv2.blur(moved, (3, 3)) if rng.random() < 0.5 else moved
    if kind < 0.8:  # extruded: the letters drawn along a line
        reach = max(abs(dx), abs(dy), 1)
        kernel = np.zeros((2 * reach + 1, 2 * reach + 1), np.uint8)
        cv2.line(kernel, (reach, reach), (reach - dx, reach - dy), 1)
        return cv2.dilate(mask, kernel)
    return cv2.blur(cv2.dilate(mask, _disc(2)), (9, 9))  # a glow


def _disc(radius: int) -> Mask:
    return _DISCS[radius]


_DISCS = {
    radius: cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1)) for radius in range(1, 5)
}
