"""What may be read: regular expressions, whitelists and lexicons as automata over the model's characters."""

import random
import re
import string
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from constraints_kit import all_texts, any_pattern

from vitocr.codec import PRESETS
from vitocr.constraints import Constraint, build
from vitocr.constraints.automaton import Automaton
from vitocr.constraints.lexicon import Trie
from vitocr.errors import UserError

FEW = "ab1"


def states_after(automaton: Automaton, text: tuple[int, ...]) -> int:
    state = automaton.start
    for index in text:
        state = int(automaton.follow(state)[index]) if state >= 0 else -1
    return state


def columns_of(text: tuple[int, ...]) -> int:
    """What CTC needs to write it: a column a character, and one between two that are the same."""
    return len(text) + sum(a == b for a, b in pairwise(text))


def assert_reads(automaton: Automaton, language: set[tuple[int, ...]], *, longest: int, symbols: int) -> None:
    """It accepts the language, of texts up to `longest`; and everywhere it knows how much is missing to the end."""
    for text in all_texts(symbols, longest):
        state = states_after(automaton, text)
        ways_on = [other for other in language if other[: len(text)] == text]
        if state < 0:
            assert not ways_on, text
            continue
        here = np.array([state])
        assert bool(automaton.accepts(here)[0]) == (text in language), text
        missing = int(automaton.fewest(here)[0])
        columns, only = (int(found[0]) for found in automaton.columns(here))
        columns += only == text[-1] if text else 0
        if ways_on:
            assert missing == min(len(other) for other in ways_on) - len(text), text
            needed = [columns_of(other) - columns_of(text) for other in ways_on]
            assert min(needed) >= columns
            assert min(needed) == columns or len(text) + columns > longest, text  # a longer text may need fewer
        else:
            assert len(text) + missing > longest, text  # there is one, too long to be listed


def built(characters: str, **asked: object) -> Constraint:
    constraint = build(tuple(characters), **asked)  # type: ignore[arg-type]
    assert constraint is not None
    return constraint


def automaton_of(constraint: Constraint) -> Automaton:
    assert constraint.automaton is not None
    return constraint.automaton


# --- regular expressions --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_a_pattern_means_what_it_means_to_python(seed: int) -> None:
    pattern = any_pattern(random.Random(seed), FEW)
    fits = re.compile(pattern).fullmatch
    language = {ids for ids in all_texts(3, 5) if fits("".join(FEW[i] for i in ids))}
    if language:
        assert_reads(automaton_of(built(FEW, match=pattern)), language, longest=5, symbols=3)


@pytest.mark.parametrize(
    "pattern",
    [
        r"[A-Z]{2}\d{4}",
        r"^\d{1,3}(?:\.\d{1,3}){3}$",
        r"\AINV-\d+\Z",
        r"(?i)[a-f0-9]{2}(:[A-F0-9]{2})*",
        r"[]a-]+",
        r"[^]\w]x{,2}y{}z{2",
        r"(?P<year>\d\d)\x2d(?i:q)[1-4]|",
        r"\N{DIGIT ONE}\u0041\.\$\^\|",
        r"(a*)*b",
        r"(?s:.)\s\S\D\W",
        r"((a|b)+?c){0,2}",
    ],
)
def test_what_patterns_are_made_of(pattern: str) -> None:
    """On texts that are a few edits away from matching ones, so that both kinds come up."""
    characters = string.digits + string.ascii_letters + string.punctuation + " "
    constraint, fits = built(characters, match=pattern), re.compile(pattern).fullmatch
    pick = random.Random(0)
    seeds = [
        "AB1234",
        "192.168.1.20",
        "INV-77",
        "0a:F3",
        "]a-",
        "-xxy{}z{2",
        "24-Q3",
        "24-q3",
        "1A.$^|",
        "aab",
        "bbc",
        "",
    ]
    seeds += ["x y1-", "abcabc", "#y{}z{2"]
    said = set()
    for _ in range(400):
        text = list(pick.choice(seeds))
        for _ in range(pick.randrange(3)):
            at = pick.randrange(len(text) + 1)
            text[at : at + pick.randrange(2)] = pick.choice(characters)
        expected = fits("".join(text)) is not None
        assert constraint.holds([characters.index(c) for c in text]) == expected, "".join(text)
        said.add(expected)
    assert said == {True, False}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(\d)\1", r"'\\1', a reference back .* at character 5"),
        (r"a(?=b)", r"'\(\?=' at character 2"),
        (r"(?<!a)b", r"'\(\?<!' at character 1"),
        (r"\bword", r"'\\b', a position"),
        (r"a^b", r"'\^' in the middle at character 2"),
        (r"(a$)|b", r"'\$' in the middle at character 3"),
        (r"a*+b", "a possessive repetition at character 2"),
        (r"(?>ab)", r"'\(\?>' at character 1"),
        (r"(?x) a", "the flag 'x'"),
        (r"[a-", "is not a regular expression: unterminated"),
        (r"a{3000}", "too large"),
        (r"(?:\d{50}){50}", "too large"),
    ],
)
def test_what_a_reading_cannot_be_held_to_is_named_with_its_place(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(tuple(PRESETS["94"]), match=pattern)


def test_a_pattern_for_which_the_characters_are_missing_says_which() -> None:
    with pytest.raises(
        UserError, match=r"matches no text .* no character for \[A-Z\].* begin the pattern with \(\?i\)"
    ):
        build(tuple(PRESETS["36"]), match=r"[A-Z]{2}\d{4}")
    lower = built(PRESETS["36"], match=r"(?i)[A-Z]{2}\d{4}")
    assert lower.holds([PRESETS["36"].index(c) for c in "ab1234"])
    with pytest.warns(UserWarning, match=r"no character for é, so what needs one is never read"):
        assert built(PRESETS["36"], match="caf(é|e)").notes


def test_korean_is_read_by_the_character() -> None:
    characters = PRESETS["korean"]
    constraint = built(characters, match=r"\d{2,3}[가-힣]\d{4}")
    assert constraint.holds([characters.index(c) for c in "123가4567"])
    assert not constraint.holds([characters.index(c) for c in "123A4567"])


# --- whitelists and lexicons ----------------------------------------------------------------------------


def test_a_whitelist_allows_its_characters_and_no_others() -> None:
    with pytest.warns(UserWarning, match="1 of 3 characters of the whitelist .* é"):
        constraint = built(FEW, whitelist="1éb")
    assert_reads(automaton_of(constraint), {t for t in all_texts(3, 3) if 0 not in t}, longest=3, symbols=3)
    assert not built(PRESETS["36"], whitelist="XYZ").holds(
        [0]
    )  # one case is as good as the other, where one is missing
    with pytest.raises(UserError, match="knows none of these characters"):
        build(tuple(FEW), whitelist="é")


@pytest.mark.parametrize("seed", range(10))
def test_a_lexicon_holds_its_words_and_no_others(seed: int) -> None:
    pick = random.Random(seed)
    texts = list(all_texts(3, 4))[1:]
    language = set(pick.sample(texts, pick.choice([1, 2, 10, 100])))
    words = ["".join(FEW[i] for i in ids) for ids in language]
    constraint = built(FEW, lexicon=words + words[:1])
    assert_reads(automaton_of(constraint), language, longest=4, symbols=3)


def test_together_all_must_hold() -> None:
    texts = list(all_texts(3, 4))
    words = ["".join(FEW[i] for i in ids) for ids in texts[1::2]]
    both = built(FEW, match=r"\w*\d", whitelist="a1", lexicon=words)
    language = {ids for ids in texts[1::2] if ids[-1] == 2 and 1 not in ids}
    assert_reads(automaton_of(both), language, longest=4, symbols=3)
    pattern = built(FEW, match=r"\w*\d", whitelist="a1")
    assert_reads(automaton_of(pattern), {t for t in texts if t and t[-1] == 2 and 1 not in t}, longest=4, symbols=3)
    soft = built(FEW, match=r"\w*\d", lexicon=words, bonus=2)
    assert soft.bonus == 2 and soft.words is not None and not soft.holds([0]) and soft.holds([2, 2, 2, 2])
    with pytest.raises(UserError, match="None of the 2 words of the lexicon satisfies"):
        build(tuple(FEW), match=r"\d", lexicon=["a", "b"])


def test_words_come_from_a_file_in_any_normal_form_and_what_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffCoffee\r\ncafe\u0301\n\n  tea \nÄther\n".encode())
    with pytest.warns(UserWarning, match=r"1 of 5 words of the lexicon are empty.* 1 of 5 .* \(Ä\).* such as 'Äther'"):
        constraint = built(PRESETS["94"] + "é", lexicon=path)
    known = PRESETS["94"] + "é"
    for word, held in (("Coffee", True), ("café", True), ("tea", True), ("coffee", False), ("Coff", False)):
        assert constraint.holds([known.index(c) for c in word]) == held
    folded = built(PRESETS["36"], lexicon=["Coffee"])
    assert folded.holds([PRESETS["36"].index(c) for c in "coffee"])
    with pytest.raises(UserError, match="holds no word that can be read"):
        build(tuple(FEW), lexicon=["", "xyz"])
    with pytest.raises(UserError, match=r"no lexicon at .*word.txt.* Did you mean 'words.txt'"):
        build(tuple(FEW), lexicon=tmp_path / "word.txt")


def test_options_that_make_no_sense_are_refused_and_none_is_no_constraint() -> None:
    assert build(tuple(FEW)) is None
    with pytest.raises(UserError, match="A bonus is given to the words of a lexicon"):
        build(tuple(FEW), match="a", bonus=1.0)
    with pytest.raises(UserError, match="bonus=-1"):
        build(tuple(FEW), lexicon=["a"], bonus=-1)


def test_a_hundred_thousand_words_are_a_few_megabytes_and_do_not_keep_anyone_waiting() -> None:
    pick = random.Random(0)
    words = {"".join(pick.choices(string.ascii_lowercase, k=pick.randint(3, 12))) for _ in range(100_000)}
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trie = automaton_of(built(PRESETS["94"], lexicon=words))
    assert time.process_time() - began < 5  # a second or less on a machine that has nothing else to do
    assert isinstance(trie, Trie)
    assert sum(part.nbytes for part in vars(trie).values() if isinstance(part, np.ndarray)) < 25e6
