"""What a checkpoint says about itself, in plain JSON types. Reads and checks it without torch.

`{"format": 1, "vitocr": version, "task", "kind", "model", "codec", "preprocess", "metrics", "provenance"}`:
`model` is what `build_model` builds from, `kind` what comes out ("classify"), `metrics` the figures by
split, `provenance` how it was made. A reader refuses a newer format instead of guessing at it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vitocr
from vitocr.errors import UserError

FORMAT = 1
CUT_SHORT = "a copy or download of it was cut short. Fetch it again, or use another checkpoint of the run."
_REQUIRED = ("task", "kind", "model", "codec", "preprocess", "metrics", "provenance")


def describe(
    *,
    task: str,
    kind: str,
    model: Mapping[str, Any],
    codec: Mapping[str, Any],
    preprocess: Mapping[str, Any],
    metrics: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The description of a model, reduced to plain types (from numpy and torch scalars, paths, tuples)."""
    description = {
        "format": FORMAT,
        "vitocr": vitocr.__version__,
        "task": task,
        "kind": kind,
        "model": model,
        "codec": codec,
        "preprocess": preprocess,
        "metrics": metrics or {},
        "provenance": provenance or {},
    }
    plain: dict[str, Any] = json.loads(to_json(description))
    return plain


def to_json(description: Mapping[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if hasattr(value, "tolist"):  # numpy and torch
            return value.tolist()
        raise TypeError(f"A description holds plain values only, not {type(value).__name__}: {value!r}")

    return json.dumps(description, default=plain, ensure_ascii=False)


def check(description: dict[str, Any], path: Path) -> dict[str, Any]:
    """`description`, if this version can use it; `path` is named in the error otherwise."""
    version = description.get("format") if isinstance(description, dict) else None
    if not isinstance(version, int):
        raise UserError(f"{path} has a description without a format number: it was not made by vitocr.")
    if version > FORMAT:
        raise UserError(
            f"{path} has checkpoint format {version}, made by vitocr {description.get('vitocr')}; "
            f"this vitocr {vitocr.__version__} reads up to format {FORMAT}. Upgrade: pip install -U vitocr"
        )
    absent = [key for key in _REQUIRED if key not in description]
    if absent:
        raise UserError(f"The description in {path} lacks {', '.join(absent)}: the file is damaged.")
    return description


def read_description(path: Path) -> dict[str, Any]:
    """The checked description of a `.safetensors` file, without its weights. Finds a truncated file too."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length < size else b""
    try:
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
        missing = 8 + length + end - size
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is truncated within its header: {CUT_SHORT}") from error
    if missing > 0:
        raise UserError(f"{path} is truncated, its last {missing:,} bytes are missing: {CUT_SHORT}")
    if "vitocr" not in metadata:
        raise UserError(
            f"{path} holds weights, but not vitocr's description of the model they belong to: "
            "it was not made by vitocr."
        )
    try:
        return check(json.loads(metadata["vitocr"]), path)
    except ValueError as error:
        raise UserError(f"The description in {path} is damaged ({error}).") from error
