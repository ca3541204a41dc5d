"""Pictures that may lie on their side or stand on their head: read in several orientations, the surest wins.

All four where anybody asks for them. A crop much higher than wide is looked at on both its sides without being asked:
of such crops of signs most hold a word that runs up or down.

A turn is the angle, in degrees and clockwise, by which the picture has to be turned to stand upright. Numpy only;
which model reads the turned pictures is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitocr.results import Reading

TURNS = (0, 180, 90, 270)  # the commoner first
ON_ITS_SIDE = (0, 90, 270)
TALL = 1.5  # heights of its width, from which on a crop counts as tall
LIKELY = 0.5  # from this on there rather is a text than not
MARGIN = 0.02  # by so much another orientation has to be surer than the picture as it stands: NOON, 8, xox


def turned(image: NDArray[np.uint8], degrees: int) -> NDArray[np.uint8]:
    """(H, W, 3) turned clockwise by 0, 90, 180 or 270 degrees."""
    return np.ascontiguousarray(np.rot90(image, -degrees // 90)) if degrees else image


def turns_for(size: tuple[int, int], *, any_rotation: bool, tall_crops: bool) -> tuple[int, ...]:
    """In which orientations to look at a picture of so many rows and columns."""
    if any_rotation:
        return TURNS
    return ON_ITS_SIDE if tall_crops and size[0] >= TALL * size[1] else TURNS[:1]


def size_when_turned(size: tuple[int, int], degrees: int) -> tuple[int, int]:
    """Height and width of a picture after a turn."""
    return (size[1], size[0]) if degrees in (90, 270) else size


def sureness(reading: Reading) -> float:
    """Of an average character. Whole texts cannot be compared: the word or line itself has many characters, each with
    its doubt, and lying on its side it looks like a single stroke that is easily taken for an l."""
    return float(reading.confidence ** (1 / max(len(reading.text), 1)))


def surest(readings: Mapping[int, Reading]) -> Reading:
    """One of the readings of a picture, by the turn under which each was read, with its `rotation` set.

    Text seen under one turn is not refuted by there being none under the others: readings without a text count only
    where no text is likelier there than not. So do readings that break a constraint.
    """
    sure = {turn: sureness(reading) for turn, reading in readings.items()}
    texts = [turn for turn, reading in readings.items() if reading.text and sure[turn] >= LIKELY]
    matched = [turn for turn, reading in readings.items() if not reading.unmatched]
    left = texts or matched or list(readings)
    best = max(left, key=lambda turn: sure[turn])  # the first of several that are equally sure
    if 0 in left and sure[best] <= sure[0] + MARGIN:
        best = 0
    return replace(readings[best], rotation=best)


def turned_back(reading: Reading, size: tuple[int, int]) -> Reading:
    """The reading of a turned picture, its boxes where they are in the picture itself, of `size` (height, width)."""
    characters = tuple(replace(c, box=box_turned_back(c.box, reading.rotation, size)) for c in reading.characters)
    return replace(reading, characters=characters)


def box_turned_back(
    box: tuple[float, float, float, float], degrees: int, size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) in a picture turned by `degrees` to the same place in the picture before."""
    x0, y0, x1, y1 = box
    height, width = size
    if degrees == 90:  # what was at the bottom left is at the top left
        return y0, height - x1, y1, height - x0
    if degrees == 180:
        return width - x1, height - y1, width - x0, height - y0
    if degrees == 270:  # what was at the top right is at the top left
        return width - y1, x0, width - y0, x1
    return box
