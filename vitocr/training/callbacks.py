"""What happens around the steps: the clock, the curve, the averaged weights. (The checkpoints: keeper.py.)"""

import csv
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor

from vitocr.data.loader import Batch
from vitocr.errors import UserError
from vitocr.machine import die_with_parent, memory_bytes
from vitocr.training.clock import Clock
from vitocr.training.display import Display
from vitocr.training.module import Training

CURVE = ("step", "epoch", "seconds", "progress", "lr", "train_loss", "train_accuracy", "val_loss", "val_accuracy",
         "images_per_second")  # fmt: skip


def counted(trainer: L.Trainer, module: Training) -> dict[str, float]:
    """The figures of the validation that has just ended."""
    return {name: float(trainer.callback_metrics[f"val_{name}"]) for name in module.kit.counts}


class Timekeeper(L.Callback):
    """Moves the clock, on all ranks alike, and ends training when it has run out or the loss is not finite."""

    def __init__(self, clock: Clock, *, sync_every: int, last_checkpoint: Path) -> None:
        """sync_every: steps between two agreements of the ranks (each costs a GPU a wait, a CPU nothing)."""
        self.clock, self.sync_every, self.last_checkpoint = clock, sync_every, last_checkpoint
        self.elapsed_s = 0.0
        self.launcher_pid = os.getpid()

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if os.getpid() != self.launcher_pid:
            die_with_parent()  # a forked rank must not train on alone when the command is killed
            # The first call after a fork makes torch's thread pool anew. Left to chance, two threads may do so at
            # once, and one then aborts the rank with "Invalid thread pool".
            torch.set_num_threads(torch.get_num_threads())

    def agree(self, module: Training) -> float:
        """The first rank's stopwatch, for all; and whether any rank's loss went astray, in one exchange.

        What it keeps of the budget for the end is the first rank's too. A rank that took its own would end a step
        before or after the others now and then, and they would wait for each other for ever.
        """
        first = module.global_rank == 0
        own = [self.clock.elapsed_s(), self.clock.reserve_s] if first else [0.0, 0.0]
        told = torch.tensor([*own, 0.0 if torch.isfinite(module.told["loss"]) else 1.0], dtype=torch.float64)
        if module.trainer.world_size > 1:
            told = told.to(module.device if module.device.type == "cuda" else "cpu")
            dist.all_reduce(told, op=dist.ReduceOp.MAX)
        self.elapsed_s, self.clock.reserve_s, astray = told.tolist()
        return astray

    def on_train_start(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        self.agree(module)
        self.clock.begin(step=trainer.global_step, elapsed_s=self.elapsed_s)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: L.Trainer, module: Training, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.global_step % self.sync_every == 0:
            if self.agree(module):
                kept = f" The last good checkpoint is {self.last_checkpoint}." if self.last_checkpoint.exists() else ""
                raise UserError(
                    f"the loss is not a finite number at step {trainer.global_step}: training stops here.{kept} "
                    "Lower optim.lr and optim.muon.lr, lengthen optim.schedule.warmup, or use trainer.precision=32-true"
                )
            self.clock.update(step=trainer.global_step, elapsed_s=self.elapsed_s)
        if self.clock.progress >= 1.0:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"elapsed_s": self.clock.elapsed_s()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.clock.spent_before_s = state_dict["elapsed_s"]


class Averager(L.Callback):
    """A running average of the weights, used in place of them for validation and in what is shipped."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: dict[str, Tensor] = {}
        self.weights: dict[str, Tensor] = {}

    def on_train_start(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if not self.average:
            self.average = {name: value.detach().clone() for name, value in module.model.state_dict().items()}
        elif module.device_mesh is not None:  # trainer=fsdp: whole in the file, in shards here
            from vitocr.training.sharded import like

            weights = module.model.state_dict()
            self.average = {name: like(value, weights[name]) for name, value in self.average.items()}
        self.average = {name: value.to(module.device) for name, value in self.average.items()}

    @torch.no_grad()
    def on_train_batch_end(  # type: ignore[override]
        self, trainer: L.Trainer, module: Training, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        # Early on the average must forget the untrained weights faster than its decay would.
        decay = min(self.decay, (1 + trainer.global_step) / (10 + trainer.global_step))
        for name, value in module.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:
                self.average[name].copy_(value)

    def on_validation_start(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if self.average:
            self.weights = {name: value.detach().clone() for name, value in module.model.state_dict().items()}
            module.model.load_state_dict(self.average)

    def on_validation_end(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if self.weights:
            module.model.load_state_dict(self.weights)
            self.weights = {}

    def on_save_checkpoint(self, trainer: L.Trainer, module: Training, checkpoint: dict[str, Any]) -> None:  # type: ignore[override]
        checkpoint["ema"] = self.average
        if module.device_mesh is not None:
            from vitocr.training.sharded import whole

            checkpoint["ema"] = whole(self.average)

    def on_load_checkpoint(self, trainer: L.Trainer, module: Training, checkpoint: dict[str, Any]) -> None:  # type: ignore[override]
        self.average = {name: value.clone() for name, value in checkpoint.get("ema", {}).items()}


class Recorder(L.Callback):
    """The curve (metrics.csv), what a person sees meanwhile, and the run's own figures."""

    def __init__(
        self, folder: Path, *, display: Display, elapsed: Timekeeper, batch_size: int, batches_per_epoch: int,
        every_steps: int, flops_per_image: Callable[[float], float], last_images: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """last_images: how many images the last validation and the final evaluation look at."""
        self.path, self.display, self.timekeeper = folder / "metrics.csv", display, elapsed
        self.batch_size, self.batches_per_epoch, self.every_steps = batch_size, batches_per_epoch, every_steps
        self.flops_per_image = flops_per_image
        self.val_images, self.final_images = last_images
        self.images, self.flops, self.step_seconds, self.peak_bytes = 0, 0.0, 0.0, 0
        self.loss_sum, self.loss_count = 0.0, 0
        self.mark, self.mark_images, self.val_started = 0.0, 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        kept = ("images", "flops", "step_seconds", "peak_bytes", "loss_sum", "loss_count")
        return {name: getattr(self, name) for name in kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_train_start(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        self.mark, self.mark_images = time.monotonic(), self.images
        if trainer.is_global_zero:
            self.forget_after(trainer.global_step)
            self.display.start(resumed_at=trainer.global_step)

    def forget_after(self, step: int) -> None:
        """Rows of steps that a resumed run is about to take again."""
        rows: list[dict[str, str]] = []
        if self.path.exists() and step > 0:
            with open(self.path, newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with open(self.path, "w", newline="") as file:
            writer = csv.DictWriter(file, CURVE)
            writer.writeheader()
            writer.writerows(rows)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: L.Trainer, module: Training, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.images += self.batch_size
        self.flops += self.batch_size * self.flops_per_image(module.keep())
        step = trainer.global_step
        if step % self.timekeeper.sync_every == 0:
            self.loss_sum += module.told["loss"].item()
            self.loss_count += 1
        if step % self.every_steps == 0:
            self.write(trainer, module, {})

    def on_validation_start(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if not trainer.sanity_checking:
            self.write(trainer, module, {}, only_count=True)
            self.val_started = time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if trainer.sanity_checking:
            return
        self.write(trainer, module, {f"val_{name}": value for name, value in counted(trainer, module).items()})
        self.peak_bytes = max(self.peak_bytes, self.memory_of_all(module))
        # What the end of the run will need: one more validation, the test set, saving and pictures.
        per_image = (time.monotonic() - self.val_started) / max(1, self.val_images)
        module.clock.reserve_s = per_image * (self.val_images + 3 * self.final_images) + 4.0
        self.mark, self.mark_images = time.monotonic(), self.images

    def memory_of_all(self, module: Training) -> int:
        own = torch.tensor([memory_bytes()], dtype=torch.float64, device=module.device)
        if module.trainer.world_size > 1:
            dist.all_reduce(own)
        return int(own.item())

    def write(self, trainer: L.Trainer, module: Training, extra: dict[str, float], *, only_count: bool = False) -> None:
        now = time.monotonic()
        seconds, images = now - self.mark, self.images - self.mark_images
        self.step_seconds += seconds
        self.mark, self.mark_images = now, self.images
        if only_count or not trainer.is_global_zero:
            return
        step = trainer.global_step
        row = {
            "step": step,
            "epoch": round(step / self.batches_per_epoch, 4),
            "seconds": round(self.timekeeper.elapsed_s, 2),
            "progress": round(module.clock.progress, 5),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "train_loss": round(self.loss_sum / self.loss_count, 5) if self.loss_count else "",
            "train_accuracy": round(float(module.told["accuracy"]), 4) if "accuracy" in module.told else "",
            "images_per_second": round(images / seconds, 1) if images else "",
            **extra,
        }
        self.loss_sum, self.loss_count = 0.0, 0
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, CURVE).writerow(row)
        for logger in trainer.loggers:
            logger.log_metrics({k: v for k, v in row.items() if isinstance(v, float) and k != "step"}, step=step)
        self.display.show(row, left_s=module.clock.remaining_s(self.timekeeper.elapsed_s))

    def summary(self) -> dict[str, Any]:
        seconds = max(self.step_seconds, 1e-9)
        return {
            "images_seen": self.images,
            "images_per_second": self.images / seconds,
            "gflops_per_second": self.flops / seconds / 1e9,
            "petaflops_total": self.flops / 1e15,
            "peak_memory_bytes": self.peak_bytes,
        }

    def on_train_end(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if trainer.is_global_zero:
            self.display.stop()

    def on_exception(self, trainer: L.Trainer, module: Any, exception: BaseException) -> None:
        self.display.stop()
