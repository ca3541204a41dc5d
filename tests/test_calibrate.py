"""A model learns how far to trust itself, and keeps that in its own file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bars_kit import LETTERS, BarReader, bars, reader_of_bars
from PIL import Image
from safetensors.torch import load_file

from vitocr.calibrate import calibrate_text, check_form, find_threshold, store
from vitocr.calibration import Calibration
from vitocr.checkpoint import load_checkpoint, save_model
from vitocr.data.text_rows import Subset
from vitocr.data.text_sources import open_source
from vitocr.description import describe, read_description
from vitocr.drawing.reliability import draw_reliability
from vitocr.errors import UserError
from vitocr.metrics import expected_calibration_error
from vitocr.results import Reading


def watch(items: Any, total: int) -> Any:
    return items


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 pictures of words; three in ten of the labels are not what the picture shows."""
    folder = tmp_path_factory.mktemp("words")
    random = np.random.default_rng(0)
    lines = []
    for n in range(120):
        text = "".join(random.choice(list(LETTERS), 1 + n % 8))
        Image.fromarray(bars(text)).save(folder / f"{n}.png")
        lines.append(f"{n}.png\t{text if n % 10 > 2 else text + 'a'}\n")
    (folder / "labels.tsv").write_text("".join(lines))
    return folder


def test_a_reader_too_sure_of_itself_is_brought_to_its_share_of_right_words(words: Path) -> None:
    predictor = reader_of_bars(BarReader(sure=0.995), calibration={"scale": 9.0, "shift": 9.0})  # an old, wrong one
    found = calibrate_text(predictor, [words], protocol="36", batch_size=64, watch=watch)
    assert found.right.mean() == pytest.approx(0.7) and found.before.min() > 0.9
    before, after = (expected_calibration_error(sure[:, None], ~found.right) for sure in (found.before, found.after))
    assert before > 0.2 and after < 0.1
    assert found.after.mean() == pytest.approx(0.7, abs=0.02)
    assert np.allclose(Calibration.from_dict(found.calibration)(found.before), found.after)


def test_where_sources_count_alike_the_larger_does_not_outvote_the_smaller(words: Path) -> None:
    every = open_source(words)  # 7 in 10 are right
    good = Subset(every, np.array([n for n in range(120) if n % 10 > 2][:60]))
    options: Any = {"protocol": "36", "batch_size": 64, "watch": watch}
    shares = {
        alike: calibrate_text(reader_of_bars(BarReader(sure=0.9)), [every, good], alike=alike, **options).after.mean()
        for alike in (False, True)
    }
    assert shares == {False: pytest.approx(0.8, abs=0.02), True: pytest.approx(0.85, abs=0.02)}


def test_what_counts_as_right_is_up_to_the_protocol(words: Path) -> None:
    labels = (words / "labels.tsv").read_text()
    (words / "labels.tsv").write_text(labels.upper().replace(".PNG", ".png"))
    try:
        predictor = reader_of_bars(BarReader(sure=0.9))
        shares = {
            protocol: calibrate_text(predictor, [words], protocol=protocol, batch_size=64, watch=watch).right.mean()
            for protocol in ("36", "exact")
        }
    finally:
        (words / "labels.tsv").write_text(labels)
    assert shares == {"36": pytest.approx(0.7), "exact": 0}


def test_the_threshold_lets_no_more_blank_pictures_through_than_it_may(tmp_path: Path) -> None:
    texts = [""] * 15 + ["abcde", "abcd", "abc", "ab", "a"]  # these stand for textures that look like letters
    for n, text in enumerate(texts):
        Image.fromarray(bars(text)).save(tmp_path / f"{n:02}.png")
    blanks = sorted(map(str, tmp_path.iterdir()))
    calibration = Calibration(0.5, -1.0, 100)
    for share, answered in ((0.1, 2), (0.0, 0), (1.0, 5)):
        threshold = find_threshold(reader_of_bars(), calibration, blanks, share=share, batch_size=64, watch=watch)
        told = reader_of_bars(calibration=calibration.to_dict() | {"threshold": threshold})
        assert sum(bool(reading.text) for reading in told(blanks) if isinstance(reading, Reading)) == answered


def test_storing_changes_the_calibration_and_nothing_else_in_the_file(tmp_path: Path) -> None:
    path, copy = tmp_path / "model.safetensors", tmp_path / "elsewhere" / "calibrated.safetensors"
    description = describe(
        task="한글",
        kind="text",
        model={},
        codec={"type": "charset", "characters": "가나다\"'\\"},
        preprocess={},
    )
    random = torch.Generator().manual_seed(0)
    weights = {f"layer{n}.weight": torch.randn(n + 1, 3, generator=random) for n in range(5)}
    save_model(path, weights, description, storage="float16")
    size, before = path.stat().st_size, load_file(path)

    calibration = {"scale": 0.7, "shift": -0.1, "words": 500, "threshold": 0.2}
    store(path, copy, calibration)
    assert read_description(copy) == read_description(path) | {"calibration": calibration}
    assert abs(copy.stat().st_size - size) < 200  # half precision stays half precision
    assert "calibration" not in read_description(path)

    store(path, path, calibration)
    assert path.read_bytes() == copy.read_bytes()
    after = load_file(path)
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert after["layer0.weight"].dtype == torch.float16
    assert load_checkpoint(path)[1]["calibration"] == calibration
    store(path, path, {"scale": 1.0})
    assert read_description(path)["calibration"] == {"scale": 1.0}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["elsewhere", "model.safetensors"]


def test_only_a_safetensors_file_is_calibrated() -> None:
    for path, out in (("best.ckpt", "best.ckpt"), ("a.onnx", "b.safetensors"), ("a.safetensors", "b.onnx")):
        with pytest.raises(UserError, match=r"stored in a \.safetensors file, not in .*(ckpt|onnx)"):
            check_form(Path(path), Path(out))


def test_the_reliability_plot_is_a_picture_of_both(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sure = random.uniform(0.3, 1, 500)
    draw_reliability(tmp_path / "plot.png", sure, sure**2, random.random(500) < sure**2, title="words_b")
    with Image.open(tmp_path / "plot.png") as picture:
        picture.load()
        assert picture.format == "PNG" and picture.width > 800
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20
