"""Characters to ids and back, and nothing lost without a word."""

import string
import unicodedata

import pytest

from vitocr.codec import PRESETS, Charset, TextReport, codec_from_dict, open_charset
from vitocr.errors import UserError


def test_presets_are_the_sets_of_the_field_and_a_number_names_one_as_well() -> None:
    assert {name: len(open_charset(name)) for name in PRESETS} == {
        "36": 36,
        "62": 62,
        "94": 94,
        "94+space": 95,
        "korean": 2445,
    }
    assert open_charset(36) == open_charset("36")
    assert set(open_charset("94").characters) == {chr(code) for code in range(33, 127)}
    assert open_charset("36").decode(range(12)) == "0123456789ab"


@pytest.mark.parametrize("preset", PRESETS)
def test_text_comes_back_from_its_ids_and_ids_are_positions(preset: str) -> None:
    charset = open_charset(preset)
    text = "".join(reversed(charset.characters))
    assert charset.encode(text) == list(range(len(charset)))[::-1]
    assert charset.decode(charset.encode(text)) == text


def test_decomposed_hangul_is_the_same_text_as_composed() -> None:
    charset = open_charset("labels", labels=["한글 OK", "가"])
    decomposed = unicodedata.normalize("NFD", "한글 OK")
    assert len(decomposed) > 5
    assert charset.encode(decomposed) == charset.encode("한글 OK") and len(charset.encode(decomposed)) == 5
    assert charset.decode(charset.encode(decomposed)) == "한글 OK"


def test_a_mark_without_a_composed_form_is_a_character_of_its_own() -> None:
    charset = open_charset("labels", labels=["กำ", "q̇"])
    assert charset.decode(charset.encode("q̇ก")) == "q̇ก" and len(charset.encode("q̇")) == 2


def test_a_space_is_an_ordinary_character() -> None:
    charset = open_charset("94+space")
    assert charset.decode(charset.encode(" a  b ")) == " a  b "
    assert open_charset("94").encode("a b") == open_charset("94").encode("ab")


@pytest.mark.parametrize("content", ["a\nb\n가\n \n", "ab가 \n", "ab가 ", "\ufeffa\r\nb\r\n가\r\n ", "ab\n가 "])
def test_a_file_holds_a_character_a_line_or_many(tmp_path, content: str) -> None:
    file = tmp_path / "set.txt"
    file.write_bytes(unicodedata.normalize("NFD", content).encode())
    assert open_charset(file).characters == ("a", "b", "가", " ")


def test_a_file_with_a_character_twice_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "set.txt").write_text("a\nb\na\n")
    with pytest.raises(UserError, match=r"set\.txt.*'a' stands there twice"):
        open_charset(tmp_path / "set.txt")
    (tmp_path / "latin1.txt").write_bytes(b"\xe9\xff")
    with pytest.raises(UserError, match=r"latin1\.txt.*not in UTF-8"):
        open_charset(tmp_path / "latin1.txt")


def test_the_characters_of_labels_come_in_a_fixed_order_whatever_the_order_of_labels() -> None:
    assert open_charset("labels", labels=["bca", "ab\t"]).characters == ("a", "b", "c")
    assert open_charset("labels", labels=["가a", "c b"]) == open_charset("labels", labels=["b ", "c가a"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lables", r"Did you mean 'labels'\?"),
        ("94-space", r"Did you mean '94\+space'\?"),
        ("labels", "no training labels"),
    ],
)
def test_a_name_that_means_nothing_is_answered_with_what_does(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_charset(name)


@pytest.mark.parametrize("characters", [(), ("a", "a"), ("ab",), ("\t",), ("é", "e\u0301")])
def test_impossible_sets_are_refused(characters: tuple[str, ...]) -> None:
    with pytest.raises(UserError):
        Charset(characters)


@pytest.mark.parametrize("index", [-1, 36])
def test_an_id_outside_the_set_is_refused(index: int) -> None:
    with pytest.raises(UserError, match=rf"id {index} is outside 0\.\.35"):
        open_charset("36").decode([0, index])


def test_a_charset_survives_its_description() -> None:
    charset = open_charset("labels", labels=["한글 a\\\"'"])
    assert codec_from_dict(charset.to_dict()) == charset
    assert charset.to_dict() == {"type": "charset", "characters": " \"'\\a글한"}


def test_a_set_of_one_case_reads_the_other_as_the_same_letters_and_counts_them() -> None:
    lower, upper = open_charset("36"), Charset(tuple(string.ascii_uppercase))
    report = TextReport()
    assert lower.decode(lower.encode("HeLLo1", report)) == "hello1"
    assert report.folded == {"H": 1, "L": 2} and not report.dropped
    assert upper.decode(upper.encode("HeLLo")) == "HELLO"


def test_a_set_of_both_cases_or_none_folds_nothing() -> None:
    assert Charset(("a", "B")).encode("Ab") == []
    assert Charset(tuple("0123")).encode("a1") == [1]


def test_slots_keep_the_place_of_what_is_left_out() -> None:
    assert open_charset("36").slots("a-B c") == [10, -1, 11, -1, 12]


def test_what_is_dropped_folded_or_too_long_is_counted_and_said_with_examples() -> None:
    charset, report = open_charset("36"), TextReport(max_length=5)
    verdicts = [report.add(text, charset) for text in ["plain", "Don't", "€€", "absolutely", "wor-ld", "it's"]]
    assert verdicts == [None, None, "nothing left", "too long", None, None]
    assert report.texts == 6
    assert report.touched == {"dropped": 4, "folded": 1, "nothing left": 1, "too long": 1}
    assert report.dropped == {"'": 2, "€": 2, "-": 1} and report.folded == {"D": 1}
    lines = "\n".join(report.lines())
    for part in ("4 of 6 labels", '"\'" 2x', "'D' 1x", "longer than 5", "'absolutely'", '"Don\'t"'):
        assert part in lines
    assert len(report.lines()) == 4


def test_nothing_is_said_of_texts_that_fit() -> None:
    report = TextReport(max_length=25)
    open_charset("94").encode("Fine!", report)
    assert report.lines() == [] and report.texts == 1
