"""Models that ship: small files that say all of themselves and nothing of the machine, found by their names."""

import argparse
import copy
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from PIL import Image

import vitocr
from vitocr.catalog import SHIPPED, find_model, headline, list_models
from vitocr.checkpoint import load_checkpoint, load_model, save_model
from vitocr.codec import open_charset
from vitocr.config import conf_dir
from vitocr.data.arrays import ImageArrays, Splits
from vitocr.data.render import Renderer, RenderSpec
from vitocr.description import describe, machine_paths, read_description, without_paths
from vitocr.errors import UserError
from vitocr.models.model import build_model

sys.path.append(
    str(Path(__file__).parents[1] / "bench")
)  # its files are scripts, which find each other beside themselves

import blanks
import ship

LARGEST = 12_000_000
SPEC = {
    "image_size": [16, 32],
    "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": [16, 4], "dim": 32, "depth": 1, "heads": 2},
    "head": {"_target_": "vitocr.heads.ctc.Ctc", "symbols": 36, "max_length": 8},
}
PREPROCESS = {"size": [16, 32], "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch", "interpolation": "bicubic"}


def described(**more: Any) -> dict[str, Any]:
    given = {
        "task": "str",
        "kind": "text",
        "model": SPEC,
        "codec": open_charset("36").to_dict(),
        "preprocess": PREPROCESS,
    }
    return describe(**given | more)


# --- what is in vitocr/weights --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", sorted(SHIPPED.glob("*.safetensors")) or [None], ids=lambda file: file.stem if file else ""
)
def test_a_shipped_model_is_small_tells_of_itself_and_not_of_the_machine(file: Path | None) -> None:
    if file is None:
        pytest.skip("no model ships with this version yet: vitocr/weights holds none")
    assert file.stat().st_size <= LARGEST
    description = read_description(file)
    assert machine_paths(description) == []
    assert description["metrics"], "measured figures"
    card = file.with_suffix(".md").read_text(encoding="utf-8")
    assert card.startswith(f"# {file.stem}\n") and file.with_suffix(".png").is_file()
    height, width = description["preprocess"]["size"]
    vitocr.load(file.stem)(np.zeros((height, width, 3), np.uint8))


# --- half precision -------------------------------------------------------------------------------------


def test_a_halved_file_is_half_as_large_says_so_and_comes_back_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = build_model(SPEC).state_dict()
    save_model(tmp_path / "whole.safetensors", state, described())
    save_model(tmp_path / "half.safetensors", state, described(), storage="float16")
    sizes = [sum(tensor.nbytes for tensor in state.values()), (tmp_path / "half.safetensors").stat().st_size]
    assert sizes[1] < 0.6 * (tmp_path / "whole.safetensors").stat().st_size
    assert read_description(tmp_path / "half.safetensors")["storage"] == "float16"
    loaded, description = load_checkpoint(tmp_path / "half.safetensors")
    assert "storage" not in description, "the weights in memory are whole"
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}
    for name, tensor in state.items():
        if tensor.ndim < 2:
            assert torch.equal(loaded[name], tensor), "gains and biases lose nothing"
        else:
            torch.testing.assert_close(loaded[name], tensor, rtol=1e-3, atol=1e-6)
    model, _ = load_model(tmp_path / "half.safetensors")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_halving_what_is_halved_already_changes_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_model(tmp_path / "one.safetensors", build_model(SPEC).state_dict(), described(), storage="float16")
    save_model(tmp_path / "two.safetensors", *load_checkpoint(tmp_path / "one.safetensors"), storage="float16")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_numbers_too_large_for_half_precision_and_unknown_kinds_are_refused(tmp_path: Path) -> None:
    large = {"layer.weight": torch.full((2, 2), 1e6)}
    with pytest.raises(
        UserError, match=r"layer\.weight holds numbers up to 1e\+06, too large for float16: try bfloat16"
    ):
        save_model(tmp_path / "a.safetensors", large, described(), storage="float16")
    save_model(tmp_path / "a.safetensors", large, described(), storage="bfloat16")
    with pytest.raises(UserError, match="storage=int8: weights are stored as float16 or bfloat16"):
        save_model(tmp_path / "a.safetensors", large, described(), storage="int8")


# --- nothing of the machine -----------------------------------------------------------------------------


def test_paths_of_the_machine_are_cut_to_their_last_name_and_the_rest_is_left() -> None:
    provenance = {
        "config": {
            "run_dir": "runs/x", "resume": None, "logger": {"save_dir": "/home/me/runs"}, "charset": "94",
            "data": {"train": [{"path": "/home/me/words/mine", "weight": 1}, "render"], "data_dir": "/data"},
            "render": {"cache": "data/render/words", "fonts": ["~/fonts", "C:\\fonts\\new", "data/fonts"]},
        },
        "data": {"fingerprints": {"/home/me/words/mine": "abc"}},
        "seconds": 12.5,
    }  # fmt: skip
    metrics = {
        "mine": {"broken": ["row 3 of '/home/me/words/a.png': empty"], "confusions": [{"label": "/", "read": "l"}]}
    }
    before = described(provenance=provenance, metrics=metrics)
    untouched = copy.deepcopy(before)
    after = without_paths(before)
    assert machine_paths(before) and machine_paths(after) == []
    assert before == untouched
    config = after["provenance"]["config"]
    assert config["data"]["train"] == [{"path": "mine", "weight": 1}, "render"]
    assert config["render"] == {"cache": "data/render/words", "fonts": ["fonts", "new", "data/fonts"]}
    assert not {"run_dir", "resume", "logger"} & set(config) and config["charset"] == "94"
    assert after["provenance"]["data"]["fingerprints"] == {"mine": "abc"}
    assert after["metrics"]["mine"]["broken"] == ["row 3 of 'a.png': empty"]
    assert after["metrics"]["mine"]["confusions"] == [{"label": "/", "read": "l"}]
    assert after["codec"] == before["codec"] and after["model"] == before["model"]


@pytest.mark.parametrize(
    "text", ["and/or", "https://a.org/b", "a/b/c.png", "../up/x", "/", "1/2", "n/a", "./x", "a: b"]
)
def test_what_is_no_path_from_a_root_is_left_alone(text: str) -> None:
    assert without_paths(described(provenance={"note": text}))["provenance"]["note"] == text


# --- finding them ---------------------------------------------------------------------------------------


def test_a_folder_of_the_same_name_does_not_hide_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "weights/str-tiny.safetensors", build_model(SPEC).state_dict(), described())
    monkeypatch.setattr("vitocr.catalog.SHIPPED", tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "str-tiny").mkdir()
    assert find_model("str-tiny") == tmp_path / "weights/str-tiny.safetensors"
    (entry,) = list_models()
    assert entry["bytes"] == (tmp_path / "weights/str-tiny.safetensors").stat().st_size
    save_model(tmp_path / "str-tiny/model.safetensors", build_model(SPEC).state_dict(), described())
    assert find_model("str-tiny") == Path("str-tiny/model.safetensors"), "a run of one's own comes first"


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"test": {"accuracy": 0.9}, "val": {"accuracy": 0.8}}, "90.00 % test"),
        ({"val": {"accuracy": 0.8, "loss": 1.0}}, "80.00 % val"),
        ({"A": {"accuracy": {"36": 0.7, "94": 0.6}, "protocol": "36"}, "B": {"accuracy": 0.5}}, "70.00 % A, 50.00 % B"),
        ({"A": {"accuracy": {"36": None}, "protocol": "36"}, "seconds": 3}, "-"),
    ],
)
def test_a_model_is_headed_by_its_accuracy_whatever_it_does(metrics: dict[str, Any], said: str) -> None:
    assert headline(metrics) == said


# --- bench/ship.py --------------------------------------------------------------------------------------

COMMAND = (
    "python train.py task=str charset=36 max_length=8 'preprocess.size=[16,32]' backbone=vit_micro "
    "'backbone.patch=[16,4]' backbone.dim=32 backbone.depth=1 backbone.heads=2 head=ctc budget=5m "
    "'data.train=[render,{words}]' data.val_size=60 render.cache=null"
)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "words"
    folder.mkdir()
    render = Renderer(RenderSpec(size=(16, 32), max_length=8))
    crops = [render(index) for index in range(70)]
    for number, crop in enumerate(crops):
        Image.fromarray(crop.image).save(folder / f"{number}.png")
    lines = [f"{number}.png\t{crop.text}\n" for number, crop in enumerate(crops)]
    (folder / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def run(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that learned nothing, and few crops to measure it on."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        overrides = ship.shlex.split(COMMAND.format(words=words))[2:]
        config: Any = OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
    config |= {"run_dir": str(tmp_path / "run")}
    torch.manual_seed(0)
    model = build_model(
        {
            "image_size": [16, 32],
            "backbone": config["backbone"],
            "head": config["head"] | {"symbols": 36, "max_length": 8},
        }
    )
    hardware = {"cpu": "abacus", "cores": 2, "gpu": None, "torch": "2"}
    data = {"train": ["render", "words"], "fingerprints": {str(words): "1"}}
    provenance = {"config": config, "data": data, "git": None, "hardware": hardware}
    save_model(
        tmp_path / "run/model.safetensors", model.state_dict(), described(model=model.spec, provenance=provenance)
    )
    train = {"seconds": 7384.0, "steps": 12, "images_seen": 1536}
    figures = {"parameters": sum(p.numel() for p in model.parameters()), "train": train}
    (tmp_path / "run/metrics.json").write_text(json.dumps(figures))
    np.save(tmp_path / "test_images.npy", np.random.default_rng(0).integers(0, 255, (50, 32, 32, 3), dtype=np.uint8))
    np.save(tmp_path / "test_labels.npy", np.zeros(50, np.int64))
    monkeypatch.setattr(ship, "BLANKS", 20)
    measure = partial(blanks.measure, share=0.02)
    monkeypatch.setattr(blanks, "measure", lambda model, cifar10: measure(model, cifar10=tmp_path))
    return tmp_path / "run"


def options(run: Path, words: Path, **changes: Any) -> argparse.Namespace:
    given = {
        "run": run,
        "name": "tiny",
        "command": COMMAND.format(words=words),
        "data": [str(words)],
        "calibrate": None,
    }
    more = {
        "before": [],
        "note": [],
        "blank_share": 0.01,
        "storage": "float16",
        "data_dir": run.parent,
        "out": run.parent / "weights",
    }
    return argparse.Namespace(**given | more | changes)


def test_a_run_becomes_a_file_a_card_and_a_plot(run: Path, words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = ship.ship(options(run, words))
    assert sorted(path.name for path in target.parent.iterdir()) == ["tiny.md", "tiny.png", "tiny.safetensors"]
    assert "of 70 answers differ from the run's own" in capsys.readouterr().out
    description = read_description(target)
    assert description["storage"] == "float16" and machine_paths(description) == []
    assert description["calibration"]["words"] == 60, "those that the run held back"
    assert description["metrics"]["words"]["n"] == 70
    card = target.with_suffix(".md").read_text(encoding="utf-8")
    assert card.startswith("# tiny\n") and str(words) not in card and "{" not in card
    assert "2 h 3 min, 12 steps, 1,536 images, on 2 cores of abacus" in card
    assert "data.train=[render,words]" in card, "the command, without where the words lay"
    assert "![confidence against accuracy](tiny.png)" in card and "SCOWL" in card and "IIIT5k" in card
    accuracy = description["metrics"]["words"]["accuracy"]["36"]
    assert f"| words | 70 | {100 * accuracy:.2f} (" in card
    with Image.open(target.with_suffix(".png")) as plot:
        assert min(plot.size) > 300
    vitocr.load(target)(np.zeros((16, 32, 3), np.uint8))


def test_a_command_that_did_not_make_the_run_is_refused(run: Path, words: Path) -> None:
    other = COMMAND.format(words=words).replace("backbone.depth=1", "backbone.depth=2")
    with pytest.raises(UserError, match=r"not what made the run; it differs in\n  backbone\.depth: 1 there, 2 here"):
        ship.ship(options(run, words, command=other))
    longer = COMMAND.format(words=words).replace("5m", "9m")
    with pytest.raises(UserError, match="budget: 5m there, 9m here"):
        ship.ship(options(run, words, command=longer))


def test_a_model_that_began_from_another_tells_what_made_that(run: Path, words: Path) -> None:
    state, description = load_checkpoint(run / "model.safetensors")
    description["provenance"]["config"]["init"] = "toy-tiny"
    save_model(run / "model.safetensors", state, description)
    command = COMMAND.format(words=words) + " init=toy-tiny"
    with pytest.raises(UserError, match="began from another model: tell by --before"):
        ship.ship(options(run, words, command=command))
    target = ship.ship(options(run, words, command=command, before=["python train.py task=str budget=1m"]))
    card = target.with_suffix(".md").read_text(encoding="utf-8")
    assert "    python train.py task=str budget=1m\n\nmade a model, and from that began\n\n    python" in card


def test_a_model_too_large_to_ship_leaves_what_is_shipped_as_it_was(
    run: Path, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "LARGEST", 1000)
    (run.parent / "weights").mkdir()
    (run.parent / "weights/tiny.safetensors").write_bytes(b"before")
    with pytest.raises(UserError, match=r"tiny takes [\d,]+ bytes; at most 1,000 are shipped"):
        ship.ship(options(run, words))
    assert [path.read_bytes() for path in (run.parent / "weights").iterdir()] == [b"before"]


def test_training_data_of_unknown_licence_must_be_explained(run: Path, words: Path) -> None:
    state, description = load_checkpoint(run / "model.safetensors")
    description["provenance"]["data"]["train"] = ["render", "holiday snaps"]
    save_model(run / "model.safetensors", state, description)
    with pytest.raises(UserError, match="trained on holiday snaps, of unknown licence"):
        ship.ship(options(run, words))
    target = ship.ship(options(run, words, note=["Holiday snaps: my own."]))
    assert "- Holiday snaps: my own." in target.with_suffix(".md").read_text(encoding="utf-8")


def test_a_classifier_ships_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of CIFAR-10 as small as it gets: 60 images to calibrate on, 80 to measure."""
    command = (
        "python train.py task=cifar10 backbone.dim=32 backbone.depth=1 backbone.heads=2 backbone.patch=16 budget=5m"
    )
    random = np.random.default_rng(0)
    parts = [
        ImageArrays(random.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, count))
        for count in (10, 60, 80)
    ]
    names = tuple(f"class {number}" for number in range(10))
    splits = Splits(*parts, classes=names, fingerprints={}, name="cifar10", notes=())
    monkeypatch.setattr("vitocr.data.cifar10.load_cifar10", lambda *_, **__: splits)
    monkeypatch.setattr(ship, "load_cifar10", lambda *_, **__: splits)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=command.split()[2:]), resolve=True)
    torch.manual_seed(0)
    spec = {"image_size": [32, 32], "backbone": config["backbone"], "head": config["head"] | {"classes": 10}}
    model = build_model(spec)
    hardware = {"cpu": "abacus", "cores": 2, "gpu": None, "torch": "2"}
    provenance = {"config": config, "data": {"name": "cifar10"}, "git": "abc", "hardware": hardware}
    codec = {"type": "classes", "names": names}
    preprocess = config["preprocess"]
    description = describe(
        task="cifar10", kind="classify", model=spec, codec=codec, preprocess=preprocess, provenance=provenance
    )
    save_model(tmp_path / "run/model.safetensors", model.state_dict(), description)
    figures = {"parameters": 5, "train": {"seconds": 300.0, "steps": 3, "images_seen": 30}}
    (tmp_path / "run/metrics.json").write_text(json.dumps(figures))
    given = {"name": "toy", "command": command, "data": [], "calibrate": None, "before": [], "note": []}
    given["storage"] = "float16"
    target = ship.ship(argparse.Namespace(run=tmp_path / "run", data_dir=tmp_path, out=tmp_path / "weights", **given))
    told = read_description(target)
    assert told["calibration"]["images"] == 60 and told["metrics"]["test"]["images"] == 80
    card = target.with_suffix(".md").read_text(encoding="utf-8")
    assert (
        "| test | 80 | " in card and "5 minutes, 3 steps" in card and "Krizhevsky" in card and "Of 80 answers" in card
    )
    assert f"Temperature {told['calibration']['temperature']:.3f}" in card


# --- bench/blanks.py ------------------------------------------------------------------------------------


def test_the_crops_without_text_are_many_kinds_and_always_the_same(run: Path) -> None:
    for kind in blanks.KINDS:
        crops = blanks.make(kind, count=20, cifar10=run.parent, seed=0)
        again = blanks.make(kind, count=20, cifar10=run.parent, seed=0)
        assert all(np.array_equal(one, two) for one, two in zip(crops, again, strict=True))
        assert len({crop.tobytes() for crop in crops}) == 20
        assert {(crop.dtype.name, crop.shape[2]) for crop in crops} == {("uint8", 3)}
    assert sum(blanks.KINDS.values()) == 1000


def test_an_answer_that_is_not_empty_counts_against_the_model() -> None:
    readings = [
        argparse.Namespace(text=text, confidence=sure) for text, sure in [("", 0.9), ("a", 0.4), ("b", 0.6), ("", 0.1)]
    ]
    told = blanks.summarise(readings)
    assert (told["n"], told["not_empty"], told["share"]) == (4, 2, 0.5)
    assert [entry["text"] for entry in told["surest"]] == ["b", "a"]
