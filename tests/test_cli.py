"""The `vitocr` command, as it is typed."""

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitocr
from vitocr import cli, evaluate, output
from vitocr.catalog import list_models
from vitocr.checkpoint import save_model
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.models.model import build_model
from vitocr.results import Failure, Label

NAMES = ["dark", "light"]
SPEC = {
    "image_size": [16, 16],
    "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 8, "dim": 16, "depth": 1, "heads": 2},
    "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 2},
}


def save_judge_of_light(path: Path, *, task: str = "light", names: list[str] = NAMES) -> Path:
    """A model that tells dark images from light ones: the first number of every token is the brightness."""
    model = build_model(SPEC)
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    state["backbone.embed.weight"][0] = 1 / 192  # the mean over 8 x 8 pixels and 3 channels
    state["backbone.norm.weight"] += 1
    state["head.logits.weight"][:, 0] = torch.tensor([-1.0, 1.0])
    description = describe(
        task=task,
        kind="classify",
        model=SPEC,
        codec={"type": "classes", "names": names},
        preprocess={
            "size": [16, 16],
            "mean": [0.5] * 3,
            "std": [0.25] * 3,
            "resize": "stretch",
            "interpolation": "bilinear",
        },
        metrics={"test": {"accuracy": 0.875}},
    )
    save_model(path, state, description)
    return path


def save_image(path: Path, brightness: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 20, 3), brightness, np.uint8)).save(path)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run and images, as the current one; nothing ships with vitocr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitocr.catalog.SHIPPED", tmp_path / "weights")
    save_judge_of_light(tmp_path / "runs/light/2024-01-01/model.safetensors")
    for index in range(3):
        save_image(tmp_path / f"images/dark/{index}.png", 20 + index)
        save_image(tmp_path / f"images/light/{index}.png", 230 + index)
    return tmp_path


RUN = "runs/light/2024-01-01"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    return int(left.value.code or 0)


# --- predict --------------------------------------------------------------------------------------------


def test_predict_names_what_is_in_files_folders_and_globs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", RUN, "images/dark", "images/light/[01].png", "images/light/2.png") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [f"images/{name}/{index}.png" for name in NAMES for index in range(3)]
    assert [line.split()[2] for line in lines] == ["dark"] * 3 + ["light"] * 3
    assert "\x1b" not in "".join(lines)  # no colours in a pipe


def test_predict_json_is_one_object_an_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", RUN, "images/light/0.png", "images/dark/0.png", "--json", "--top-k", "9") == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["name"] for result in results] == ["light", "dark"]
    assert results[0]["source"] == "images/light/0.png"
    assert [entry["name"] for entry in results[0]["top"]] == ["light", "dark"]


def test_predict_csv_has_a_heading_and_a_row_an_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken, or not.png").write_bytes(b"x")
    assert run("predict", RUN, "images/light/0.png", "broken, or not.png", "--csv", "--top-k", "2") == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["name"] == "light" and rows[0]["name2"] == "dark" and rows[0]["error"] == ""
    assert float(rows[0]["confidence"]) + float(rows[0]["confidence2"]) == pytest.approx(1, abs=1e-5)
    assert rows[1]["name"] == "" and "cannot be read as an image" in rows[1]["error"]


def test_predict_answers_the_rest_when_a_file_is_corrupt(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "images/dark/1.png").write_bytes(b"these are not pixels")
    assert run("predict", RUN, "images", "absent.png", "--json") == 1
    done = capsys.readouterr()
    results = [json.loads(line) for line in done.out.splitlines()]
    assert [result.get("name") for result in results] == [
        "dark",
        None,
        "dark",
        "light",
        "light",
        "light",
        None,
    ]
    assert "1.png' cannot be read as an image" in results[1]["error"]
    assert "There is no image 'absent.png'" in results[6]["error"]
    assert "2 of 7 inputs could not be read" in done.err


def test_predict_writes_to_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", RUN, "images", "--json", "--out", "answers.jsonl") == 0
    assert capsys.readouterr().out == ""
    assert len(Path("answers.jsonl").read_text().splitlines()) == 6


def test_predict_goes_on_where_it_was_killed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command once more: what a kill leaves is a whole line or more, a torn one, and the note beside it."""
    words = ["predict", RUN, "images", "--csv", "--out", "answers.csv"]
    (here / "images/dark/1.png").write_bytes(b"these are not pixels")
    assert run(*words) == 1
    whole = Path("answers.csv").read_bytes()
    assert run(*words) == 2 and "answers.csv is there already" in capsys.readouterr().err
    assert run(*words, "--overwrite") == 1 and Path("answers.csv").read_bytes() == whole

    class Killed(BaseException):
        pass

    def killing(write: output.Writer) -> output.Writer:
        left = iter(range(4))

        def write_some(result: output.Result) -> None:
            if next(left, None) is None:
                raise Killed
            write(result)

        return write_some

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitocr.commands.predict_files.csv_writer", lambda *a, **k: killing(output.csv_writer(*a, **k)))
        with pytest.raises(Killed):
            cli.main([*words, "--overwrite"])
    with open("answers.csv", "ab") as file:
        file.write(b"images/light/1.p")
    capsys.readouterr()
    assert run(*words, "--top-k", "1") == 2 and "top_k was 2, now 1" in capsys.readouterr().err
    assert run(*words) == 1
    assert Path("answers.csv").read_bytes() == whole
    err = capsys.readouterr().err
    assert "answers.csv holds 4 answers already, 2 are to come." in err
    assert "1 of 6 inputs could not be read.\n  'images/dark/1.png' cannot be read as an image" in err


def test_words_about_a_file_need_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", RUN, "images", "--resume") == 2
    assert "about the file of --out" in capsys.readouterr().err


def test_what_is_for_reading_is_refused_by_a_model_that_tells_classes_apart(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", RUN, "images", "--any-rotation") == 2
    assert "are for models that read text; this one tells classes apart" in capsys.readouterr().err


def test_predict_to_a_place_that_cannot_be_written_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", RUN, "images", "--out", "no/such/folder.csv") == 2
    assert "error: Cannot write to no/such/folder.csv: No such file or directory." in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_predict_onto_a_full_disk_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", RUN, "images", "--json", "--out", "/dev/full") == 2
    assert capsys.readouterr().err == "error: The disk is full; what was written until then is kept.\n"


def test_predict_reads_a_file_whose_name_looks_like_a_glob(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(here / "photo[1].png", 250)
    assert run("predict", RUN, "photo[1].png") == 0
    assert "light" in capsys.readouterr().out


def test_a_file_that_is_named_twice_is_answered_once(here: Path) -> None:
    found = output.find_images(["images/dark", "images/dark/0.png", "images/**/0.png"], [".png"])
    assert [str(path) for path in found] == [
        "images/dark/0.png",
        "images/dark/1.png",
        "images/dark/2.png",
        "images/light/0.png",
    ]


def test_a_folder_without_images_is_a_mistake(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    assert run("predict", RUN, "empty") == 2
    assert capsys.readouterr().err == "error: There is no image in the folder empty or below it.\n"


def test_results_on_a_terminal_are_aligned_and_coloured() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    write = output.human_writer(terminal, [Path("a.png"), Path("고양이.png")])
    write(Label("cat", 0.95, (("cat", 0.95), ("dog", 0.05)), 0, "a.png"))
    write(Failure("고양이.png", "it is torn"))
    text = terminal.getvalue()
    assert "95.0%" in text and "dog 5.0%" in text and "error: it is torn" in text


# --- eval -----------------------------------------------------------------------------------------------


def test_eval_measures_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(here / "images/dark/wrong.png", 240)
    assert run("eval", RUN, "--data", "images", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["data"], figures["split"], figures["images"]) == ("images", "all", 7)
    assert figures["accuracy"] == pytest.approx(6 / 7)
    assert figures["per_class"] == {"dark": 0.75, "light": 1.0}
    low, high = figures["accuracy_95"]
    assert low < 6 / 7 < high
    assert {"ece", "nll", "images_per_second"} <= set(figures)


def test_eval_for_people_says_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("eval", RUN, "--data", "images", "--data", "images") == 0
    out = capsys.readouterr().out
    assert out.count("images, all: 6 images") == 2
    assert "accuracy 100.00 % (95 % interval: 100.00 % to 100.00 %)" in out
    assert "dark   100.00 %" in out


def test_eval_takes_the_split_that_is_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, brightness in (("train", 20), ("test", 240)):
        for name in NAMES:
            save_image(here / f"split/{split}/{name}/0.png", brightness)
            save_image(here / f"split/{split}/{name}/1.png", 240 if name == "light" else 20)
    assert run("eval", RUN, "--data", "split", "--json") == 0
    assert run("eval", RUN, "--data", "split", "--split", "train", "--json") == 0
    test, train = map(json.loads, capsys.readouterr().out.splitlines())
    assert (test["split"], test["per_class"]) == ("test", {"dark": 0.5, "light": 1.0})
    assert (train["split"]) == "train"
    assert run("eval", RUN, "--data", "split", "--split", "tset") == 2
    assert "split has no split 'tset'; it has test, " in capsys.readouterr().err


def test_eval_holds_out_again_what_training_held_out(here: Path) -> None:
    for index in range(3, 20):
        save_image(here / f"images/dark/{index}.png", 20)
        save_image(here / f"images/light/{index}.png", 230)
    predictor = vitocr.load(RUN)
    predictor.description["provenance"] = {"config": {"data": {"val_fraction": 0.25, "seed": 7}}}
    assert evaluate.evaluate(predictor, "images", split="val")["images"] == 10
    assert evaluate.evaluate(predictor, "images", split="train")["images"] == 30
    assert evaluate.evaluate(predictor, "images")["images"] == 40


def test_eval_matches_classes_by_name_not_by_position(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder's classes are in the order of the alphabet, this model's are not."""
    save_judge_of_light(here / "model.safetensors", names=["night", "day"])
    (here / "images/dark").rename(here / "images/night")
    (here / "images/light").rename(here / "images/day")
    assert run("eval", "model.safetensors", "--data", "images", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_eval_on_classes_that_the_model_does_not_know_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "images/light").rename(here / "images/lihgt")
    assert run("eval", RUN, "--data", "images") == 2
    assert (
        "images has 1 of 2 classes that the model does not know: 'lihgt'. Did you mean 'light'? "
        "The model's classes are: dark, light." in capsys.readouterr().err
    )


def test_some_of_the_classes_are_enough() -> None:
    assert evaluate.match_classes(["ship", "cat"], ["cat", "dog", "ship"], data="x") == [2, 0]


def test_eval_skips_and_names_corrupt_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "images/light/1.png").write_bytes(b"these are not pixels")
    assert run("eval", RUN, "--data", "images") == 0
    done = capsys.readouterr()
    assert "images, all: 5 images" in done.out and "accuracy 100.00 %" in done.out
    assert "1.png' cannot be read as an image" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Say on which data: --data FOLDER"),
        (
            ["--data", "imagse"],
            "There is no data set 'imagse': give `cifar10` or a folder of images. Did you mean 'images'?",
        ),
    ],
)
def test_eval_without_data_says_what_to_do(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run("eval", RUN, *words) == 2
    assert message in capsys.readouterr().err


def test_eval_says_which_confidence_to_ask_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(3):
        save_image(here / f"images/dark/grey{index}.png", 140 + index)  # wrong, and not sure of it
    assert run("eval", RUN, "--data", "images", "--json") == 0
    points = json.loads(capsys.readouterr().out)["thresholds"]
    assert [point["wanted"] for point in points] == [0.01, 0.02, 0.05]
    assert all(point["kept"] == pytest.approx(6 / 9) and point["error"] == 0 for point in points)
    assert 0.5 < points[0]["threshold"] <= 1
    assert run("eval", RUN, "--data", "images", "--precision", "bf16") == 0
    assert "66.67 %" in capsys.readouterr().out
    assert run("eval", RUN, "--data", "images", "--precision", "bf61") == 2
    assert "precision=bf61: choose one of fp32, bf16, auto. Did you mean 'bf16'?" in capsys.readouterr().err


# --- calibrate ------------------------------------------------------------------------------------------


def test_calibrate_stores_a_temperature_that_the_model_then_applies(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(40):
        save_image(here / f"more/dark/{index}.png", 20 + 5 * index)  # a quarter of these is light
        save_image(here / f"more/light/{index}.png", 230 - index)
    file = here / RUN / "model.safetensors"
    before = vitocr.load(RUN)("images/light/0.png")
    assert run("calibrate", RUN, "--data", "more", "--out", "calibrated.safetensors", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ece"] < figures["ece_before"]
    assert figures["calibration"]["images"] == 80 and figures["path"] == "calibrated.safetensors"
    assert Image.open("calibrated.calibration.png").format == "PNG"
    assert "calibration" not in vitocr.load(file).description

    after = vitocr.load("calibrated.safetensors")("images/light/0.png")
    assert isinstance(before, Label) and isinstance(after, Label) and after.name == before.name
    odds = [np.log(label.confidence / (1 - label.confidence)) for label in (before, after)]
    assert odds[0] / odds[1] == pytest.approx(figures["calibration"]["temperature"], rel=1e-3)

    assert run("eval", "calibrated.safetensors", "--data", "more", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ece"] == pytest.approx(figures["ece"], abs=1e-6)
    assert run("calibrate", RUN, "--data", "more") == 0  # in place
    assert vitocr.load(RUN).description["calibration"] == figures["calibration"]
    assert "calibration error" in capsys.readouterr().out


def test_calibrate_refuses_before_it_works(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("calibrate", RUN, "--data", "images", "--out", "model.onnx") == 2
    assert "not in model.onnx" in capsys.readouterr().err
    assert run("calibrate", RUN, "--data", "images") == 2
    assert "at least 50 images" in capsys.readouterr().err
    assert run("calibrate", RUN, "--data", "images", "--threshold", "0.5") == 2
    assert "for models that read text" in capsys.readouterr().err


# --- models ---------------------------------------------------------------------------------------------


def test_models_lists_runs_newest_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = save_judge_of_light(here / "runs/light/2024-02-02/model.safetensors")
    os.utime(newer, (time.time() + 10, time.time() + 10))
    (here / "runs/broken").mkdir()
    (here / "runs/broken/model.safetensors").write_bytes(b"torn")
    assert run("models") == 0
    out = capsys.readouterr().out
    assert "No model ships with this version of vitocr." in out
    assert out.index("2024-02-02") < out.index("2024-01-01")
    assert "light" in out and "ViT patch=8 dim=16 depth=1" in out and "87.50 % test" in out
    assert "broken" not in out
    assert run("models", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == vitocr.list_models()


def test_shipped_models_come_first_and_by_name(here: Path) -> None:
    save_judge_of_light(here / "weights/lamp.safetensors")
    assert [(entry["name"], entry["shipped"]) for entry in list_models()] == [("lamp", True), (RUN, False)]
    assert run("predict", "lamp", "images") == 0


def test_models_says_when_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("models") == 0
    assert "No finished run in runs/ yet: `vitocr train task=cifar10 budget=10m` makes one." in capsys.readouterr().out


# --- the command itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("images/dark/0.png", "images/dark/0.png is not a vitocr checkpoint"),
        ("runs/light", "There is no model in the folder runs/light"),
        ("runs/light/2024-01-01/modle.safetensors", "Did you mean 'model.safetensors'?"),
        ("imges", "There is no model 'imges'. Did you mean 'images'?"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], model: str, message: str
) -> None:
    assert run("predict", model, "images") == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from vitocr.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(command in done.stdout for command in ("train", "eval", "predict", "models", "bench"))
    assert done.stdout.endswith("False\n")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"vitocr {vitocr.__version__}\n"


def test_bench_explains_itself_and_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench", "--help") == 0
    assert "--rounds" in capsys.readouterr().out
    for words, complaint in [
        (["--rouns", "3"], "bench has no option --rouns. Did you mean '--rounds'?"),
        (["backbone=vit_smal"], "there is no backbone `vit_smal`. Did you mean backbone=vit_small?"),
        (["optim.lrr=3"], "there is no option `optim.lrr`. Did you mean `optim.lr`?"),
    ]:
        assert run("bench", *words) == 2
        assert complaint in capsys.readouterr().err


def test_train_and_bench_get_their_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    heard: list[list[str]] = []
    for name in ("train", "bench"):
        module = types.ModuleType(f"vitocr.{name}")
        module.main = lambda words, **_: heard.append(words)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"vitocr.{name}", module)
    run("train", "task=cifar10", "-m", "--help", "optim.lr=1e-3,2e-3")
    run("bench", "--task", "str", "--rounds", "2", "backbone=vit_small", "seed=1")
    assert heard == [
        ["task=cifar10", "-m", "--help", "optim.lr=1e-3,2e-3"],
        ["task=str", "backbone=vit_small", "seed=1"],
    ]


# --- progress -------------------------------------------------------------------------------------------


def test_short_jobs_say_nothing_and_long_ones_write_lines_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 2))  # every item takes two seconds
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert list(output.progress(iter("ab"), 2, what="predicting")) == ["a", "b"]
    assert capsys.readouterr().err == ""
    assert len(list(output.progress(iter(range(10)), 1000, what="predicting"))) == 10
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "predicting: 3 of 1,000 (0/s)"
    assert len(lines) == 3


def test_a_broken_data_set_name_never_reaches_the_network(here: Path) -> None:
    predictor = vitocr.load(RUN)
    with pytest.raises(UserError, match="no data set 'cifar11'"):
        evaluate.evaluate(predictor, "cifar11")
