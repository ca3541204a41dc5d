"""The LightningModule: one training step, one validation step, whatever the task.

All randomness of a step is drawn from generators seeded by (seed, position of the batch), never from a
state that has to be saved: a resumed run draws what the interrupted one would have drawn.
"""

from typing import Any, NamedTuple

import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from vitocr.data.batch_augment import BatchAugment, eval_images
from vitocr.data.loader import Batch
from vitocr.models.model import Model
from vitocr.training.clock import Clock, learning_rate_factor
from vitocr.training.optim import build_optimizer


class Recipe(NamedTuple):
    """conf `train:`; what is done to the model, apart from the data and the optimiser."""

    label_smoothing: float = 0.1
    keep_patches: float = 1.0  # share of the patches that the model sees ...
    keep_until: float = 0.65  # ... until this share of training; then all
    clip: float = 1.0  # largest norm of the gradient
    ema: float = 0.0  # decay of the running average of the weights; 0 keeps none


class Training(L.LightningModule):
    def __init__(
        self,
        model: Model,
        *,
        description: dict[str, Any],
        optim: dict[str, Any],
        recipe: Recipe,
        clock: Clock,
        seed: int,
        augment: BatchAugment,
        batches_per_epoch: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.description, self.optim, self.recipe = description, optim, recipe
        self.clock, self.seed, self.augment = clock, seed, augment
        self.batches_per_epoch = batches_per_epoch
        self.mean, self.std = description["preprocess"]["mean"], description["preprocess"]["std"]
        self.val_sums = torch.zeros(3, dtype=torch.float64)  # loss, right answers, images
        self.train_loss, self.train_accuracy = torch.zeros(()), torch.zeros(())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self.model, self.optim)

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if "bf16" in str(self.trainer.precision) else torch.float32

    def keep(self) -> float:
        return self.recipe.keep_patches if self.clock.progress < self.recipe.keep_until else 1.0

    def expected_epochs(self) -> float:
        """How often training will have seen each image; under a budget, as far as can be told by now."""
        if self.clock.steps is not None:
            return self.clock.steps / self.batches_per_epoch
        done = self.clock.progress
        return self.global_step / self.batches_per_epoch / done if done > 0.02 else 0.0

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        factor = learning_rate_factor(self.clock.progress, **self.optim["schedule"])
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group["base_lr"] * factor

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        rank, world = self.global_rank, self.trainer.world_size
        torch.manual_seed(hash((self.seed, batch.position, rank)) % 2**63)  # a hash of ints is the same everywhere
        images, targets, mixed, share = self.augment(
            batch,
            progress=self.clock.progress,
            epochs=self.expected_epochs(),
            mean=self.mean,
            std=self.std,
            rank=rank,
            world=world,
            dtype=self.compute_dtype,
        )
        logits = self.model(images, keep=self.keep())
        loss = self.model.head.loss(  # type: ignore[operator]
            logits, targets, mixed=mixed, share=share, label_smoothing=self.recipe.label_smoothing
        )
        self.train_loss = loss.detach()
        if mixed is None:
            self.train_accuracy = (logits.detach().argmax(dim=1) == targets).float().mean()
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images = batch.images
        if images.dtype == torch.uint8:
            images = eval_images(images, self.mean, self.std, self.compute_dtype)
        logits = self.model(images).float()
        self.val_sums += torch.stack(
            [
                F.cross_entropy(logits, batch.targets, reduction="sum").double(),
                (logits.argmax(dim=1) == batch.targets).sum().double(),
                torch.tensor(len(batch.targets), dtype=torch.float64, device=logits.device),
            ]
        )

    def on_validation_epoch_start(self) -> None:
        self.val_sums = torch.zeros(3, dtype=torch.float64, device=self.device)

    def on_validation_epoch_end(self) -> None:
        # Summed over ranks before dividing: their shares of a split need not be equal.
        if self.trainer.world_size > 1:
            dist.all_reduce(self.val_sums)
        loss, correct, count = self.val_sums.tolist()
        self.log("val_loss", loss / count)
        self.log("val_accuracy", correct / count)
