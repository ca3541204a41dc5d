"""Whether there is anything to read: what the encoder saw has a say in how sure a reading is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bars_kit import LETTERS, BarReader, bars, reader_of_bars
from export_kit import graphs_of, small_model
from numpy.typing import NDArray
from PIL import Image

from vitocr.calibrate import calibrate_text, learn_blanks
from vitocr.calibration import Calibration
from vitocr.data.text_sources import open_source
from vitocr.inference.run_onnx import Graphs
from vitocr.inference.run_torch import TorchModel
from vitocr.presence import FEWEST, Presence, fit_presence
from vitocr.results import Reading

CHANNELS = 12


class Painter(BarReader):
    """Reads bars on a wall as surely as those on paper, but its encoder sees which is which: walls are not blue."""

    def read(self, image: NDArray[np.floating[Any]]) -> tuple[Any, ...]:
        noise = np.random.default_rng(int(image.sum())).normal(size=CHANNELS)
        noise[3] += 4 * (image[2].mean() / 255 - 0.5)
        return *super().read(image)[:5], noise


def wall(text: str) -> NDArray[np.uint8]:
    image = bars(text)
    image[:, :, 2] = 0
    return image


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    random, lines = np.random.default_rng(0), []
    for n in range(2 * FEWEST):
        text = "".join(random.choice(list(LETTERS), 1 + n % 7))
        Image.fromarray(bars(text)).save(folder / f"{n}.png")
        lines.append(f"{n}.png\t{text if n % 10 else text + 'a'}\n")
    (folder / "labels.tsv").write_text("".join(lines))
    return folder


def walls(count: int, *, seed: int = 1) -> list[NDArray[np.uint8]]:
    random = np.random.default_rng(seed)
    return [wall("".join(random.choice(list(LETTERS), random.integers(1, 4)))) for _ in range(count)]


def learned(words: Path, blanks: list[NDArray[np.uint8]], runner: BarReader) -> Calibration:
    options: Any = {"batch_size": 64, "watch": lambda items, _: items}
    predictor = reader_of_bars(runner)
    found = calibrate_text(predictor, [words], protocol="36", **options).calibration
    return learn_blanks(predictor, Calibration.from_dict(found), [open_source(words)], blanks, share=0.01, **options)


def test_two_kinds_of_summaries_are_told_apart_and_rare_ones_count_as_much_as_common_ones() -> None:
    random = np.random.default_rng(0)
    apart = np.zeros(CHANNELS)
    apart[2] = 2.0
    found = fit_presence(random.normal(size=(2000, CHANNELS)) + apart, random.normal(size=(150, CHANNELS)) - apart)
    text, none = found(random.normal(size=(500, CHANNELS)) + apart), found(random.normal(size=(500, CHANNELS)) - apart)
    assert (text > 0.5).mean() > 0.95 and (none < 0.5).mean() > 0.95
    again = Presence.from_dict(json.loads(json.dumps(found.to_dict())))
    np.testing.assert_allclose(again(apart), found(apart), rtol=1e-3)


def test_what_is_read_off_a_wall_is_withheld_and_words_as_long_are_not(words: Path) -> None:
    calibration = learned(words, walls(4 * FEWEST), Painter())
    assert calibration.presence is not None
    told = json.loads(json.dumps(calibration.to_dict()))
    reader = reader_of_bars(Painter(), calibration=told)
    on_walls = [reading for reading in reader(walls(200, seed=2)) if isinstance(reading, Reading)]
    on_paper = [reading for reading in reader([bars(text) for text in LETTERS]) if isinstance(reading, Reading)]
    assert sum(bool(reading.text) for reading in on_walls) <= 6
    assert sum(bool(reading.text) for reading in on_paper) >= 9
    assert all(reading.guess for reading in on_walls if not reading.text), "what it would have been is still told"
    by_confidence_alone = learned(words, walls(4 * FEWEST), BarReader())
    assert by_confidence_alone.presence is None, "a runner that tells no summary leaves the threshold alone"
    assert by_confidence_alone.threshold > 0.8 > calibration.threshold


def test_too_few_images_teach_a_threshold_and_nothing_more(words: Path) -> None:
    calibration = learned(words, walls(FEWEST), Painter())
    assert calibration.presence is None and calibration.threshold > 0


def test_a_reading_is_as_unlikely_as_there_being_any_text_and_one_part_with_text_will_do() -> None:
    weights = np.zeros(CHANNELS)
    weights[3] = 1.0
    calibration = Calibration(presence=Presence(weights, 0.0))
    assert calibration.of_text([np.zeros(CHANNELS)]) == calibration.of_text([weights]) == 1.0, "words keep their own"
    assert calibration.of_text([-weights]) == pytest.approx(np.exp(-1))
    one_part_has_text = [np.zeros(CHANNELS), 20 * weights, -20 * weights]
    assert calibration.of_text(one_part_has_text) == pytest.approx(1.0)
    assert Calibration().of_text([np.zeros(0)]) == 1.0


@pytest.mark.parametrize("name", ["ctc", "transformer", "permuted", "lstm"])
def test_an_exported_model_tells_the_same_mean_of_tokens(name: str) -> None:
    model = small_model(name, steps=0)
    pixels = np.random.default_rng(0).normal(size=(3, 3, *model.spec["image_size"])).astype(np.float32)
    exported: Graphs = graphs_of(model)
    with torch.inference_mode():
        tokens = model.backbone(torch.from_numpy(pixels))
    for options in ({}, {"n_best": 2}):
        for runner in (TorchModel(model, reads_text=True), exported):
            told = np.stack([np.asarray(row[5]) for row in runner.answers(pixels, **options)])
            np.testing.assert_allclose(told, tokens.mean(dim=1).numpy(), atol=1e-5)
