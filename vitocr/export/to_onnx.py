"""ONNX, in one file that `vitocr.load` reads without torch; vitocr/inference/run_onnx.py says what is where in it.

Exported through `torch.export` (`dynamo=True`), which proves for which shapes a graph holds: the number of images and
the width of the image stay free. A backbone of timm keeps its own way with positions, and so a fixed width.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitocr.description import to_json
from vitocr.errors import UserError
from vitocr.export.parts import Cut, Part, plain_attention
from vitocr.export.tidy import tidy
from vitocr.inference.run_onnx import Graphs, open_onnx

OPSET = 20  # onnxruntime 1.17 and later


def write(path: Path, parts: Cut, description: Mapping[str, Any]) -> None:
    save(path, graphs(parts), parts.reading, description)


def graphs(parts: Cut) -> dict[str, Any]:
    """`encode` and, if there is one, `step`, as onnx.ModelProtos."""
    return {name: graph(part) for name, part in (("encode", parts.encode), ("step", parts.step)) if part is not None}


def save(path: Path, graphs: Mapping[str, Any], reading: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """The graphs in one file, with all that reading takes."""
    metadata = {"vitocr": to_json(description), "vitocr.reading": json.dumps(reading)}
    if "step" in graphs:
        metadata["vitocr.step"] = base64.b64encode(graphs["step"].SerializeToString()).decode()
    model = type(graphs["encode"])()
    model.CopyFrom(graphs["encode"])
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def read(path: Path) -> Graphs:
    return open_onnx(path)


def graph(part: Part) -> Any:
    """An onnx.ModelProto that does what the part's module does."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"Export to ONNX needs a package that is not installed here ({error}): pip install 'vitocr[onnx]'"
        ) from error
    free = {
        name: {axis: torch.export.Dim.DYNAMIC for axis in part.dynamic[name]} if name in part.dynamic else None
        for name in part.inputs
    }
    with torch.no_grad(), plain_attention():
        program = torch.onnx.export(
            part.module.eval(),
            tuple(part.inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(part.inputs),
            output_names=list(part.outputs),
            dynamic_shapes=as_arguments(part.module, list(free.values())),
            external_data=False,
        )
    assert program is not None
    model = program.model_proto
    tidy(model, part)
    return model


def as_arguments(module: torch.nn.Module, values: list[Any]) -> tuple[Any, ...]:
    """`values`, one an argument, nested as torch.export wants them: those for `*rest` in a tuple of their own."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    single = sum(kind is not inspect.Parameter.VAR_POSITIONAL for kind in kinds)
    return (*values[:single], *([tuple(values[single:])] if single < len(kinds) else []))
