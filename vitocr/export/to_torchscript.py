"""TorchScript, for libtorch and for those who load models with `torch.jit.load`: the graphs of parts.py, traced.

`module(images)` gives the tuple that `encode` gives, `module.step(...)` that of a step. Two extra files, both JSON, say
more: `vitocr` is the description, and `vitocr.reading` says how the graphs fit together and, under `encode` and `step`,
which tensors go in and come out.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitocr.description import to_json
from vitocr.export.parts import Cut, Part
from vitocr.inference.numpy_decode import Run, Tensors
from vitocr.inference.run_onnx import Graphs

EXTRA = ("vitocr", "vitocr.reading")


class Both(nn.Module):
    def __init__(self, encode: nn.Module, step: nn.Module) -> None:
        super().__init__()
        self.encode, self.step = encode, step

    def forward(self, images: Tensor) -> Any:
        return self.encode(images)


def write(path: Path, parts: Cut, description: Mapping[str, Any]) -> None:
    traced = [trace(part) for part in (parts.encode, parts.step) if part is not None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit calls itself deprecated; who asks for it knows
        whole = torch.jit.script(Both(*traced)) if len(traced) == 2 else traced[0]
        told = [to_json(description), json.dumps(parts.reading | names(parts))]
        torch.jit.save(whole, str(path), _extra_files=dict(zip(EXTRA, told, strict=True)))


def names(parts: Cut) -> dict[str, Any]:
    """Of each graph the inputs, in order, and the outputs."""
    both = {"encode": parts.encode, "step": parts.step}
    return {name: [list(part.inputs), list(part.outputs)] for name, part in both.items() if part is not None}


def trace(part: Part) -> torch.jit.ScriptModule:
    with warnings.catch_warnings(), torch.no_grad():
        # Every number that the tracer takes for a constant is one, or else the check of the whole will fail.
        warnings.simplefilter("ignore")
        return torch.jit.trace(part.module.eval(), tuple(part.inputs.values()), check_trace=False)


def read(path: Path) -> Graphs:
    extra = dict.fromkeys(EXTRA, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = torch.jit.load(str(path), map_location="cpu", _extra_files=extra)
    reading = json.loads(extra["vitocr.reading"])
    step = as_run(whole.step, *reading["step"]) if "step" in reading else None
    return Graphs(as_run(whole, *reading["encode"]), step, reading, json.loads(extra["vitocr"]))


def as_run(module: Any, inputs: list[str], outputs: list[str]) -> Run:
    @torch.inference_mode()
    def run(given: Tensors) -> Tensors:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]  # it would compile anew for every shape, for seconds
            found = module(*(torch.from_numpy(given[name]) for name in inputs))
        return {name: tensor.numpy() for name, tensor in zip(outputs, found, strict=True)}

    return run
