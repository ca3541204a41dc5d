"""How far training is, from 0 to 1: counted in steps, or in seconds of a budget.

Everything that changes during training (learning rate, mixing, dropped patches) is a function of this
one number, so a schedule needs no length: with `budget=30m` it anneals over half an hour whatever the
machine does in it.
"""

import math
import re
import time

from vitocr.errors import UserError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(text: str | float) -> float:
    """ "90", "90s", "30m", "1.5h" or "1h30m" to seconds."""
    written = re.sub(r"(?<=[smhd])\s+|\s+(?=[smhd])", "", str(text).strip().lower())  # 1h 30m, 30 m
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+|\d+(\.\d+)?", written):
        raise UserError(f"budget={text} is not a time: write it as 90s, 30m, 2h or 1h30m")
    return sum(float(number) * UNITS[unit or "s"] for number, unit in re.findall(r"([\d.]+)([smhd]?)", written))


class Clock:
    """`steps` or `budget_s` says where 1 is; `started` is the `time.monotonic()` at which the command began."""

    def __init__(self, *, steps: int | None = None, budget_s: float | None = None, started: float) -> None:
        self.steps, self.budget_s, self.started = steps, budget_s, started
        self.spent_before_s = 0.0  # by the sittings that a resumed run continues
        self.reserve_s = 0.0  # of the budget, kept for evaluating and saving at the end
        self.progress = 0.0
        self.began = 0.0, 0.0  # progress, and seconds, before the first step of this sitting

    def begin(self, *, step: int, elapsed_s: float) -> None:
        """The first step of this sitting comes next. What went before, be it rendering words or a sitting on another
        machine, does not tell how long steps take here."""
        self.began = self.update(step=step, elapsed_s=elapsed_s), elapsed_s

    def elapsed_s(self) -> float:
        return self.spent_before_s + time.monotonic() - self.started

    def update(self, *, step: int, elapsed_s: float) -> float:
        """`elapsed_s` is handed in, because all ranks must use that of the first."""
        if self.budget_s is not None:
            done = elapsed_s / max(1.0, self.budget_s - self.reserve_s)
        else:
            assert self.steps is not None
            done = step / self.steps
        self.progress = min(1.0, max(done, self.progress))  # never back, even when the reserve grows
        return self.progress

    def remaining_s(self, elapsed_s: float) -> float:
        if self.budget_s is not None:
            return max(0.0, self.budget_s - self.reserve_s - elapsed_s)
        progress, seconds = self.began
        return (elapsed_s - seconds) / max(self.progress - progress, 1e-6) * (1 - self.progress)


def learning_rate_factor(progress: float, *, warmup: float, decay: str, final: float = 0.0) -> float:
    """What the peak learning rate is multiplied by: up linearly over `warmup`, then down to `final`."""
    if decay not in ("linear", "cosine"):
        raise UserError(f"optim.schedule.decay={decay}: choose linear or cosine")
    if progress < warmup:
        return max(0.02, progress / warmup)
    left = (1 - progress) / max(1 - warmup, 1e-6)
    shape = left if decay == "linear" else 0.5 * (1 - math.cos(math.pi * left))
    return final + (1 - final) * shape
