"""What a finished run leaves: model.safetensors, metrics.json and the pictures, made from best.ckpt."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitocr.checkpoint import atomic_write, load_model, save_model
from vitocr.curve import draw_curves
from vitocr.data.arrays import ImageArrays, Rows, Splits
from vitocr.evaluate import measure
from vitocr.metrics import confusion_matrix, summarise_classification
from vitocr.output import progress
from vitocr.predict import Predictor
from vitocr.report import draw_confusion, draw_samples

SAMPLES = 5000  # images that the sheet of predictions is chosen from


def report(folder: Path, splits: Splits, *, say: Callable[[str], object], started: float) -> float | None:
    """Evaluate best.ckpt on the test split and write everything down. Returns the validation accuracy."""
    model, description = load_model(folder / "best.ckpt", device="cuda" if torch.cuda.is_available() else "cpu")
    predictor = Predictor(model, description)
    metrics: dict[str, Any] = dict(description["metrics"])
    measured = "test" if splits.test is not None else "val"
    rows = splits.test if splits.test is not None else splits.val
    if rows is not None:
        began = time.monotonic()
        found = measure(
            predictor, rows, batch_size=250, watch=lambda items, total: progress(items, total, what="evaluating")
        )
        logits, labels, kept = found.logits, np.asarray(found.labels), np.asarray(found.rows)
        summary = summarise_classification(logits, labels, splits.classes)
        summary["seconds"] = time.monotonic() - began
        metrics[measured] = metrics.get(measured, {}) | summary
        low, high = summary["accuracy_95"]
        say(
            f"{measured} accuracy {100 * summary['accuracy']:.2f}% (95% interval {100 * low:.2f} to {100 * high:.2f}), "
            f"calibration error {100 * summary['ece']:.2f}%"
        )
        pictures(folder, splits, rows, logits, labels, kept)
    draw_curves(folder / "curve.png", {folder.name: folder / "metrics.csv"})
    description["metrics"] = metrics
    save_model(folder / "model.safetensors", model.state_dict(), description)
    provenance = description["provenance"]
    figures = {
        **metrics,
        "train": {
            name: provenance[name]
            for name in ("steps", "epochs", "seconds", "images_seen", "images_per_second", "gflops_per_second",
                         "petaflops_total", "peak_memory_bytes")
        },
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds_total": time.monotonic() - started,
    }  # fmt: skip
    atomic_write(
        folder / "metrics.json",
        lambda path: path.write_text(json.dumps(figures, indent=2, ensure_ascii=False)),
    )
    say(f"wrote {folder}/model.safetensors, metrics.json, curve.png, samples.png, confusion.png")
    return metrics.get("val", {}).get("accuracy")


def pictures(
    folder: Path, splits: Splits, rows: Rows, logits: torch.Tensor, labels: np.ndarray, kept: np.ndarray
) -> None:
    probabilities = logits.softmax(dim=1).numpy()
    draw_confusion(
        folder / "confusion.png",
        confusion_matrix(probabilities.argmax(axis=1), labels, len(splits.classes)),
        splits.classes,
    )
    chosen = np.arange(min(SAMPLES, len(labels)))
    if isinstance(rows, ImageArrays):
        images = list(rows.images[kept[chosen]])
    else:
        from vitocr.data.folder import decode_image

        chosen = chosen[:200]
        images = [decode_image(rows.path(int(row))) for row in kept[chosen]]
    draw_samples(folder / "samples.png", images, labels[chosen], probabilities[chosen], splits.classes)
