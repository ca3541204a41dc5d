"""The self-describing file: weights and the description of what they are, in one place.

- `model.safetensors` keeps the description as JSON in its metadata; a Lightning `.ckpt` keeps the same
  under the key "vitocr". A reader needs neither Lightning nor Hydra nor the run's folder.
- `weights_only=True`, always: a file from a stranger cannot run code here.
- A file is told by its first bytes, not by its name. What is wrong with it is said in one sentence.
- Writing is atomic: a full disk or a kill leaves the previous file as it was.
- Matrices may be stored in half precision, which halves the file; it says so ("storage"), and loading brings them
  back to single precision, so that a model computes alike wherever it runs.
"""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitocr.description import CUT_SHORT, check, read_description, to_json
from vitocr.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vitocr.models.model import Model

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def atomic_write(path: str | Path, writer: Callable[[Path], object]) -> None:
    """Let `writer` fill a temporary file beside `path`, then put it in place in one step.

    The temporary name is fixed, so that what a `kill -9` left behind is overwritten, not piled up.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(b"")
        usual = temporary.stat().st_mode
        writer(temporary)
        os.chmod(temporary, usual)  # safetensors makes files that nobody but their owner may read
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave the new name on an empty file
        os.replace(temporary, path)
    except Exception as error:
        reason = _disk_error(error)
        if reason is None:
            raise
        message = f"Could not write {path}: {reason}."
        if path.parent.is_dir():
            message += f" That disk has {shutil.disk_usage(path.parent).free / 1e6:,.0f} MB free."
        if path.exists():
            message += " The previous file is kept as it was."
        raise UserError(message) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _disk_error(error: Exception) -> str | None:
    """What the disk objected to, or None if `error` is about something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    if isinstance(error, SafetensorError) and "I/O error" in text:
        return text.split("I/O error: ")[-1]
    if isinstance(error, RuntimeError) and ("inline_container" in text or "PytorchStreamWriter" in text):
        return "the disk did not take all of it"  # all torch says is "unexpected pos 576 vs 534"
    return None


def save_model(
    path: str | Path, model_state: Mapping[str, Tensor], description: Mapping[str, Any], *, storage: str | None = None
) -> None:
    """Write weights and description as a `.safetensors` file, atomically.

    storage: "float16" or "bfloat16" for the matrices; None leaves every tensor as it is.
    """
    tensors = _separate(model_state)
    if storage is not None:
        tensors = {name: _halved(name, tensor, storage) for name, tensor in tensors.items()}
        description = {**description, "storage": storage}
    metadata = {"vitocr": to_json(description)}
    atomic_write(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))


def _separate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory, as safetensors wants them: tied weights are written
    once for every name, and loading ties them again."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return tensors


def _halved(name: str, tensor: Tensor, storage: str) -> Tensor:
    """What is no matrix stays as it is: gains and running means are few, and may be of any size."""
    if storage not in HALVES:
        raise UserError(f"storage={storage}: weights are stored as {' or '.join(HALVES)}, or as they are.")
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.to(HALVES[storage])
    if not torch.isfinite(half).all():
        raise UserError(f"{name} holds numbers up to {tensor.abs().max():.3g}, too large for {storage}: try bfloat16.")
    return half


def load_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights (on the CPU; averaged ones if the file has them) and description, of either kind of file."""
    path = Path(path)
    start = _first_bytes(path)
    if start[:2] == b"PK":
        return _load_ckpt(path)
    if start[8:9] == b"{":
        description = read_description(path)
        try:
            state = load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path} is damaged ({error}): {CUT_SHORT}") from error
        if description.pop("storage", None) is not None:  # it is the file that is halved, not what comes out of it
            state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        return state, description
    raise UserError(
        f"{path} is not a vitocr checkpoint: it is neither a .safetensors nor a .ckpt file "
        f"(it begins with {start[:8]!r})."
    )


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[Model, dict[str, Any]]:
    """The model of a checkpoint, built from its description, with its weights, in evaluation mode."""
    from vitocr.models.model import build_model

    state, description = load_checkpoint(path)
    spec = description["model"]
    if spec["backbone"].get("pretrained"):  # its weights are in this file; nothing is to be downloaded
        spec = spec | {"backbone": spec["backbone"] | {"pretrained": False}}
    model = build_model(spec)
    _check_fit(path, expected=model.state_dict(), found=state)
    model.load_state_dict(state)
    return model.to(device).eval(), description


def _first_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise UserError(f"{path} is a folder; name the checkpoint file in it.")
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")])
        raise UserError(f"There is no checkpoint at {path}.{near}")
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        raise UserError(f"{path} is empty (0 bytes): {CUT_SHORT}")
    return start


def _load_ckpt(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not zipfile.is_zipfile(path):  # a zip's directory stands at its end
        raise UserError(f"{path} is truncated: {CUT_SHORT}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds Python objects beside the weights. vitocr does not load those, for they can run "
            "any code: it was not made by vitocr."
        ) from error
    except (RuntimeError, EOFError, KeyError, OSError) as error:
        raise UserError(f"{path} is damaged or not a torch file ({str(error).splitlines()[0]}).") from error
    if not isinstance(content, dict) or "vitocr" not in content or "state_dict" not in content:
        raise UserError(
            f"{path} is a torch file, but has no vitocr description of the model: it was not made by vitocr."
        )
    description = check(content["vitocr"], path)
    weights = content.get("ema") or content["state_dict"]
    prefix = "model."  # the LightningModule's name for the model it trains
    if any(name.startswith(prefix) for name in weights):
        weights = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
    return dict(weights), description


def _check_fit(path: str | Path, *, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    shapes = [
        f"{name} is {tuple(found[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    problems = [
        _listed("missing", [name for name in expected if name not in found]),
        _listed("not part of the model", [name for name in found if name not in expected]),
        _listed("of another shape", shapes),
    ]
    if any(problems):
        raise UserError(
            f"The weights in {path} do not fit the model it describes: {'; '.join(filter(None, problems))}."
        )


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what}: {', '.join(names[:5])}{more}"
