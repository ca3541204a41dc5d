"""INT8 for the CPU, by onnxruntime's quantisation tools: int8 matrices, a scale a column, times uint8 activations.

What is quantised, and how, is a `Recipe`; bench/int8.py measures several. The choices of the default one:
- Static: what an activation may range over is found once, on the calibration images. Found anew for every batch
  ("dynamic"), what an image is answered would depend on the images beside it.
- Products with weights alone. Attention multiplies activations with each other, of little size and wide range.
- Products give float32, which the norms, residual sums and softmaxes go on with; convolutions give uint8 to the next,
  their ReLU included.
- The layers that make the logits stay in float32: they are small, and confidences are theirs.

On a CPU without VNNI, sums of uint8 x int8 products can overflow; vitocr has onnxruntime take a slower way there.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vitocr.errors import UserError, did_you_mean
from vitocr.export.pictures import Pictures
from vitocr.inference.numpy_decode import Tensors
from vitocr.inference.run_onnx import Graphs
from vitocr.predict import Predictor

IMAGES = 512  # to calibrate on: more change nothing
CALIBRATION_BATCH = 32


class Recipe(NamedTuple):
    convolutions: bool = True
    products: str = "static"  # matrix products with weights: static, dynamic, or none
    ranges: str = "all"  # of an activation: all that was seen, or the middle 99.99 % of it
    bits: int = 8  # of weights; 7 cannot overflow on CPUs without VNNI
    exclude: tuple[str, ...] = ("head.logits", "head.ctc.logits")  # modules that stay in float32, with all in them


class Calibration(NamedTuple):
    """What went into the graphs while they read the calibration images."""

    encode: list[Tensors]
    step: list[Tensors]


def tools() -> ModuleType:
    try:
        import onnx  # noqa: F401
        from onnxruntime import quantization
    except ImportError as error:
        raise UserError(
            f"--int8 needs packages that are not installed here ({error}): pip install 'vitocr[onnx]'"
        ) from error
    return quantization


def calibrate(graphs: Graphs, pictures: Pictures, *, images: int = IMAGES) -> Calibration:
    """Read pictures, evenly spaced, with a model in float32, and note what its graphs are fed."""
    seen = Calibration([], [])

    def encode(feeds: Tensors) -> Tensors:
        seen.encode.append(feeds)
        return graphs.encode(feeds)

    def step(feeds: Tensors) -> Tensors:
        assert graphs.step is not None
        seen.step.append(feeds)
        return graphs.step(feeds)

    reading = {key: value for key, value in graphs.reading.items() if key != "by"}  # the decoder is to read as well
    noting = Graphs(encode, step if graphs.step else None, reading, graphs.description)
    shown = (picture.image for picture in pictures.each(images))
    answers = list(Predictor(noting, graphs.description).stream(shown, batch_size=CALIBRATION_BATCH))
    if not any(answers):
        raise UserError(f"None of the {len(answers):,} images to calibrate on could be read.")
    return seen


def quantise(graphs: dict[str, Any], calibration: Calibration, recipe: Recipe) -> dict[str, Any]:
    """`encode` and, if there is one, `step`, as onnx.ModelProtos, with what the recipe names in INT8."""
    prepared = {name: prepare(model) for name, model in graphs.items()}
    refuse_strangers(recipe, prepared.values())
    if not any(wanted(model, recipe) for model in prepared.values()):
        raise UserError("With all these excluded nothing is left to quantise.")
    feeds = calibration._asdict()
    return {name: quantise_one(model, feeds[name], recipe) for name, model in prepared.items()}


def prepare(model: Any) -> Any:
    """With all constants computed and what belongs together in one node, as the quantisers expect."""
    with scratch() as (folder, onnx):
        onnx.save(model, folder / "model.onnx")
        tools().quant_pre_process(str(folder / "model.onnx"), str(folder / "prepared.onnx"), skip_symbolic_shape=True)
        return onnx.load(folder / "prepared.onnx")


@contextmanager
def scratch() -> Iterator[tuple[Path, Any]]:
    """A folder for as long as the quantisers, which go from file to file, need it; and the package onnx."""
    tools()
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder), onnx


def refuse_strangers(recipe: Recipe, models: Iterable[Any]) -> None:
    """What the user wishes to exclude is there, or an error says what is."""
    own = set(Recipe().exclude)  # not every model has these
    modules = sorted({module_of(node) for model in models for node in candidates(model)} - {""})
    for name in recipe.exclude:
        if name not in own and not any(inside(module, name) for module in modules):
            steps = [module.split(".") for module in modules]
            parts = {".".join(some[:end]) for some in steps for end in range(1, len(some) + 1)}
            raise UserError(
                f"--exclude {name}: the model has no such part.{did_you_mean(name, parts)} What is quantised is in "
                f"{', '.join(sorted({'.'.join(some[:2]) for some in steps}))}, and parts of these: {modules[0]}."
            )


def module_of(node: Any) -> str:
    """tidy.py names nodes by the module they are of."""
    return str(node.name).partition("/")[0]


def inside(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def candidates(model: Any) -> list[Any]:
    """Convolutions, and products with matrices of weights. (What stretches positions multiplies stacks of them.)"""
    axes = {weight.name: len(weight.dims) for weight in model.graph.initializer}
    asked = {"Conv": 4, "MatMul": 2, "Gemm": 2}
    return [
        node for node in model.graph.node if node.op_type in asked and axes.get(node.input[1]) == asked[node.op_type]
    ]


def wanted(model: Any, recipe: Recipe) -> list[Any]:
    return [
        node
        for node in candidates(model)
        if (recipe.convolutions if node.op_type == "Conv" else recipe.products != "none")
        and not any(inside(module_of(node), name) for name in recipe.exclude)
    ]


def quantise_one(model: Any, feeds: Sequence[Tensors], recipe: Recipe) -> Any:
    chosen = wanted(model, recipe)
    convolutions = [node.name for node in chosen if node.op_type == "Conv"]
    products = [node.name for node in chosen if node.op_type != "Conv"]
    made = {output for node in chosen if node.op_type == "Conv" for output in node.output}
    relus = [node.name for node in model.graph.node if node.op_type == "Relu" and node.input[0] in made]
    static = convolutions + relus
    if recipe.products == "static":
        branch_off(model, set(products))
        static += products
    if static:
        model = quantise_static(model, feeds, static, recipe)
    if products and recipe.products == "dynamic":
        model = quantise_dynamic(model, products, recipe)
    del model.metadata_props[:]  # in which the tools note what they did
    model.producer_name = "vitocr"
    return model


def branch_off(model: Any, products: set[str]) -> None:
    """Give products an input of their own where others, in float32, take the same: it would be rounded for them all."""
    from onnx.helper import make_node

    users: dict[str, set[str]] = {entry.name: {"the caller"} for entry in model.graph.output}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, set()).add(node.name)
    shared = {node.input[0] for node in model.graph.node if node.name in products and users[node.input[0]] - products}
    nodes: list[Any] = []
    branches: set[str] = set()
    for node in map(copy.deepcopy, model.graph.node):
        if node.name in products and node.input[0] in shared:
            branch = f"{node.input[0]}.int8"
            if branch not in branches:
                nodes.append(make_node("Identity", [node.input[0]], [branch], name=branch))
                branches.add(branch)
            node.input[0] = branch
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def quantise_static(model: Any, feeds: Sequence[Tensors], names: list[str], recipe: Recipe) -> Any:
    kinds = tools()
    method = kinds.CalibrationMethod.MinMax if recipe.ranges == "all" else kinds.CalibrationMethod.Percentile
    with scratch() as (folder, onnx), redirect_stdout(None):  # the percentiles tell their story there
        onnx.save(model, folder / "model.onnx")
        kinds.quantize_static(
            str(folder / "model.onnx"),
            str(folder / "int8.onnx"),
            Feeds(feeds),
            quant_format=kinds.QuantFormat.QDQ,
            activation_type=kinds.QuantType.QUInt8,
            weight_type=kinds.QuantType.QInt8,
            per_channel=True,
            reduce_range=recipe.bits == 7,
            op_types_to_quantize=["Conv", "Relu", "MatMul", "Gemm"],
            nodes_to_quantize=names,
            calibrate_method=method,
            extra_options={
                "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"],
                "CalibPercentile": 99.99,
                "CalibTensorRangeSymmetric": False,
                "CalibStridedMinMax": 1,
            },
        )
        return onnx.load(folder / "int8.onnx")


def quantise_dynamic(model: Any, names: list[str], recipe: Recipe) -> Any:
    kinds = tools()
    with scratch() as (folder, onnx):
        onnx.save(model, folder / "model.onnx")
        kinds.quantize_dynamic(
            str(folder / "model.onnx"),
            str(folder / "int8.onnx"),
            weight_type=kinds.QuantType.QInt8,
            per_channel=True,
            reduce_range=recipe.bits == 7,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=[*names, *(f"{name}_MatMul" for name in names)],  # what a Gemm is split into first
        )
        return onnx.load(folder / "int8.onnx")


class Feeds:
    """As onnxruntime's CalibrationDataReader asks. Taken one at a time, or all activations would be held at once."""

    def __init__(self, feeds: Sequence[Tensors]) -> None:
        self.feeds, self.left = feeds, iter(feeds)

    def __len__(self) -> int:
        return len(self.feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.left = iter(self.feeds[start_index:end_index])

    def get_next(self) -> Tensors | None:
        return next(self.left, None)
