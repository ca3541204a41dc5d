"""INT8 models are smaller, read nearly as well, and are not kept where they do not."""

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from export_kit import DECODERS, pictures, save_small, small_model
from PIL import Image

import vitocr
from vitocr import cli
from vitocr.checkpoint import load_checkpoint, load_model
from vitocr.codec import Charset
from vitocr.errors import UserError
from vitocr.export import Int8, cut_to_read, export, to_onnx
from vitocr.export.int8 import Calibration, Recipe, calibrate, module_of, quantise
from vitocr.export.loss import Loss, allow, weigh
from vitocr.export.pictures import Picture, Pictures, open_pictures
from vitocr.inference.run_onnx import open_onnx
from vitocr.predict import Predictor
from vitocr.results import Character, Failure, Label, Reading

STEM = {"stem": [[8, [2, 1]], [8, 2]], "patch": [2, 2]}


class Made:
    """A small model as a checkpoint, its graphs in float32, and what they were fed on some pictures."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = save_small(folder / "model.safetensors", name, small_model(name, **STEM))
        network, self.description = load_model(self.path)
        parts = cut_to_read(network, None)
        self.reading, self.graphs = parts.reading, to_onnx.graphs(parts)
        to_onnx.save(folder / "float32.onnx", self.graphs, self.reading, self.description)
        self.runner = open_onnx(folder / "float32.onnx")
        self.exact = Predictor(self.runner, self.description)
        images = pictures(40)
        self.shown = Pictures(40, lambda n: Picture(f"picture {n}", images[n]))
        self.seen = calibrate(self.runner, self.shown)

    def quantised(self, folder: Path, recipe: Recipe) -> tuple[dict[str, Any], Predictor]:
        graphs = quantise(self.graphs, self.seen, recipe)
        to_onnx.save(folder / "int8.onnx", graphs, self.reading, self.description)
        return graphs, Predictor(open_onnx(folder / "int8.onnx"), self.description)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda name: Made(tmp_path_factory.mktemp(name), name))


@pytest.fixture
def words(made: Any, tmp_path: Path) -> Path:
    """Pictures labelled with what the float32 model reads in them, so that all of them are right."""
    rows = []
    folder = tmp_path / "words"
    folder.mkdir()
    for number, picture in enumerate(made("transformer").shown.each()):
        text = made("transformer").exact(picture.image).text
        if text:
            Image.fromarray(picture.image).save(folder / f"{number}.png")
            rows.append(f"{number}.png\t{text}\n")
    (folder / "labels.tsv").write_text("".join(rows))
    return folder


@pytest.fixture
def no_exporter(made: Any, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The exporter takes ten seconds; it has made these graphs already."""
    model: Made = made("transformer")
    monkeypatch.setattr(to_onnx, "graphs", lambda parts: model.graphs)
    return model


def kinds(model: Any) -> set[str]:
    return {node.op_type for node in model.graph.node}


# --- the graphs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DECODERS, "ctc", "classify"])
def test_every_head_says_nearly_the_same_in_int8(made: Any, tmp_path: Path, name: str) -> None:
    model: Made = made(name)
    graphs, reader = model.quantised(tmp_path, Recipe())
    loss = weigh(model.exact, reader, model.shown, what="int8.onnx")
    assert loss.alike >= 0.8
    assert all("DequantizeLinear" in kinds(graph) for graph in graphs.values())
    matrices = [w for g in graphs.values() for w in g.graph.initializer if len(w.dims) >= 2]
    assert sum(w.data_type == onnx.TensorProto.INT8 for w in matrices) > len(matrices) / 2


def test_convolutions_products_and_logits_are_each_treated_as_the_recipe_says(made: Any, tmp_path: Path) -> None:
    model: Made = made("transformer")
    graphs, _ = model.quantised(tmp_path, Recipe())
    for graph in graphs.values():
        producer = {output: node for node in graph.graph.node for output in node.output}
        for node in graph.graph.node:
            if node.op_type not in ("Conv", "MatMul", "Gemm"):
                continue
            weights = {weight.name for weight in graph.graph.initializer}
            sources = [producer.get(name) for name in node.input[:2]]
            rounded = [source is not None and source.op_type == "DequantizeLinear" for source in sources]
            if module_of(node).endswith("logits"):
                assert rounded == [False, False] and node.input[1] in weights
            elif node.op_type == "Conv" or rounded[1]:
                assert rounded == [True, True]
            else:  # attention multiplies activations, and what stretches positions is no layer
                assert rounded == [False, False]
    assert "QuantizeLinear" in kinds(graphs["encode"]) and "QuantizeLinear" in kinds(graphs["step"])

    dynamic, reader = model.quantised(tmp_path, Recipe(convolutions=False, products="dynamic"))
    assert all({"DynamicQuantizeLinear", "MatMulInteger"} <= kinds(graph) for graph in dynamic.values())
    assert not any("DequantizeLinear" in kinds(graph) for graph in dynamic.values())
    assert weigh(model.exact, reader, model.shown, what="int8.onnx").alike >= 0.8


def test_what_is_excluded_stays_as_it_was(made: Any, tmp_path: Path) -> None:
    model: Made = made("transformer")
    graphs, _ = model.quantised(tmp_path, Recipe(exclude=(*Recipe().exclude, "backbone.stem", "head.blocks")))
    assert "QLinearConv" not in kinds(graphs["encode"])
    convolutions = [node for node in graphs["encode"].graph.node if node.op_type == "Conv"]
    weights = {w.name for w in graphs["encode"].graph.initializer if w.data_type == onnx.TensorProto.FLOAT}
    assert len(convolutions) == 2 and all(node.input[1] in weights for node in convolutions)
    assert not kinds(graphs["step"]) & {"QuantizeLinear", "DequantizeLinear"}
    with pytest.raises(UserError, match=r"--exclude backbone\.stam: .* Did you mean 'backbone\.stem"):
        quantise(model.graphs, model.seen, Recipe(exclude=("backbone.stam",)))
    with pytest.raises(UserError, match="nothing is left to quantise"):
        quantise(model.graphs, model.seen, Recipe(exclude=("backbone", "head")))


def test_graphs_name_their_modules_and_compute_no_shape_that_can_be_copied(made: Any) -> None:
    graphs = made("transformer").graphs
    modules = {module_of(node) for graph in graphs.values() for node in graph.graph.node}
    assert {"backbone.blocks.0.mlp.up", "head.blocks.1.mlp.down", "head.logits", "head.ctc.logits"} <= modules
    for graph in graphs.values():
        constants = {weight.name for weight in graph.graph.initializer}
        reshapes = [node for node in graph.graph.node if node.op_type == "Reshape"]
        assert reshapes and all(node.input[1] in constants for node in reshapes)


def test_both_graphs_are_calibrated_even_if_ctc_is_to_read(made: Any, tmp_path: Path) -> None:
    model: Made = made("transformer")
    to_onnx.save(tmp_path / "ctc.onnx", model.graphs, model.reading | {"by": "ctc"}, model.description)
    seen = calibrate(open_onnx(tmp_path / "ctc.onnx"), model.shown, images=8)
    assert sum(len(feeds["images"]) for feeds in seen.encode) == 8
    assert len(seen.step) > 1
    with pytest.raises(UserError, match="None of the 2 images to calibrate on"):
        calibrate(model.runner, Pictures(2, lambda n: Picture("bad", "no/such/file.png")))


# --- the gate ---------------------------------------------------------------------------------------------


class Says:
    """A predictor that has learned its answers by heart."""

    def __init__(self, codec: Any, *answers: str | None) -> None:
        self.codec, self.answers = codec, answers

    def __call__(self, images: list[int], **_: Any) -> list[Any]:
        return [self.answer(self.answers[image]) for image in images]

    def answer(self, text: str | None) -> Any:
        if text is None:
            return Failure("x", "broken")
        if isinstance(self.codec, Charset):
            return Reading(text, 0.5, tuple(Character(c, 0.5, (0.0, 0.0, 1.0, 1.0)) for c in text))
        return Label(text, 0.5, ((text, 0.5),), 0)


def weighed(before: list[str | None], after: list[str | None], labels: list[str | None]) -> Loss:
    codec = Charset(tuple("0123456789abc"))
    shown = Pictures(len(labels), lambda n: Picture(str(n), n, labels[n]))
    both: Any = Says(codec, *before), Says(codec, *after)
    return weigh(*both, shown, what="x.onnx", batch_size=1)


def test_the_loss_is_that_of_accuracy_where_there_are_labels() -> None:
    loss = weighed(["a1", "b2", "c3", None, "b"], ["a1", "b2", "c", None, "c"], ["A1", "b2", "c3", "a", "..."])
    assert (loss.images, loss.unreadable, loss.judged) == (4, 1, 3)  # "..." is nothing under the protocol
    assert loss.before == 1 and loss.after == pytest.approx(2 / 3) and loss.alike == 0.5
    assert loss.points == pytest.approx(100 / 3)
    assert "100.00% of 3 images right in float32, 66.67% in INT8: a loss of 33.33 points" in loss.told()


def test_without_labels_it_is_that_of_identical_answers_and_says_so() -> None:
    loss = weighed(["a", "b", "c", "a"], ["a", "b", "c", "c"], ["a", "b", "c", None])
    assert loss.judged == 0 and loss.points == 25
    assert "75.00% of 4 images get the answer that they get in float32" in loss.told()
    assert "no labels" in loss.told()


def test_words_that_float32_cannot_read_either_tell_nothing() -> None:
    with pytest.raises(UserError, match=r"None of the 2 images .* is answered right in float32"):
        weighed(["a", "b"], ["a", "b"], ["b", "a"])
    with pytest.raises(UserError, match=r"None of the 1 images to verify x\.onnx with could be read"):
        weighed([None], [None], ["a"])


def test_a_gain_is_allowed_and_half_a_point_is_the_limit() -> None:
    for after in (0.95, 0.9, 0.895):
        allow(Loss(1000, 0, 1000, 0.9, after, 0.99), max_loss=0.5, what="x.onnx")
    with pytest.raises(UserError, match=r"x\.onnx loses too much: 90.00% .* 89.40% .* 0.5 points are allowed"):
        allow(Loss(1000, 0, 1000, 0.9, 0.894, 0.99), max_loss=0.5, what="x.onnx")


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_writes_a_model_that_reads_and_tells_its_loss(
    no_exporter: Made, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small.int8.onnx"
    cli_words = ["export", str(no_exporter.path), "--int8", "--calibrate", str(words), "--out", str(out)]
    with pytest.raises(SystemExit) as end:
        cli.main([*cli_words, "--max-loss", "20", "--json"])
    assert not end.value.code
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == str(out) and told["int8"]["before"] == 1 and told["int8"]["points"] <= 20
    model = onnx.load(out)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["vitocr"]) == load_checkpoint(no_exporter.path)[1]
    step = onnx.load_from_string(base64.b64decode(metadata["vitocr.step"]))
    assert "DequantizeLinear" in kinds(model) & kinds(step)
    found = vitocr.load(out)([picture.image for picture in no_exporter.shown.each()])
    expected: Any = no_exporter.exact([picture.image for picture in no_exporter.shown.each()])
    assert np.mean([a.text == b.text for a, b in zip(expected, found, strict=True)]) >= 0.8


def test_what_loses_too_much_is_not_kept(
    no_exporter: Made, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "small.int8.onnx"

    def ruined(graphs: dict[str, Any], seen: Calibration, recipe: Recipe) -> dict[str, Any]:
        other = onnx.ModelProto.FromString(graphs["encode"].SerializeToString())
        useless = {name for node in other.graph.node if module_of(node).endswith("mlp.up") for name in node.input}
        for weight in other.graph.initializer:
            if weight.name in useless:
                weight.raw_data = bytes(len(weight.raw_data))
        return graphs | {"encode": other}

    monkeypatch.setattr("vitocr.export.int8.quantise", ruined)
    with pytest.raises(UserError, match=r"small\.int8\.onnx loses too much: 100\.00% .* It was not kept"):
        export(no_exporter.path, out=out, int8=Int8([words]))
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--int8"], "--int8 takes images to calibrate on"),
        (["--int8", "--calibrate", "x", "--to", "openvino"], "--int8 goes with --to onnx"),
        (["--calibrate", "x"], "add --int8"),
        (["--exclude", "backbone"], "add --int8"),
        (["--int8", "--calibrate", "no/such/folder"], "no images at no/such/folder"),
        (["--by", "ctx"], "Did you mean 'ctc'"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    made: Any, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["export", str(made("transformer").path), *options])
    assert end.value.code == 2 and message in capsys.readouterr().err


# --- the pictures -----------------------------------------------------------------------------------------


def test_labels_of_words_and_of_classes_are_found(made: Any, words: Path, tmp_path: Path) -> None:
    labelled = list(open_pictures([words], made("transformer").exact).each())
    lines = (words / "labels.tsv").read_text().splitlines()
    assert [picture.label for picture in labelled] == [line.split("\t")[1] for line in lines]
    for folder in ("class 1", "class 2"):
        (tmp_path / "classes" / folder).mkdir(parents=True)
        Image.fromarray(pictures(3)[0]).save(tmp_path / "classes" / folder / "a.png")
    shown = open_pictures([tmp_path / "classes"], made("classify").exact)
    assert [picture.label for picture in shown.each()] == ["class 1", "class 2"]
    (tmp_path / "classes" / "class 2").rename(tmp_path / "classes" / "anything")
    shown = open_pictures([tmp_path / "classes"], made("classify").exact)
    assert shown.count == 2 and [picture.label for picture in shown.each()] == [None, None]


def test_a_sample_of_several_sets_is_spread_over_all_of_them() -> None:
    shown = Pictures(10, lambda n: Picture(str(n), n))
    assert [picture.image for picture in shown.each(5)] == [0, 2, 4, 6, 8]
    assert len(list(shown.each(99))) == 10
