"""Crops with nothing to read as a source of text rows: a model that never saw any reads a word out of every wall.

    data.train=[{path: render, weight: 3}, {path: blanks, weight: 0.1}]

They are drawn anew whenever they are asked for, which takes no longer than drawing words; row n of a seed is always the
same crop. Some are pieces of CIFAR-10's training images, where its cache is at hand.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from pathlib import Path

import numpy as np

from vitocr.data.render import grounds
from vitocr.data.render.blank import draw_blank
from vitocr.data.render.spec import VERSION, Crop, Effects
from vitocr.data.text_rows import Rendered

BLANKS = "blanks"  # what the source is called in data.train
ROWS = 100_000  # of an epoch; how many of them are seen is a matter of the weight
PHOTOS = Path("data/cifar10/train_images.npy")  # where `task=cifar10` puts them
MOST_PHOTOS = 50_000  # all: it is photographs that a model reads words out of when it has seen few


class Blanks:
    """Blanks(size=(32, 128), seed=0)(index) -> Crop. photos: images (N, H, W, 3) as .npy; None for none."""

    def __init__(self, *, size: tuple[int, int], seed: int = 0, photos: Path | None = None) -> None:
        self.size, self.seed = size, seed
        self._photos = grounds.load_photos(() if photos is None else (photos,), most=MOST_PHOTOS)
        self._effects = Effects()
        photographs = zlib.crc32(b"".join(photo[::16].tobytes() for photo in self._photos))
        about = [VERSION, list(size), seed, photographs]
        self.fingerprint = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def __call__(self, index: int) -> Crop:
        rng = random.Random(f"blank {self.seed} {index}")  # a text as seed is hashed: no kin of the words' numbers
        image = draw_blank(rng, self._photos, self._effects, size=self.size)
        return Crop(image, "", np.empty((0, 4), np.float32))


def open_blanks(*, size: tuple[int, int], seed: int = 0, photos: Path = PHOTOS, rows: int = ROWS) -> Rendered:
    """size: height and width of the crops in pixels. photos: used if it is there."""
    return Rendered(Blanks(size=size, seed=seed, photos=photos if photos.is_file() else None), rows, name=BLANKS)
