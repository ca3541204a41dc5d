"""The mean of several models' weights, as one model.

Of a model and of what was trained on from it, or of several trained on from one, the mean is often better than any of
them: each has settled at another side of the same valley (Wortsman et al. 2022, "Model soups"; of a model and what
was fine-tuned from it, "Robust fine-tuning of zero-shot models"). It costs nothing when reading. Of models
that were trained apart from scratch it is worth nothing, and neither is it calibrated: confidences are the mean's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitocr.catalog import find_model
from vitocr.checkpoint import load_checkpoint, save_model
from vitocr.config import HARMLESS, differences, differing
from vitocr.errors import UserError

# Of the descriptions, beside how a model is built: without these weights mean different things.
SAME = ("kind", "codec", "preprocess")


class Part(NamedTuple):
    model: str  # whatever `find_model` finds
    share: float


def parse_part(word: str) -> Part:
    """`MODEL`, or `MODEL=SHARE`."""
    name, equals, share = word.rpartition("=")
    try:
        return Part(name, float(share)) if equals else Part(word, 1.0)
    except ValueError:
        return Part(word, 1.0)  # a file may have a = in its name


def average(parts: Sequence[Part], out: Path) -> dict[str, Any]:
    """Write the mean to `out`; its description is that of the last part, and says of what it is the mean. Shares need
    not sum to 1."""
    if len(parts) < 2:
        raise UserError("A mean takes at least two models: vitocr average FIRST=0.35 SECOND=0.65 --out FILE")
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: the mean is stored in a .safetensors file.")
    for part in parts:
        if not part.share > 0:
            raise UserError(f"{part.model}={part.share:g}: a share is a number above 0.")
    total = sum(part.share for part in parts)
    mean: dict[str, Any] = {}
    described: list[dict[str, Any]] = []
    first_shapes: dict[str, list[int]] = {}
    for part in parts:
        state, description = load_checkpoint(find_model(part.model))
        described.append(description)
        _check_alike(parts[0].model, described[0], part.model, description)
        shapes = {name: list(tensor.shape) for name, tensor in state.items()}
        first_shapes = first_shapes or shapes
        if shapes != first_shapes:
            raise UserError(f"{parts[0].model} and {part.model} have weights of other shapes, and so no mean.")
        for name, tensor in state.items():
            if tensor.is_floating_point():
                share = tensor.double() * (part.share / total)
                mean[name] = share if name not in mean else mean[name] + share
            else:
                mean[name] = tensor  # a counter
    last = {name: tensor.to(state[name].dtype) for name, tensor in mean.items()}
    parents = [
        {"name": Path(part.model).name, "share": part.share / total, "provenance": description["provenance"]}
        for part, description in zip(parts, described, strict=True)
    ]
    description = described[-1] | {"metrics": {}}
    description["provenance"] = description["provenance"] | {"mean_of": parents}
    for gone in ("calibration", "storage"):
        description.pop(gone, None)
    save_model(out, last, description)
    return description


def _check_alike(first: str, one: dict[str, Any], second: str, other: dict[str, Any]) -> None:
    differ = [line for key in SAME for line in differences({key: one[key]}, {key: other[key]})]
    for name, (there, here) in differing(other["model"], one["model"]).items():
        if name.rpartition(".")[2] not in HARMLESS:
            differ.append(f"{name}: {there} there, {here} here")
    if differ:
        what = "; ".join(differ[:3])
        raise UserError(f"{first} and {second} are built or answer otherwise, so their weights have no mean: {what}")
