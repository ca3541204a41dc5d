"""Lines longer than a model was trained for: read in overlapping windows, put together by where characters stand.

A recogniser squeezes whatever it gets into its own frame. A line much longer than a word is cut into windows of
the shape of words instead; in the overlap of two windows a character that both saw at the same place is where one
reading ends and the next begins. Numpy only; which model reads the windows is the caller's affair.

All lengths are in the model's own shape, its `aspect`: the width of its frame over the height.
Why a line is long from twice that on: of 6,723 photographed words (the training parts of ICDAR 2015, IIIT5k and SVT)
one in 600 is wider than 8 heights, twice the usual frame of 4; a median letter is 0.41 to 0.53 heights wide, so 8
heights hold the 15 to 20 letters that models are trained to write; and squeezed by more than two, letters are left
with less than half of the pixels that they had in training. bench/lines_and_turns.py measures what it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitocr.results import Character, Reading

LONGEST = 2.0  # frames: what is not wider is read at once ...
WORD = 8.0  # ... nor what is not wider than words are, in heights: a model of a narrow frame learned them squeezed
WINDOW = 1.125  # width of a window, in frames; at the usual frame of 4 x 1 that is 4.5 heights, a longish word
OVERLAP = 0.375  # of two neighbours, in frames: 1.5 heights, room for a whole character that neither cuts
LOWEST = 8  # pixels: lower pictures show no text, and count as this high, or a scratch would make a thousand windows


def windows(size: tuple[int, int], aspect: float) -> list[tuple[int, int]]:
    """Left and right edge of each window over an image of `size` (height, width), evenly spaced."""
    width, height = size[1], max(size[0], LOWEST)
    frame = aspect * height  # pixels
    if width <= max(LONGEST * frame, WORD * height):
        return [(0, width)]
    count = max(2, math.ceil((width / frame - OVERLAP) / (WINDOW - OVERLAP)))
    length = (width + (count - 1) * OVERLAP * frame) / count
    starts = [round(i * (width - length) / (count - 1)) for i in range(count)]
    return [(start, min(width, start + math.ceil(length))) for start in starts]


def cut(image: NDArray[np.uint8], aspect: float) -> list[NDArray[np.uint8]]:
    return [image[:, left:right] for left, right in windows((image.shape[0], image.shape[1]), aspect)]


def join(readings: Sequence[Reading], size: tuple[int, int], aspect: float) -> Reading:
    """One reading of the line from those of its windows, boxes in pixels of the line."""
    spans = windows(size, aspect)
    line = moved(readings[0].characters, spans[0][0])
    for i in range(1, len(spans)):
        overlap = (spans[i][0], spans[i - 1][1])
        line = seam(line, moved(readings[i].characters, spans[i][0]), overlap, reach=0.5 * size[0])
    text = "".join(character.text for character in line)
    # No window vouches for the whole line: its characters do, each on its own.
    sure = math.prod(character.confidence for character in line) if line else min(r.confidence for r in readings)
    return Reading(text, sure, tuple(line), readings[0].source)


def moved(characters: Sequence[Character], pixels: int) -> list[Character]:
    boxes = ((x0 + pixels, y0, x1 + pixels, y1) for x0, y0, x1, y1 in (c.box for c in characters))
    return [replace(character, box=box) for character, box in zip(characters, boxes, strict=True)]


def middle(character: Character) -> float:
    return (character.box[0] + character.box[2]) / 2


def seam(
    left: list[Character], right: list[Character], overlap: tuple[float, float], *, reach: float
) -> list[Character]:
    """Two windows' characters put together at one that both saw within `reach` pixels, as far as can be from where
    either window ends; or, if they agree on none, in the middle of the overlap."""
    start, end = overlap

    def inside(character: Character) -> float:
        return min(middle(character) - start, end - middle(character))

    shared = [
        (min(inside(a), inside(b)) - abs(middle(a) - middle(b)), i, j)
        for i, a in enumerate(left)
        for j, b in enumerate(right)
        if a.text == b.text and abs(middle(a) - middle(b)) <= reach and min(inside(a), inside(b)) > 0
    ]
    if shared:
        _, i, j = max(shared)
        return [*left[:i], max(left[i], right[j], key=lambda character: character.confidence), *right[j + 1 :]]
    centre = (start + end) / 2
    return [c for c in left if middle(c) < centre] + [c for c in right if middle(c) >= centre]
