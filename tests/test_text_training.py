"""`task=str` as people use it: every head from one command line, read back, measured, resumed."""

import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from runs_kit import run

import vitocr
from vitocr.cli import main as vitocr_command
from vitocr.codec import PRESETS
from vitocr.data.render import Effects, Renderer, RenderSpec
from vitocr.errors import UserError
from vitocr.predict import Predictor

HEADS = ["ctc", "transformer", "permuted", "lstm"]
TINY = [
    "task=str", "logger=none", "trainer=cpu", "trainer.threads=1", "trainer.precision=32-true",
    "preprocess.size=[32,64]", "backbone=vit_micro", "backbone.patch=[32,4]", "backbone.dim=64", "backbone.depth=2",
    "backbone.heads=2", "backbone.keep_patches=1", "batch_size=16", "data.val_size=2", "charset=36", "max_length=8",
    "augment.ops=0", "augment.warp=0", "label_smoothing=0", "log_every_steps=20", "val_every=100",
]  # fmt: skip


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """34 words of two to five letters and digits, plainly written, in a folder with labels.tsv."""
    root = tmp_path_factory.mktemp("words")
    random = np.random.default_rng(0)
    font = ImageFont.load_default(20)
    lines = []
    for number in range(34):
        text = "".join(random.choice(list("abcdehkmnrstuxz23456789"), int(random.integers(2, 6))))
        image = Image.new("RGB", (72, 30), tuple(int(v) for v in random.integers(180, 255, 3)))
        ImageDraw.Draw(image).text((4, 2), text, fill=tuple(int(v) for v in random.integers(0, 80, 3)), font=font)
        image.save(root / f"{number:02}.png")
        lines.append(f"{number:02}.png\t{text}\n")
    (root / "labels.tsv").write_text("".join(lines))
    return root


@pytest.fixture(scope="session", params=HEADS)
def trained(request: pytest.FixtureRequest, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    source = [f"data.train=[{words}]", f"data.test=[{words}]", f"head={request.param}", "steps=240", "optim.lr=3e-3"]
    run([*TINY, *source, f"run_dir={folder}"], folder.parent)
    return folder


def test_every_head_learns_a_few_words_by_heart(trained: Path, words: Path) -> None:
    figures = json.loads((trained / "metrics.json").read_text())
    # Two of the 34 were held back for validation, and may be misread.
    assert figures["test"]["accuracy"]["36"] >= 32 / 34
    assert (trained / "samples.png").exists()


def test_a_word_is_read_alike_alone_and_among_others(trained: Path, words: Path) -> None:
    model = vitocr.load(trained)
    paths = sorted(words.glob("*.png"))
    together = model(paths)
    for path, reading in zip(paths, together, strict=True):
        alone = model(path)
        assert alone.text == reading.text
        assert alone.confidence == pytest.approx(reading.confidence, abs=1e-3)


def test_a_reading_says_where_its_characters_are(trained: Path, words: Path) -> None:
    reading = vitocr.load(trained)(words / "00.png")
    assert "".join(character.text for character in reading.characters) == reading.text
    assert 0 < reading.confidence <= 1
    for character in reading.characters:
        x0, y0, x1, y1 = character.box
        assert 0 <= x0 < x1 <= 72 and 0 <= y0 < y1 <= 30
    if "ctc" in str(trained):  # a decoder that knows few words by heart may look anywhere
        middles = [(character.box[0] + character.box[2]) / 2 for character in reading.characters]
        assert middles == sorted(middles) and middles[0] < middles[-1], "text runs from left to right"


def test_eval_prints_one_object_for_all_sets(trained: Path, words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        vitocr_command(["eval", str(trained), "--data", str(words), "--data", str(words), "--json"])
    assert not left.value.code
    figures = json.loads(capsys.readouterr().out)
    assert len(figures["sets"]) == 2
    for summary in figures["sets"].values():
        assert summary["n"] == 34 and set(summary["accuracy"]) == {"36", "62", "94", "exact"}
        assert summary["ned"] <= 0.1 and summary["cer"] <= 0.1
    assert figures["mean"]["accuracy"]["36"] == pytest.approx(figures["weighted"]["accuracy"]["36"])


def test_predict_prints_what_it_reads(trained: Path, words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        vitocr_command(["predict", str(trained), str(words / "00.png"), "--csv"])
    assert not left.value.code
    heading, row = capsys.readouterr().out.splitlines()
    assert heading == "source,text,confidence,error"
    assert row.split(",")[1] == vitocr.load(trained)(words / "00.png").text


def test_training_words_can_be_mixed_with_rendered_ones_and_resumed(words: Path, tmp_path: Path) -> None:
    sources = ["render", f"{{path:{words},weight:1}}"]
    options = [*TINY, f"data.train=[{{path:{sources[0]},weight:1}},{sources[1]}]", "render.rows=64", "head=ctc",
               "render.cache=cache", "save_every_steps=3"]  # fmt: skip
    whole = run([*options, "steps=8", "run_dir=whole"], tmp_path)
    assert "64" in whole or "2,048" in whole, "what was rendered is said"
    run([*options, "steps=8", "run_dir=again"], tmp_path)
    one, two = (
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"] for name in ("whole", "again")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_confidences_are_calibrated_on_words_that_were_held_back(words: Path, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    (held / "labels.tsv").write_text("\n".join((words / "labels.tsv").read_text().splitlines() * 2))
    for image in words.glob("*.png"):
        (held / image.name).symlink_to(image)
    run([*TINY, f"data.train=[{words}]", f"data.val=[{held}]", "head=ctc", "steps=240", "optim.lr=3e-3",
           f"run_dir={tmp_path / 'run'}"], tmp_path)  # fmt: skip
    model = vitocr.load(tmp_path / "run")
    assert model.description["calibration"]["words"] == 68
    told = json.loads((tmp_path / "run" / "metrics.json").read_text())["val"]
    assert told["accuracy"]["36"] > 0.9 and told["ece"] < 0.05
    bare = dict(model.description)
    bare.pop("calibration")
    sure = [np.mean([reading.confidence for reading in each(sorted(words.glob("*.png")))])
            for each in (Predictor(model.runner, bare), model)]  # fmt: skip
    assert sure[1] > sure[0], "all is right, which is more than the model itself would say"


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ("[{path: render, weight: 3}, words]", "1 of 2 sources have a weight"),
        ("[render, nowhere]", "nowhere"),
        ("[{path: render, weight: 3}, {path: words, wieght: 1}]", "wieght"),
    ],
)
def test_what_is_wrong_with_the_sources_is_said_before_anything_is_rendered(
    sources: str, complaint: str, words: Path, tmp_path: Path
) -> None:
    (tmp_path / "words").symlink_to(words)
    said = run([*TINY, f"data.train={sources}", "render.cache=cache", "steps=1"], tmp_path, code=2)
    assert complaint in said and "Traceback" not in said
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns_64_photographed_words_by_heart(head: str, tmp_path: Path) -> None:
    if "VITOCR_STR_DATA" not in os.environ:
        pytest.skip("VITOCR_STR_DATA names no folder of real crops")
    crops = Path(os.environ["VITOCR_STR_DATA"]).resolve() / "IIIT5k_train"  # named in a table that stands elsewhere
    lines = (crops / "labels.tsv").read_text(encoding="utf-8").splitlines()
    fitting = [line for line in lines if line.split("\t")[1].isascii() and len(line.split("\t")[1]) <= 8]
    chosen = [f"{crops}/{line}\n" for line in fitting[::20][:64]]
    (tmp_path / "labels.tsv").write_text("".join(chosen), encoding="utf-8")
    # The same words are validated by: what is asked is whether they can be learned at all.
    where = [f"data.{split}=[{tmp_path}]" for split in ("train", "val", "test")]
    options = ["batch_size=32", "steps=320", "optim.lr=3e-3", f"head={head}", "charset=94"]
    run([*TINY, *where, *options, f"run_dir={tmp_path / 'run'}"], tmp_path)
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["test"]["n"] == 64 and figures["test"]["accuracy"]["94"] == 1.0


def test_korean_goes_through_rendering_training_and_reading_without_losing_a_character(tmp_path: Path) -> None:
    spec = RenderSpec(korean=1.0, charset=PRESETS["korean"], max_length=8, effects=Effects.none())
    try:
        renderer = Renderer(spec)
        crops = [renderer(index) for index in range(24)]
    except UserError as error:
        pytest.skip(f"no font with Hangul is installed: {error}")
    texts = [crop.text for crop in crops]
    assert any(text.isascii() is False and any(c.isascii() for c in text) for text in texts), "Latin among Hangul"
    lines = []
    for number, crop in enumerate(crops):
        Image.fromarray(crop.image).save(tmp_path / f"{number}.png")
        # Half of the labels decomposed, as file names from a Mac are.
        form = "NFD" if number % 2 else "NFC"
        lines.append(f"{number}.png\t{unicodedata.normalize(form, crop.text)}\n")  # type: ignore[arg-type]
    (tmp_path / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    where = [f"data.{split}=[{tmp_path}]" for split in ("train", "val", "test")]
    options = ["charset=korean", "protocol=exact", "steps=400", "optim.lr=3e-3", "head=ctc"]
    told = run([*TINY, *where, *options, "preprocess.size=[32,128]", f"run_dir={tmp_path / 'run'}"], tmp_path)
    assert "dropped" not in told
    reader = vitocr.load(tmp_path / "run")
    read = [reader(tmp_path / f"{number}.png").text for number in range(24)]
    assert read == texts  # NFC, each of them
