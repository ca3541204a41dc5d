"""Colours of text and ground, drawn in pairs as they occur together.

assets/colours.csv was fitted to the training crops of the benchmarks: the two clusters of each crop, in Lab, the one
along the border being the ground. Text and ground drawn independently look wrong at once: too gaudy and, oddly, with
too much contrast.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import NamedTuple

Colour = tuple[float, float, float]  # RGB, 0 to 255

LEAST_CONTRAST = 26.0  # of perceived brightness or colour; below, not even people read it
ANY_COLOURS = 0.04  # share of pairs that no training crop showed


class Colours(NamedTuple):
    text: Colour
    ground: Colour
    text_std: float  # how uneven the two were, in grey levels
    ground_std: float


def draw_colours(rng: random.Random) -> Colours:
    rows, cumulative = _table()
    for _ in range(20):
        if rng.random() < ANY_COLOURS:
            pair = Colours(_any(rng), _any(rng), 8.0, 10.0)
        else:
            row = rows[bisect_left(cumulative, rng.random() * cumulative[-1])]
            brighter = rng.gauss(0, 9)  # text and ground share the light they are seen in
            pair = Colours(
                _near(rng, (row[1], row[2], row[3]), row[9], brighter),
                _near(rng, (row[4], row[5], row[6]), row[10], brighter),
                row[7],
                row[8],
            )
            if rng.random() < 0.08:
                pair = Colours(pair.ground, pair.text, pair.ground_std, pair.text_std)
        if contrast(pair.text, pair.ground) >= LEAST_CONTRAST:
            return pair
    return Colours((20.0, 20.0, 20.0), (230.0, 230.0, 230.0), 8.0, 8.0)


def contrast(one: Colour, other: Colour) -> float:
    """Difference in brightness, plus a third of the one in colour: letters are read by brightness."""
    red, green, blue = (a - b for a, b in zip(one, other, strict=True))
    brightness = 0.3 * red + 0.59 * green + 0.11 * blue
    return abs(brightness) + (abs(red - brightness) + abs(green - brightness) + abs(blue - brightness)) / 6


def brightness(colour: Colour) -> float:
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def _near(rng: random.Random, colour: Colour, spread: float, brighter: float) -> Colour:
    red, green, blue = (min(max(value + brighter + rng.gauss(0, 2 + 0.5 * spread), 0.0), 255.0) for value in colour)
    return red, green, blue


def _any(rng: random.Random) -> Colour:
    return rng.random() * 255, rng.random() * 255, rng.random() * 255


@cache
def _table() -> tuple[list[tuple[float, ...]], list[float]]:
    text = resources.files(__package__).joinpath("assets/colours.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line[:1].isdigit()]
    rows = [tuple(float(value) for value in line.split(",")) for line in lines]
    return rows, list(accumulate(row[0] for row in rows))
