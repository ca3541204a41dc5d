"""Reading pictures: turned, long, blank and under rules. The model is one that reads bars, without a network."""

import concurrent.futures
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bars_kit import FRAME, LETTERS, SURE, BarReader, bars, reader_of_bars, shade
from PIL import Image

from vitocr.calibration import Calibration
from vitocr.errors import UserError
from vitocr.inference.orient import TURNS, surest, turned
from vitocr.results import Failure, Reading

LONG = "abcdefghijjihgfedcbaacegibdfhjaabbccddee"  # 40 letters, 20 heights wide


def assert_boxes_hold_their_letters(reading: Reading, image: np.ndarray) -> None:
    assert len(reading.characters) == len(reading.text)
    for character in reading.characters:
        x0, y0, x1, y1 = character.box
        assert 0 <= x0 < x1 <= image.shape[1] and 0 <= y0 < y1 <= image.shape[0]
        inside = image[round(y0) : max(round(y1), 1), round(x0) : round(x1), 0]
        assert np.median(inside) == shade(character.text)


# --- turned ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lying", TURNS)
def test_a_word_is_read_however_it_lies_and_its_boxes_are_those_of_the_picture(lying: int) -> None:
    image = turned(bars("bdfhj"), lying)
    reading = reader_of_bars()(image, any_rotation=True)
    assert isinstance(reading, Reading) and reading.text == "bdfhj"
    assert (reading.rotation + lying) % 360 == 0  # turned by that, clockwise, it stands upright
    assert reader_of_bars()(turned(image, reading.rotation)).text == "bdfhj"
    assert reading.confidence == pytest.approx(SURE**5)
    assert_boxes_hold_their_letters(reading, image)


def test_unless_asked_a_picture_is_read_as_it_stands() -> None:
    runner = BarReader()
    reading = reader_of_bars(runner)(turned(bars("abc"), 180))
    assert reading.text == "j" and reading.rotation == 0 and runner.batches == [1]


@pytest.mark.parametrize("lying", [90, 270])
def test_a_crop_much_higher_than_wide_is_read_on_its_side_too(lying: int) -> None:
    image = turned(bars("bdfhj"), lying)
    reading = reader_of_bars()(image)
    assert reading.text == "bdfhj" and (reading.rotation + lying) % 360 == 0
    assert_boxes_hold_their_letters(reading, image)
    assert reader_of_bars()(image, tall_crops=False).text != "bdfhj"


def test_only_tall_crops_are_looked_at_three_times() -> None:
    def looks(height: int, width: int, **options: Any) -> list[int]:
        runner = BarReader()
        reader_of_bars(runner)(np.full((height, width, 3), 255, np.uint8), **options)
        return runner.batches

    assert looks(60, 40) == [3] and looks(59, 40) == looks(20, 80) == [1]
    assert looks(60, 40, tall_crops=False) == [1] and looks(60, 40, any_rotation=True) == [4]


def test_the_four_orientations_of_a_picture_are_one_batch() -> None:
    runner = BarReader()
    reader_of_bars(runner)(bars("abc"), any_rotation=True)
    assert runner.batches == [4]


def test_batches_hold_as_many_views_as_they_may_and_every_picture_gets_its_own() -> None:
    words = ["".join(letters) for letters in itertools.permutations("abcd", 3)]
    pictures = [turned(bars(word), TURNS[n % 4]) for n, word in enumerate(words)]
    for batch_size in (1, 4, 6, 64):
        runner = BarReader()
        found = reader_of_bars(runner)(pictures, any_rotation=True, batch_size=batch_size)
        assert [reading.text for reading in found] == words  # type: ignore[union-attr]
        assert max(runner.batches) <= batch_size and sum(runner.batches) == 4 * len(words)


def reading(text: str, confidence: float, **more: Any) -> Reading:
    return Reading(text, confidence, (), **more)


def test_the_surer_orientation_wins_and_in_doubt_the_picture_stands_upright() -> None:
    assert surest({0: reading("lll", 0.2), 180: reading("NOM", 0.9)}).rotation == 180
    assert surest({0: reading("NOON", 0.9), 180: reading("NOON", 0.9)}).rotation == 0
    assert surest({0: reading("NOON", 0.90), 180: reading("NOON", 0.91)}).rotation == 0


def test_a_long_word_is_not_beaten_by_a_stroke_that_its_side_looks_like() -> None:
    word = reading("international", 0.4)  # 93 % a character
    assert surest({0: word, 90: reading("l", 0.6)}).text == "international"


def test_seeing_nothing_under_other_turns_refutes_no_text_but_does_refute_a_wild_guess() -> None:
    nothing = reading("", 0.95)
    assert surest({0: nothing, 180: reading("word", 0.6), 90: nothing, 270: nothing}).text == "word"
    assert surest({0: nothing, 180: reading("i", 0.2), 90: nothing, 270: nothing}).text == ""
    assert surest({0: nothing, 180: reading("i", 0.2), 90: nothing, 270: nothing}).rotation == 0


def test_an_orientation_in_which_no_text_satisfies_the_rule_does_not_win() -> None:
    assert surest({0: reading("", 0.0, unmatched=True), 180: reading("AB12", 0.01)}).text == "AB12"


# --- long -----------------------------------------------------------------------------------------------


def test_a_line_longer_than_the_frame_is_read_in_windows_with_boxes_of_the_whole() -> None:
    runner = BarReader()
    image = bars(LONG)
    reading = reader_of_bars(runner)(image)
    assert reading.text == LONG and runner.batches[0] > 3
    assert_boxes_hold_their_letters(reading, image)
    assert reading.confidence == pytest.approx(SURE ** len(LONG))


def test_a_line_is_squeezed_where_that_is_wanted() -> None:
    runner = BarReader(longest=12)
    assert reader_of_bars(runner)(bars(LONG), long_lines=False).text != LONG
    assert runner.batches == [1]


def test_what_is_long_depends_on_the_shape_the_model_was_trained_for() -> None:
    word = bars("abcdefghij", letter=20)  # 6.25 heights
    runner = BarReader()
    assert reader_of_bars(runner)(word).text == "abcdefghij" and runner.batches == [1]


@pytest.mark.parametrize("lying", TURNS)
def test_a_long_line_may_lie_in_any_way(lying: int) -> None:
    image = turned(bars(LONG), lying)
    reading = reader_of_bars()(image, any_rotation=True)
    assert reading.text == LONG and (reading.rotation + lying) % 360 == 0
    assert_boxes_hold_their_letters(reading, image)


def test_a_file_that_cannot_be_read_leaves_the_turned_and_long_ones_beside_it_alone(tmp_path: Path) -> None:
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"these are not pixels")
    good = tmp_path / "good.png"
    Image.fromarray(turned(bars("cab"), 90)).save(good)
    inputs = [torn, bars(LONG), torn, good, bars(""), torn]
    for batch_size in (1, 5, 64):
        found = reader_of_bars()(inputs, any_rotation=True, batch_size=batch_size)
        assert [type(result) for result in found] == [Failure, Reading, Failure, Reading, Reading, Failure]
        assert [result.text for result in found if isinstance(result, Reading)] == [LONG, "cab", ""]
        assert found[0].source == str(torn) and found[3].source == str(good)


# --- confidence, and nothing to read --------------------------------------------------------------------


def test_confidences_are_calibrated_by_what_the_description_holds() -> None:
    stored = {"scale": 0.5, "shift": -0.4, "words": 1000}
    plain, told = reader_of_bars()(bars("abc")), reader_of_bars(calibration=stored)(bars("abc"))
    assert told.text == plain.text and plain.confidence == pytest.approx(SURE**3)
    assert told.confidence == pytest.approx(float(Calibration(0.5, -0.4)(SURE**3)))
    assert told.characters == plain.characters


def test_below_the_threshold_there_is_nothing_to_read_but_the_guess_is_told() -> None:
    stored = {"scale": 1.0, "shift": 0.0, "words": 1000, "threshold": SURE**3 - 1e-3}
    predictor = reader_of_bars(calibration=stored)
    short, long = predictor([bars("abc"), bars("abcd")])
    assert isinstance(short, Reading) and short.text == "abc" and short.guess is None
    assert isinstance(long, Reading) and (long.text, long.guess, long.characters) == ("", "abcd", ())
    assert long.confidence == pytest.approx(SURE**4)
    assert predictor(bars("abcd"), threshold=0).text == "abcd"
    assert reader_of_bars()(bars("abcd"), threshold=0.9).guess == "abcd"


def test_a_picture_without_text_is_read_as_such() -> None:
    for options in ({}, {"any_rotation": True}):
        reading = reader_of_bars()(bars(""), **options)
        assert (reading.text, reading.guess, reading.rotation) == ("", None, 0)


# --- rules and several readings -------------------------------------------------------------------------


class Searching(BarReader):
    """Finds given texts, as a beam search would: with their confidences, best first, behind the usual fields."""

    def __init__(self, found: list[tuple[str, float]]) -> None:
        super().__init__()
        self.found = [([LETTERS.index(letter) for letter in text], share) for text, share in found]

    def read(self, image: np.ndarray) -> tuple[Any, ...]:
        return (*super().read(image), self.found)


def test_rules_reach_the_model_and_its_other_readings_come_back() -> None:
    runner = Searching([("abc", 0.6), ("abd", 0.3)])
    found = reader_of_bars(runner)(bars("abc"), match="[a-d]{3}", n_best=2, beam=7)
    assert found.text == "abc" and found.alternatives == (("abc", 0.6), ("abd", 0.3)) and not found.unmatched
    (asked,) = runner.asked
    assert asked["n_best"] == 2 and asked["beam"] == 7
    assert asked["constraint"].holds([0, 1, 2]) and not asked["constraint"].holds([0, 1, 9])


def test_without_rules_the_model_is_asked_for_nothing_else() -> None:
    runner = BarReader()
    reader_of_bars(runner)(bars("abc"))
    assert runner.asked == [{}]


def test_where_nothing_satisfies_the_rule_the_reading_says_so() -> None:
    found = reader_of_bars(Searching([]))(bars("abc"), whitelist="xyzj")
    assert (found.text, found.confidence, found.unmatched) == ("", 0.0, True)


def test_a_rule_is_for_the_whole_of_a_long_line_not_for_its_windows() -> None:
    runner = Searching([("abc", 0.5)])
    reader_of_bars(runner)(bars(LONG), match="[a-j]+")
    assert runner.batches == [1]


def test_other_readings_are_calibrated_too() -> None:
    runner = Searching([("abc", 0.6), ("abd", 0.3)])
    calibration = {"scale": 2.0, "shift": 0.5}
    found = reader_of_bars(runner, calibration=calibration)(bars("abc"), n_best=2)
    expected = [float(Calibration(2.0, 0.5)(share)) for share in (0.6, 0.3)]
    assert [share for _, share in found.alternatives] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_best": 0}, "n_best=0: give a number from 1 up"),
        ({"beam": 0}, "beam=0"),
        ({"lexicon_bonus": 2.0}, "there is no lexicon"),
        ({"batch_size": 0}, "a batch has at least one image"),
    ],
)
def test_what_cannot_be_asked_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        reader_of_bars()(bars("abc"), **options)


# --- a single picture -----------------------------------------------------------------------------------


def test_a_single_picture_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a thread pool was made")

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", refuse)
    assert reader_of_bars()(bars("abc")).text == "abc"
    assert [found.text for found in reader_of_bars()([bars("abc")])] == ["abc"]  # type: ignore[union-attr]
    with pytest.raises(AssertionError, match="thread pool"):
        reader_of_bars()([bars("abc"), bars("abd")])


def test_the_frame_of_the_kit_is_the_usual_one() -> None:
    """The windows above are those of models that ship: 4 to 1."""
    assert FRAME[1] / FRAME[0] == 4
