"""What a person sees while a model trains: a bar on a terminal, plain lines in a log."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


def clock_face(seconds: float) -> str:
    seconds = int(seconds)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


class Display:
    """`show` may be called as often as one likes: a log gets a line every `line_every_s`, and every validation."""

    def __init__(self, *, line_every_s: float = 30.0) -> None:
        self.line_every_s = line_every_s
        self.bar: Progress | None = None
        self.last_line = 0.0
        self.val = ""

    def start(self, *, resumed_at: int) -> None:
        if resumed_at:
            print(f"resumed at step {resumed_at}", flush=True)
        if sys.stdout.isatty():
            columns = [
                TextColumn("{task.percentage:>3.0f}%"),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
            ]
            self.bar = Progress(*columns, console=Console(), transient=False)
            self.bar.add_task("first step ...", total=1.0)
            self.bar.start()

    def show(self, row: dict[str, Any], *, left_s: float) -> None:
        if row.get("val_accuracy") is not None:
            self.val = f"  val {100 * row['val_accuracy']:.2f}%"
        elif row.get("val_loss") is not None:
            self.val = f"  val loss {row['val_loss']:.4f}"
        loss = f"  loss {row['train_loss']:.3f}" if row["train_loss"] != "" else ""
        rate = f"  {row['images_per_second']:.0f} img/s" if row["images_per_second"] != "" else ""
        text = f"step {row['step']}  epoch {row['epoch']:.1f}{loss}{self.val}{rate}  {clock_face(left_s)} left"
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=row["progress"], description=text)
        elif "val_loss" in row or time.monotonic() - self.last_line >= self.line_every_s:
            self.last_line = time.monotonic()
            print(f"{clock_face(row['seconds']):>8}  {100 * row['progress']:3.0f}%  {text}", flush=True)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
