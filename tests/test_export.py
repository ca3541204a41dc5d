"""Models in other forms say what the original says; ONNX does so without torch."""

import base64
import copy
import json
import shutil
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from export_kit import DECODERS, HEADS, SIZE, batch, pictures, save_small, small_model
from PIL import Image
from torch import Tensor, nn

import vitocr
from vitocr import cli
from vitocr.checkpoint import load_checkpoint, load_model
from vitocr.errors import UserError
from vitocr.export import atomic_folder, export, parts, to_torchscript
from vitocr.export.check import compare, difference_of
from vitocr.export.pictures import open_pictures
from vitocr.inference.numpy_decode import boxes, read_by_guess, spell, text_probability
from vitocr.inference.run_onnx import Graphs, SideBySide, open_graphs, open_onnx
from vitocr.models.model import Model, build_model
from vitocr.predict import Predictor
from vitocr.results import Character, Failure, Label, Reading

TEXT_HEADS = [name for name in HEADS if name != "classify"]
ABSENT = ("torch", "torchvision", "timm", "lightning", "hydra", "omegaconf", "albumentations", "cv2", "safetensors")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="session")
def files(home: Path) -> Any:
    """name -> model.safetensors with model.onnx beside it, each made once."""

    @cache
    def make(name: str) -> Path:
        path = save_small(home / name / "model.safetensors", name)
        export(path, "onnx")
        return path

    return make


def both(file: Path) -> tuple[Predictor, Predictor]:
    return vitocr.load(file, device="cpu"), vitocr.load(file.with_suffix(".onnx"))


def same(a: Any, b: Any) -> bool:
    """All of an answer, to float tolerance."""
    if isinstance(a, Label):
        return bool(a.name == b.name and a.index == b.index and a.confidence == pytest.approx(b.confidence, abs=1e-4))
    rows = [[(c.text, *c.box) for c in reading.characters] for reading in (a, b)]
    sure = [[reading.confidence, *(c.confidence for c in reading.characters)] for reading in (a, b)]
    return bool(a.text == b.text and rows[0] == rows[1] and sure[0] == pytest.approx(sure[1], abs=1e-4))


# --- ONNX says the same ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_onnx_gives_the_answers_of_torch_in_batches_of_any_size(files: Any, name: str) -> None:
    original, exported = both(files(name))
    images = pictures(50)
    expected = original(images)
    said = {answer.name if isinstance(answer, Label) else answer.text for answer in expected if answer}
    assert len(said) >= 5  # else a mix-up could not be seen
    for batch_size in (1, 7, 50):
        found = exported(images, batch_size=batch_size)
        assert [n for n, (a, b) in enumerate(zip(expected, found, strict=True)) if not same(a, b)] == []


@pytest.mark.parametrize("name", TEXT_HEADS)
def test_the_numpy_reader_decodes_as_the_head_does_at_any_width(files: Any, name: str) -> None:
    original, _ = load_model(files(name))
    exported = open_onnx(files(name).with_suffix(".onnx"))
    for width in (SIZE[1], 44, 100):
        images = batch(12, width=width)
        expected, found = original.decode(torch.from_numpy(images)), exported.decode(images)
        assert_alike(expected, found)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transformer", {"by": "decoder"}),
        ("transformer", {"by": "ctc"}),
        ("permuted", {"by": "decoder", "refine": 0}),
        ("permuted", {"by": "decoder", "mode": "parallel", "refine": 0}),
        ("permuted", {"by": "decoder", "mode": "parallel", "refine": 2}),
        ("permuted", {"by": "surer", "refine": 3}),
    ],
)
def test_the_ways_to_read_are_those_of_the_head(files: Any, name: str, options: dict[str, Any]) -> None:
    original, _ = load_model(files(name))
    exported = open_onnx(files(name).with_suffix(".onnx"))
    images = batch(20)
    assert_alike(original.decode(torch.from_numpy(images), **options), exported.decode(images, **options))


def test_a_way_to_read_that_there_is_not_is_refused(files: Any) -> None:
    onnx_of = {name: open_onnx(files(name).with_suffix(".onnx")) for name in ("permuted", "lstm")}
    with pytest.raises(UserError, match=r"by=decodr: choose one of .* Did you mean 'decoder'"):
        onnx_of["permuted"].decode(batch(1), by="decodr")
    with pytest.raises(UserError, match="mode=backwards"):
        onnx_of["permuted"].decode(batch(1), mode="backwards")
    with pytest.raises(UserError, match=r"by=ctc needs a model trained with a CTC head"):
        onnx_of["lstm"].decode(batch(1), by="ctc")


def assert_alike(expected: Any, found: Any) -> None:
    for field in expected._fields:
        a, b = getattr(expected, field).numpy(), getattr(found, field)
        assert a.shape == b.shape, field
        np.testing.assert_allclose(b, a, atol=1e-5, err_msg=field)


@pytest.mark.parametrize("name", DECODERS)
def test_reading_stops_when_the_last_word_has_ended_and_words_that_have_leave(files: Any, name: str) -> None:
    exported = open_onnx(files(name).with_suffix(".onnx"))
    run = exported.step
    assert run is not None
    sizes: list[int] = []

    def counting(feeds: Any) -> Any:
        sizes.append(len(feeds["given"]))
        return run(feeds)

    options: dict[str, Any] = {"refine": 0} if name == "permuted" else {}
    counted = Graphs(exported.encode, counting, exported.reading, exported.description)
    images = batch(40)
    lengths = counted.decode(images, by="decoder", **options).lengths
    assert len(sizes) == lengths.max() + 1  # the end is a step as well
    assert sizes[0] == 40 and sizes[-1] <= 40 * 0.75 and sizes == sorted(sizes, reverse=True)
    for length in (lengths.min(), lengths[lengths < lengths.max()].max()):
        sizes.clear()
        counted.decode(images[lengths <= length], by="decoder", **options)
        assert len(sizes) == length + 1


def test_what_ctc_guesses_spares_a_decoder_its_steps_and_changes_nothing(files: Any) -> None:
    exported = open_onnx(files("transformer").with_suffix(".onnx"))
    run = exported.step
    assert run is not None
    sizes: list[tuple[int, int]] = []

    def counting(feeds: Any) -> Any:
        sizes.append(feeds["given"].shape)
        return run(feeds)

    images = batch(40)
    encoded = exported.encode({"images": images})
    plain = {"mode": "ar", "refine": 0}
    aligned = spell(encoded, None, exported.reading, by="ctc", **plain)
    stepwise = spell(encoded, run, exported.reading, by="decoder", **plain)
    image = {name: encoded[name] for name in exported.reading["image"]}
    found, _ = read_by_guess(counting, image, exported.reading, aligned)
    for one, other in zip(found[:4], stepwise[:4], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    where = [boxes(read.seen, read.lengths, exported.reading["rows"]) for read in (found, stepwise)]
    np.testing.assert_allclose(*where, atol=1e-5)
    assert sizes[0][0] == 16 and sizes[0][1] < aligned.ids.shape[1], "the short ones first, without much padding"
    longest = exported.reading["max_length"]
    right = (padded(aligned.ids, longest) == padded(stepwise.ids, longest)).all(axis=1)
    assert 0 < right.sum() < 40
    sizes.clear()
    rows = {name: tensor[right] for name, tensor in image.items()}
    read_by_guess(counting, rows, exported.reading, type(aligned)(*(field[right] for field in aligned)))
    assert len(sizes) == -(-right.sum() // 16), "what was guessed rightly is looked at once"
    old = {key: value for key, value in exported.reading.items() if key != "many"}
    before = Graphs(exported.encode, run, old, exported.description)  # which believed the surer one, and still does
    for one, other in zip(before.decode(images[right]), exported.decode(images[right]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["classify", "transformer"])
def test_each_core_takes_images_of_its_own_and_all_answers_come_in_order(
    files: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    shutil.copy(files(name).with_suffix(".onnx"), path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    images = pictures(50)
    expected = Predictor(alone := open_graphs(path, threads=1), alone.description)(images)
    predictor = vitocr.load(path)
    working: set[str] = set()

    def seen(run: Any) -> Any:
        def noting(feeds: Any) -> Any:
            working.add(threading.current_thread().name)
            time.sleep(0.02)  # or one core might be done with all before the next has begun
            return run(feeds)

        return noting

    runner = predictor.runner
    assert isinstance(runner, SideBySide) and runner.alone is not None
    runner.alone.encode = seen(runner.alone.encode)
    assert all(same(a, b) for a, b in zip(expected, predictor(images), strict=True))
    assert len(working) > 1 and all("vitocr-read" in name for name in working)
    working.clear()
    assert same(predictor(images[3]), expected[3]) and not working, "one image is not shared out"


def test_an_onnx_model_that_was_written_anew_meanwhile_goes_on_as_it_was(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    shutil.copy(files("ctc").with_suffix(".onnx"), path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    predictor, images = vitocr.load(path), pictures(20)
    expected = vitocr.load(files("ctc"))(images)
    shutil.copy(files("lstm").with_suffix(".onnx"), path)
    assert all(same(a, b) for a, b in zip(expected, predictor(images), strict=True))
    predictor = vitocr.load(path)
    path.unlink()
    assert [reading.text for reading in predictor(images)] == [
        reading.text for reading in vitocr.load(files("lstm"))(images)
    ]


def padded(ids: Any, width: int) -> Any:
    return np.pad(ids[:, :width], ((0, 0), (0, max(0, width - ids.shape[1]))), constant_values=-1)


@pytest.mark.parametrize(
    "backbone",
    [{"stem": [[8, [2, 1]], [8, 2]], "patch": [2, 2]}, {"class_token": True}, {"bias": False, "norm_affine": False}],
)
def test_backbones_of_every_kind_are_exported(tmp_path: Path, backbone: dict[str, Any]) -> None:
    path = save_small(tmp_path / "model.safetensors", "ctc", small_model("ctc", steps=30, **backbone))
    done = export(path, "onnx")
    assert done.column == 4 and done.agreement.images == 64 and done.agreement.difference < 1e-4
    assert same(*(predictor(pictures(3)[2]) for predictor in both(path)))


def test_a_backbone_of_timm_keeps_its_width(tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = {"embed_dim": 32, "depth": 1, "num_heads": 2, "patch_size": 8}
    backbone = {"_target_": "vitocr.models.timm_adapter.TimmViT", "name": "vit_tiny_patch16_224", "overrides": small}
    head = HEADS["classify"] | {"pool": "cls"}
    model = build_model({"image_size": list(SIZE), "backbone": backbone, "head": head})
    nn.init.normal_(model.get_parameter("head.logits.weight"))
    path = save_small(tmp_path / "model.safetensors", "classify", model.eval())
    assert export(path, "onnx").column is None
    original, exported = both(path)
    assert same(original(pictures(3)[2]), exported(pictures(3)[2]))


def test_positions_are_stretched_as_the_backbone_stretches_them() -> None:
    backbone: Any = small_model("ctc", steps=0).backbone
    for columns in (16, 1, 5, 15, 23, 64):
        expected = backbone.positions_for((2, columns))
        assert torch.allclose(parts.stretched(backbone.positions, columns), expected, atol=1e-6)
    assert torch.equal(parts.stretched(backbone.positions, 16), backbone.positions_for((2, 16)))


@pytest.mark.parametrize("columns", [6, 400])
def test_a_text_has_the_probability_that_ctc_gives_it(columns: int) -> None:
    texts = [[], [1], [2, 2], [0, 1, 0], [3, 3, 3]]
    lengths = torch.tensor([len(text) for text in texts])
    ids = torch.tensor([[*text, *[-1] * (3 - len(text))] for text in texts])
    logits = torch.randn(len(texts), columns, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[..., 4] += 4 if columns > 6 else 0  # blanks, or else no text would have a probability a float can hold
    log_probs = logits.log_softmax(dim=2)
    widths = torch.full((len(texts),), columns)
    nll = nn.functional.ctc_loss(
        log_probs.transpose(0, 1), ids.clamp(min=0), widths, lengths, blank=4, reduction="none"
    )
    found = text_probability(log_probs.exp().numpy(), ids.numpy(), lengths.numpy(), blank=4)
    assert (found > 0).all()
    np.testing.assert_allclose(found, (-nll).exp().numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_text_that_no_column_shows_has_no_probability_whatever_the_others_show() -> None:
    chances = np.zeros((3, 40, 3), dtype=np.float32)
    chances[..., 2] = 1.0  # nothing but blanks
    chances[1, 20, :] = (1e-38, 0, 1)
    chances[2, 20] = 0  # a column that shows nothing at all
    found = text_probability(chances, np.array([[0], [0], [0]]), np.array([1, 1, 1]), blank=2)
    np.testing.assert_allclose(found, [0, 1e-38, 0], rtol=1e-5)


# --- the file -------------------------------------------------------------------------------------------


def test_the_file_carries_the_description_and_nothing_of_the_machine_it_was_made_on(files: Any) -> None:
    file = files("permuted")
    model = onnx.load(file.with_suffix(".onnx"))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["vitocr"]) == load_checkpoint(file)[1]
    step = onnx.load_from_string(base64.b64decode(metadata["vitocr.step"]))
    for each in (model, step):
        onnx.checker.check_model(each, full_check=True)
        content = each.SerializeToString()
        for trace in (b"site-packages", b".py", str(Path(vitocr.__file__).parents[1]).encode()):
            assert trace not in content
    free = [[dim.dim_param for dim in entry.type.tensor_type.shape.dim] for entry in model.graph.input]
    assert free == [["batch", "", "", "width"]]


def test_what_is_no_onnx_model_of_ours_is_told_why(files: Any, tmp_path: Path) -> None:
    good = files("ctc").with_suffix(".onnx")
    cases = {"cut.onnx": good.read_bytes()[:-2000], "noise.onnx": b"\x08\x0athese are not graphs", "empty.onnx": b""}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} is not an ONNX model that onnxruntime .* can read"):
            vitocr.load(tmp_path / name)
    model = onnx.load(good)
    for key, message in (("vitocr", "holds no description"), ("vitocr.reading", "holds no description")):
        other = onnx.ModelProto.FromString(model.SerializeToString())
        kept = [entry for entry in other.metadata_props if entry.key != key]
        del other.metadata_props[:]
        other.metadata_props.extend(kept)
        (tmp_path / "other.onnx").write_bytes(other.SerializeToString())
        with pytest.raises(UserError, match=message):
            vitocr.load(tmp_path / "other.onnx")
    with pytest.raises(UserError, match=r"no model at .*goood.onnx\. Did you mean 'good.onnx'"):
        (tmp_path / "good.onnx").write_bytes(good.read_bytes())
        vitocr.load(tmp_path / "goood.onnx")
    with pytest.raises(UserError, match="which vitocr runs on the CPU"):
        vitocr.load(good, device="cuda")


def test_a_newer_format_is_refused(files: Any, tmp_path: Path) -> None:
    model = onnx.load(files("ctc").with_suffix(".onnx"))
    for entry in model.metadata_props:
        if entry.key == "vitocr":
            entry.value = json.dumps(json.loads(entry.value) | {"format": 99})
    (tmp_path / "new.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"new\.onnx has checkpoint format 99"):
        vitocr.load(tmp_path / "new.onnx")


def test_a_folder_that_holds_an_onnx_file_alone_stands_for_it(files: Any, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(files("ctc").with_suffix(".onnx").read_bytes())
    assert same(vitocr.load(tmp_path)(pictures(3)[2]), vitocr.load(files("ctc"))(pictures(3)[2]))


# --- without torch --------------------------------------------------------------------------------------


def without_torch(code: str, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run where nothing of what training takes can be imported."""
    blocker = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, {str(Path(vitocr.__file__).parents[1])!r})
"""
    return subprocess.run([sys.executable, "-c", blocker + code], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize("name", ["classify", "permuted", "lstm"])
def test_onnx_is_read_without_torch_through_the_same_interface(files: Any, tmp_path: Path, name: str) -> None:
    for number, image in enumerate(pictures(4)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"these are not pixels")
    names = ["0.png", "bad.png", "1.png", "2.png", "3.png"]
    code = f"""
import json, vitocr
model = vitocr.load({str(files(name).with_suffix(".onnx"))!r})
results = model({names}, batch_size=2)
one = model("3.png")
assert isinstance(one, (vitocr.Label, vitocr.Reading)) and one.to_dict() == results[4].to_dict() | {{"source": "3.png"}}
assert not results[1] and isinstance(results[1], vitocr.Failure)
assert not {{"torch", "safetensors"}} & set(sys.modules)
print(json.dumps([result.to_dict() for result in results]))
"""
    done = without_torch(code, cwd=tmp_path)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    expected: list[Any] = vitocr.load(files(name), device="cpu")([tmp_path / name for name in names])
    assert isinstance(expected[1], Failure) and "bad.png" in found[1]["error"]
    for a, b in zip(expected, found, strict=True):
        if a:
            key = "name" if isinstance(a, Label) else "text"
            assert getattr(a, key) == b[key] and a.confidence == pytest.approx(b["confidence"], abs=1e-4)
            assert b["source"] == Path(str(a.source)).name


def test_the_command_predicts_and_measures_without_torch(files: Any, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.mkdir()
    rows = []
    reader = vitocr.load(files("lstm"), device="cpu")
    for number, image in enumerate(pictures(20)):
        Image.fromarray(image).save(words / f"{number}.png")
        rows.append(f"{number}.png\t{reader(image).text or '7'}")
    (words / "labels.tsv").write_text("image\ttext\n" + "\n".join(rows) + "\n")
    model = str(files("lstm").with_suffix(".onnx"))
    code = "from vitocr.cli import main; main({})"
    predicted = without_torch(code.format(["predict", model, "words/2.png", "--json"]), cwd=tmp_path)
    assert predicted.stderr == ""
    assert json.loads(predicted.stdout)["text"] == reader(words / "2.png").text
    measured = without_torch(code.format(["eval", model, "--data", "words", "--json"]), cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    empty = sum(row.endswith("\t7") for row in rows)
    assert next(iter(json.loads(measured.stdout)["sets"].values()))["accuracy"]["exact"] >= 1 - (empty + 0.1) / 20
    refused = without_torch(code.format(["predict", str(files("lstm")), "words/2.png"]), cwd=tmp_path)
    assert refused.returncode == 2
    assert "is read with torch, and there is no torch here" in refused.stderr and "--to onnx" in refused.stderr
    unable = without_torch(code.format(["train", "task=str"]), cwd=tmp_path)
    assert unable.returncode == 2 and "which is not installed here" in unable.stderr


def test_classes_are_measured_alike_with_and_without_torch(files: Any, tmp_path: Path) -> None:
    for number, image in enumerate(pictures(20)):
        folder = tmp_path / "data" / f"class {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    line = ["eval", "MODEL", "--data", "data", "--json"]
    figures = []
    for file in (files("classify"), files("classify").with_suffix(".onnx")):
        words = [str(file) if word == "MODEL" else word for word in line]
        run = subprocess.run(
            [sys.executable, "-m", "vitocr.cli", *words], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        figures.append(json.loads(run.stdout))
    assert figures[0]["images"] == figures[1]["images"] == 20
    for key in ("accuracy", "nll", "ece"):
        assert figures[0][key] == pytest.approx(figures[1][key], abs=1e-4)


# --- the check ------------------------------------------------------------------------------------------


def broken(model: Model, *, by: float) -> Model:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter += by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("form", ["onnx", "torchscript", "safetensors"])
def test_an_export_that_says_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = save_small(tmp_path / "model.safetensors", "ctc", small_model("ctc", steps=30))
    out = tmp_path / f"out.{form}"
    out.write_bytes(b"what was there before")
    cut, load = parts.cut, load_model
    monkeypatch.setattr(parts, "cut", lambda model: cut(broken(model, by=0.2)))
    monkeypatch.setattr(
        "vitocr.export.load_model", lambda p: (broken(load(p)[0], by=0.2), load(p)[1]) if p != path else load(p)
    )
    with pytest.raises(UserError, match=rf"out.{form} does not say what the model says: it differs on .* drawn image"):
        export(path, form, out=out)
    assert out.read_bytes() == b"what was there before"
    assert {file.name for file in tmp_path.iterdir()} == {"model.safetensors", out.name}


def test_texts_labels_and_confidences_are_all_held_against_each_other() -> None:
    def reading(text: str, sure: float, each: float = 0.5) -> Reading:
        box = (0.0, 0.0, 1.0, 1.0)
        return Reading(text, sure, tuple(Character(c, each, box) for c in text))

    def label(name: str, sure: float) -> Label:
        return Label(name, sure, ((name, sure),), 0)

    assert difference_of(reading("ab", 0.5), reading("ab", 0.5004)) == pytest.approx(0.0004)
    assert difference_of(reading("ab", 0.5), reading("ab", 0.5, each=0.6)) == pytest.approx(0.1)
    assert difference_of(label("cat", 0.5), label("cat", 0.7)) == pytest.approx(0.2)
    for a, b in ((reading("ab", 0.5), reading("aB", 0.5)), (label("cat", 0.5), label("dog", 0.5))):
        assert difference_of(a, b) == float("inf")
    assert difference_of(label("cat", 0.5), Failure("x", "unreadable")) == float("inf")


def test_the_check_names_where_and_how_the_two_differ(files: Any, tmp_path: Path) -> None:
    for number, image in enumerate(pictures(6)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"these are not pixels")
    original, exported = both(files("ctc"))
    shown = open_pictures([tmp_path], original)
    agreed = compare(original, exported, shown, what="model.onnx", batch_size=2)
    assert (agreed.images, agreed.unreadable) == (6, 1)
    network, description = load_model(files("ctc"))
    other = Predictor(broken(network, by=0.3), description)
    with pytest.raises(
        UserError, match=r"differs on \d of 6 images .*\d\.png: '\d*' \(0\.\d+\) became '\d*' \(0\.\d+\)"
    ):
        compare(original, other, shown, what="model.onnx")


def test_a_set_of_words_or_nothing_readable_is_told_apart(files: Any, tmp_path: Path) -> None:
    original, exported = both(files("ctc"))
    with pytest.raises(UserError, match="no images at"):
        open_pictures([tmp_path / "absent"], original)
    (tmp_path / "broken.png").write_bytes(b"these are not pixels")
    with pytest.raises(UserError, match="None of the 1 images to check the export with"):
        compare(original, exported, open_pictures([tmp_path / "broken.png"], original), what="model.onnx")
    words = tmp_path / "words"
    words.mkdir()
    Image.fromarray(pictures(3)[2]).save(words / "w.webp")
    (words / "labels.csv").write_text("image,text\nw.webp,12\n")
    (picture,) = open_pictures([words / "labels.csv"], original).each()
    assert picture.name.endswith("row 0") and picture.image.ndim == 3 and picture.label == "12"


# --- other forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classify", "transformer"])
def test_torchscript_holds_the_graphs_for_whoever_has_torch_alone(tmp_path: Path, name: str) -> None:
    model = small_model(name, steps=30)
    done = export(save_small(tmp_path / "model.safetensors", name, model), "torchscript")
    extra = {"vitocr": "", "vitocr.reading": ""}
    script = torch.jit.load(str(done.path), _extra_files=extra)
    images = torch.from_numpy(batch(3))
    outputs = dict(zip(json.loads(extra["vitocr.reading"])["encode"][1], script(images), strict=True))
    with torch.no_grad():
        tokens = model.backbone(images)
        head: Any = model.head
        expected: Tensor = head(tokens) if name == "classify" else head.ctc(tokens)
    found = outputs["logits" if name == "classify" else "ctc_logits"]
    assert torch.allclose(found, expected, atol=1e-4)
    assert json.loads(extra["vitocr"])["task"] == "small"
    again: Any = to_torchscript.read(done.path)
    assert hasattr(script, "step") == (again.step is not None) == (name != "classify")


def test_safetensors_of_a_training_checkpoint_is_what_is_loaded_from_it(tmp_path: Path) -> None:
    path = save_small(tmp_path / "model.safetensors", "ctc", small_model("ctc", steps=30))
    state, description = load_checkpoint(path)
    weights = {f"model.{name}": tensor for name, tensor in state.items()}
    torch.save({"vitocr": description, "state_dict": weights}, tmp_path / "best.ckpt")
    done = export(tmp_path / "best.ckpt", "safetensors")
    assert done.path == tmp_path / "best.safetensors" and done.agreement.difference == 0
    again = load_checkpoint(done.path)
    assert again[1] == description and all(torch.equal(state[name], again[0][name]) for name in state)


def test_openvino_says_which_package_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    path = save_small(tmp_path / "model.safetensors", "ctc", small_model("ctc", steps=0))
    with pytest.raises(UserError, match=r"--to openvino needs .* pip install 'vitocr\[openvino\]'"):
        export(path, "openvino")
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_onnx_says_which_packages_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    path = save_small(tmp_path / "model.safetensors", "ctc", small_model("ctc", steps=0))
    with pytest.raises(UserError, match=r"Export to ONNX needs .* pip install 'vitocr\[onnx\]'"):
        export(path)


@pytest.mark.parametrize("name", ["classify", "permuted"])
def test_openvino_reads_as_torch_does(tmp_path: Path, name: str) -> None:
    pytest.importorskip("openvino")
    done = export(save_small(tmp_path / "model.safetensors", name, small_model(name, steps=30)), "openvino")
    assert done.agreement.images == 64 and (done.path / "encode.bin").is_file()


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model.openvino"

    def fill(name: str, *, then: Exception | None = None) -> Any:
        def write(folder: Path) -> None:
            folder.mkdir()
            (folder / name).write_text(name)
            if then is not None:
                raise then

        return write

    atomic_folder(target, fill("one"))
    with pytest.raises(UserError, match="differs"):
        atomic_folder(target, fill("two", then=UserError("it differs")))
    assert [file.name for file in target.iterdir()] == ["one"]
    atomic_folder(target, fill("three"))
    assert [file.name for file in target.iterdir()] == ["three"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"to": "onxx"}, "--to onxx: choose one of .* Did you mean 'onnx'"),
        ({"to": "onnx", "out": "model.pt"}, r"a onnx file is named something\.onnx"),
        ({"to": "safetensors"}, "is already what --to safetensors would make of it"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_told_why(files: Any, words: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        export(files("ctc"), **words)
    with pytest.raises(UserError, match="is an export itself"):
        export(files("ctc").with_suffix(".onnx"), "torchscript")


def test_the_command_exports_and_tells_what_it_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_small(tmp_path / "model.safetensors", "ctc", small_model("ctc", steps=30))
    for number, image in enumerate(pictures(3)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", str(path), "--verify", str(tmp_path), "--out", str(tmp_path / "small.onnx")])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"wrote {tmp_path / 'small.onnx'}" in out and "the same answers on 3 images" in out
    assert isinstance(vitocr.load(tmp_path / "small.onnx")(pictures(3)[2]), Reading)
