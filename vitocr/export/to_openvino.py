"""OpenVINO's own format, converted from the ONNX graphs: a folder of encode.xml and .bin, step.xml and .bin, and

model.json: {"vitocr": the description, "vitocr.reading": how the graphs fit together, see parts.py}.

The width of images is fixed: with a free one, OpenVINO 2026.4 runs the same graph into outputs of no rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitocr.errors import UserError
from vitocr.export.parts import Cut
from vitocr.export.to_onnx import graph
from vitocr.inference.numpy_decode import Run, Tensors
from vitocr.inference.run_onnx import Graphs


def write(folder: Path, parts: Cut, description: Mapping[str, Any]) -> None:
    openvino = installed()
    folder.mkdir()
    for name, part in (("encode", parts.encode), ("step", parts.step)):
        if part is not None:
            model = openvino.Core().read_model(graph(part).SerializeToString())
            if name == "encode":
                model.reshape({"images": [-1, 3, *parts.reading["size"]]})
            openvino.save_model(model, folder / f"{name}.xml", compress_to_fp16=False)
    told = {"vitocr": description, "vitocr.reading": parts.reading | {"column": None}}
    (folder / "model.json").write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")


def read(folder: Path) -> Graphs:
    told = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    step = folder / "step.xml"
    return Graphs(
        as_run(folder / "encode.xml"),
        as_run(step) if step.exists() else None,
        told["vitocr.reading"],
        told["vitocr"],
    )


def installed() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise UserError(
            f"--to openvino needs a package that is not installed here ({error}): pip install 'vitocr[openvino]'"
        ) from error
    return openvino


def as_run(path: Path) -> Run:
    # Its CPU plugin would otherwise compute in bfloat16 where the machine can.
    compiled = installed().Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [output.get_any_name() for output in compiled.outputs]

    def run(inputs: Tensors) -> Tensors:
        found = compiled(dict(inputs))
        return {name: found[index].copy() for index, name in enumerate(names)}

    return run
