"""From a configuration to the parts of a run: the task's kit, the model and its description, Lightning's trainer."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.strategies import Strategy
from torch.multiprocessing.spawn import ProcessRaisedException

from vitocr import machine
from vitocr.cores import usable_cores
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.models.flops import training_flops
from vitocr.models.model import Model, build_model
from vitocr.training.callbacks import Averager, Recorder, Timekeeper
from vitocr.training.clock import Clock, parse_seconds
from vitocr.training.display import Display
from vitocr.training.exchange import ForkedDDP
from vitocr.training.feed import Feed, Kit
from vitocr.training.keeper import AtomicCheckpointIO, Keeper
from vitocr.training.module import Recipe, Training

Say = Callable[[str], object]


def open_kit(config: dict[str, Any], *, plan: machine.Plan, say: Say) -> Kit:
    """All that training needs to know of the task: its data, its codec, its loss, its judging."""
    if config["kind"] == "classify":
        from vitocr.training.classify import ClassifyKit

        return ClassifyKit(config, workers=plan.workers, say=say)
    if config["teacher"] is not None:
        raise UserError(f"teacher={config['teacher']}: there are teachers of classes only, and this task has none")
    if config["kind"] == "text":
        from vitocr.training.text import TextKit

        return TextKit(config, workers=plan.workers, say=say)
    if config["kind"] == "pretrain":
        from vitocr.training.pretrain import PretrainKit

        return PretrainKit(config, workers=plan.workers, say=say)
    raise UserError(f"kind={config['kind']}: a task is of kind classify, text or pretrain")


def name_of(part: dict[str, Any]) -> str:
    return str(part["_target_"]).rpartition(".")[2]


def build(config: dict[str, Any], kit: Kit, *, plan: machine.Plan) -> tuple[Model, dict[str, Any]]:
    """The untrained model, and the description that its checkpoints will carry."""
    spec = {
        "image_size": list(kit.preprocess.size),
        "backbone": config["backbone"],
        "head": config["head"] | kit.head_arguments,
    }
    description = describe(
        task=config["name"],
        kind=kit.kind,
        model=spec,
        codec=kit.codec.to_dict(),
        preprocess=kit.preprocess.to_dict(),
        provenance={
            "config": config,
            "data": kit.data_description,
            "git": git_revision(),
            "hardware": {
                "cpu": cpu_name(),
                "cores": usable_cores(),
                "gpu": torch.cuda.get_device_name() if plan.accelerator == "gpu" else None,
                "torch": torch.__version__,
            },
            "plan": asdict(plan),
        },
    )
    return build_model(description["model"]), description


def build_trainer(
    config: dict[str, Any], kit: Kit, model: Model, description: dict[str, Any], *,
    clock: Clock, plan: machine.Plan, folder: Path,
) -> tuple[L.Trainer, Training, Feed]:  # fmt: skip
    if config["trainer"]["recompute"]:
        if not hasattr(model.backbone, "recompute"):
            raise UserError("trainer.recompute=true works block by block: choose one of the ViTs, or leave it out")
        model.backbone.recompute = True  # type: ignore[assignment]
    batches = kit.sizes["train"] // config["batch_size"]
    validates = "val" in kit.sizes
    module = Training(
        model,
        kit,
        description=description,
        optim=config["optim"],
        recipe=Recipe(**{name: config[name] for name in Recipe._fields}),
        clock=clock,
        seed=config["seed"],
        batches_per_epoch=batches,
    )
    # Counted now: forked ranks would each do it again, and of a sharded model a rank sees a part.
    shares = {1.0, getattr(model.backbone, "keep_patches", 1.0)}
    flops = {keep: training_flops(model, kit.preprocess.size, keep) for keep in shares}
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
        last_images=(kit.sizes.get("val", 0), kit.sizes.get("test", 0)),
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
        strategy=build_strategy(plan, model),
        precision=plan.precision,  # type: ignore[arg-type]
        logger=build_logger(config),
        callbacks=[timekeeper, *averager, recorder, keeper],  # the clock moves before anyone reads it
        plugins=[AtomicCheckpointIO()],
        max_epochs=-1,
        max_steps=clock.steps if clock.steps is not None else -1,
        val_check_interval=max(1, round(batches * config["val_every"])) if validates else None,
        check_val_every_n_epoch=None if validates else 1,
        limit_val_batches=None if validates else 0,
        gradient_clip_val=config["clip"] or None,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # the loaders know their rank
        log_every_n_steps=10**9,  # the Recorder logs
    )
    return trainer, module, Feed(kit)


def build_strategy(plan: machine.Plan, model: Model) -> str | Strategy:
    if plan.strategy == "ddp_fork":
        return ForkedDDP(ranks=plan.devices, largest=sum(p.nbytes for p in model.parameters()))
    if plan.strategy == "fsdp":
        from vitocr.training.sharded import Sharded

        return Sharded(plan.devices)
    return plan.strategy


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
