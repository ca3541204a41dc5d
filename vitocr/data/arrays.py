"""What a data set is once it has been found: rows, their labels, and the names of the classes.

Two kinds of rows, because they are read differently: `ImageArrays` (decoded, one size, in memory or
memory-mapped) and `PathRows` (files, decoded when needed). `Splits` ties train, validation and test together.
No torch here: evaluation tools and tests read data sets without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vitocr.errors import UserError


@dataclass(frozen=True)
class ImageArrays:
    """Decoded images of one size."""

    images: NDArray[np.uint8]  # (N, H, W, 3)
    labels: NDArray[np.int64]  # (N,)

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] != 3 or self.images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 (N, H, W, 3), not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != (len(self.images),):
            raise ValueError(f"{len(self.images)} images but labels of shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> ImageArrays:
        return ImageArrays(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class PathRows:
    """Image files below `root`, with their labels."""

    root: Path
    paths: tuple[str, ...]  # relative to root, or absolute
    labels: NDArray[np.int64]  # (N,)

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, row: int) -> Path:
        return self.root / self.paths[row]

    def take(self, rows: NDArray[np.int64]) -> PathRows:
        return PathRows(self.root, tuple(self.paths[row] for row in rows), self.labels[rows])


Rows = ImageArrays | PathRows
AnyRows = TypeVar("AnyRows", ImageArrays, PathRows)


@dataclass(frozen=True)
class Splits:
    """A data set ready for use. `val` and `test` may be missing; `train` never is."""

    train: Rows
    val: Rows | None
    test: Rows | None
    classes: tuple[str, ...]
    name: str
    fingerprints: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # things a person should read once: files left out, classes that are missing


def split_off(rows: AnyRows, held_out: float | int, *, seed: int) -> tuple[AnyRows, AnyRows]:
    """Divide `rows` into (kept, held out), class by class and always the same way for the same seed.

    held_out: a share (a float below 1) or a number of rows (an int). A class keeps at least one row on the
    kept side; a class of a single row is never held out. Both sides stay in their original order.
    """
    total = len(rows)
    wanted = held_out if isinstance(held_out, int) else round(total * held_out)
    if not 0 < wanted < total:
        raise UserError(
            f"Cannot hold out {held_out} of {total} training images: ask for a share between 0 and 1 (0.1), "
            f"or for a number of images below {total}."
        )
    quota = _quota(np.bincount(rows.labels), wanted)
    order = np.random.default_rng([seed, 0x5B117]).permutation(total)
    held = np.zeros(total, dtype=bool)
    for label, count in enumerate(quota):
        held[order[rows.labels[order] == label][:count]] = True
    return rows.take(np.flatnonzero(~held)), rows.take(np.flatnonzero(held))


def _quota(counts: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """How many rows each class gives up: proportional, largest remainders first, at least one kept."""
    share = counts * (wanted / counts.sum())
    quota = np.floor(share).astype(np.int64)
    by_remainder = np.argsort(quota - share, kind="stable")
    quota[by_remainder[: wanted - quota.sum()]] += 1
    given_up: NDArray[np.int64] = np.minimum(quota, np.maximum(counts - 1, 0))
    return given_up
