"""Crops with nothing to read: what else a detector of text cuts out of a photograph.

Photographs, textures, skies and plain walls; on them lines, bars, frames, blobs and borders, seen by the same camera as
the words. Nothing drawn here may pass for a letter, for the label says that there is none: lines and bars run through
the whole crop, arcs leave it on two sides, blobs are ragged and soft or cut by the border.
"""

from __future__ import annotations

import math
import random

import cv2
import numpy as np
from numpy.typing import NDArray

from vitocr.data.render import grounds
from vitocr.data.render.colours import Colour, Colours, draw_colours
from vitocr.data.render.degrade import degrade
from vitocr.data.render.paint import edge, light
from vitocr.data.render.spec import Effects
from vitocr.data.render.warp import LARGEST_SOURCE, SMALLEST_SOURCE

Pixels = NDArray[np.float32]
Point = tuple[float, float]  # x, y in pixels
MOST_THINGS = 3


def draw_blank(
    rng: random.Random,
    photos: list[NDArray[np.uint8]],
    effects: Effects,
    *,
    size: tuple[int, int],
    stretch: bool = True,
) -> NDArray[np.uint8]:
    """size: (height, width) in pixels; without `stretch` the width is that of the crop's own proportions."""
    aspect = math.exp(rng.uniform(0, math.log(8)))  # of the crop before it is stretched, as wide as words are
    height, width = size
    final = (height, width if stretch else round(min(height * aspect, 4 * width)))
    source = min(max(rng.lognormvariate(math.log(34), 0.6), SMALLEST_SOURCE), LARGEST_SOURCE)
    canvas = (min(height, round(source)), max(8, min(final[1], round(source * aspect))))
    colours = draw_colours(rng)
    picture = _ground(rng, canvas, colours, photos)
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, MOST_THINGS)):
            rng.choice(_THINGS)(rng, picture, colours)
    if rng.random() < effects.light:
        picture = light(rng, picture)
    return np.ascontiguousarray(degrade(rng, picture, effects, final=final))


def _ground(rng: random.Random, canvas: tuple[int, int], colours: Colours, photos: list[NDArray[np.uint8]]) -> Pixels:
    height, width = canvas
    chance = rng.random()
    if chance < 0.55 and photos:
        return _piece(rng, photos, height, width)
    picture = np.empty((height, width, 3), np.float32)
    picture[:] = _some_colour(rng, colours)
    chance = rng.random()
    if chance < 0.25:  # a wall, a sky, a shadow: one colour passing into another
        along = grounds.cut(grounds.fields(), rng, height, width, zoom=3.0).reshape(height, width, 1)
        other = np.array(_some_colour(rng, colours), np.float32)
        picture += (0.5 + 0.5 * along) * np.float32(rng.uniform(0.2, 1.0)) * (other - picture)
    if chance < 0.83:
        piece = grounds.cut(grounds.textures(), rng, height, width, zoom=4.0)
        picture += piece * np.float32(rng.expovariate(1 / 20))
    return picture


def _piece(rng: random.Random, photos: list[NDArray[np.uint8]], height: int, width: int) -> Pixels:
    """Of a photograph, in any proportions: what is in it may come to stand as narrow or as wide as letters do."""
    photo = photos[int(rng.random() * len(photos))]
    rows, columns = photo.shape[:2]
    if rng.random() < 0.25:
        high, wide = rows, columns  # a whole scene, squeezed as any crop is
    else:
        high, wide = max(4, round(rows * rng.uniform(0.12, 1.0))), max(8, round(columns * rng.uniform(0.3, 1.0)))
    top, left = int(rng.random() * (rows - high + 1)), int(rng.random() * (columns - wide + 1))
    piece = photo[top : top + high, left : left + wide]
    piece = piece[:, ::-1] if rng.random() < 0.5 else piece
    return cv2.resize(piece, (width, height), interpolation=cv2.INTER_LINEAR).astype(np.float32)


def _some_colour(rng: random.Random, colours: Colours) -> Colour:
    """Mostly those of signs, so that a colour alone never tells whether there is text."""
    chance = rng.random()
    if chance < 0.5:
        return colours.ground
    if chance < 0.7:
        return colours.text
    if chance < 0.8:  # sky
        brightness, blue = rng.uniform(90, 250), rng.uniform(0, 70)
        return max(brightness - blue, 0.0), brightness - 0.4 * blue, min(brightness + 0.5 * blue, 255.0)
    return rng.uniform(0, 255), rng.uniform(0, 255), rng.uniform(0, 255)


def _through(rng: random.Random, picture: Pixels, at: float, slope: float, upright: bool) -> tuple[Point, Point]:
    """Both ends of a line through the crop, outside it. at: where it crosses the middle, as a share of that side."""
    height, width = picture.shape[:2]
    if upright:
        return (at * width - slope * height, -4.0), (at * width + slope * height, height + 4.0)
    return (-4.0, at * height - slope * width), (width + 4.0, at * height + slope * width)


def _line(picture: Pixels, ends: tuple[Point, Point], colour: Colour, thickness: int) -> None:
    (x0, y0), (x1, y1) = ends
    cv2.line(picture, (round(x0), round(y0)), (round(x1), round(y1)), colour, thickness, cv2.LINE_AA)


def _lines(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """Wires, cracks, seams, poles: each its own way."""
    for _ in range(rng.randint(1, 4)):
        ends = _through(rng, picture, rng.random(), rng.gauss(0, 0.3), rng.random() < 0.5)
        _line(picture, ends, _some_colour(rng, colours), rng.choice((1, 1, 2, 3, 5)))


def _bars(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """Fences, shutters, boards, tiles: many side by side, perhaps crossed."""
    colour, slope, number = _some_colour(rng, colours), rng.gauss(0, 0.05), rng.randint(3, 14)
    upright, crossed, offset = rng.random() < 0.5, rng.random() < 0.3, rng.random()
    thickness = rng.choice((1, 1, 2, 3))
    for bar in range(number):
        at = (bar + offset) / number
        _line(picture, _through(rng, picture, at, slope, upright), colour, thickness)
        if crossed:
            _line(picture, _through(rng, picture, at, -slope, not upright), colour, thickness)


def _frame(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """The border of an empty sign or of a window."""
    height, width = picture.shape[:2]
    left, top, right, bottom = (round(rng.uniform(-0.1, 0.25) * side) for side in (width, height, width, height))
    filled = rng.random() < 0.4
    cv2.rectangle(
        picture, (left, top), (width - 1 - right, height - 1 - bottom), _some_colour(rng, colours),
        -1 if filled else rng.choice((1, 1, 2, 3)), cv2.LINE_AA,
    )  # fmt: skip


def _blobs(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """Leaves, stains, people's clothes: ragged patches, often soft."""
    height, width = picture.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    for _ in range(rng.randint(1, 6)):
        x, y, reach = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.15, 0.8) * height
        corners = rng.randint(5, 11)
        angles = sorted(rng.uniform(0, 2 * math.pi) for _ in range(corners))
        away = [reach * rng.uniform(0.3, 1.0) for _ in angles]
        outline = [(x + 1.8 * r * math.cos(a), y + r * math.sin(a)) for r, a in zip(away, angles, strict=True)]
        cv2.fillPoly(mask, [np.round(outline).astype(np.int32)], 255, cv2.LINE_AA)
    soft = cv2.GaussianBlur(mask, (0, 0), rng.uniform(0.5, 3.0))
    alpha = soft[..., None].astype(np.float32) * np.float32(rng.uniform(0.3, 1.0) / 255)
    picture += alpha * (np.array(_some_colour(rng, colours), np.float32) - picture)


def _arc(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """Of a wheel, a plate, a lamp: too large to be a letter, and cut on both sides."""
    height, width = picture.shape[:2]
    radius = rng.uniform(1.2, 4.0) * height
    below = height / 2 + rng.choice((-1, 1)) * (radius + rng.uniform(-0.4, 0.4) * height)
    centre = (round(rng.uniform(0, width)), round(below))
    flat = max(1.0, 1.3 * width / radius) * rng.uniform(1.0, 2.0)  # so wide that it does not come back in the crop
    axes = (round(flat * radius), round(radius))
    thickness = -1 if rng.random() < 0.3 else rng.choice((1, 2, 3))
    cv2.ellipse(picture, centre, axes, 0, 0, 360, _some_colour(rng, colours), thickness, cv2.LINE_AA)


_THINGS = (_lines, _lines, _bars, _frame, _blobs, _blobs, _arc, edge)
