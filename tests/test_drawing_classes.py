"""Pictures: that they are drawn, that they show what they should, that any script is legible."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from PIL import Image

from vitocr.drawing import classes

NAMES = ["cat", "dog", "ship"]


def answers(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images that are all of one colour, each with its own red; true ids; probabilities."""
    random = np.random.default_rng(0)
    images = np.zeros((count, 8, 8, 3), np.uint8)
    images[..., 0] = np.arange(count)[:, None, None]
    return images, random.integers(0, 3, count), random.dirichlet(np.ones(3), count)


def reds(path: Path) -> set[int]:
    """Which of the images of `answers` can be seen in a picture."""
    pixels = np.array(Image.open(path).convert("RGB")).reshape(-1, 3)
    values, counts = np.unique(pixels[(pixels[:, 1:] == 0).all(axis=1), 0], return_counts=True)
    return set(values[counts > 5000].tolist())


def test_the_sheet_shows_the_surest_errors_and_the_least_sure_successes(tmp_path: Path) -> None:
    images, labels, probs = answers(200)
    classes.draw_samples(tmp_path / "samples.png", images, labels, probs, NAMES)
    right, sure = probs.argmax(1) == labels, probs.max(1)
    surest_wrong = sorted(np.flatnonzero(~right), key=lambda row: -sure[row])[:16]
    least_sure_right = sorted(np.flatnonzero(right), key=lambda row: sure[row])[:16]
    seen = reds(tmp_path / "samples.png")
    assert {*surest_wrong, *least_sure_right} <= seen
    assert len(seen) > 32  # the others are random ones
    assert len(seen) <= 48


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_answers_make_a_small_sheet(tmp_path: Path, count: int) -> None:
    images, labels, probs = answers(count)
    classes.draw_samples(tmp_path / "samples.png", images, labels, probs, NAMES)
    assert reds(tmp_path / "samples.png") == set(range(count))


def test_images_may_be_of_any_size_and_shape(tmp_path: Path) -> None:
    images = [np.zeros(shape, np.uint8) for shape in ((3, 400, 3), (900, 40, 3), (1, 1, 3))]
    classes.draw_samples(tmp_path / "samples.png", images, [0, 1, 2], np.eye(3), NAMES)
    assert Image.open(tmp_path / "samples.png").width > 500


@pytest.mark.parametrize("count", [2, 10, 40, 100])
def test_the_confusion_matrix_is_drawn_for_few_and_many_classes(tmp_path: Path, count: int) -> None:
    matrix = np.random.default_rng(0).integers(0, 5, (count, count)) + 50 * np.eye(count, dtype=int)
    classes.draw_confusion(tmp_path / "new folder" / "confusion.png", matrix, [f"class {i}" for i in range(count)])
    width, height = Image.open(tmp_path / "new folder" / "confusion.png").size
    assert 400 < height < 3000 and 400 < width < 3000


def test_an_empty_row_of_the_matrix_is_no_division_by_zero(tmp_path: Path) -> None:
    with np.errstate(all="raise"):
        classes.draw_confusion(tmp_path / "confusion.png", np.zeros((3, 3), np.int64), NAMES)
    assert (tmp_path / "confusion.png").stat().st_size > 0


def test_the_worst_confusions_are_listed_first_and_only_errors() -> None:
    matrix = np.array([[90, 1, 0], [7, 80, 3], [0, 0, 99]])
    lines = classes._worst_pairs(matrix, NAMES, limit=2)
    assert [" ".join(line.split()) for line in lines] == ["dog → cat 7", "dog → ship 3"]
    assert classes._worst_pairs(np.diag([1, 2, 3]), NAMES, limit=5) == []


def test_names_that_no_font_can_write_are_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "_font_for", lambda characters: None)
    names, fonts = classes.legible(["고양이", "ねこ", "猫", "été"])
    assert names == ["goyangi", "neko", "U+732B", "été"]
    assert fonts == ["DejaVu Sans"]


def test_an_installed_font_that_has_the_characters_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A font with one character, 고, drawn as a full box."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 1000), (1000, 1000), (1000, 0)):
        pen.lineTo(corner)
    pen.closePath()
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", "go"])
    font.setupCharacterMap({ord("고"): "go"})
    font.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "go": pen.glyph()})
    font.setupHorizontalMetrics({".notdef": (1000, 0), "go": (1000, 0)})
    font.setupHorizontalHeader(ascent=1000, descent=0)
    font.setupNameTable({"familyName": "One Syllable", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(tmp_path / "one.ttf")
    classes._font_for.cache_clear()
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    font_manager.fontManager.addfont(tmp_path / "one.ttf")

    assert classes.legible(["고", "cat"]) == (["고", "cat"], ["DejaVu Sans", "One Syllable"])
    images, _, _ = answers(3)
    probs = np.eye(3)
    classes.draw_samples(tmp_path / "samples.png", images, [0, 0, 0], probs, ["고", "dog", "ship"])
    assert (tmp_path / "samples.png").exists()
    classes._font_for.cache_clear()


def test_long_names_are_cut_to_their_width() -> None:
    assert classes._short("a name of many words", 8) == "a name …"
    assert classes._short("고양이고양이", 8) == "고양이…"
    assert classes._short("cat", 8) == "cat"


def test_drawing_leaves_pyplot_alone() -> None:
    code = "import sys, vitocr.drawing.classes; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
