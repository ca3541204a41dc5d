"""What a camera and a file do to the picture: blur, noise, compression, and the way to the final size."""

from __future__ import annotations

import random

import cv2
import numpy as np
from numpy.typing import NDArray

from vitocr.data.render import grounds
from vitocr.data.render.spec import Effects

ENLARGE = (*(cv2.INTER_LINEAR,) * 7, *(cv2.INTER_CUBIC,) * 6, cv2.INTER_NEAREST)  # as often as programs use them


def degrade(
    rng: random.Random, picture: NDArray[np.float32], effects: Effects, *, final: tuple[int, int]
) -> NDArray[np.uint8]:
    """float32 (h, w, 3) at the camera's resolution -> uint8 (*final, 3)."""
    height, width = picture.shape[:2]
    if rng.random() < effects.bloom:
        bright = np.maximum(picture - 130, 0)
        picture += cv2.GaussianBlur(bright, (9, 9), 2.5 * height / final[0]) * np.float32(rng.uniform(0.4, 1.5))
    if rng.random() < effects.blur:
        # The larger share is hardly blurred; a few are nearly lost. Small canvases are soft by being enlarged.
        sigma = min(0.15 + abs(rng.gauss(0, 0.6)), 1.8) * (0.4 + 0.6 * height / final[0])
        if sigma > 0.25:
            across = sigma * min(1.5, max(0.6, 2.6 * height / width))  # stretched crops are less blurred along the word
            size_x, size_y = (2 * round(2.2 * value) + 1 for value in (across, sigma))
            cv2.GaussianBlur(picture, (max(3, size_x), max(3, size_y)), dst=picture, sigmaX=across, sigmaY=sigma)
    if rng.random() < effects.motion:
        cv2.filter2D(picture, -1, _motion(rng), dst=picture, borderType=cv2.BORDER_REPLICATE)
    if rng.random() < effects.noise:
        piece = grounds.cut(grounds.noise(), rng, height, width, zoom=1.0)
        picture += piece * np.float32(min(rng.expovariate(1 / 2.4), 18.0))
    if rng.random() < effects.sharpen:
        amount = rng.uniform(0.3, 1.2)  # cameras and web pictures sharpen, which leaves bright seams
        soft = cv2.GaussianBlur(picture, (5, 5), 1.0)
        picture = (1 + amount) * picture - amount * soft
    image = cv2.convertScaleAbs(np.maximum(picture, 0))  # rounds and clips
    if rng.random() < effects.jpeg:
        image = _compress(image, quality=int(rng.triangular(18, 92, 65)))
    if (height, width) != final:
        how = rng.choice(ENLARGE) if height < 0.8 * final[0] or width < 0.8 * final[1] else cv2.INTER_LINEAR
        image = cv2.resize(image, (final[1], final[0]), interpolation=how)
    return image


def _motion(rng: random.Random) -> NDArray[np.float32]:
    size = rng.choice((3, 3, 5))
    kernel = np.zeros((size, size), np.float32)
    middle = size // 2
    dx, dy = rng.choice(((1, 0), (1, 0), (1, 1), (1, -1), (0, 1)))
    cv2.line(kernel, (middle - dx * middle, middle - dy * middle), (middle + dx * middle, middle + dy * middle), 1.0)
    return kernel / kernel.sum()


def _compress(image: NDArray[np.uint8], *, quality: int) -> NDArray[np.uint8]:
    """Through JPEG and back. Channel order does not matter much to it, but swapped it would weigh blue as red."""
    _, data = cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality))
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)
    return image if decoded is None else decoded[..., ::-1].astype(np.uint8, copy=False)
