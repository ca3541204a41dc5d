"""What the tests of exports share: small models that have learned to read a little, and images for them to read."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads_kit import random_texts, targets_of

from vitocr.checkpoint import save_model
from vitocr.description import describe
from vitocr.export import parts
from vitocr.heads.classify import ClassTargets
from vitocr.inference.numpy_decode import Run, Tensors
from vitocr.inference.run_onnx import Graphs
from vitocr.models.model import Model, build_model

CHARACTERS = "0123456789"
SIZE = (16, 64)
BACKBONE = {"_target_": "vitocr.models.vit.ViT", "patch": [8, 4], "dim": 32, "depth": 1, "heads": 2}
HEADS: dict[str, dict[str, Any]] = {
    "classify": {"_target_": "vitocr.heads.classify.Classify", "classes": 7},
    "ctc": {"_target_": "vitocr.heads.ctc.Ctc", "rows": "learned"},
    "transformer": {
        "_target_": "vitocr.heads.transformer.Transformer",
        "heads": 2,
        "depth": 2,
        "ctc": 0.5,
        "smoothing": 0.1,
    },
    "permuted": {"_target_": "vitocr.heads.permuted.Permuted", "heads": 2, "ctc": 0.5},
    "lstm": {"_target_": "vitocr.heads.lstm.Lstm", "hidden": 24},
}
DECODERS = ["transformer", "permuted", "lstm"]


def small_model(name: str, *, steps: int = 80, **backbone: Any) -> Model:
    """It reads texts of many lengths, some of them wrong, with differing confidence."""
    torch.manual_seed(0)
    head = HEADS[name] if name == "classify" else HEADS[name] | {"symbols": len(CHARACTERS), "max_length": 8}
    model = build_model({"image_size": list(SIZE), "backbone": BACKBONE | backbone, "head": head})
    texts = random_texts(48, seed=1)
    images = torch.from_numpy(np.stack([showing(text, seed=n) for n, text in enumerate(texts)])).float() / 255
    images = (images.permute(0, 3, 1, 2) - 0.5) / 0.25  # as save_small says
    targets: Any = targets_of(texts)
    options = {} if name == "classify" else {"align": 0.5}
    if name == "classify":
        targets = ClassTargets(torch.tensor([len(text) % 7 for text in texts]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # rounding depends on how many there are, and after so few steps the model on rounding
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(images, targets, **options)["loss"].backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return model.eval()


def save_small(path: Path, name: str, model: Model | None = None) -> Path:
    model = model or small_model(name)
    text = {"kind": "text", "codec": {"type": "charset", "characters": CHARACTERS}}
    label = {"kind": "classify", "codec": {"type": "classes", "names": [f"class {i}" for i in range(7)]}}
    look = {"size": list(SIZE), "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch", "interpolation": "bicubic"}
    told: dict[str, Any] = label if name == "classify" else text
    save_model(path, model.state_dict(), describe(task="small", model=model.spec, preprocess=look, **told))
    return path


def showing(text: list[int], *, seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A picture in which each character is a bar of its own colour, with a gap before the next, and some noise."""
    height, width = size
    colours = np.random.default_rng(0).integers(0, 256, (len(CHARACTERS), 3))
    image = np.full((height, width, 3), 128.0)
    for i, index in enumerate(text):
        left, right = (round((i + edge) * width / len(text)) for edge in (0, 0.8))
        image[:, left:right] = colours[index]
    image += np.random.default_rng(seed).normal(0, 12, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def pictures(count: int) -> list[np.ndarray]:
    """Pictures of texts, of differing sizes."""
    texts = random_texts(count, seed=7)
    return [showing(text, seed=n, size=(10 + n % 20, 40 + n % 50)) for n, text in enumerate(texts)]


def batch(count: int, *, width: int = SIZE[1]) -> np.ndarray:
    """Pictures of texts as they go into a model, (count, 3, h, width)."""
    texts = random_texts(max(count, 3), seed=5)[:count]
    shown = np.stack([showing(text, seed=n, size=(SIZE[0], width)) for n, text in enumerate(texts)])
    return np.ascontiguousarray(((shown / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2), dtype=np.float32)


def graphs_of(model: Model) -> Graphs:
    """As exported, but run by torch."""
    cut = parts.cut(model)
    return Graphs(as_run(cut.encode), as_run(cut.step) if cut.step is not None else None, cut.reading, {})


def as_run(part: parts.Part) -> Run:
    def run(inputs: Tensors) -> Tensors:
        with torch.inference_mode():
            found = part.module(*(torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in part.inputs))
        return dict(zip(part.outputs, (tensor.numpy() for tensor in found), strict=True))

    return run
