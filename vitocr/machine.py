"""What this machine can do, and the settings that suit it: `trainer=auto` made concrete.

Measured on two cores of an AVX512-BF16 CPU (a step of the default CIFAR-10 model):
- one single-threaded rank a core trains about a quarter faster than one process with two threads;
- bf16 autocast is some three times faster than fp32, fp16 thousands of times slower;
- glibc hands every large tensor back to the kernel and pays page faults to get it again; told to keep
  them, a single Linear ran two to five times faster.
"""

import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitocr.cores import usable_cores
from vitocr.errors import UserError, did_you_mean

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
MAX_CPU_RANKS = 8  # beyond, threads: a rank's slice of the batch gets too small
MIN_RANK_BATCH = 32  # images; below, a rank spends its time between the matmuls
STRATEGIES = ["auto", "single", "ddp", "fsdp"]
PRECISIONS = ["auto", "32-true", "bf16-mixed", "bf16-true", "16-mixed"]


@dataclass(frozen=True)
class Plan:
    """How a run uses the machine; `strategy` (but for "fsdp", which is ours) and `precision` are Lightning's names."""

    accelerator: str
    devices: int
    strategy: str
    precision: str
    threads: int  # of each rank
    workers: int  # data-loading processes of each rank

    @property
    def world(self) -> int:
        return self.devices


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 natively (AVX512-BF16 or AMX); emulated, it is slower than fp32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def trains_slowly() -> bool:
    """No GPU, nor a CPU that multiplies bfloat16: a quarter of the training that two cores do which can."""
    return not (torch.cuda.is_available() or cpu_has_bf16())


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next tensor. Call before the first large allocation."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl has no mallopt; nothing breaks without it
        return
    mallopt(M_MMAP_THRESHOLD, 2**30)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 * 2**20)


def die_with_parent() -> None:
    """In a forked rank: be killed when the process that forked it dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6", use_errno=True).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def memory_bytes() -> int:
    """Memory this process holds now, pages shared between ranks counted once among them."""
    rollup = Path("/proc/self/smaps_rollup")
    if rollup.is_file():
        for line in rollup.read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def make_plan(spec: dict[str, Any], *, batch_size: int, sweep: bool = False) -> Plan:
    """`spec` is conf/trainer/*.yaml: any of its values may be "auto". `batch_size` counts all ranks."""
    accelerator = spec["accelerator"]
    if accelerator not in ("auto", "cpu", "gpu"):
        raise UserError(
            f"trainer.accelerator={accelerator}: choose auto, cpu or gpu.{did_you_mean(accelerator, ['cpu', 'gpu'])}"
        )
    gpus = torch.cuda.device_count()
    if accelerator == "gpu" and gpus == 0:
        raise UserError("trainer=gpu: torch sees no GPU on this machine; use trainer=auto or trainer=cpu")
    if accelerator == "auto":
        accelerator = "gpu" if gpus else "cpu"
    strategy = spec["strategy"]
    if strategy not in STRATEGIES:
        raise UserError(
            f"trainer.strategy={strategy}: choose one of {', '.join(STRATEGIES)}.{did_you_mean(strategy, STRATEGIES)}"
        )
    cores = usable_cores()
    threads = spec["threads"]
    devices = spec["devices"]
    for name, value in (("threads", threads), ("devices", devices), ("workers", spec["workers"])):
        least = 0 if name == "workers" else 1
        if value != "auto" and not (isinstance(value, int) and value >= least):
            raise UserError(f"trainer.{name}={value}: give auto or a number from {least} up")
    if devices == "auto":
        if sweep or strategy == "single":
            devices = 1
        elif accelerator == "gpu":
            devices = gpus
        else:
            ranks = cores if threads == "auto" else cores // threads
            devices = max(1, min(ranks, MAX_CPU_RANKS, batch_size // MIN_RANK_BATCH))
    if sweep and devices > 1:
        raise UserError(
            f"a sweep (-m) runs its jobs in one process each, but trainer.devices={devices}: every rank would "
            "start the sweep again. Add trainer.devices=1, or start the jobs one by one without -m"
        )
    if accelerator == "gpu" and devices > gpus:
        raise UserError(f"trainer.devices={devices}: torch sees {gpus} GPU{'s' * (gpus > 1)} on this machine")
    if strategy in ("auto", "single"):
        strategy = "ddp" if devices > 1 else "auto"
    if strategy == "ddp" and accelerator == "cpu" and hasattr(os, "fork"):
        strategy = "ddp_fork"  # starts in no time, and the ranks share the data set's memory
    precision = spec["precision"]
    if precision not in PRECISIONS:
        raise UserError(
            f"trainer.precision={precision}: choose one of {', '.join(PRECISIONS)}."
            f"{did_you_mean(precision, PRECISIONS)}"
        )
    if precision == "16-mixed" and accelerator == "cpu":
        raise UserError("trainer.precision=16-mixed is thousands of times slower on a CPU: use bf16-mixed or 32-true")
    if precision == "auto":
        fast = torch.cuda.is_bf16_supported() if accelerator == "gpu" else cpu_has_bf16()
        precision = "bf16-mixed" if fast else "32-true"
    if threads == "auto":
        threads = max(1, cores // devices)
    workers = spec["workers"]
    if workers == "auto":  # on a CPU every worker takes a core from training
        workers = min(8, max(1, cores // devices - 1)) if accelerator == "gpu" else 0
    return Plan(accelerator, devices, strategy, precision, threads, workers)
