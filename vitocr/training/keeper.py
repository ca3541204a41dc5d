"""The checkpoints of a run: what is in them, when they are written, and what is taken from them to go on."""

import math
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vitocr.checkpoint import atomic_write
from vitocr.data.loader import Batch
from vitocr.training.callbacks import Recorder, Timekeeper, counted
from vitocr.training.module import Training


class AtomicCheckpointIO(TorchCheckpointIO):
    """A kill or a full disk while saving leaves the previous checkpoint as it was."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        atomic_write(path, lambda temporary: torch.save(checkpoint, temporary))


class Keeper(L.Callback):
    """`last.ckpt` every so often and at the end, `best.ckpt` whenever validation was never better."""

    def __init__(
        self,
        folder: Path,
        *,
        timekeeper: Timekeeper,
        recorder: Recorder,
        every_s: float,
        every_steps: int | None,
    ) -> None:
        self.folder, self.timekeeper, self.recorder = folder, timekeeper, recorder
        self.every_s, self.every_steps = every_s, every_steps
        self.saved_at_s, self.best = 0.0, -math.inf
        self.val: dict[str, float] = {}  # the last validation

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "val": self.val}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.val = state_dict["best"], state_dict["val"]

    def on_train_start(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        self.saved_at_s = self.timekeeper.elapsed_s

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: L.Trainer, module: Training, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        # Decided by what all ranks agree on, because saving is done together.
        due = self.timekeeper.elapsed_s - self.saved_at_s >= self.every_s
        if due or (self.every_steps and trainer.global_step % self.every_steps == 0):
            self.save(trainer)

    def on_validation_end(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        if trainer.sanity_checking:
            return
        self.val = counted(trainer, module)
        score = self.val.get("accuracy", -self.val["loss"])
        if score >= self.best:  # of equals the later one has seen more
            self.best = score
            self.save(trainer, best=True)

    def on_train_end(self, trainer: L.Trainer, module: Training) -> None:  # type: ignore[override]
        has_val = bool(self.val)
        self.save(trainer, best=not has_val)

    def save(self, trainer: L.Trainer, *, best: bool = False) -> None:
        last = self.folder / "last.ckpt"
        trainer.save_checkpoint(last)
        self.saved_at_s = self.timekeeper.elapsed_s
        if best and trainer.is_global_zero:
            atomic_write(self.folder / "best.ckpt", lambda temporary: shutil.copyfile(last, temporary))

    def on_save_checkpoint(self, trainer: L.Trainer, module: Training, checkpoint: dict[str, Any]) -> None:  # type: ignore[override]
        description = module.description
        metrics = {"val": self.val} if self.val else {}
        provenance = description["provenance"] | {
            "steps": trainer.global_step,
            "epochs": trainer.global_step / self.recorder.batches_per_epoch,
            "seconds": self.timekeeper.clock.elapsed_s(),
            **self.recorder.summary(),
        }
        checkpoint["vitocr"] = description | {"metrics": metrics, "provenance": provenance}

    def on_load_checkpoint(self, trainer: L.Trainer, module: Training, checkpoint: dict[str, Any]) -> None:  # type: ignore[override]
        # What a run that goes on cannot find out again: where it started may be gone by now, and other data be there.
        there, here = checkpoint["vitocr"]["provenance"], module.description["provenance"]
        here |= {name: there[name] for name in ("started_from", "data_before") if name in there}
        if changed := differing_data(there["data"], here["data"]):
            here["data_before"] = [*here.get("data_before", []), {"until_step": there["steps"], **there["data"]}]
            if trainer.is_global_zero:
                print(
                    f"The data is no longer what this run began with ({', '.join(changed)}): it goes on with what is "
                    "there now, and will not end as it would have without the interruption.",
                    flush=True,
                )


def differing_data(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The sources that are not the same in both, by their fingerprints."""
    before, after = one.get("fingerprints", {}), other.get("fingerprints", {})
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
