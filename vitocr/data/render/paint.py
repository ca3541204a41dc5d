"""Colours the canvas: ground, shadow, outline, letters, light.

Works at the canvas' resolution on float32 (height, width, 3), values 0 to 255, unclipped until the end.
"""

from __future__ import annotations

import random

import cv2
import numpy as np
from numpy.typing import NDArray

from vitocr.data.render import grounds
from vitocr.data.render.colours import Colour, Colours, brightness
from vitocr.data.render.spec import Effects

Pixels = NDArray[np.float32]


def paint(
    rng: random.Random,
    layers: NDArray[np.uint8],  # (h, w, k): letters, then what is behind them
    behind: tuple[str, ...],
    colours: Colours,
    photos: list[NDArray[np.uint8]],
    effects: Effects,
) -> Pixels:
    height, width = layers.shape[:2]
    ground, detail = _ground(rng, height, width, colours, photos, effects)
    picture = ground
    alphas = layers.astype(np.float32)
    alphas *= 1 / 255
    for number in range(len(behind), 0, -1):
        shade = _second_colour(rng, colours, behind[number - 1])
        strength = rng.uniform(0.45, 1.0) if behind[number - 1] == "shadow" else 1.0
        alpha = alphas[:, :, number, None] * np.float32(strength)
        picture += alpha * (np.array(shade, np.float32) - picture)
    alpha = alphas[:, :, :1]
    ink = np.array(colours.text, np.float32)
    if rng.random() < effects.uneven_fill:
        ink = ink + _uneven(rng, height, width, colours, detail)
    picture += alpha * (ink - picture)
    if rng.random() < effects.emboss:
        picture += _relief(rng, alphas[:, :, 0])
    if rng.random() < effects.light:
        picture = light(rng, picture)
    if rng.random() < effects.occlude:
        _occlude(rng, picture, colours)
    return picture


def _ground(
    rng: random.Random,
    height: int,
    width: int,
    colours: Colours,
    photos: list[NDArray[np.uint8]],
    effects: Effects,
) -> tuple[Pixels, Pixels | None]:
    """The ground, and the texture on it, if any."""
    base = np.array(colours.ground, np.float32)
    detail: Pixels | None = None
    chance = rng.random()
    distance = abs(brightness(colours.text) - brightness(colours.ground))
    if chance < effects.photo and photos:
        photo = grounds.cut_photo(photos, rng, height, width)
        mean, deviation = cv2.meanStdDev(photo)
        # As much of the photograph as the letters can stand: its contrast stays well below theirs.
        strength = min(1.0, max(colours.ground_std * 1.5, distance * rng.uniform(0.15, 0.4)) / (deviation.mean() + 1.0))
        tint = np.float32(rng.uniform(0.6, 1.0))
        detail = (photo - mean[:, 0].astype(np.float32)) * np.float32(strength)
        picture = base * tint + mean[:, 0].astype(np.float32) * (1 - tint) + detail if distance > 60 else base + detail
    elif chance < effects.photo + effects.texture:
        piece = grounds.cut(grounds.textures(), rng, height, width, zoom=4.0)
        detail = piece * np.float32(colours.ground_std * rng.uniform(0.25, 0.9))
        picture = base + detail
    else:
        picture = np.empty((height, width, 3), np.float32)
        picture[:] = base
    if rng.random() < effects.edge:
        edge(rng, picture, colours)
    return picture, detail


def edge(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """Beyond the border of the sign there is something else."""
    height, width = picture.shape[:2]
    reach = rng.uniform(0.03, 0.22)
    slope = rng.gauss(0, 0.06)
    other = np.array([rng.uniform(0, 255) if rng.random() < 0.2 else value * rng.uniform(0.3, 1.2) + rng.uniform(0, 50)
                      for value in colours.ground], np.float32)  # fmt: skip
    if rng.random() < 0.3:
        x = reach * width * 0.5 if rng.random() < 0.5 else width - reach * width * 0.5
        far = -4.0 if x < width / 2 else width + 4.0
        corners = [(x, -4), (x + slope * height, height + 4), (far, height + 4), (far, -4)]
    else:
        y = reach * height if rng.random() < 0.5 else height - reach * height
        far = -4.0 if y < height / 2 else height + 4.0
        corners = [(-4, y), (width + 4, y + slope * width), (width + 4, far), (-4, far)]
    mask = np.zeros((height, width), np.uint8)
    fixed_point = np.round(np.array(corners) * 16).astype(np.int32)
    cv2.fillConvexPoly(mask, fixed_point, 255, cv2.LINE_AA, 4)
    alpha = mask[..., None].astype(np.float32) * np.float32(1 / 255)
    picture += alpha * (other - picture)


def _second_colour(rng: random.Random, colours: Colours, kind: str) -> Colour:
    """Of an outline or a shadow: one that sets the letters off."""
    if kind == "shadow" and rng.random() < 0.75:
        scale = rng.uniform(0.05, 0.55)
        red, green, blue = colours.ground if rng.random() < 0.6 else colours.text
        return red * scale, green * scale, blue * scale
    if rng.random() < 0.6:
        value = rng.uniform(0, 45) if brightness(colours.text) > 120 else rng.uniform(200, 255)
        return value, value, value
    return rng.uniform(0, 255), rng.uniform(0, 255), rng.uniform(0, 255)


def _uneven(rng: random.Random, height: int, width: int, colours: Colours, detail: Pixels | None) -> Pixels:
    """What to add to the letters' colour: a gradient, the ground showing through, or wear."""
    chance = rng.random()
    distance = abs(brightness(colours.text) - brightness(colours.ground))
    if detail is not None and chance < 0.4:
        return detail * np.float32(rng.uniform(0.3, 0.9))
    if chance < 0.7:
        towards = np.array([rng.gauss(0, 1) for _ in range(3)], np.float32) * np.float32(0.16 * distance + 5)
        field: Pixels = grounds.cut(grounds.fields(), rng, height, width, zoom=2.0).reshape(height, width, 1)
        return field * towards
    piece: Pixels = grounds.cut(grounds.textures(), rng, height, width, zoom=4.0)
    return piece * np.float32(colours.text_std * rng.uniform(0.4, 1.0))


def _relief(rng: random.Random, alpha: Pixels) -> Pixels:
    """Light on raised (or engraved) letters: bright along one side of every stroke, dark along the other."""
    dx, dy = rng.choice((-1, 1)), rng.choice((-1, 1))
    kernel = np.zeros((3, 3), np.float32)
    kernel[1 - dy, 1 - dx], kernel[1 + dy, 1 + dx] = 1, -1
    slope = cv2.filter2D(alpha, -1, kernel, borderType=cv2.BORDER_REPLICATE)
    return slope[..., None] * np.float32(rng.uniform(15, 70))


def light(rng: random.Random, picture: Pixels) -> Pixels:
    height, width = picture.shape[:2]
    field = grounds.cut(grounds.fields(), rng, height, width, zoom=3.0).reshape(height, width, 1)
    depth = abs(rng.gauss(0, 0.18))
    if rng.random() < 0.12:  # a reflection adds light rather than multiplying it
        return picture + np.maximum(field, 0) * np.float32(rng.uniform(10, 60))
    return picture * (1 + field * np.float32(min(depth, 0.5)))


def _occlude(rng: random.Random, picture: Pixels, colours: Colours) -> None:
    """A wire, a twig or a pole in front, never so much that a letter is gone."""
    height, width = picture.shape[:2]
    value = rng.uniform(0, 255)
    colour = (value, value, value) if rng.random() < 0.6 else colours.ground
    thick = 1 if rng.random() < 0.7 else 2
    x0, x1 = rng.uniform(0, width), rng.uniform(0, width)
    y0, y1 = (0.0, float(height)) if rng.random() < 0.6 else (rng.uniform(0, height), rng.uniform(0, height))
    if rng.random() < 0.4:
        x0, x1 = 0.0, float(width)
        y0, y1 = rng.uniform(0, height), rng.uniform(0, height)
    cv2.line(picture, (round(x0), round(y0)), (round(x1), round(y1)), colour, thick, cv2.LINE_AA)
