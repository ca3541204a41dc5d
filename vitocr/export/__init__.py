"""A trained model in other forms, each held against the original before it is kept.

    export("runs/str/...", "onnx")   -> model.onnx beside model.safetensors

- onnx: all that reading needs in one file, which `vitocr.load` reads without torch (to_onnx.py); with `int8` in
  INT8, which loses a little accuracy: how much is measured, and too much is not kept (int8.py, loss.py);
- openvino: the same graphs as OpenVINO's IR, in a folder (to_openvino.py);
- torchscript: the same graphs for libtorch, traced (to_torchscript.py);
- safetensors: weights and description, of a training checkpoint for instance, which `vitocr.load` reads.

All but INT8 are float32. A form that says anything else than the original on the images of the check is not kept.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitocr.catalog import find_model
from vitocr.checkpoint import atomic_write, load_model, save_model
from vitocr.errors import UserError, did_you_mean
from vitocr.export.check import FEW, Agreement, compare
from vitocr.export.loss import Loss, allow, weigh
from vitocr.export.pictures import Pictures, open_pictures
from vitocr.inference.numpy_decode import WAYS
from vitocr.predict import Predictor

if TYPE_CHECKING:
    from vitocr.export.parts import Cut

FORMS = {"onnx": ".onnx", "torchscript": ".torchscript", "safetensors": ".safetensors", "openvino": ".openvino"}


class Int8(NamedTuple):
    calibrate: Sequence[str | Path]  # images like those that will be read
    max_loss: float = 0.5  # points of accuracy
    exclude: Sequence[str] = ()  # parts of the model that stay in float32: backbone.stem


class Exported(NamedTuple):
    path: Path
    agreement: Agreement
    column: int | None  # widths of an image that it takes: multiples of this many pixels; None: the model's own only
    loss: Loss | None = None  # of INT8; the agreement is then that of the float32 form


def export(
    model: str | Path,
    to: str = "onnx",
    *,
    out: str | Path | None = None,
    verify: Sequence[str | Path] = (),
    batch_size: int = 64,
    by: str | None = None,
    int8: Int8 | None = None,
) -> Exported:
    """Write `model` in the form `to`, checked on the images of `verify`.

    out: by default the name of the model's file with another suffix. What stood there before is replaced once the
    new file has passed.
    verify: by default some that are drawn here; with `int8` those it is calibrated on.
    by: of a text model with a decoder and a CTC head, which of them reads; by default the surer of the two.
    """
    if to not in FORMS:
        raise UserError(f"--to {to}: choose one of {', '.join(FORMS)}.{did_you_mean(to, FORMS)}")
    if int8 is not None and to != "onnx":
        raise UserError(f"--int8 goes with --to onnx, not with --to {to}.")
    if int8 is not None and not int8.calibrate:
        raise UserError("--int8 takes images to calibrate on, such as it will read: --calibrate DIR")
    if by is not None and to == "safetensors":
        raise UserError("--by is for forms that read without vitocr's heads: onnx, torchscript and openvino.")
    path = find_model(model)
    if path.suffix == ".onnx":
        raise UserError(f"{path} is an export itself: give the checkpoint it was made of.")
    out = path.with_suffix(f"{'.int8' * (int8 is not None)}{FORMS[to]}") if out is None else Path(out)
    if out.suffix != FORMS[to]:
        raise UserError(f"--out {out}: a {to} file is named something{FORMS[to]}")
    if out.exists() and path.exists() and out.samefile(path):
        raise UserError(f"{path} is already what --to {to} would make of it; --out FILE writes a copy elsewhere.")
    network, description = load_model(path)
    if by is not None:
        head: Any = network.head
        refuse_way(by, head)
        head.decode = partial(head.decode, by=by)
    original = Predictor(network, description)
    if int8 is not None:
        return export_int8(network, original, out, verify=verify, batch_size=batch_size, by=by, int8=int8)
    pictures = open_pictures(verify, original)
    result: list[Exported] = []

    def write(temporary: Path) -> None:
        column = None
        if to == "safetensors":
            save_model(temporary, network.state_dict(), description)
            again, told = load_model(temporary)
            copy = Predictor(again, told)
        else:
            parts = cut_to_read(network, by)
            column = parts.reading["column"] if to != "openvino" else None
            writer: Any = import_module(f"vitocr.export.to_{to}")
            writer.write(temporary, parts, description)
            copy = Predictor(writer.read(temporary), description)
        found = check(original, copy, pictures, what=out.name, column=column, batch_size=batch_size)
        result.append(Exported(out, found, column))

    (atomic_folder if to == "openvino" else atomic_write)(out, write)
    return result[0]


def export_int8(
    network: Any,
    original: Predictor,
    out: Path,
    *,
    verify: Sequence[str | Path],
    batch_size: int,
    by: str | None,
    int8: Int8,
) -> Exported:
    """ONNX in float32 first, which must say what the original says; of that INT8, which may lose a little."""
    from vitocr.export import to_onnx
    from vitocr.export.int8 import Recipe, calibrate, quantise, tools

    tools()
    to_calibrate = open_pictures(int8.calibrate, original)
    to_verify = open_pictures(verify or int8.calibrate, original)
    description = original.description
    parts = cut_to_read(network, by)
    graphs = to_onnx.graphs(parts)
    result: list[Exported] = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "float32.onnx"
        to_onnx.save(whole, graphs, parts.reading, description)
        runner = to_onnx.read(whole)
        exact = Predictor(runner, description)
        column = parts.reading["column"]
        found = check(
            original, exact, open_pictures((), original), what="its float32 form", column=column, batch_size=batch_size
        )
        recipe = Recipe(exclude=(*Recipe().exclude, *int8.exclude))
        quantised = quantise(graphs, calibrate(runner, to_calibrate), recipe)

        def write(temporary: Path) -> None:
            to_onnx.save(temporary, quantised, parts.reading, description)
            copy = Predictor(to_onnx.read(temporary), description)
            loss = weigh(exact, copy, to_verify, what=out.name, batch_size=batch_size)
            allow(loss, max_loss=int8.max_loss, what=out.name)
            result.append(Exported(out, found, column, loss))

        atomic_write(out, write)
    return result[0]


def cut_to_read(network: Any, by: str | None) -> Cut:
    from vitocr.export.parts import cut

    parts = cut(network)
    return parts if by is None else parts._replace(reading=parts.reading | {"by": by})


def refuse_way(by: str, head: Any) -> None:
    if by not in WAYS:
        raise UserError(f"--by {by}: choose one of {', '.join(WAYS)}.{did_you_mean(by, WAYS)}")
    if getattr(head, "ctc", None) is None:
        raise UserError(
            f"--by {by}: there is no choice, as the model was not trained with a CTC head beside a decoder."
        )


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
