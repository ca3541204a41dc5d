"""What the exporter leaves, made small and readable: names that say which module a node is of, shapes that are known
written as such, nothing that nobody asks for, nothing of the machine.

At one image at a time the bookkeeping of shapes is half of a graph's nodes, and each costs a microsecond.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any

import numpy as np

from vitocr.export.parts import Part

SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's note of the modules that a node is inside of

Shape = list[int | str]


def tidy(model: Any, part: Part) -> None:
    """`model`, an onnx.ModelProto made of `part`, in place."""
    name_nodes(model)
    fix_reshapes(model)
    prune(model)
    strip(model)
    name_axes(model, part)


def name_nodes(model: Any) -> None:
    """Call every node by its module and what it does: "backbone.blocks.0.mlp.up/MatMul"."""
    used: Counter[str] = Counter()
    for node in model.graph.node:
        scopes = {entry.key: entry.value for entry in node.metadata_props}.get(SCOPES)
        scopes = ast.literal_eval(scopes)[:-1] if scopes else []  # the last is the node's own name
        modules = [scope for scope in scopes if scope and scope[0] != "_"]  # as that of what no module has done
        module = modules[-1] if modules else ""
        if len(node.input) > 1 and node.input[1].endswith(".weight"):
            module = node.input[1].removesuffix(".weight")  # a convolution, not the norm that became one with it
        name = f"{module}/{node.op_type}"
        used[name] += 1
        node.name = name if used[name] == 1 else f"{name}.{used[name]}"


def fix_reshapes(model: Any) -> None:
    """Let Reshape copy the lengths that stay as they are and infer the one that does not, instead of computing them."""
    import onnx

    shapes = known_shapes(model)
    for number, node in enumerate(model.graph.node):
        if node.op_type != "Reshape":
            continue
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        if before is None or after is None:
            continue
        target = [
            length if isinstance(length, int) else 0 if before[axis : axis + 1] == [length] else -1
            for axis, length in enumerate(after)
        ]
        if target.count(-1) > 1 or 0 in after:
            continue
        name = f"shape.{number}"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(target, dtype=np.int64), name))
        node.input[1] = name
        node.ClearField("attribute")  # allowzero, which would make empty of what is to be copied


def known_shapes(model: Any) -> dict[str, Shape]:
    """Of the tensors whose every length is a number or has a name."""
    shapes: dict[str, Shape] = {}
    for entry in [*model.graph.input, *model.graph.value_info, *model.graph.output]:
        if entry.type.tensor_type.HasField("shape"):
            dims = entry.type.tensor_type.shape.dim
            shape: Shape = [dim.dim_param or int(dim.dim_value) for dim in dims]
            if all(dim.dim_param or dim.HasField("dim_value") for dim in dims):
                shapes[entry.name] = shape
    return shapes


def prune(model: Any) -> None:
    """Take out the nodes and weights that no output depends on."""
    if any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute):
        return  # a graph within a node may use anything
    wanted = {entry.name for entry in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):  # they are in order: what makes a tensor comes before what takes it
        if wanted & set(node.output):
            wanted |= set(node.input) - {""}  # an input that is left out has no name
            kept.append(node)
    weights = [weight for weight in model.graph.initializer if weight.name in wanted]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(reversed(kept))
    model.graph.initializer.extend(weights)


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
