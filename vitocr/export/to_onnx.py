"""ONNX, in one file that `vitocr.load` reads without torch; vitocr/run_onnx.py says what is where in it.

Exported through `torch.export` (`dynamo=True`), which proves for which shapes a graph holds: the number of images and
the width of the image stay free. A backbone of timm keeps its own way with positions, and so a fixed width.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitocr.description import to_json
from vitocr.errors import UserError
from vitocr.export.parts import Cut, Part
from vitocr.run_onnx import Graphs, open_onnx

OPSET = 20  # onnxruntime 1.17 and later


def write(path: Path, parts: Cut, description: Mapping[str, Any]) -> None:
    model = graph(parts.encode)
    metadata = {"vitocr": to_json(description), "vitocr.reading": json.dumps(parts.reading)}
    if parts.step is not None:
        metadata["vitocr.step"] = base64.b64encode(graph(parts.step).SerializeToString()).decode()
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
    with torch.no_grad():
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
    strip(model)
    name_axes(model, part)
    return model


def as_arguments(module: torch.nn.Module, values: list[Any]) -> tuple[Any, ...]:
    """`values`, one an argument, nested as torch.export wants them: those for `*rest` in a tuple of their own."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    single = sum(kind is not inspect.Parameter.VAR_POSITIONAL for kind in kinds)
    return (*values[:single], *([tuple(values[single:])] if single < len(kinds) else []))


def strip(model: Any) -> None:
    """Take out what the exporter notes of where each node came from: paths and source lines of this machine."""
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    model.graph.ClearField("metadata_props")
    model.graph.ClearField("doc_string")
    model.graph.ClearField("value_info")
    model.producer_name = "vitocr"
    things = [*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer, *model.functions]
    for thing in [*things, *(node for function in model.functions for node in function.node)]:
        thing.ClearField("metadata_props")
        thing.ClearField("doc_string")


def name_axes(model: Any, part: Part) -> None:
    """Call the free axes of the inputs by the names they have in `part`, and those of the outputs accordingly."""
    names: dict[str, str] = {}
    for entry in model.graph.input:
        for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
            wanted = part.dynamic.get(entry.name, {}).get(axis)
            if wanted is not None:
                names[dim.dim_param] = dim.dim_param = wanted
    for entry in model.graph.output:
        for dim in entry.type.tensor_type.shape.dim:
            if dim.dim_param:  # an expression: "s53 + 1"
                dim.dim_param = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), dim.dim_param)
