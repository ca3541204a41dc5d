"""The batches Lightning asks for: this rank's rows, from where training stands; and what a kit is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import lightning as L
import torch
from torch import Tensor

from vitocr.models.model import Model
from vitocr.preprocess import Preprocess


class Kit(Protocol):
    """What differs between the tasks: `ClassifyKit`, `TextKit` and `PretrainKit` are those there are."""

    kind: str
    # What validation reports, each a mean over images. Best is the checkpoint of the highest "accuracy", or where
    # that is not counted, of the lowest "loss".
    counts: tuple[str, ...]
    config: dict[str, Any]
    preprocess: Preprocess
    codec: Any
    head_arguments: dict[str, Any]
    sizes: dict[str, int]  # rows of each split there is
    data_description: dict[str, Any]
    summary: str  # of the data, for a person

    def loader(self, split: str, *, train: bool, rank: int, world: int) -> Any: ...

    def prepare(self, batch: Any, *, dtype: torch.dtype, **when_and_who: Any) -> tuple[Tensor, Any]:
        """Images for the model, and targets for its head. `when_and_who`: progress, epochs, rank, world."""

    def loss_options(self, progress: float) -> dict[str, Any]: ...

    def judge(self, model: Model, batch: Any, *, dtype: torch.dtype) -> Tensor:
        """Sums over the images of a batch of what `counts` names, and how many images these are."""

    def report(self, model: Model, description: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
        """Figures of the finished model by split, and the pictures in `folder`."""


def batching(config: dict[str, Any], *, train: bool, rank: int, world: int) -> dict[str, Any]:
    """What every loader of ours is told about batches."""
    return {
        "batch_size": config["batch_size"] if train else config["eval_batch_size"],
        "seed": config["seed"],
        "rank": rank,
        "world": world,
        "shuffle": train,
        "drop_last": train,
    }


class Endless:
    """A loader, epoch after epoch. Lightning sees one endless epoch; ours are `position // len(loader)`.

    A budget ends anywhere in an epoch and a kill comes anywhere; with positions counted here, Lightning
    has no half-finished epoch to take up again.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.loader


class Feed(L.LightningDataModule):
    def __init__(self, kit: Kit) -> None:
        super().__init__()
        self.kit = kit

    def loader(self, split: str, *, train: bool) -> Any:
        assert self.trainer is not None
        return self.kit.loader(split, train=train, rank=self.trainer.global_rank, world=self.trainer.world_size)

    def train_dataloader(self) -> Endless:
        loader = self.loader("train", train=True)
        assert self.trainer is not None
        loader.set_position(self.trainer.global_step)  # a resumed run goes on behind its last batch
        return Endless(loader)

    def val_dataloader(self) -> list[Any]:
        return [self.loader("val", train=False)] if "val" in self.kit.sizes else []
