"""From a configuration to the parts of a run: data, model and its description, Lightning's trainer."""

import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_method, instantiate
from lightning.pytorch.strategies import Strategy
from torch.multiprocessing.spawn import ProcessRaisedException

from vitocr import machine
from vitocr.codec import Classes
from vitocr.data.arrays import PathRows, Rows, Splits
from vitocr.data.batch_augment import BatchAugment
from vitocr.data.loader import Augment
from vitocr.data.memory import load_arrays
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.models.flops import training_flops
from vitocr.models.model import Model, build_model
from vitocr.preprocess import Preprocess
from vitocr.training.callbacks import AtomicCheckpointIO, Averager, Keeper, Recorder, Timekeeper
from vitocr.training.clock import Clock, parse_seconds
from vitocr.training.display import Display
from vitocr.training.feed import Feed
from vitocr.training.module import Recipe, Training
from vitocr.training.tasks import ClassifyTask

Say = Callable[[str], object]


def load_data(config: dict[str, Any], *, say: Say) -> Splits:
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
        return load_arrays(
            rows,
            preprocess=Preprocess.from_dict(config["preprocess"]),
            max_bad_fraction=config["max_bad_fraction"],
            say=say,
        )

    train = in_memory(splits.train)
    assert train is not None
    return replace(splits, train=train, val=in_memory(splits.val))


def name_of(part: dict[str, Any]) -> str:
    return str(part["_target_"]).rpartition(".")[2]


def build(config: dict[str, Any], splits: Splits, *, plan: machine.Plan) -> tuple[Model, dict[str, Any]]:
    codec = Classes(splits.classes)
    preprocess = Preprocess.from_dict(config["preprocess"])
    spec = {
        "image_size": list(preprocess.size),
        "backbone": config["backbone"],
        "head": config["head"] | {"classes": len(codec)},
    }
    description = describe(
        task=config["name"],
        kind="classify",
        model=spec,
        codec=codec.to_dict(),
        preprocess=preprocess.to_dict(),
        provenance={
            "config": config,
            "data": {"name": splits.name, "fingerprints": dict(splits.fingerprints)},
            "git": git_revision(),
            "hardware": {
                "cpu": cpu_name(),
                "cores": machine.usable_cores(),
                "gpu": torch.cuda.get_device_name() if plan.accelerator == "gpu" else None,
                "torch": torch.__version__,
            },
            "plan": asdict(plan),
        },
    )
    return build_model(description["model"]), description


def build_trainer(
    config: dict[str, Any], splits: Splits, model: Model, description: dict[str, Any], *,
    clock: Clock, plan: machine.Plan, folder: Path, say: Say,
) -> tuple[L.Trainer, Training, Feed]:  # fmt: skip
    preprocess = Preprocess.from_dict(config["preprocess"])
    augment, image_augment = build_augments(config, preprocess)
    feed = Feed(
        splits,
        preprocess=preprocess,
        batch_size=config["batch_size"],
        eval_batch_size=500,
        seed=config["seed"],
        workers=plan.workers,
        augment=image_augment,
        max_bad_fraction=config["max_bad_fraction"],
        say=say,
    )
    batches = feed.batches_per_epoch()
    module = Training(
        model,
        ClassifyTask(
            augment, mean=list(preprocess.mean), std=list(preprocess.std), label_smoothing=config["label_smoothing"]
        ),
        description=description,
        optim=config["optim"],
        recipe=Recipe(**{name: config[name] for name in Recipe._fields}),
        clock=clock,
        seed=config["seed"],
        batches_per_epoch=batches,
    )
    # Counted now: forked ranks would each do it again, and of a sharded model a rank sees a part.
    shares = {1.0, getattr(model.backbone, "keep_patches", 1.0)}
    flops = {keep: training_flops(model, preprocess.size, keep) for keep in shares}
    timekeeper = Timekeeper(
        clock, sync_every=1 if plan.accelerator == "cpu" else 10, last_checkpoint=folder / "last.ckpt"
    )
    recorder = Recorder(
        folder,
        display=Display(),
        elapsed=timekeeper,
        batch_size=config["batch_size"],
        batches_per_epoch=batches,
        every_steps=config["log_every_steps"],
        flops_per_image=flops.__getitem__,
        last_images=(len(splits.val or ()), len(splits.test or ())),
    )
    keeper = Keeper(
        folder,
        timekeeper=timekeeper,
        recorder=recorder,
        every_s=parse_seconds(config["save_every"]),
        every_steps=config["save_every_steps"],
    )
    averager = [Averager(config["ema"])] if config["ema"] else []
    trainer = L.Trainer(
        accelerator=plan.accelerator,
        devices=plan.devices,
        strategy=build_strategy(plan),
        precision=plan.precision,  # type: ignore[arg-type]
        logger=build_logger(config),
        callbacks=[timekeeper, *averager, recorder, keeper],  # the clock moves before anyone reads it
        plugins=[AtomicCheckpointIO()],
        max_epochs=-1,
        max_steps=clock.steps if clock.steps is not None else -1,
        val_check_interval=max(1, round(batches * config["val_every"])) if splits.val is not None else None,
        check_val_every_n_epoch=None if splits.val is not None else 1,
        limit_val_batches=None if splits.val is not None else 0,
        gradient_clip_val=config["clip"] or None,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the loaders know their rank
        log_every_n_steps=10**9,  # the Recorder logs
    )
    return trainer, module, feed


def build_strategy(plan: machine.Plan) -> str | Strategy:
    if plan.strategy != "fsdp":
        return plan.strategy
    from vitocr.training.sharded import Sharded

    return Sharded(plan.devices)


def build_augments(config: dict[str, Any], preprocess: Preprocess) -> tuple[BatchAugment, Augment | None]:
    """What is done to a batch, and, with `augment.kind=image`, to every image before (in the loader's workers)."""
    spec = config["augment"]
    known = {field.name for field in fields(BatchAugment)}
    batch = BatchAugment(**{name: value for name, value in spec.items() if name in known}, seed=config["seed"])
    if spec["kind"] != "image":
        return batch, None
    from vitocr.data.augment import build_augment

    return batch, build_augment(spec["transforms"], size=preprocess.size, mean=preprocess.mean, std=preprocess.std)


def build_logger(config: dict[str, Any]) -> Any:
    if not config["logger"]:
        return False
    try:
        return instantiate(config["logger"])
    except InstantiationException as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        name = name_of(config["logger"]).removesuffix("Logger").lower()
        raise UserError(f"logger={name} needs a package that is not installed: pip install {name}") from error


def fit(trainer: L.Trainer, module: Training, feed: Feed, *, checkpoint: Path | None) -> None:
    # Lightning would give every forked rank its share of the cores, whatever was asked for.
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    try:
        trainer.fit(module, feed, ckpt_path=checkpoint, weights_only=True)
    except ProcessRaisedException as error:  # carries a forked rank's traceback as text
        _, found, message = str(error).rpartition("vitocr.errors.UserError: ")
        if found:
            raise UserError(message.strip()) from None
        raise
    except SystemExit:  # how Lightning ends after Ctrl-C
        if checkpoint_of(trainer).exists():
            print(f"interrupted; resume=auto goes on from {checkpoint_of(trainer)}", file=sys.stderr)
        raise


def checkpoint_of(trainer: L.Trainer) -> Path:
    return next(c.folder for c in trainer.callbacks if isinstance(c, Keeper)) / "last.ckpt"  # type: ignore[attr-defined]


def git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine() or os.name
