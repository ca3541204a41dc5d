"""What a finished run leaves: model.safetensors, metrics.json and the pictures, made from best.ckpt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vitocr.checkpoint import atomic_write, load_model, save_model
from vitocr.drawing.curve import draw_curves
from vitocr.training.feed import Kit

OF_TRAINING = ("steps", "epochs", "seconds", "images_seen", "images_per_second", "gflops_per_second",
               "petaflops_total", "peak_memory_bytes")  # fmt: skip


def report(folder: Path, kit: Kit, *, say: Callable[[str], object], started: float) -> float | None:
    """Evaluate best.ckpt and write everything down. Returns the validation accuracy, or loss where that is all."""
    model, description = load_model(folder / "best.ckpt", device="cuda" if torch.cuda.is_available() else "cpu")
    metrics: dict[str, Any] = dict(description["metrics"])
    for split, summary in kit.report(model, description, folder).items():
        metrics[split] = metrics.get(split, {}) | summary
    draw_curves(folder / "curve.png", {folder.name: folder / "metrics.csv"})
    description["metrics"] = metrics
    save_model(folder / "model.safetensors", model.state_dict(), description)
    figures = {
        **metrics,
        "train": {name: description["provenance"][name] for name in OF_TRAINING},
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds_total": time.monotonic() - started,
    }
    text = json.dumps(figures, indent=2, ensure_ascii=False)
    atomic_write(folder / "metrics.json", lambda path: path.write_text(text, encoding="utf-8"))
    say(f"wrote model.safetensors, metrics.json and pictures to {folder}")
    val = metrics.get("val", {})
    figure = val.get("accuracy", val.get("loss"))
    return figure if isinstance(figure, float) else None
