"""`init=PATH`: a run starts from the weights of another one, as far as they fit, and says what that is.

- The backbone must be of the same build. If the grid of patches is another one (another image size), its position
  embeddings are interpolated.
- The head comes along if it is of the same kind; of heads that read text, their CTC in any case. What belongs to a
  class or a character is copied row by row, by its name, so another character set, or another order of classes, keeps
  what was learned of those they share. The places of a longer text are new, the others are kept.
- Everything else keeps its fresh weights, and is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitocr.catalog import backbone_name, find_model
from vitocr.checkpoint import load_checkpoint
from vitocr.codec import Charset, Classes, codec_from_dict
from vitocr.config import HARMLESS, differing
from vitocr.errors import UserError
from vitocr.models.model import Model

# What changes the meaning of weights without changing their shapes.
BUILD = ("_target_", "name", "patch", "stem", "heads", "norm", "activation", "pool", "hidden")
BESIDE = "head.ctc."  # the weights of a CTC that stands beside a decoder
PLACED = ("positions", "pos_embed", "class_token", "cls_token", "reg_token")  # of a backbone, beside its layers


@dataclass
class Moved:
    """What became of the weights: names of tensors, or sentences about them."""

    origin: str = ""
    taken: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    by_row: dict[str, list[str]] = field(default_factory=dict)  # how many rows -> tensors
    missing: list[str] = field(default_factory=list)  # of the file
    left: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)  # tensors of the file
    notes: list[str] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)  # of the origin: its name, and how it came to be

    def lines(self, weights: Mapping[str, Tensor]) -> list[str]:
        lines = []
        for part in ("backbone", "head"):
            names = [name for name in self.taken if name.startswith(f"{part}.")]
            if names:
                numbers = sum(weights[name].numel() for name in names)
                lines.append(f"taken: {part}, {len(names)} tensors with {numbers:,} numbers")
        lines += [f"resized: {what}" for what in self.resized]
        lines += [f"row by row: {rows} of {', '.join(names)}" for rows, names in self.by_row.items()]
        lines += [f"left fresh: {what}" for what in self.left]
        if self.missing:
            lines.append(f"left fresh, for the file lacks them: {some(self.missing)}")
        if self.unused:
            lines.append(f"not taken, for this model lacks them: {some(self.unused)}")
        return lines + [f"note: {what}" for what in self.notes]


def some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def start_from(
    config: Mapping[str, Any],
    model: Model,
    description: dict[str, Any],
    *,
    resuming: bool,
    say: Callable[[str], object],
) -> None:
    """Carry out `init=` and `freeze=`. A run that goes on has its weights from its own checkpoint."""
    freeze = config["freeze"]
    if freeze not in (None, "backbone"):
        raise UserError(f"freeze={freeze}: give freeze=backbone, which trains the head alone, or leave it out")
    if freeze and description["kind"] == "pretrain":
        raise UserError("freeze=backbone leaves nothing to pretrain: it is for the task that comes afterwards")
    if freeze and config["init"] is None and not config["backbone"].get("pretrained"):
        raise UserError("freeze=backbone trains a head on a backbone that has learned nothing: give init=PATH as well")
    if config["init"] is not None and not resuming:
        moved = initialise(model, description, config["init"])
        description["provenance"]["started_from"] = moved.made  # names like str-tiny mean another model one day
        say(f"starting from {moved.origin}")
        for line in moved.lines(model.state_dict()):
            say(f"  {line}")
    if freeze:
        model.freeze_backbone()
        say("  frozen: the backbone stays as it is, only the head learns")


def initialise(model: Model, description: dict[str, Any], path: str) -> Moved:
    """Put the weights of `path` into `model`, as far as they fit."""
    file = find_model(path)
    found, there = load_checkpoint(file)
    weights = model.state_dict()
    moved = Moved(f"{file} ({there['task']}, {backbone_name(there)})")
    moved.made = {"name": file.stem, "task": there["task"], "provenance": there["provenance"]}
    take_backbone(weights, found, description, there, moved, path=str(path))
    take_head(weights, found, description, there, moved)
    note_preprocessing(description, there, moved)
    note_held_back(description, there, moved)
    model.load_state_dict(weights)
    return moved


def listed(options: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} is {old} there and {new} here" for name, (old, new) in options.items())


def take_backbone(
    weights: dict[str, Tensor], found: Mapping[str, Tensor], here: dict[str, Any], there: dict[str, Any],
    moved: Moved, *, path: str,
) -> None:  # fmt: skip
    specs = here["model"]["backbone"], there["model"]["backbone"]
    differ = {name: both for name, both in differing(*specs).items() if name not in HARMLESS}
    own = [name for name in weights if name.startswith("backbone.")]
    extra = [name for name in found if name.startswith("backbone.") and name not in weights]
    placed = {name for name in [*own, *extra] if name.rpartition(".")[2] in PLACED}
    unlike = [
        f"{name} is {shape(found.get(name))} there and {shape(weights.get(name))} here"
        for name in [*own, *extra]
        if name not in placed and shape(found.get(name)) != shape(weights.get(name))
    ]
    build = {name: both for name, both in differ.items() if name in BUILD}
    if unlike or build:
        what = listed(differ) or "; ".join(unlike[:3])
        fix = [f"backbone.{name}={old}".replace(" ", "") for name, (old, _) in differ.items()]
        raise UserError(
            f"init={path}: its backbone, {backbone_name(there)}, is built otherwise than this run's, "
            f"{backbone_name(here)}: {what}."
            + (f" Give {' '.join(fix)} to start from it" if fix and specs[0]["_target_"] == specs[1]["_target_"] else
               " Choose the same backbone= to start from it")
        )  # fmt: skip
    if differ:
        moved.notes.append(f"of the backbone, {listed(differ)}")
    for name in own:
        value = found.get(name)
        patch = found.get(name.replace("pos_embed", "patch_embed.proj.weight"))
        if value is None:
            moved.missing.append(name)
        elif value.shape == weights[name].shape:
            weights[name] = value
            moved.taken.append(name)
        elif value.ndim == 4 or patch is not None:
            weights[name] = other_grid(name, value, weights[name], here, there, patch, moved)
        else:
            moved.left.append(f"{name}, {shape(value)} there and {shape(weights[name])} here")
    moved.unused += extra


def shape(value: Tensor | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


def other_grid(
    name: str, value: Tensor, own: Tensor, here: Mapping[str, Any], there: Mapping[str, Any], patch: Tensor | None,
    moved: Moved,
) -> Tensor:  # fmt: skip
    """Position embeddings of a grid of another size: ours (1, rows, columns, D), or timm's (1, prefix + N, D), of
    which only the filters of the patch embedding and the size of the image tell the grid."""
    if value.ndim == 4:
        old, new = (value.shape[1], value.shape[2]), (own.shape[1], own.shape[2])
        resized = resize_grid(value, new)
    else:
        assert patch is not None
        old, new = (
            (size[0] // patch.shape[2], size[1] // patch.shape[3])
            for size in (there["model"]["image_size"], here["model"]["image_size"])
        )
        prefix = value.shape[1] - math.prod(old)
        resized = resize_grid(value[:, prefix:].unflatten(1, old), new).flatten(1, 2)
        resized = torch.cat([value[:, :prefix], resized], dim=1)
    moved.resized.append(f"{name} from a grid of {old[0]}x{old[1]} to {new[0]}x{new[1]} (rows x columns)")
    return resized


def resize_grid(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """(1, rows, columns, D) to another grid, as `ViT.positions_for` does it for an image of another size."""
    as_image = positions.permute(0, 3, 1, 2).float()
    resized = F.interpolate(as_image, size=grid, mode="bicubic", align_corners=False, antialias=True)
    return resized.permute(0, 2, 3, 1).to(positions.dtype)


def reader_of_columns(found: Mapping[str, Tensor], here: str, there: str) -> dict[str, Tensor]:
    """The CTC of a head under the names that it has in a head of another kind: by itself, or beside a decoder. What a
    decoder has taught an encoder so serves a reader that does without."""
    old, new = ("head." if kind == "Ctc" else BESIDE for kind in (there, here))
    return {new + name.removeprefix(old): value for name, value in found.items() if name.startswith(old)}


def take_head(
    weights: dict[str, Tensor], found: Mapping[str, Tensor], here: Mapping[str, Any], there: Mapping[str, Any],
    moved: Moved,
) -> None:  # fmt: skip
    specs = here["model"]["head"], there["model"]["head"]
    kinds = tuple(spec["_target_"].rpartition(".")[2] for spec in specs)
    if kinds[0] != kinds[1]:
        whole, found = found, reader_of_columns(found, *kinds)
        if not any(name in weights for name in found):
            moved.left.append(f"the head, {kinds[0]} here and {kinds[1]} there")
            return
        moved.notes.append(f"of the head, {kinds[1]} there and {kinds[0]} here, the CTC is what comes along")
        if kinds[1] != "Ctc":
            moved.unused += [name for name in whole if name.startswith("head.") and not name.startswith(BESIDE)]
    elif build := {name: both for name, both in differing(*specs).items() if name in BUILD}:
        moved.left.append(f"the head: {listed(build)}")
        return
    moved.unused += [name for name in found if name.startswith("head.") and name not in weights]
    rows = shared_rows(here["codec"], there["codec"])
    for name in (name for name in weights if name.startswith("head.")):
        own, value = weights[name], found.get(name)
        if value is None:
            moved.missing.append(name)
        elif rows is not None and name.split(".")[-2] in ("logits", "embed") and value.shape[1:] == own.shape[1:]:
            by_name(name, own, value, weights, rows, moved)
        elif value.shape == own.shape:
            weights[name] = value
            moved.taken.append(name)
        elif name.endswith("positions") and own.ndim == value.ndim == 4 and own.shape[3] == value.shape[3]:
            weights[name] = resize_grid(value, (own.shape[1], own.shape[2]))
            moved.resized.append(f"{name} from {shape(value)} to {shape(own)}")
        elif name.endswith("positions") and own.ndim == value.ndim == 3 and own.shape[2] == value.shape[2]:
            places = min(own.shape[1], value.shape[1])
            weights[name] = torch.cat([value[:, :places], own[:, places:]], dim=1)
            moved.resized.append(f"{name}: {places} of {own.shape[1]} places in a text, of {value.shape[1]} there")
        else:
            moved.left.append(f"{name}, {shape(value)} there and {shape(own)} here")


@dataclass(frozen=True)
class Rows:
    """Which row here comes from which row there."""

    here: list[int]
    there: list[int]
    total: int  # rows here
    total_there: int
    what: str

    @property
    def unchanged(self) -> bool:
        return self.here == self.there == list(range(self.total)) and self.total == self.total_there


def shared_rows(codec: Mapping[str, Any], codec_there: Mapping[str, Any]) -> Rows | None:
    """Rows that both have: those of shared classes or characters; and the last, which is the blank, begin or end of a
    text. A set there of one case folded the other, so that 'A' starts as what it knew of 'a'."""
    if codec["type"] != codec_there["type"] or codec["type"] not in ("classes", "charset"):
        return None
    new, old = codec_from_dict(codec), codec_from_dict(codec_there)
    if isinstance(new, Charset) and isinstance(old, Charset):
        pairs = [(i, old.id_of(character)) for i, character in enumerate(new.characters)]
        pairs = [(i, j) for i, j in pairs if j >= 0]
        what = f"{len(pairs)} of {len(new)} characters"
        missing = [c for c in new.characters if old.id_of(c) < 0]
        if missing:
            what += f" (new: {' '.join(missing[:12])}{' ...' if len(missing) > 12 else ''})"
        pairs.append((len(new), len(old)))
        extra = 1
    else:
        assert isinstance(new, Classes) and isinstance(old, Classes)
        known = {name: i for i, name in enumerate(old.names)}
        pairs = [(i, known[name]) for i, name in enumerate(new.names) if name in known]
        what, extra = f"{len(pairs)} of {len(new)} classes", 0
    return Rows([i for i, _ in pairs], [j for _, j in pairs], len(new) + extra, len(old) + extra, what)


def by_name(name: str, own: Tensor, value: Tensor, weights: dict[str, Tensor], rows: Rows, moved: Moved) -> None:
    if (len(own), len(value)) != (rows.total, rows.total_there):
        moved.left.append(f"{name}, {shape(value)} there and {shape(own)} here")
    elif not rows.here:
        moved.left.append(f"{name}: {rows.what} are there")
    elif rows.unchanged:
        weights[name] = value
        moved.taken.append(name)
    else:
        mixed = own.clone()
        mixed[rows.here] = value[rows.there].to(own.dtype)
        weights[name] = mixed
        moved.by_row.setdefault(rows.what, []).append(name)


def note_preprocessing(here: Mapping[str, Any], there: Mapping[str, Any], moved: Moved) -> None:
    differ = {name: both for name, both in differing(here["preprocess"], there["preprocess"]).items()
              if name in ("mean", "std")}  # fmt: skip
    if differ:
        moved.notes.append(f"pixels were normalised otherwise: {listed(differ)}")


def note_held_back(here: Mapping[str, Any], there: Mapping[str, Any], moved: Moved) -> None:
    """Another seed holds back other rows, of which the origin has learned: nothing measured on them would be true."""
    old, new = (side.get("provenance", {}).get("config", {}) for side in (there, here))
    if old.get("name") != new.get("name") or not new.get("data", {}).get("val_size"):
        return
    before, now = ((config["seed"], config["data"].get("val_size", 0)) for config in (old, new))
    if before != now:
        moved.notes.append(
            f"it held back {before[1]} rows with seed={before[0]}, this run {now[1]} with seed={now[0]}: of the same "
            f"data it has seen what is held back here, and validation will say too much. seed={before[0]} "
            f"data.val_size={before[1]} holds back the same"
        )
