"""A text model without a network: pictures in which a character is a bar of its own shade, and what reads them.

The upper part of a picture is green and the lower is not, so that the reader knows which way up it is; it reads what
stands upright as it is, and anything else as a single letter that it is not sure of.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitocr.predict import Predictor

LETTERS = "abcdefghij"
FRAME = (32, 128)
STEP = 22  # between the shades of two letters
SURE = 0.95  # of each letter


def shade(letter: str) -> int:
    return STEP * (1 + LETTERS.index(letter))


def bars(text: str, *, height: int = 32, letter: int = 16) -> NDArray[np.uint8]:
    """(height, letter x len(text), 3): red is the letter, with a gap before the next; green says where the top is."""
    image = np.full((height, max(letter * len(text), 4), 3), 255, np.uint8)
    for i, character in enumerate(text):
        image[:, i * letter : i * letter + round(0.75 * letter), 0] = shade(character)
    image[height // 2 :, :, 1] = 0
    return image


class BarReader:
    """Keeps what it was asked; reads no more than `longest` letters at once."""

    def __init__(self, *, longest: int = 25, sure: float = SURE) -> None:
        self.longest, self.sure = longest, sure
        self.batches: list[int] = []
        self.asked: list[dict[str, Any]] = []

    def answers(self, pixels: NDArray[np.float32], **asked: Any) -> Iterator[Any]:
        assert pixels.shape[1:] == (3, *FRAME)
        self.batches.append(len(pixels))
        self.asked.append(asked)
        return map(self.read, (pixels * 0.25 + 0.5) * 255)

    def read(self, image: NDArray[np.floating[Any]]) -> tuple[Any, ...]:
        red, green, _ = image
        if green[:8].mean() - green[-8:].mean() < 100:
            return np.array([9]), 1, np.array([0.3]), 0.3, np.array([[0.0, 0.0, 1.0, 1.0]]), np.zeros(0)
        row = red[FRAME[0] // 2]
        kinds = np.round(row / STEP).astype(int) * (np.abs(row - STEP * np.round(row / STEP)) < 4)
        kinds[row > STEP * len(LETTERS) + 8] = 0
        edges = np.flatnonzero(np.diff(kinds, prepend=0, append=0))
        runs = [(a, b) for a, b in pairwise(edges) if kinds[a] and b - a >= 4][: self.longest]
        ids = np.array([kinds[a] - 1 for a, _ in runs], dtype=np.int64)
        where = np.array([[a / FRAME[1], 0.0, b / FRAME[1], 1.0] for a, b in runs]).reshape(-1, 4)
        return ids, len(ids), np.full(len(ids), self.sure), self.sure ** len(ids), where, np.zeros(0)

    def stack(self, answers: Any, classes: int) -> Any:
        raise AssertionError("of classes only")


def reader_of_bars(runner: Any = None, **description: Any) -> Predictor:
    preprocess = {"size": list(FRAME), "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch"}
    told = {
        "kind": "text",
        "task": "bars",
        "codec": {"type": "charset", "characters": LETTERS},
        "preprocess": preprocess | {"interpolation": "bilinear"},
        "provenance": {},
    }
    return Predictor(runner or BarReader(), told | description)
