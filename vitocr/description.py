"""What a checkpoint says about itself, in plain JSON types. Reads and checks it without torch.

`{"format": 1, "vitocr": version, "task", "kind", "model", "codec", "preprocess", "metrics", "provenance"}`:
`model` is what `build_model` builds from, `kind` what comes out ("classify"), `metrics` the figures by
split, `provenance` how it was made; a file whose matrices are kept in half precision has a "storage" as well, and one
that `vitocr calibrate` has seen a "calibration" (see calibration.py). A reader refuses a newer format instead of
guessing at it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import vitocr
from vitocr.errors import UserError

FORMAT = 1
CUT_SHORT = "a copy or download of it was cut short. Fetch it again, or use another checkpoint of the run."
# A path from a root, which means something on one machine alone: /a/b, ~/b, C:\b, \\server\b; not a/b, not https://a/b.
_PATH = re.compile(r"(?<![\w.\-/\\~])(?:file:///?|~[/\\]|/(?=[\w.])|[A-Za-z]:[/\\](?!/)|\\\\)(?:[^\s'\",;|<>]*)")
_OF_THE_MACHINE = ("run_dir", "resume", "logger", "data_dir")  # of a configuration: where, not what
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


def without_paths(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description as it may be handed to strangers: what says where things lay on one machine is gone, and of every
    path from its root only the last name is left."""
    trimmed = {key: _trim(value) if key in _TOLD else value for key, value in description.items()}
    left = machine_paths(trimmed)
    if left:
        raise UserError(f"The description still holds paths of this machine: {', '.join(left[:5])}.")
    return trimmed


_TOLD = ("model", "metrics", "provenance")  # a character set is full of slashes that are no paths


def machine_paths(description: Mapping[str, Any]) -> list[str]:
    """The paths from a root, in all that a description tells."""
    texts = _texts({key: value for key, value in description.items() if key in _TOLD})
    return [match.group() for text in texts for match in _PATH.finditer(text)]


def _trim(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {shorten_paths(key): _trim(inner) for key, inner in value.items() if key not in _OF_THE_MACHINE}
    if isinstance(value, list | tuple):
        return [_trim(inner) for inner in value]
    return shorten_paths(value) if isinstance(value, str) else value


def shorten_paths(text: str) -> str:
    """Of every path from a root, the last name alone."""
    return _PATH.sub(lambda path: re.split(r"[/\\]", path.group().rstrip("/\\"))[-1], text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
