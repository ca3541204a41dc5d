"""What differs between the tasks while training: how a batch becomes a loss, and how validation counts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitocr.data.batch_augment import BatchAugment, eval_images
from vitocr.data.loader import Batch
from vitocr.heads.classify import ClassTargets
from vitocr.models.model import Model


class ClassifyTask:
    """One class an image."""

    counts = ("loss", "accuracy")  # what validation reports, each a mean over images

    def __init__(self, augment: BatchAugment, *, mean: list[float], std: list[float], label_smoothing: float) -> None:
        self.augment, self.mean, self.std, self.label_smoothing = augment, mean, std, label_smoothing

    def prepare(self, batch: Batch, *, dtype: torch.dtype, **when_and_who: Any) -> tuple[Tensor, ClassTargets]:
        """Augmented images (B, 3, H, W) and what they show; `when_and_who`: progress, epochs, rank, world."""
        done = self.augment(batch, mean=self.mean, std=self.std, dtype=dtype, **when_and_who)
        return done.images, ClassTargets(done.targets, done.mixed, done.lam)

    def loss_options(self) -> dict[str, Any]:
        return {"label_smoothing": self.label_smoothing}

    def judge(self, model: Model, batch: Batch, *, dtype: torch.dtype) -> Tensor:
        """Sums over the images of a batch of what `counts` names, and how many images these are."""
        images = batch.images
        if images.dtype == torch.uint8:
            images = eval_images(images, self.mean, self.std, dtype)
        logits = model(images).float()
        loss = F.cross_entropy(logits, batch.targets, reduction="sum")
        right = (logits.argmax(dim=1) == batch.targets).sum()
        return torch.stack([loss.double(), right.double(), torch.full_like(loss, len(images), dtype=torch.float64)])
