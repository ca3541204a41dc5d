"""From splits to the batches Lightning asks for: this rank's rows, from where training stands."""

from collections.abc import Callable, Iterator
from typing import Any

import lightning as L

from vitocr.data.arrays import ImageArrays, PathRows, Splits
from vitocr.data.loader import ArrayLoader, Augment, Batch, FileLoader
from vitocr.preprocess import Preprocess

Loader = ArrayLoader | FileLoader


class Endless:
    """A loader, epoch after epoch. Lightning sees one endless epoch; ours are `position // len(loader)`.

    A budget ends anywhere in an epoch and a kill comes anywhere; with positions counted here, Lightning
    has no half-finished epoch to take up again.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self.loader


class Feed(L.LightningDataModule):
    def __init__(
        self,
        splits: Splits,
        *,
        preprocess: Preprocess,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        workers: int,
        augment: Augment | None,
        max_bad_fraction: float,
        say: Callable[[str], object],
    ) -> None:
        """batch_size: images of a training batch, all ranks together. augment: per image, for files."""
        super().__init__()
        self.splits, self.preprocess, self.augment = splits, preprocess, augment
        self.batch_size, self.eval_batch_size, self.seed = batch_size, eval_batch_size, seed
        self.workers, self.max_bad_fraction, self.say = workers, max_bad_fraction, say

    def loader(self, rows: ImageArrays | PathRows, *, train: bool) -> Loader:
        where: dict[str, Any] = {"rank": 0, "world": 1}
        if self.trainer is not None:
            where = {"rank": self.trainer.global_rank, "world": self.trainer.world_size}
        where |= {"seed": self.seed, "shuffle": train, "drop_last": train}
        where["batch_size"] = self.batch_size if train else self.eval_batch_size
        if isinstance(rows, ImageArrays) and not (train and self.augment):
            return ArrayLoader(rows, **where)
        return FileLoader(
            rows,
            preprocess=self.preprocess,
            augment=self.augment if train else None,
            workers=self.workers,
            max_bad_fraction=self.max_bad_fraction,
            say=self.say,
            **where,
        )

    def train_dataloader(self) -> Endless:
        loader = self.loader(self.splits.train, train=True)
        if self.trainer is not None:  # a resumed run goes on behind its last batch
            loader.set_position(self.trainer.global_step)
        return Endless(loader)

    def val_dataloader(self) -> list[Loader]:
        return [] if self.splits.val is None else [self.loader(self.splits.val, train=False)]

    def batches_per_epoch(self) -> int:
        return len(self.splits.train) // self.batch_size
