"""What the optimiser learns with at every moment: the schedule, and rates that fit the length of the training.

A long training wants to be slower and to forget less. CIFAR-10 after 150 minutes (some 70,000 steps) reached 93.5 %
with half the rates and two fifths of the decay that ten minutes are best with; with theirs (and fewer images mixed) it
had stayed at 90.7 %, for most of the time too hot to settle. So a rate may be "auto": a number for short trainings,
another for long ones, and what lies between in between.
"""

import math
from typing import Any

import torch

from vitocr.errors import UserError
from vitocr.training.clock import learning_rate_factor

SHORT, LONG = 15_000, 25_000  # steps: half an hour of CIFAR-10 on two cores has 14,000
AUTO = {"lr": (1e-3, 5e-4), "muon.lr": (0.01, 0.005), "muon.weight_decay": (0.1, 0.04)}  # of short and long trainings


def both_ends(name: str, value: float | str) -> tuple[float, float]:
    """What `optim.NAME=value` comes to in short and in long trainings."""
    if value == "auto" and name in AUTO:
        return AUTO[name]
    if isinstance(value, str):
        also = " or auto" if name in AUTO else ""
        raise UserError(f"optim.{name}={value}: give a number{also}")
    return value, value


def between(ends: tuple[float, float], steps: float) -> float:
    """Of a training of so many steps in all."""
    short, long = ends
    share = math.log(max(steps, SHORT) / SHORT) / math.log(LONG / SHORT)
    return short + min(1.0, share) * (long - short)


def set_rates(optimizer: torch.optim.Optimizer, *, progress: float, steps: float, schedule: dict[str, Any]) -> None:
    """progress: share of the training that is done; steps: how many it will have been."""
    factor = learning_rate_factor(progress, **schedule)
    for group in optimizer.param_groups:
        group["lr"] = between(group["lr_ends"], steps) * factor
        group["weight_decay"] = between(group["weight_decay_ends"], steps)
