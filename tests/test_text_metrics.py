"""Reading measured the way the field does, and by people's own standards."""

import json
import unicodedata

import numpy as np
import pytest

from vitocr.errors import UserError
from vitocr.text_metrics import (
    edit_distance,
    edits,
    normalise,
    protocol_for,
    right_words,
    summarise_sets,
    summarise_text,
)


@pytest.mark.parametrize(
    ("protocol", "kept"),
    [("36", "its100cafk"), ("62", "Its100cafK"), ("94", "It's-100%caf,K"), ("exact", "It's -100% café,K")],
)
def test_a_protocol_keeps_what_it_judges(protocol: str, kept: str) -> None:
    assert normalise("It's -100% café,K", protocol) == kept


def test_an_unknown_protocol_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no protocol 'exakt'\. Did you mean 'exact'\?"):
        normalise("a", "exakt")


def test_exact_means_the_same_text_however_it_is_composed() -> None:
    assert right_words([unicodedata.normalize("NFD", "한글é")], ["한글é"], "exact").tolist() == [1.0]


def test_the_same_reading_is_right_or_wrong_by_the_protocol() -> None:
    right = {p: right_words(["its ok"], ["It's OK"], p)[0] for p in ("36", "62", "94", "exact")}
    assert right == {"36": 1.0, "62": 0.0, "94": 0.0, "exact": 0.0}
    assert right_words(["It'sOK"], ["It's OK"], "94")[0] == 1.0


def test_a_word_without_a_label_under_a_protocol_is_left_out_and_counted() -> None:
    summary = summarise_text(["a", "", "b"], ["a", "!!", "한"])
    assert summary["left_out"] == {"36": 2, "62": 2, "94": 1, "exact": 0}
    assert summary["accuracy"] == {"36": 1.0, "62": 1.0, "94": 0.5, "exact": pytest.approx(1 / 3)}
    korean = summarise_text(["한글"], ["한글"], protocol="36")
    assert korean["accuracy"]["36"] is None and korean["accuracy_95"]["36"] is None and korean["ned"] is None
    assert korean["accuracy"]["exact"] == 1.0


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("한글", "한굴", 1)],
)
def test_edit_distance(left: str, right: str, distance: int) -> None:
    assert edit_distance(left, right) == edit_distance(right, left) == len(edits(left, right)) == distance


def test_edits_name_what_was_read_as_what() -> None:
    assert edits("HOTEL", "H0TEL") == [("O", "0")]
    assert edits("coffee", "cofee") in ([("f", "")],) and edits("cat", "cart") == [("", "r")]


def test_error_rates_are_means_over_words_and_over_characters() -> None:
    summary = summarise_text(["abcd", "x", "abcdef"], ["abcd", "y", "abcd"])
    assert summary["ned"] == pytest.approx((0 + 1 + 2 / 6) / 3)
    assert summary["cer"] == pytest.approx(3 / 9)
    assert summary["ned_95"][0] <= summary["ned"] <= summary["ned_95"][1]


def test_error_rates_follow_the_protocol_that_is_asked_for() -> None:
    assert summarise_text(["abc"], ["ABC"])["cer"] == 1.0
    assert summarise_text(["abc"], ["ABC"], protocol="36")["cer"] == 0.0


def test_accuracy_by_length_and_the_worst_confusions() -> None:
    summary = summarise_text(["H0T", "cat", "D0G", "no", "1l"], ["HOT", "cat", "DOG", "no", "ll"])
    assert summary["by_length"] == {"2": {"n": 2, "accuracy": 0.5}, "3": {"n": 3, "accuracy": pytest.approx(1 / 3)}}
    assert summary["confusions"] == [
        {"label": "O", "read": "0", "count": 2},
        {"label": "l", "read": "1", "count": 1},
    ]
    assert len(summarise_text(["H0T", "1l"], ["HOT", "ll"], worst=1)["confusions"]) == 1


def test_calibration_compares_confidence_with_how_often_it_is_right() -> None:
    labels = ["a"] * 10
    readings = ["a"] * 8 + ["b"] * 2
    assert summarise_text(readings, labels, [0.8] * 10)["ece"] == pytest.approx(0.0, abs=1e-9)
    assert summarise_text(readings, labels, [1.0] * 10)["ece"] == pytest.approx(0.2)
    assert "ece" not in summarise_text(readings, labels)


def test_intervals_cover_the_figure_narrow_with_more_words_and_repeat() -> None:
    def interval(words: int) -> list[float]:
        right = np.arange(words) % 5 > 0
        return summarise_text(["a" if ok else "b" for ok in right], ["a"] * words)["accuracy_95"]["36"]

    small, large = interval(100), interval(2000)
    assert small[0] < 0.8 < small[1] and large[0] < 0.8 < large[1]
    assert large[1] - large[0] < small[1] - small[0] < 0.2
    assert interval(100) == small


def test_sets_come_together_as_a_mean_of_sets_and_as_a_mean_of_words() -> None:
    sets = {
        "easy": summarise_text(["ab", "cd", "ef"], ["ab", "cd", "ef"]),
        "hard": summarise_text(["a!"], ["xy"]),
        "korean": summarise_text(["한글"], ["한글"]),
    }
    figures = summarise_sets(sets)
    assert list(figures["sets"]) == ["easy", "hard", "korean"] and figures["n"] == 5
    assert figures["mean"]["accuracy"]["36"] == 0.5 and figures["weighted"]["accuracy"]["36"] == 0.75
    assert figures["mean"]["accuracy"]["exact"] == pytest.approx(2 / 3)
    assert figures["weighted"]["accuracy"]["exact"] == pytest.approx(4 / 5)
    assert figures["mean"]["cer"] == pytest.approx(1 / 3) and figures["weighted"]["cer"] == pytest.approx(2 / 10)
    assert json.loads(json.dumps(figures)) == figures


def test_one_protocol_fits_each_character_set() -> None:
    assert protocol_for("abc019") == "36" and protocol_for("abC") == "62" and protocol_for("a!") == "94"
    assert protocol_for("a b") == protocol_for("한") == "exact"


def test_no_readings_at_all_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="No readings"):
        summarise_text([], [])
    with pytest.raises(ValueError, match="1 readings of 2 labels"):
        right_words(["a"], ["a", "b"], "36")
