"""What is behind the text, and how it is lit: textures, photographs, fields of light, and noise.

Everything here is made once per process from a fixed seed (0.5 s) and then cut from, at random places: cutting costs
microseconds, making costs milliseconds. Photographs are the user's: `grounds=[...]` names folders of them, or arrays
such as CIFAR-10's training images, which enlarged are soft pieces of the world.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.errors import UserError

Pixels = NDArray[np.float32]

TEXTURES = 160
TEXTURE_SIZE = (96, 256)  # rows, columns
FIELDS = 96
FIELD_SIZE = (64, 160)
NOISE_SIZE = (256, 640)
MOST_PHOTOS = 3000
PHOTO_SIDE = 160  # longest side kept of a photograph
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


def cut(pool: NDArray, rng: random.Random, height: int, width: int, *, zoom: float) -> NDArray:
    """A random piece of a random plate of the pool (a stack of them), at random enlarged up to `zoom` times, at
    (height, width), mirrored half the time."""
    plate = pool[int(rng.random() * len(pool))]
    rows, columns = plate.shape[:2]
    scale = zoom ** rng.random()
    high = min(max(2, int(height / scale)), rows)
    wide = min(max(2, int(width / scale)), columns)
    top, left = int(rng.random() * (rows - high + 1)), int(rng.random() * (columns - wide + 1))
    piece = plate[top : top + high, left : left + wide]
    if rng.random() < 0.5:
        piece = piece[:, ::-1]
    if (high, wide) == (height, width):
        return piece
    return cv2.resize(piece, (width, height), interpolation=cv2.INTER_LINEAR)


@cache
def textures() -> NDArray[np.float32]:
    """(TEXTURES, rows, columns, 3), each of mean 0 and standard deviation 1 over the plate."""
    rng = np.random.default_rng(17)
    rows, columns = TEXTURE_SIZE
    plates = np.empty((TEXTURES, rows, columns, 3), np.float32)
    for number in range(TEXTURES):
        grey = (_clouds, _clouds, _grain, _stripes, _bricks, _patches, _scratches)[number % 7](rng)
        colour = 0.25 * np.stack([_clouds(rng) for _ in range(3)], axis=-1)
        plate = grey[..., None] + colour
        plates[number] = (plate - plate.mean((0, 1))) / (grey.std() + 1e-3)
    return plates


@cache
def fields() -> NDArray[np.float32]:
    """(FIELDS, rows, columns, 1) between -1 and 1: gradients, spots and edges of shade, to light a crop with."""
    rng = np.random.default_rng(23)
    rows, columns = FIELD_SIZE
    y, x = np.mgrid[-1 : 1 : rows * 1j, -1 : 1 : columns * 1j].astype(np.float32)
    plates = np.empty((FIELDS, rows, columns, 1), np.float32)
    for number in range(FIELDS):
        angle, offset = rng.uniform(0, 2 * np.pi), rng.uniform(-0.6, 0.6)
        along = x * np.cos(angle) + y * np.sin(angle) - offset
        kind = number % 4
        if kind == 0:
            plate = along
        elif kind == 1:  # a shadow falls across
            plate = np.tanh(along * rng.uniform(3, 40))
        elif kind == 2:  # a reflection, or a lamp
            spot = (x - rng.uniform(-1, 1)) ** 2 / rng.uniform(0.05, 0.6) + (y - rng.uniform(-1, 1)) ** 2 / 0.4
            plate = 2 * np.exp(-spot) - 0.5
        else:
            plate = _clouds(rng)[:rows, :columns]
        plates[number, :, :, 0] = plate / np.abs(plate).max()
    return plates


@cache
def noise() -> Pixels:
    """(1, rows, columns, 3) of standard deviation about 1: mostly brightness, partly colour, as sensors make it."""
    rng = np.random.default_rng(29)
    rows, columns = NOISE_SIZE
    grey = rng.standard_normal((rows, columns, 1), dtype=np.float32)
    colour = cv2.GaussianBlur(rng.standard_normal((rows, columns, 3), dtype=np.float32), (0, 0), 0.8)
    both = cv2.GaussianBlur(grey + 1.1 * colour, (0, 0), 0.5)  # no camera leaves neighbouring pixels independent
    return (both / both.std())[None]


def load_photos(paths: Iterable[str | Path], *, most: int = MOST_PHOTOS) -> list[NDArray[np.uint8]]:
    """Photographs below folders, made small, in the order of their names, and those of .npy files.
    most: of each of these, spread over all there are."""
    photos: list[NDArray[np.uint8]] = []
    for path in paths:
        root = Path(path).expanduser()
        if root.suffix == ".npy":
            photos += load_stack(root, most=most)
            continue
        files = sorted(file for file in root.rglob("*") if file.suffix.lower() in PHOTO_SUFFIXES)
        if not files:
            raise UserError(f"There are no photographs ({', '.join(PHOTO_SUFFIXES)}) in {root}.")
        for file in files[:: max(1, len(files) // most)]:
            try:
                with Image.open(file) as image:
                    image.draft("RGB", (PHOTO_SIDE, PHOTO_SIDE))
                    small = image.convert("RGB")
                    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
                    photos.append(np.asarray(small))
            except (OSError, ValueError):
                continue  # one broken photograph among thousands does not matter
    return photos


def load_stack(path: Path, *, most: int) -> list[NDArray[np.uint8]]:
    """Photographs of one size in an array (N, H, W, 3), as CIFAR-10 is kept."""
    try:
        images = np.load(path, mmap_mode="r")
    except FileNotFoundError as error:
        brings = " `python train.py task=cifar10 steps=1` brings them." if "cifar10" in path.parts else ""
        raise UserError(f"There are no photographs at {str(path)!r}.{brings}") from error
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no array of photographs: {error}") from error
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8 or not len(images):
        raise UserError(
            f"{str(path)!r} holds {images.dtype} of shape {images.shape}, not photographs: uint8 (N, height, width, 3)."
        )
    return list(np.ascontiguousarray(images[:: max(1, len(images) // most)]))  # a view of the file if it is all


def cut_photo(photos: list[NDArray[np.uint8]], rng: random.Random, height: int, width: int) -> Pixels:
    """A piece of a photograph, wider than high as the crop is, float32 (height, width, 3)."""
    photo = photos[int(rng.random() * len(photos))]
    rows, columns = photo.shape[:2]
    wide = min(columns, max(8, int(columns * rng.uniform(0.35, 1.0))))
    high = min(rows, max(4, int(wide * height / width * rng.uniform(0.8, 1.6))))
    top, left = int(rng.random() * (rows - high + 1)), int(rng.random() * (columns - wide + 1))
    piece = photo[top : top + high, left : left + wide]
    return cv2.resize(piece, (width, height), interpolation=cv2.INTER_LINEAR).astype(np.float32)


def _clouds(rng: np.random.Generator) -> Pixels:
    """Noise at several scales, the coarse ones stronger."""
    rows, columns = TEXTURE_SIZE
    total = np.zeros(TEXTURE_SIZE, np.float32)
    roughness = rng.uniform(0.35, 0.75)
    for octave in range(6):
        grid = rng.standard_normal((2 + 2**octave, 3 + 3 * 2**octave)).astype(np.float32)
        total += roughness**octave * cv2.resize(grid, (columns, rows), interpolation=cv2.INTER_CUBIC)
    return total


def _grain(rng: np.random.Generator) -> Pixels:
    """Plaster, asphalt, cloth: fine noise, longer one way than the other, on soft clouds."""
    fine = rng.standard_normal(TEXTURE_SIZE).astype(np.float32)
    fine = cv2.GaussianBlur(fine, (0, 0), sigmaX=rng.uniform(0.5, 6), sigmaY=rng.uniform(0.5, 2))
    return fine / fine.std() + 0.7 * _clouds(rng)


def _stripes(rng: np.random.Generator) -> Pixels:
    """Boards, shutters, corrugated iron."""
    rows, columns = TEXTURE_SIZE
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
    angle = rng.choice((0.0, np.pi / 2, rng.uniform(0, np.pi)))
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / rng.uniform(5, 40))
    return np.tanh(wave * rng.uniform(1, 6)).astype(np.float32) + 0.5 * _clouds(rng)


def _bricks(rng: np.random.Generator) -> Pixels:
    rows, columns = TEXTURE_SIZE
    high, wide = int(rng.integers(8, 26)), int(rng.integers(16, 60))
    y, x = np.mgrid[0:rows, 0:columns]
    row = y // high
    x = x + row % 2 * (wide // 2)
    shade = rng.standard_normal((rows // high + 1, columns // wide + 3)).astype(np.float32)
    joint = (y % high < 2) | (x % wide < 2)
    wall = 0.5 * shade[row, x // wide] - rng.uniform(-2, 2) * joint + 0.3 * _clouds(rng)
    return cv2.GaussianBlur(wall.astype(np.float32), (0, 0), 0.7)


def _patches(rng: np.random.Generator) -> Pixels:
    """Things with edges: windows, frames, leaves, people's clothes."""
    rows, columns = TEXTURE_SIZE
    plate = 0.3 * _clouds(rng)
    for _ in range(int(rng.integers(6, 24))):
        corners = rng.integers((0, 0), (columns, rows), (int(rng.integers(3, 6)), 2)).astype(np.int32)
        if rng.random() < 0.7:
            cv2.fillConvexPoly(plate, cv2.convexHull(corners), float(rng.standard_normal()))
        else:
            x, y = (int(value) for value in corners[0])
            cv2.ellipse(plate, (x, y), (int(rng.integers(3, 40)), int(rng.integers(3, 25))), 0, 0, 360,
                        float(rng.standard_normal()), -1)  # fmt: skip
    return cv2.GaussianBlur(plate, (0, 0), rng.uniform(0.4, 2.5))


def _scratches(rng: np.random.Generator) -> Pixels:
    rows, columns = TEXTURE_SIZE
    plate = 0.6 * _clouds(rng)
    for _ in range(int(rng.integers(3, 25))):
        (x0, y0), (x1, y1) = rng.integers((0, 0), (columns, rows), (2, 2)).tolist()
        cv2.line(plate, (x0, y0), (x1, y1), float(2 * rng.standard_normal()), int(rng.integers(1, 3)), cv2.LINE_AA)
    return plate
