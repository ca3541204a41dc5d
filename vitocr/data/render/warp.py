"""Geometry: from the flat line of type to the crop, in one go.

flat --bend--> page --homography--> picture --crop, scale--> canvas

`bend` is nothing, an arc or a wave; the homography holds width, slant, rotation and perspective. Boxes go forward
through the chain; the picture is sampled backward through it, with a single cv2.remap. The backward map is worked out
on a coarse grid and filled in by two small matrix products: its functions are smooth, and the arc tangents would
otherwise cost more than all the rest.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vitocr.data.render.draw import Line
from vitocr.data.render.fonts import CAPITAL_HEIGHT
from vitocr.data.render.spec import Effects

Points = NDArray[np.float32]  # (..., 2)

COARSE = 4  # canvas pixels between the points of the coarse grid
MOST_ARC = 2.5  # radians: beyond, the letters at the ends would turn back under the others
MILD_ARC = 0.85
LARGEST_SOURCE = 110  # pixels: heights of real crops, log-normal about a median of 34
SMALLEST_SOURCE = 13


class Bend(NamedTuple):
    centre: tuple[float, float]  # of the word, in flat pixels
    radius: float = 0.0  # of an arc; negative: the ends go up; 0: no arc
    height: float = 0.0  # of a wave
    length: float = 1.0
    phase: float = 0.0

    def forward(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Flat (x right, y down) to page (x right, y up, from the word's centre)."""
        s = points[..., 0] - self.centre[0]
        t = self.centre[1] - points[..., 1]
        if self.radius:
            angle = s / self.radius
            s, t = (self.radius + t) * np.sin(angle), (self.radius + t) * np.cos(angle) - self.radius
        elif self.height:
            t = t + self.height * np.sin(s / self.length + self.phase)
        page = np.empty_like(points)
        page[..., 0], page[..., 1] = s, t
        return page

    def backward(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
        if self.radius:
            sign = math.copysign(1.0, self.radius)
            y = y + self.radius
            angle = np.arctan2(sign * x, sign * y)
            x, y = angle * self.radius, sign * np.hypot(x, y) - self.radius
        elif self.height:
            y = y - self.height * np.sin(x / self.length + self.phase)
        return x + self.centre[0], self.centre[1] - y


class View(NamedTuple):
    bend: Bend
    matrix: NDArray[np.float64]  # (3, 3), page to canvas
    canvas: tuple[int, int]  # height, width: the resolution the "camera" had, never more than the final size
    final: tuple[int, int]  # height, width of the crop that is handed out


def look_at(rng: random.Random, line: Line, effects: Effects, *, size: tuple[int, int], stretch: bool) -> View:
    """Choose how the line is bent, seen and cropped."""
    x0, y0, x1, y1 = line.extent
    bend = _choose_bend(rng, line, effects)
    matrix = _choose_homography(rng, x1 - x0, y1 - y0, effects)
    points = _project(matrix, bend.forward(_outline(line.boxes)))
    left, top = points.reshape(-1, 2).min(0)
    right, bottom = points.reshape(-1, 2).max(0)
    margins = _choose_margins(rng, min(bottom - top, 1.6 * CAPITAL_HEIGHT), effects)
    left, top, right, bottom = left - margins[0], top - margins[1], right + margins[2], bottom + margins[3]
    wide, high = max(right - left, 4.0), max(bottom - top, 4.0)

    height, width = size
    final = (height, width if stretch else round(min(max(height * wide / high, height / 2), 4 * width)))
    source = 1e9
    if rng.random() < effects.low_resolution:
        source = min(max(rng.lognormvariate(math.log(34), 0.55), SMALLEST_SOURCE), LARGEST_SOURCE)
        source *= max(1.0, 0.8 * high / (y1 - y0))  # bent and turned words take more rows for letters of the same size
    canvas = (max(8, min(height, round(source))), max(8, min(final[1], round(source * wide / high))))
    to_canvas = np.array(
        [[canvas[1] / wide, 0, -left * canvas[1] / wide], [0, canvas[0] / high, -top * canvas[0] / high], [0, 0, 1]]
    )
    return View(bend, to_canvas @ matrix, canvas, final)


def boxes_in(view: View, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Flat boxes (n, 4) to the bounds of what becomes of them, in pixels of the final crop, cut at its edges."""
    points = _project(view.matrix, view.bend.forward(_outline(boxes)))  # (n, 8, 2)
    scale = np.array([view.final[1] / view.canvas[1], view.final[0] / view.canvas[0]])
    limit = np.array([view.final[1], view.final[0]])
    found = np.concatenate((points.min(1) * scale, points.max(1) * scale), axis=1)
    return np.clip(found, 0, np.tile(limit, 2)).astype(np.float32)


def sample(view: View, layers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The flat layers (h, w, k) as the canvas shows them: (height, width, k)."""
    height, width = view.canvas
    ys, up = _grid(height)
    xs, across = _grid(width)
    inverse = np.linalg.inv(view.matrix)
    u, v = xs[None, :], ys[:, None]
    below = inverse[2, 0] * u + inverse[2, 1] * v + inverse[2, 2]
    x = (inverse[0, 0] * u + inverse[0, 1] * v + inverse[0, 2]) / below
    y = (inverse[1, 0] * u + inverse[1, 1] * v + inverse[1, 2]) / below
    x, y = view.bend.backward(x, y)

    # Sampling every third pixel of thin strokes would tear them: shrink first, by area, along each axis alike.
    rows, columns = layers.shape[:2]
    step_x = float(np.hypot(x[0, 1] - x[0, 0], y[0, 1] - y[0, 0])) / COARSE
    step_y = float(np.hypot(x[1, 0] - x[0, 0], y[1, 0] - y[0, 0])) / COARSE
    if max(step_x, step_y) > 1.5:
        small = (max(4, round(columns / max(1.0, step_x))), max(4, round(rows / max(1.0, step_y))))
        layers = cv2.resize(layers, small, interpolation=cv2.INTER_AREA).reshape(small[1], small[0], -1)
        x, y = (x + 0.5) * (small[0] / columns) - 0.5, (y + 0.5) * (small[1] / rows) - 0.5
    map_x = up @ x.astype(np.float32) @ across.T
    map_y = up @ y.astype(np.float32) @ across.T
    seen = cv2.remap(layers, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
    return seen.reshape(height, width, -1)


def _choose_bend(rng: random.Random, line: Line, effects: Effects) -> Bend:
    x0, y0, x1, y1 = line.extent
    wide, high = x1 - x0, y1 - y0
    centre = ((x0 + x1) / 2, (y0 + y1) / 2)
    if rng.random() >= effects.curve or wide < 1.2 * high:
        return Bend(centre)
    if rng.random() < 0.15:
        height, length = high * rng.uniform(0.06, 0.22), wide * rng.uniform(0.12, 0.4)
        return Bend(centre, height=height, length=length, phase=rng.uniform(0, 6.3))
    strong = rng.random() < effects.strong_curve
    angle = rng.uniform(MILD_ARC, MOST_ARC) if strong else rng.uniform(0.12, MILD_ARC)
    radius = max(wide / angle, 1.15 * high)  # a tighter arc would fold the letters' feet into each other
    return Bend(centre, radius=-radius if rng.random() < 0.3 else radius)


def _choose_homography(rng: random.Random, wide: float, high: float, effects: Effects) -> NDArray[np.float64]:
    """Page (y up) to picture (y down)."""
    angle = 0.0
    if rng.random() < effects.rotate:
        chance = rng.random()
        flat = 1 - effects.steep
        degrees = rng.gauss(0, 2 if chance < 15 / 22 * flat else 6) if chance < flat else rng.uniform(-30, 30)
        angle = math.radians(degrees)
    lean = rng.gauss(0, 0.08) if effects.rotate else 0.0
    width = min(max(rng.lognormvariate(0, 0.16), 0.6), 1.6) if effects.perspective else 1.0
    cos, sin = math.cos(angle), math.sin(angle)
    affine = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]) @ np.array([[width, lean, 0], [0, -1, 0], [0, 0, 1]])
    if rng.random() < effects.perspective:
        spread = 0.5 * width * wide + 0.5 * high
        tilt = np.array([[1, 0, 0], [0, 1, 0], [rng.gauss(0, 0.12) / spread, rng.gauss(0, 0.07) / high, 1]])
        # The page's own edges must stay in front of the camera.
        tilt[2, :2] = np.clip(tilt[2, :2], -0.3 / spread, 0.3 / spread)
        affine = tilt @ affine
    return affine


def _choose_margins(rng: random.Random, unit: float, effects: Effects) -> list[float]:
    """Left, top, right, bottom, in flat pixels; negative cuts into the word."""
    margins = [max(0.0, rng.gauss(middle, 0.07)) for middle in (0.13, 0.08, 0.13, 0.08)]
    chance = rng.random()
    if chance < effects.loose:
        margins = [margin + rng.expovariate(1 / 0.16) for margin in margins]
    elif chance > 1 - effects.tight:
        side = int(rng.random() * 4)
        margins[side] = -rng.uniform(0.0, 0.11)
        margins = [margin - 0.03 if rng.random() < 0.5 else margin for margin in margins]
    return [min(margin, 0.7) * unit for margin in margins]


def _outline(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n, 4) -> (n, 8, 2): the corners and the middles of the sides."""
    sides = np.empty((len(boxes), 6))  # x0, y0, x1, y1, x middle, y middle
    sides[:, :4] = boxes
    sides[:, 4:] = (sides[:, :2] + sides[:, 2:4]) / 2
    return sides[:, _AROUND]


_AROUND = np.array([[0, 1], [4, 1], [2, 1], [2, 5], [2, 3], [4, 3], [0, 3], [0, 5]])


def _project(matrix: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    mapped = points @ matrix[:, :2].T + matrix[:, 2]
    return mapped[..., :2] / mapped[..., 2:]


@lru_cache(maxsize=2048)
def _grid(length: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Coordinates of the coarse points over `length` pixels (pixel i is centred at i + 0.5), and the matrix
    (length, points) that interpolates between them."""
    points = (length - 1) // COARSE + 2
    at = np.arange(length) / COARSE
    low = np.floor(at).astype(int)
    matrix = np.zeros((length, points), np.float32)
    matrix[np.arange(length), low] = 1 - (at - low)
    matrix[np.arange(length), low + 1] = at - low
    return COARSE * np.arange(points, dtype=np.float64) + 0.5, matrix
