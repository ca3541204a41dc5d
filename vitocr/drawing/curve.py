"""The picture of a training run: validation accuracy (or loss) and training loss against the minutes it took."""

import csv
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT = "#1f2933", "#7b8794"
COLOURS = ("#1f5fa8", "#c8322d", "#1a7f4b", "#8a5bb0", "#b7791f")


def read_curve(path: Path, column: str) -> tuple[list[float], list[float]]:
    """(minutes, values) of the rows of a metrics.csv that have a value in `column`."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    return [float(row["seconds"]) / 60 for row in rows], [float(row[column]) for row in rows]


def draw_curves(path: str | Path, runs: Mapping[str, str | Path]) -> None:
    """`runs`: name -> metrics.csv. Each on the same two axes, to be compared."""
    figure = Figure(figsize=(9, 3.6), dpi=120, facecolor="white", layout="constrained")
    val, loss = figure.subplots(1, 2)
    in_percent = any(read_curve(Path(curve), "val_accuracy")[1] for curve in runs.values())
    column, unit, digits = ("val_accuracy", 100, 1) if in_percent else ("val_loss", 1, 3)
    for colour, (name, curve) in zip(COLOURS * len(runs), runs.items(), strict=False):
        minutes, values = read_curve(Path(curve), column)
        if values:
            val.plot(minutes, [unit * value for value in values], color=colour, label=name, linewidth=1.6)
            val.annotate(
                f"{unit * values[-1]:.{digits}f}", (minutes[-1], unit * values[-1]), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize=8, color=colour,
            )  # fmt: skip
        minutes, values = read_curve(Path(curve), "train_loss")
        loss.plot(minutes, values, color=colour, label=name, linewidth=0.9)
    dress(val, "Validation accuracy, %" if in_percent else "Validation loss")
    dress(loss, "Training loss (with augmentation)")
    if len(runs) > 1:
        val.legend(frameon=False, fontsize=8)
    figure.savefig(path, format="png")


def dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")
    axes.set_xlabel("minutes", color=FAINT, fontsize=9)
    axes.grid(color="#e4e7eb", linewidth=0.6)
    axes.tick_params(colors=FAINT, labelsize=8, length=0)
    axes.spines[:].set_visible(False)
