"""The LightningModule: one training step, one validation step, whatever the task.

All randomness of a step is drawn from generators seeded by (seed, position of the batch), never from a
state that has to be saved: a resumed run draws what the interrupted one would have drawn.
"""

from typing import Any, NamedTuple

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor

from vitocr.models.model import Model
from vitocr.training.clock import Clock
from vitocr.training.exchange import ForkedDDP, gather_by_socket
from vitocr.training.feed import Kit
from vitocr.training.optim import build_optimizer
from vitocr.training.rates import set_rates


class Recipe(NamedTuple):
    """What is done to the model while it learns, apart from the data and the optimiser."""

    keep_until: float = 0.65  # share of training during which the model sees `backbone.keep_patches` only; then all
    clip: float = 1.0  # largest norm of the gradient
    ema: float = 0.0  # decay of the running average of the weights; 0 keeps none


class Training(L.LightningModule):
    def __init__(
        self,
        model: Model,
        kit: Kit,
        *,
        description: dict[str, Any],
        optim: dict[str, Any],
        recipe: Recipe,
        clock: Clock,
        seed: int,
        batches_per_epoch: int,
    ) -> None:
        super().__init__()
        self.model, self.kit = model, kit
        self.description, self.optim, self.recipe = description, optim, recipe
        self.clock, self.seed, self.batches_per_epoch = clock, seed, batches_per_epoch
        self.told: dict[str, Tensor] = {"loss": torch.zeros(())}  # of the last training step
        self.val_sums = torch.zeros(0)

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # trainer=fsdp
            from vitocr.training.sharded import shard

            shard(self, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        strategy = self.trainer.strategy
        gather = strategy.memory.gather if isinstance(strategy, ForkedDDP) else gather_by_socket
        return build_optimizer(self.model, self.optim, bf16=self.compute_dtype == torch.bfloat16, gather=gather)

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if "bf16" in str(self.trainer.precision) else torch.float32

    def keep(self) -> float:
        early = self.clock.progress < self.recipe.keep_until
        return getattr(self.model.backbone, "keep_patches", 1.0) if early else 1.0

    def expected_steps(self) -> float:
        """How many this training will have been; under a budget, as far as can be told by now."""
        if self.clock.steps is not None:
            return self.clock.steps
        done = self.clock.progress
        return self.global_step / done if done > 0.02 else 0.0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        optimizer, schedule = self.trainer.optimizers[0], self.optim["schedule"]
        set_rates(optimizer, progress=self.clock.progress, steps=self.expected_steps(), schedule=schedule)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rank, world = self.global_rank, self.trainer.world_size
        torch.manual_seed(hash((self.seed, batch.position, rank)) % 2**63)  # a hash of ints is the same everywhere
        images, targets = self.kit.prepare(
            batch,
            dtype=self.compute_dtype,
            progress=self.clock.progress,
            epochs=self.expected_steps() / self.batches_per_epoch,
            rank=rank,
            world=world,
        )
        told = self.model.loss(images, targets, keep=self.keep(), **self.kit.loss_options(self.clock.progress))
        self.told = self.told | {name: value.detach() for name, value in told.items()}
        return told["loss"]

    def on_validation_epoch_start(self) -> None:
        self.val_sums = torch.zeros(len(self.kit.counts) + 1, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_sums += self.kit.judge(self.model, batch, dtype=self.compute_dtype)

    def on_validation_epoch_end(self) -> None:
        # Summed over ranks before dividing: their shares of a split need not be equal.
        if self.trainer.world_size > 1:
            dist.all_reduce(self.val_sums)
        *sums, count = self.val_sums.tolist()
        for name, total in zip(self.kit.counts, sums, strict=True):
            self.log(f"val_{name}", total / count)
