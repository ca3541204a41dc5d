"""How fast training is here, next to timm and to this machine's own limit, in one interleaved run.

    vitocr bench                      # the default CIFAR-10 model
    vitocr bench backbone=vit_small   # any of train.py's options
    vitocr bench --task str           # reading words: the bare step, and the real command with all that it does

Every contender runs in fresh processes, arranged as it would be in use: ours as `trainer=auto` arranges
it (one rank a core, gradients really exchanged), timm's as one process with all threads, and once more
as one rank a core. Rounds are interleaved, because this and most machines are shared: what counts is
the ratio within a round, reported as its median with the lowest and highest.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from vitocr import machine
from vitocr.codec import PRESETS
from vitocr.cores import usable_cores
from vitocr.data.render.words import LENGTHS
from vitocr.errors import UserError
from vitocr.heads.classify import ClassTargets
from vitocr.heads.text import TextTargets
from vitocr.models.flops import training_flops
from vitocr.models.model import Model, build_model
from vitocr.training.exchange import SharedMemory, wrap
from vitocr.training.optim import build_optimizer

Work = Callable[[int, int], tuple[Callable[[], object], float]]  # (rank, world) -> (one step, what it does)
WARM_UP_STEPS = 3


def matmul(rank: int, world: int) -> tuple[Callable[[], object], float]:
    """In the precision that training takes here: a CPU without bf16 of its own would only pretend to have it."""
    dtype = torch.bfloat16 if machine.cpu_has_bf16() else torch.float32
    a, b = torch.randn(2048, 2048, dtype=dtype), torch.randn(2048, 2048, dtype=dtype)
    return lambda: a @ b, 2 * 2048**3 / 1e9


class Losses(nn.Module):
    """The model's loss as a forward pass, which is what DistributedDataParallel wraps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, targets: Any) -> dict[str, Tensor]:
        return self.model.loss(images, targets, label_smoothing=0.1)


def our_step(config: dict[str, Any], *, ranks: int) -> Work:
    """Forward, loss, backward, clipping and optimiser of the configured model; counts images."""

    with torch.device("meta"):  # computes nothing: the parent of forked ranks must not
        weights = sum(p.nbytes for p in build_model(spec_of(config)).parameters())
    memory = SharedMemory(ranks=ranks, largest=weights)

    def work(rank: int, world: int) -> tuple[Callable[[], object], float]:
        model = build_model(spec_of(config))
        images, labels = synthetic(config, config["batch_size"] // world)
        targets = words_of(config, len(images)) if config["kind"] == "text" else ClassTargets(labels)
        losses: nn.Module = Losses(model)
        wrapped = wrap(losses, memory) if world > 1 else losses
        optimizer = build_optimizer(model, config["optim"], bf16=machine.cpu_has_bf16(), gather=memory.gather)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=machine.cpu_has_bf16())

        def step() -> None:
            with autocast:
                loss = wrapped(images, targets)["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step, len(images)

    return work


def timm_step(config: dict[str, Any], *, bf16: bool) -> Work:
    """The same shape in timm's own ViT with torch's AdamW: how most people would train it."""

    def work(rank: int, world: int) -> tuple[Callable[[], object], float]:
        model = timm_twin(config)
        images, targets = synthetic(config, config["batch_size"] // world)
        wrapped: nn.Module = DistributedDataParallel(model) if world > 1 else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = wrapped(images)
            torch.nn.functional.cross_entropy(logits.float(), targets, label_smoothing=0.1).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step, len(images)

    return work


def spec_of(config: dict[str, Any]) -> dict[str, Any]:
    head = config["head"] | {"classes": 10}
    if config["kind"] == "text":
        head = config["head"] | {"symbols": symbols_of(config), "max_length": config["max_length"]}
    return {"image_size": config["preprocess"]["size"], "backbone": config["backbone"], "head": head}


def timm_twin(config: dict[str, Any]) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    b = config["backbone"]
    if b["_target_"] != "vitocr.models.vit.ViT" or b.get("stem"):
        raise UserError("bench compares our plain ViT with timm's: choose backbone=vit_micro, vit_tiny, ...")
    return VisionTransformer(
        img_size=tuple(config["preprocess"]["size"]),
        patch_size=b["patch"],
        embed_dim=b["dim"],
        depth=b["depth"],
        num_heads=b["heads"],
        mlp_ratio=b["mlp_ratio"],
        class_token=False,
        global_pool="avg",
        num_classes=10,
    )


def synthetic(config: dict[str, Any], count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, *config["preprocess"]["size"]), torch.randint(0, 10, (count,))


def symbols_of(config: dict[str, Any]) -> int:
    return len(PRESETS.get(str(config["charset"]), PRESETS["94"]))  # of a set from a file, as many as is usual


def words_of(config: dict[str, Any], count: int) -> TextTargets:
    """Random texts as long as words are, the long ones included; where their characters stand is not known."""
    shares = torch.tensor(LENGTHS[: config["max_length"]])
    lengths = 1 + torch.multinomial(shares, count, replacement=True)
    longest = int(lengths.max())
    ids = torch.randint(0, symbols_of(config), (count, longest))
    ids[torch.arange(longest) >= lengths[:, None]] = -1
    return TextTargets(ids, lengths, torch.full((count, longest, 2), math.nan))


def measure(work: Work, *, ranks: int, threads: int, seconds: float) -> float:
    """What `ranks` processes of `threads` threads do together in a second."""
    with tempfile.TemporaryDirectory() as folder:
        # Forked: the imports are paid once. The parent never computes, so no thread pool is torn.
        start_processes(run_rank, (work, ranks, threads, seconds, folder), nprocs=ranks, start_method="fork")
        return sum(json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks))


def run_rank(rank: int, work: Work, ranks: int, threads: int, seconds: float, folder: str) -> None:
    machine.die_with_parent()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    step, amount = work(rank, ranks)
    for _ in range(WARM_UP_STEPS):
        step()
    began = time.perf_counter()
    step()
    # All ranks take the same number of steps, or the one that takes more would wait for the others forever.
    count = torch.tensor(max(3.0, seconds / (time.perf_counter() - began)))
    if ranks > 1:
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
        dist.barrier()
    began = time.perf_counter()
    for _ in range(int(count)):
        step()
    rate = int(count) * amount / (time.perf_counter() - began)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(rate))
    if ranks > 1:
        dist.destroy_process_group()


def lightning_epoch(words: Sequence[str], *, steps: int) -> float:
    """Images a second of the real command, reading, augmentation, logging and all; validation is timed apart."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        unlike_usual = ["backbone.keep_patches=1", "save_every=1d", "logger=none"]  # as the bare step is measured
        options = [*words, f"steps={steps}", f"run_dir={run}", *unlike_usual]
        command = [sys.executable, "-c", "from vitocr.train import main; main()", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"the training that was to be timed failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return float(json.loads((run / "metrics.json").read_text())["train"]["images_per_second"])


def compose_config(words: Sequence[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from vitocr.config import conf_dir, explain_hydra_error
    from vitocr.train import default_keys

    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            config = OmegaConf.to_container(compose("config", overrides=list(words)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain_hydra_error(f"{error}\n{error.__cause__ or ''}", default_keys())) from error
    assert isinstance(config, dict)
    return config  # type: ignore[return-value]


def main(
    words: Sequence[str] = (), *, rounds: int = 5, seconds: float = 4.0, epoch: bool = True, table: bool = True
) -> dict[str, Any]:
    """Runs the rounds, prints a table, returns the figures."""
    machine.keep_freed_memory()
    config = compose_config(words)
    plan = machine.make_plan(config["trainer"], batch_size=config["batch_size"])
    if plan.accelerator != "cpu":
        raise UserError("bench compares training on the CPU so far: add trainer=cpu or trainer=ddp")
    cores = usable_cores()
    ranks = {"ranks": plan.devices, "threads": plan.threads}
    whole = {"ranks": 1, "threads": cores}
    limit = f"{'bf16' if machine.cpu_has_bf16() else 'fp32'} matmul, GFLOP/s"
    contenders: dict[str, Callable[[], float]] = {
        limit: lambda: max(measure(matmul, **ranks, seconds=1), measure(matmul, **whole, seconds=1)),
        "ours": lambda: measure(our_step(config, ranks=plan.devices), **ranks, seconds=seconds),
    }
    if config["kind"] == "classify":  # timm has nothing that reads
        fp32, bf16 = timm_step(config, bf16=False), timm_step(config, bf16=True)
        contenders["timm fp32"] = lambda: measure(fp32, **whole, seconds=seconds)
        contenders["timm bf16"] = lambda: measure(bf16, **whole, seconds=seconds)
        contenders["timm bf16, a rank a core"] = lambda: measure(bf16, ranks=cores, threads=1, seconds=seconds)
    results: dict[str, list[float]]
    with tempfile.TemporaryDirectory() as scratch:
        if epoch and config["kind"] == "classify":
            contenders["ours through Lightning"] = lambda: lightning_epoch(words, steps=49_000 // config["batch_size"])
        elif epoch:  # words are rendered once for all rounds: rendering is not what is timed
            # Of so few words a tenth of an epoch would be ten steps, between two of which nobody validates.
            few = ["render.rows=20480", "val_every=1", f"render.cache={scratch}/render", *words]
            contenders["ours through Lightning"] = lambda: lightning_epoch(few, steps=25_600 // config["batch_size"])
        results = {name: [] for name in contenders}
        for number in range(rounds):
            for name, run in contenders.items():
                say(f"round {number + 1} of {rounds}: {name}")
                results[name].append(run())
    say("")
    gflops = training_flops(build_model(spec_of(config)), tuple(config["preprocess"]["size"])) / 1e9
    figures = summarise(results, limit=limit, gflops_per_image=gflops)
    figures["plan"] = f"{plan.devices} ranks x {plan.threads} threads, {os.cpu_count()} cores"
    if table:
        print_table(figures)
    return figures


def say(doing: str) -> None:
    """What is being timed now: in place on a terminal, a line each in a log."""
    if sys.stderr.isatty():
        print(f"\r{doing:60}", end="" if doing else "\r", file=sys.stderr, flush=True)
    elif doing:
        print(doing, file=sys.stderr, flush=True)


def summarise(results: dict[str, list[float]], *, limit: str, gflops_per_image: float) -> dict[str, Any]:
    def spread(values: list[float]) -> dict[str, float]:
        return {"median": statistics.median(values), "low": min(values), "high": max(values)}

    def ratio(over: str, under: str, scale: float = 1.0) -> dict[str, float]:
        return spread([scale * a / b for a, b in zip(results[over], results[under], strict=True)])

    ratios = {"share of the matmul rate": ratio("ours", limit, gflops_per_image)}
    ratios |= {f"ours / {name}": ratio("ours", name) for name in results if name.startswith("timm")}
    if "ours through Lightning" in results:
        ratios["through Lightning / bare step"] = ratio("ours through Lightning", "ours")
    rates = {name: spread(values) for name, values in results.items()}
    return {"gflops_per_image": gflops_per_image, "rates": rates, "ratios": ratios}


def print_table(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    for title, unit, rows in (
        (f"Rates ({figures['plan']})", "images/s", figures["rates"]),
        ("Ratios within a round", "", figures["ratios"]),
    ):
        table = Table(title=title, title_justify="left")
        for column in ("", f"median {unit}".strip(), "lowest", "highest"):
            table.add_column(column, justify="left" if not column else "right")
        for name, value in rows.items():
            digits = 2 if not unit else 0
            table.add_row(name, *(f"{value[key]:.{digits}f}" for key in ("median", "low", "high")))
        Console().print(table)
