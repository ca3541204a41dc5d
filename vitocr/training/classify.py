"""What is particular to naming classes: its data, how a batch becomes a loss, how it is judged and reported.

A *kit* is all that training needs to know of a task; `training/text.py` and `training/pretrain.py` are the others.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hydra.utils import get_method
from torch import Tensor

from vitocr.calibration import FEWEST, fit_temperature
from vitocr.codec import Classes
from vitocr.data.arrays import ImageArrays, PathRows, Rows, Splits
from vitocr.data.batch_augment import BatchAugment, eval_images
from vitocr.data.loader import ArrayLoader, Augment, Batch, FileLoader
from vitocr.data.memory import load_arrays
from vitocr.evaluate import Measured, measure
from vitocr.heads.classify import ClassTargets
from vitocr.metrics import confusion_matrix, summarise_classification
from vitocr.models.model import Model
from vitocr.output import progress
from vitocr.predict import Predictor
from vitocr.preprocess import Preprocess
from vitocr.training.feed import batching
from vitocr.training.teacher import teacher_of

Say = Callable[[str], object]
SAMPLES = 5000  # images that the sheet of predictions is chosen from
SAMPLES_FROM_FILES = 200


class ClassifyKit:
    """One class an image."""

    kind = "classify"
    counts: tuple[str, ...] = ("loss", "accuracy")  # what validation reports, each a mean over images

    def __init__(self, config: dict[str, Any], *, workers: int, say: Say) -> None:
        self.config, self.workers, self.say = config, workers, say
        self.preprocess = Preprocess.from_dict(config["preprocess"])
        self.splits = load_splits(config, self.preprocess, say=say)
        self.codec = Classes(self.splits.classes)
        self.head_arguments = {"classes": len(self.codec)}
        self.batch_augment, self.image_augment = build_augments(config, self.preprocess)
        self.teacher = teacher_of(config, codec=self.codec, preprocess=self.preprocess)
        if self.teacher is not None:
            say(f"taught by {self.teacher.name}")
        self.sizes = {
            name: len(rows) for name in ("train", "val", "test") if (rows := getattr(self.splits, name)) is not None
        }
        self.data_description = {"name": self.splits.name, "fingerprints": dict(self.splits.fingerprints)}
        self.summary = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        self.summary += f" images, {len(self.codec)} classes"

    def loader(self, split: str, *, train: bool, rank: int, world: int) -> ArrayLoader | FileLoader:
        rows: Rows = getattr(self.splits, split)
        how = batching(self.config, train=train, rank=rank, world=world)
        if isinstance(rows, ImageArrays) and not (train and self.image_augment):
            return ArrayLoader(rows, **how)
        return FileLoader(
            rows,
            preprocess=self.preprocess,
            augment=self.image_augment if train else None,
            workers=self.workers,
            max_bad_fraction=self.config["max_bad_fraction"],
            say=self.say,
            **how,
        )

    def prepare(self, batch: Batch, *, dtype: torch.dtype, **when_and_who: Any) -> tuple[Tensor, ClassTargets]:
        """Augmented images (B, 3, H, W) and what they show; `when_and_who`: progress, epochs, rank, world."""
        done = self.batch_augment(
            batch, mean=self.preprocess.mean, std=self.preprocess.std, dtype=dtype, **when_and_who
        )
        taught = None if self.teacher is None else self.teacher(done.images)
        return done.images, ClassTargets(done.targets, done.mixed, done.lam, taught)

    def loss_options(self, progress: float) -> dict[str, Any]:
        return {name: self.config[name] for name in ("label_smoothing", "teacher_weight")}

    def judge(self, model: Model, batch: Batch, *, dtype: torch.dtype) -> Tensor:
        """Sums over the images of a batch of what `counts` names, and how many images these are."""
        images = batch.images
        if images.dtype == torch.uint8:
            images = eval_images(images, self.preprocess.mean, self.preprocess.std, dtype)
        logits = model(images).float()
        loss = F.cross_entropy(logits, batch.targets, reduction="sum")
        right = (logits.argmax(dim=1) == batch.targets).sum()
        return torch.stack([loss.double(), right.double(), torch.full_like(loss, len(images), dtype=torch.float64)])

    def report(self, model: Model, description: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
        """The figures of the test split (without one, of the validation split), and the pictures. The description is
        told how confidences are to be taken."""
        predictor = Predictor(model, description)

        def measured_on(rows: Rows, what: str) -> tuple[Measured, float]:
            began = time.monotonic()
            found = measure(
                predictor, rows, batch_size=250, watch=lambda items, total: progress(items, total, what=what)
            )
            return found, time.monotonic() - began

        splits, temperature = self.splits, 1.0
        val = None if splits.val is None else measured_on(splits.val, "calibrating")
        if val is not None and len(val[0].labels) >= FEWEST:
            # On images that were held back: a model learns from smoothed labels, and is less sure than it should be.
            temperature = fit_temperature(val[0].logits, val[0].labels)
            description["calibration"] = {"temperature": temperature, "images": len(val[0].labels)}
        measured, rows = ("val", splits.val) if splits.test is None else ("test", splits.test)
        if rows is None:
            return {}
        found, seconds = val if val is not None and measured == "val" else measured_on(rows, "evaluating")
        found = found._replace(logits=found.logits / temperature)
        summary = summarise_classification(found.logits, found.labels, splits.classes) | {"seconds": seconds}
        low, high = summary["accuracy_95"]
        self.say(
            f"{measured} accuracy {100 * summary['accuracy']:.2f}% (95% interval {100 * low:.2f} to "
            f"{100 * high:.2f}), calibration error {100 * summary['ece']:.2f}%"
        )
        self.draw(folder, rows, found.logits.softmax(dim=1).numpy(), found.labels, found.rows)
        return {measured: summary}

    def draw(self, folder: Path, rows: Rows, probs: np.ndarray, labels: np.ndarray, kept: np.ndarray) -> None:
        from vitocr.drawing.classes import draw_confusion, draw_samples

        names = self.splits.classes
        draw_confusion(folder / "confusion.png", confusion_matrix(probs.argmax(axis=1), labels, len(names)), names)
        if isinstance(rows, ImageArrays):
            images = list(rows.images[kept[:SAMPLES]])
        else:
            from vitocr.data.folder import decode_image

            images = [decode_image(rows.path(int(row))) for row in kept[:SAMPLES_FROM_FILES]]
        draw_samples(folder / "samples.png", images, labels[: len(images)], probs[: len(images)], names)


def load_splits(config: dict[str, Any], preprocess: Preprocess, *, say: Say) -> Splits:
    """`data._target_` names a function that returns Splits; the rest of `data:` are its arguments."""
    # Called here rather than by Hydra, which would wrap our errors in its own.
    arguments = {name: value for name, value in config["data"].items() if name != "_target_"}
    source = get_method(config["data"]["_target_"])
    if "say" in inspect.signature(source).parameters:
        arguments["say"] = say
    splits: Splits = source(**arguments)
    for note in splits.notes:
        say(note)
    if config["augment"]["kind"] == "image":
        return splits

    def in_memory(rows: Rows | None) -> Rows | None:
        """Batches are augmented out of memory, so files are decoded first."""
        if not isinstance(rows, PathRows):
            return rows
        return load_arrays(rows, preprocess=preprocess, max_bad_fraction=config["max_bad_fraction"], say=say)

    train = in_memory(splits.train)
    assert train is not None
    return replace(splits, train=train, val=in_memory(splits.val))


def build_augments(config: dict[str, Any], preprocess: Preprocess) -> tuple[BatchAugment, Augment | None]:
    """What is done to a batch, and, with `augment.kind=image`, to every image before (in the loader's workers)."""
    spec = config["augment"]
    known = {field.name for field in fields(BatchAugment)}
    batch = BatchAugment(**{name: value for name, value in spec.items() if name in known}, seed=config["seed"])
    if spec["kind"] != "image":
        return batch, None
    from vitocr.data.augment import build_augment

    return batch, build_augment(spec["transforms"], size=preprocess.size, mean=preprocess.mean, std=preprocess.std)
