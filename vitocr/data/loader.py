"""Batches, in an order that is a pure function of (seed, epoch) and can be taken up anywhere.

Two loaders with one face: `ArrayLoader` gathers rows of decoded images (nearly free), `FileLoader` decodes
files in worker processes. Both yield `Batch`, and both know their `position`: the number of global batches
since the start of training, so `position = epoch * len(loader) + index`. Going on from a position gives the
batches an uninterrupted run would have seen. Lightning may fetch a batch ahead: the position to save is that
of the last batch trained on, plus one (`Batch.position + 1`).

With `world` ranks, rank r takes the contiguous slice [r*b/w, (r+1)*b/w) of every global batch of b rows: put
together, the ranks see exactly what one process sees. What is drawn for a row depends on (seed, epoch, row)
alone, so neither the number of workers nor the number of ranks changes it.

Without `shuffle` a loader is for evaluation: every pass starts at the first row, and with `drop_last=False`
every row is seen exactly once across the ranks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitocr.data.arrays import ImageArrays, Rows
from vitocr.data.bad_files import BadFiles
from vitocr.data.folder import decode_image
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

Item = TypeVar("Item")
Augment = Callable[[NDArray[np.uint8], int], NDArray[np.float32]]  # (H, W, 3) uint8, seed -> (3, h, w)


class Batch(NamedTuple):
    """Rows of one global batch that belong to this rank."""

    images: Tensor  # (B, H, W, 3) uint8 from arrays; (B, 3, h, w) float32 normalised from files
    targets: Tensor  # (B,) int64
    position: int  # global batches since the start of training


class Slice(NamedTuple):
    """What a worker needs to make one batch: the rows of the global batch, and which of them are ours."""

    position: int
    epoch: int
    rows: NDArray[np.int64]  # (b,) of the whole global batch
    start: int
    stop: int


def epoch_order(n: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of n rows: the same for the same (n, seed, epoch), on every rank."""
    return np.random.default_rng((seed, epoch)).permutation(n)


@dataclass
class BatchPlan:
    """Which rows come when; holds the position. Iterating gives the rest of the epoch the position is in."""

    total: int  # rows
    batch_size: int  # rows of a global batch
    seed: int
    rank: int
    world: int
    shuffle: bool
    drop_last: bool
    position: int = 0  # moved by whoever consumes the batches: slices may be asked for ahead of time

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size={self.batch_size} must be at least 1.")
        if self.drop_last and self.batch_size % self.world:
            raise UserError(
                f"batch_size={self.batch_size} counts the images of all {self.world} processes: "
                f"make it a multiple of {self.world}."
            )
        if self.drop_last and self.total < self.batch_size:
            raise UserError(
                f"The training split has {self.total} images, fewer than one batch of {self.batch_size}: "
                f"set batch_size to {max(self.total // self.world, 1) * self.world} or less."
            )

    def __len__(self) -> int:
        """Global batches an epoch."""
        return self.total // self.batch_size if self.drop_last else math.ceil(self.total / self.batch_size)

    def __iter__(self) -> Iterator[Slice]:
        if not self.shuffle:
            self.position = 0
        epoch, first = divmod(self.position, max(len(self), 1))
        order = np.arange(self.total)
        if self.shuffle:
            order = epoch_order(self.total, seed=self.seed, epoch=epoch)
        for index in range(first, len(self)):
            rows = order[index * self.batch_size : (index + 1) * self.batch_size]
            start, stop = (len(rows) * rank // self.world for rank in (self.rank, self.rank + 1))
            if start < stop:  # the last rows of an evaluation may be fewer than the ranks
                yield Slice(epoch * len(self) + index, epoch, rows, start, stop)


class PositionedLoader:
    """What both loaders say about their plan, which is a part of them and not their base for a reason:
    PyTorch ends worker processes in time only if its sampler (the plan) does not refer back to the loader.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        """Global batches an epoch."""
        return len(self.plan)

    @property
    def position(self) -> int:
        return self.plan.position

    def set_position(self, position: int) -> None:
        """The next pass starts at this global batch."""
        self.plan.position = position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_position(state["position"])


class ArrayLoader(PositionedLoader):
    """Batches of uint8 images out of memory (or a memory map): one gather each, no worker processes."""

    def __init__(
        self,
        arrays: ImageArrays,
        *,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        """batch_size: images of a global batch, all ranks together."""
        super().__init__(BatchPlan(len(arrays), batch_size, seed, rank, world, shuffle, drop_last))
        self.images = torch.from_numpy(arrays.images)  # (N, H, W, 3)
        self.targets = torch.from_numpy(arrays.labels)

    def __iter__(self) -> Iterator[Batch]:
        for part in self.plan:
            rows = torch.from_numpy(part.rows[part.start : part.stop])
            self.plan.position = part.position + 1
            yield Batch(self.images.index_select(0, rows), self.targets.index_select(0, rows), part.position)


class ReadingLoader(PositionedLoader):
    """A loader that reads its rows, some of which may turn out broken."""

    def __init__(
        self,
        batches: Dataset[tuple[Batch, dict[int, str]]],
        plan: BatchPlan,
        *,
        workers: int,
        max_bad_fraction: float,
        say: Callable[[str], object],
    ) -> None:
        """batches: makes of each slice of the plan a batch, and tells which rows were broken, and why."""
        super().__init__(plan)
        self.bad = BadFiles(plan.total, max_fraction=max_bad_fraction, say=say)
        self.loader = whole_batches(batches, plan, workers=workers)

    def __iter__(self) -> Iterator[Batch]:
        for batch, bad in self.loader:
            for row, why in bad.items():
                self.bad.add(row, why)
            self.plan.position = batch.position + 1
            if len(batch.targets):
                yield batch


class FileLoader(ReadingLoader):
    """Batches of images that are augmented and normalised one by one, out of files (or out of memory).

    augment: the training transform; without it, images go through `preprocess` (evaluation).
    A file that cannot be read is named once and counted. In training (`shuffle`) the next readable row of the
    same global batch takes its place; in evaluation its row is left out. More than `max_bad_fraction` of all
    files unreadable is an error: then the data is at fault, not a file.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        preprocess: Preprocess,
        augment: Augment | None = None,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
        workers: int = 0,
        max_bad_fraction: float = 0.05,
        say: Callable[[str], object] = print,
    ) -> None:
        """batch_size: images of a global batch, all ranks together. workers: processes of this rank."""
        plan = BatchPlan(len(rows), batch_size, seed, rank, world, shuffle, drop_last)
        source = _Source(rows, preprocess, augment, seed=seed, replace_bad=shuffle)
        super().__init__(source, plan, workers=workers, max_bad_fraction=max_bad_fraction, say=say)


def read_slots(
    part: Slice, read: Callable[[int, int], Item], *, replace_bad: bool
) -> tuple[list[Item], dict[int, str]]:
    """What `read(row, slot)` makes of each slot of this rank, and the rows that raised UserError, with why.

    In the place of such a row comes the next readable one of the global batch (`replace_bad`), or none. All ranks
    agree, since all look through the global batch."""
    good: list[Item] = []
    bad: dict[int, str] = {}
    for slot in range(part.start, part.stop):
        for offset in range(len(part.rows) if replace_bad else 1):
            row = int(part.rows[(slot + offset) % len(part.rows)])
            try:
                good.append(read(row, slot))
            except UserError as error:
                bad[row] = str(error)
            else:
                break
    return good, bad


def whole_batches(batches: Dataset[Any], slices: Any, *, workers: int) -> DataLoader[Any]:
    """torch's loader over a data set that makes whole batches, one of every slice; `slices` are asked anew at
    every pass."""
    return DataLoader(
        batches,
        sampler=slices,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        persistent_workers=workers > 0,
        worker_init_fn=one_thread if workers else None,
    )


def _as_it_is(made: Any) -> Any:
    """What PyTorch would do otherwise makes lists of tuples."""
    return made


class _Source(Dataset[tuple[Batch, dict[int, str]]]):
    """Makes one batch from one `Slice`. This is what worker processes get a copy of."""

    def __init__(
        self, rows: Rows, preprocess: Preprocess, augment: Augment | None, *, seed: int, replace_bad: bool
    ) -> None:
        self.rows, self.preprocess, self.augment = rows, preprocess, augment
        self.seed, self.replace_bad = seed, replace_bad

    def __getitem__(self, part: Slice) -> tuple[Batch, dict[int, str]]:
        def read(row: int, slot: int) -> tuple[NDArray[np.float32], int]:
            return self._image(row, part.epoch, slot_row=int(part.rows[slot])), int(self.rows.labels[row])

        good, bad = read_slots(part, read, replace_bad=self.replace_bad)
        height, width = self.preprocess.size
        stacked = np.stack([image for image, _ in good]) if good else np.empty((0, 3, height, width), np.float32)
        targets = torch.tensor([target for _, target in good], dtype=torch.int64)
        batch = Batch(torch.from_numpy(stacked), targets, part.position)
        return batch, bad

    def _image(self, row: int, epoch: int, *, slot_row: int) -> NDArray[np.float32]:
        image = self.rows.images[row] if isinstance(self.rows, ImageArrays) else decode_image(self.rows.path(row))
        if self.augment is None:
            return self.preprocess(image)
        # Seeded by the row whose place it is, so that a stand-in is not augmented like its original.
        seed = int(np.random.SeedSequence((self.seed, epoch, int(slot_row))).generate_state(1)[0])
        return self.augment(image, seed)


def one_thread(_worker: int) -> None:
    """Workers are the parallelism: a pool of OpenCV threads in each would fight over the same cores."""
    with contextlib.suppress(ImportError):  # evaluation works without OpenCV
        import cv2

        cv2.setNumThreads(0)
