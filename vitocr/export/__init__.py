"""A trained model in other forms, each held against the original before it is kept.

    export("runs/str/...", "onnx")   -> model.onnx beside model.safetensors

- onnx: all that reading needs in one file, which `vitocr.load` reads without torch (to_onnx.py);
- openvino: the same graphs as OpenVINO's IR, in a folder (to_openvino.py);
- torchscript: the same graphs for libtorch, traced (to_torchscript.py);
- safetensors: weights and description, of a training checkpoint for instance, which `vitocr.load` reads.

All are float32. A form that says anything else than the original on the images of the check is not kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from vitocr.catalog import find_model
from vitocr.checkpoint import atomic_write, load_model, save_model
from vitocr.errors import UserError, did_you_mean
from vitocr.export.check import FEW, Agreement, Pictures, compare, open_pictures
from vitocr.predict import Predictor

FORMS = {"onnx": ".onnx", "torchscript": ".torchscript", "safetensors": ".safetensors", "openvino": ".openvino"}


class Exported(NamedTuple):
    path: Path
    agreement: Agreement
    column: int | None  # widths of an image that it takes: multiples of this many pixels; None: the model's own only


def export(
    model: str | Path,
    to: str = "onnx",
    *,
    out: str | Path | None = None,
    verify: Sequence[str | Path] = (),
    batch_size: int = 64,
) -> Exported:
    """Write `model` in the form `to`, checked on the images of `verify` (default: some that are drawn here).

    out: by default the name of the model's file with another suffix. What stood there before is replaced once the
    new file has passed.
    """
    if to not in FORMS:
        raise UserError(f"--to {to}: choose one of {', '.join(FORMS)}.{did_you_mean(to, FORMS)}")
    path = find_model(model)
    if path.suffix == ".onnx":
        raise UserError(f"{path} is an export itself: give the checkpoint it was made of.")
    out = path.with_suffix(FORMS[to]) if out is None else Path(out)
    if out.suffix != FORMS[to]:
        raise UserError(f"--out {out}: a {to} file is named something{FORMS[to]}")
    if out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"{path} is already what --to {to} would make of it; --out FILE writes a copy elsewhere.")
    network, description = load_model(path)
    original = Predictor(network, description)
    pictures = open_pictures(verify, original)
    result: list[Exported] = []

    def write(temporary: Path) -> None:
        column = None
        if to == "safetensors":
            save_model(temporary, network.state_dict(), description)
            again, told = load_model(temporary)
            copy = Predictor(again, told)
        else:
            from vitocr.export.parts import cut

            parts = cut(network)
            column = parts.reading["column"] if to != "openvino" else None
            writer: Any = import_module(f"vitocr.export.to_{to}")
            writer.write(temporary, parts, description)
            copy = Predictor(writer.read(temporary), description)
        found = check(original, copy, pictures, what=out.name, column=column, batch_size=batch_size)
        result.append(Exported(out, found, column))

    (atomic_folder if to == "openvino" else atomic_write)(out, write)
    return result[0]


def atomic_folder(path: Path, writer: Callable[[Path], object]) -> None:
    """Let `writer` make a folder beside `path`, then put it in place of what was there."""
    temporary, old = (path.with_name(f".{path.name}.{end}") for end in ("tmp", "old"))
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(temporary)
        if path.exists():
            path.rename(old)  # a folder that is not empty cannot be replaced in one step
        temporary.rename(path)
    except OSError as error:
        raise UserError(f"Could not write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check(
    original: Predictor, copy: Predictor, pictures: Pictures, *, what: str, column: int | None, batch_size: int
) -> Agreement:
    """On all pictures; on a few also one by one, and, where the copy takes any width, wider than the model's own."""
    found = compare(original, copy, pictures, what=what, batch_size=batch_size)
    compare(original, copy, pictures, what=f"{what}, one image at a time,", limit=FEW, batch_size=1)
    if column is not None:
        height, width = original.preprocess.size
        wider = {"size": [height, (width // column + 1 + width // (2 * column)) * column]}
        wide = [
            Predictor(predictor.runner, predictor.description | {"preprocess": predictor.preprocess.to_dict() | wider})
            for predictor in (original, copy)
        ]
        compare(wide[0], wide[1], pictures, what=f"{what}, on images {wider['size'][1]} pixels wide,", limit=FEW)
    return found
