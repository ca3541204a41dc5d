"""The searches find what trying everything finds, where everything can be tried; no network takes part."""

import random
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from constraints_kit import all_texts, any_pattern

from vitocr.constraints import Constraint, build
from vitocr.constraints.automaton import Ids
from vitocr.constraints.beam import beam_search
from vitocr.constraints.ctc_beam import ctc_beam_search
from vitocr.constraints.found import Floats, Found, log_softmax
from vitocr.constraints.search import Asked, Encoded, search
from vitocr.errors import UserError
from vitocr.inference.numpy_decode import decode, text_probability

FEW = "ab1"
LONGEST = 4
EVERYTHING = 150  # a beam wider than there are texts: nothing is ever dropped

pytestmark = pytest.mark.filterwarnings("ignore:match=")  # patterns at random may ask for what no character is

Chances = dict[tuple[int, ...], float]


@cache
def dice(image: int, ids: tuple[int, ...], sharp: float) -> tuple[Floats, Floats]:
    """Logits (4,) of what comes next and weights (6,) of where it is seen: random, but always the same."""
    drawn = np.random.default_rng([image, len(ids), *ids])
    return sharp * drawn.normal(size=4), drawn.dirichlet(np.ones(6))


class Dice:
    """A decoder that throws dice, over three symbols and the end."""

    def __init__(self, images: Iterable[int], *, sharp: float = 2.0) -> None:
        self.texts: list[tuple[int, tuple[int, ...]]] = [(image, ()) for image in images]
        self.sharp, self.begun = sharp, False

    def step(self, previous: Ids) -> tuple[Floats, Floats]:
        if self.begun:
            self.texts = [(image, (*ids, int(p))) for (image, ids), p in zip(self.texts, previous, strict=True)]
        self.begun = True
        logits, looked = zip(*(dice(image, ids, self.sharp) for image, ids in self.texts), strict=True)
        return np.stack(logits).astype(np.float32), np.stack(looked).astype(np.float32)

    def keep(self, rows: Ids, *, same_images: bool) -> None:
        kept = [self.texts[row] for row in rows.tolist()]
        if same_images:
            assert [image for image, _ in kept] == [image for image, _ in self.texts]
        self.texts = kept


def chances_of_dice(image: int, *, sharp: float = 2.0) -> Chances:
    """Of every text up to `LONGEST` its probability."""
    found: Chances = {}
    begins = {(): 1.0}
    for ids in all_texts(3, LONGEST):
        *next_one, end = np.exp(log_softmax(dice(image, ids, sharp)[0]))
        found[ids] = begins[ids] * end
        begins |= {(*ids, symbol): begins[ids] * chance for symbol, chance in enumerate(next_one)}
    return found


def columns(images: int, *, columns: int = 5, symbols: int = 2, sharp: float = 1.5, seed: int = 0) -> Floats:
    return sharp * np.random.default_rng(seed).normal(size=(images, columns, symbols + 1)).astype(np.float32)


def chances_of_columns(logits: Floats) -> Chances:
    """Of every text its probability, summed over all that columns (T, S + 1) may say one by one."""
    probs = np.exp(log_softmax(logits))
    found: Chances = defaultdict(float)
    T, blank = len(probs), probs.shape[1] - 1
    for way in all_texts(blank + 1, T):
        if len(way) == T:
            said = [symbol for place, symbol in enumerate(way) if place == 0 or way[place - 1] != symbol]
            found[tuple(symbol for symbol in said if symbol != blank)] += float(np.prod(probs[np.arange(T), way]))
    return dict(found)


def encoded(*, images: list[int] | None = None, logits: Floats | None = None, rows: int = 1) -> Encoded:
    many = len(images) if images is not None else len(logits) if logits is not None else 0
    start = None if images is None else lambda: Dice(images)
    return Encoded(many, rows, logits, None, start, 3, LONGEST)


def ranked(chances: Chances, fits: Iterable[tuple[int, ...]]) -> list[tuple[tuple[int, ...], float]]:
    """The texts that fit, best first, with their share of all that fit."""
    kept = {ids: chances[ids] for ids in fits if ids in chances}
    total = sum(kept.values())
    return sorted(((ids, chance / total) for ids, chance in kept.items()), key=lambda pair: -pair[1])


def assert_found(found: list[tuple[list[int], float]], expected: list[tuple[tuple[int, ...], float]], n: int) -> None:
    assert [tuple(ids) for ids, _ in found] == [ids for ids, _ in expected[:n]]
    assert [share for _, share in found] == pytest.approx([share for _, share in expected[:n]], rel=1e-4)


def patterns(count: int, characters: str) -> list[str]:
    """Those that some text of up to `LONGEST` characters matches."""
    found = [any_pattern(random.Random(seed), characters) for seed in range(3 * count)]
    texts = ["".join(characters[i] for i in ids) for ids in all_texts(len(characters), LONGEST)]
    return [pattern for pattern in found if any(map(re.compile(pattern).fullmatch, texts))][:count]


def matching(pattern: str, characters: str, longest: int = LONGEST) -> list[tuple[int, ...]]:
    fits = re.compile(pattern).fullmatch
    return [ids for ids in all_texts(len(characters), longest) if fits("".join(characters[i] for i in ids))]


# --- trying everything ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", patterns(12, FEW))
def test_a_wide_beam_finds_the_best_texts_that_match_and_their_shares(pattern: str) -> None:
    constraint = build(tuple(FEW), match=pattern)
    fits = matching(pattern, FEW)
    answers = list(search(encoded(images=[0, 1, 2]), Asked(constraint, EVERYTHING, 5)))
    for image, answer in enumerate(answers):
        expected = ranked(chances_of_dice(image), fits)
        assert_found(answer.texts, expected, 5)
        assert tuple(answer.ids) == expected[0][0] and answer.confidence == answer.texts[0][1]
        assert answer.length == len(answer.probs) == len(answer.where) == len(expected[0][0])


@pytest.mark.parametrize("pattern", patterns(12, FEW[1:]))
def test_ctc_sums_all_ways_of_a_text_and_finds_the_best_that_match(pattern: str) -> None:
    constraint, logits = build(tuple(FEW[1:]), match=pattern), columns(3)
    answers = list(search(encoded(logits=logits), Asked(constraint, EVERYTHING, 4)))
    for image, answer in enumerate(answers):
        assert_found(answer.texts, ranked(chances_of_columns(logits[image]), matching(pattern, FEW[1:], 5)), 4)


def test_without_a_constraint_confidences_are_the_probabilities_themselves() -> None:
    logits = columns(2)
    for image, answer in enumerate(search(encoded(logits=logits), Asked(None, EVERYTHING, 6))):
        chances = chances_of_columns(logits[image])
        assert_found(answer.texts, sorted(chances.items(), key=lambda pair: -pair[1]), 6)
    for image, answer in enumerate(search(encoded(images=[4, 5]), Asked(None, EVERYTHING, 6))):
        chances = chances_of_dice([4, 5][image])
        assert_found(answer.texts, sorted(chances.items(), key=lambda pair: -pair[1]), 6)
        end = np.exp(log_softmax(dice([4, 5][image], tuple(answer.ids.tolist()), 2.0)[0]))[3]
        assert answer.confidence == pytest.approx(float(np.prod(answer.probs)) * float(end), rel=1e-4)


@pytest.mark.parametrize("bonus", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("pattern", [None, "[ab]*"])
def test_preferred_words_count_so_many_times_more_and_others_may_still_win(bonus: float, pattern: str | None) -> None:
    words = [(0, 1), (2,), (1, 1, 1), (0, 0, 0, 1)]
    constraint = build(tuple(FEW), match=pattern, lexicon=["".join(FEW[i] for i in ids) for ids in words], bonus=bonus)
    fits = set(matching(pattern or ".*", FEW))
    logits = columns(3, columns=4, symbols=3)
    winners = set()
    for made in (encoded(images=[0, 1, 2]), encoded(logits=logits)):
        for image, answer in enumerate(search(made, Asked(constraint, EVERYTHING, 3))):
            chances = chances_of_dice(image) if made.start is not None else chances_of_columns(logits[image])
            folds = {ids: chances[ids] * (np.exp(bonus) if ids in words else 1) for ids in chances if ids in fits}
            best = sorted(folds, key=lambda ids: -folds[ids])[:3]
            assert [tuple(ids) for ids, _ in answer.texts] == best
            total = (
                sum(folds.values())
                if pattern
                else 1 + (np.exp(bonus) - 1) * sum(chances[ids] for ids in words if ids in chances)
            )
            assert answer.confidence == pytest.approx(folds[best[0]] / total, rel=2e-3)
            winners.add(best[0] in words)
    assert bonus < 4 or True in winners


# --- narrow beams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", patterns(24, FEW))
@pytest.mark.parametrize("beam", [1, 3])
def test_a_narrow_beam_never_breaks_the_constraint_and_always_finds_a_text(pattern: str, beam: int) -> None:
    constraint = build(tuple(FEW), match=pattern)
    assert constraint is not None
    logits = columns(4, columns=4, symbols=3)
    in_time = [ids for ids in matching(pattern, FEW) if columns_needed(ids) <= 4]
    for made, possible in ((encoded(images=[0, 1, 2, 3]), True), (encoded(logits=logits), bool(in_time))):
        for answer in search(made, Asked(constraint, beam, 2)):
            assert bool(answer.texts) == possible
            for ids, share in answer.texts:
                assert constraint.holds(ids) and len(ids) <= LONGEST and 0 < share <= 1
            assert not possible or answer.ids.tolist() == answer.texts[0][0]
            assert possible or (answer.length, answer.confidence, len(answer.ids)) == (0, 0.0, 0)


def columns_needed(ids: tuple[int, ...]) -> int:
    return len(ids) + sum(a == b for a, b in pairwise(ids))


@pytest.mark.parametrize("words", [["aab11", "abbab"], ["11111"], ["aaa", "a1a11b"]])
def test_ctc_finds_a_word_that_barely_fits_on_the_columns_whatever_the_beam(words: list[str]) -> None:
    needed = [columns_needed(tuple(FEW.index(c) for c in word)) for word in words]
    constraint = build(tuple(FEW), lexicon=words)
    spelled = build(tuple(FEW), match="|".join(words))
    for T in range(3, 11):
        logits = columns(8, columns=T, symbols=3, sharp=4, seed=T)
        logits[..., 3] += 6  # the blank is what every column says
        for asked in (constraint, spelled):
            for answer in search(encoded(logits=logits), Asked(asked, 1, 1)):
                assert bool(answer.texts) == (min(needed) <= T)
                assert not answer.texts or (constraint is not None and constraint.holds(answer.ids.tolist()))


def test_what_the_beam_drops_is_estimated_so_that_confidence_means_the_same_when_narrow() -> None:
    """Summing only what was found would make every unsure reading look sure."""
    constraint = build(tuple(FEW), whitelist=FEW)
    truth, narrow, found_only = [], [], []
    for image in range(60):
        chances = chances_of_dice(image, sharp=1.0)
        (answer,) = search(
            Encoded(1, 1, None, None, lambda image=image: Dice([image], sharp=1.0), 3, LONGEST), Asked(constraint, 2, 2)
        )
        ids, share = answer.texts[0]
        truth.append(chances[tuple(ids)] / sum(chances.values()))
        narrow.append(share)
        found_only.append(share / sum(each for _, each in answer.texts))
    off = [np.abs(np.log(np.array(guess) / truth)).mean() for guess in (narrow, found_only)]
    assert off[0] < 0.3 and off[0] < off[1] / 3


def test_the_answer_for_an_image_does_not_depend_on_the_others() -> None:
    constraint = build(tuple(FEW), match=r"[ab]+\d?")
    logits = columns(6, columns=7, symbols=3)
    for made in (encoded(images=list(range(6))), encoded(logits=logits)):
        together = list(search(made, Asked(constraint, 3, 3)))
        for image, answer in enumerate(together):
            one = encoded(images=[image]) if made.start is not None else encoded(logits=logits[image : image + 1])
            (alone,) = search(one, Asked(constraint, 3, 3))
            assert alone.texts == answer.texts
            np.testing.assert_array_equal(alone.where, answer.where)


# --- what else is told about a text ---------------------------------------------------------------------


def test_a_character_s_probability_is_among_those_that_were_allowed() -> None:
    found = beam_search(Dice([7]), images=1, end=3, max_length=LONGEST, automaton=automaton("[ab]1"), beam=8, n_best=1)[
        0
    ].texts[0]
    chances = np.exp(log_softmax(dice(7, (), 2.0)[0]))
    assert found.probs[0] == pytest.approx(chances[found.ids[0]] / (chances[0] + chances[1]))
    assert found.probs[1] == pytest.approx(1.0)  # nothing else was allowed


def automaton(pattern: str) -> object:
    constraint = build(tuple(FEW), match=pattern)
    assert constraint is not None
    return constraint.automaton


def test_ctc_s_text_is_laid_on_the_columns_that_say_it() -> None:
    said = [3, 0, 0, 3, 0, 1, 1, 3]  # a, a, b
    logits = np.full((1, 8, 4), -4.0, dtype=np.float32)
    logits[0, np.arange(8), said] = 4.0
    shares = np.full((1, 1, 8), 1.0, dtype=np.float32)
    for asked in (None, automaton("[ab]{3}")):
        text = ctc_beam_search(logits, shares, automaton=asked, beam=4, n_best=1)[0].texts[0]  # type: ignore[arg-type]
        assert text.ids == (0, 0, 1)
        assert [np.flatnonzero(row).tolist() for row in text.seen] == [[1, 2], [4], [5, 6]]
    # A digit is asked for where a b stands: that is where it is seen.
    text = ctc_beam_search(logits, shares, automaton=automaton("aa1"), beam=4, n_best=1)[0].texts[0]  # type: ignore[arg-type]
    assert text.ids == (0, 0, 2) and set(np.flatnonzero(text.seen[2])) & {5, 6}


def test_a_beam_of_ctc_says_what_greedy_reading_says_where_there_is_no_doubt() -> None:
    logits = columns(20, columns=9, symbols=3, sharp=8.0)
    greedy = decode({"ctc_logits": logits}, None, {"head": "ctc", "rows": 1, "blank": 3})
    alike = 0
    for row, answer in enumerate(search(encoded(logits=logits), Asked(None, 8, 1))):
        length = int(greedy.lengths[row])
        if answer.ids.tolist() == greedy.ids[row, :length].tolist():
            alike += 1
            assert answer.confidence == pytest.approx(float(greedy.confidence[row]), rel=1e-3)
            assert answer.probs == pytest.approx(greedy.probs[row, :length], rel=1e-3)
            np.testing.assert_allclose(answer.where, greedy.where[row, :length])
        else:
            chances = np.exp(log_softmax(logits[row : row + 1]))
            ids = np.array([answer.ids])
            assert text_probability(chances, ids, np.array([answer.length]), blank=3)[0] > greedy.confidence[row]
    assert alike >= 15


def test_of_two_heads_the_one_that_finds_its_text_more_probable_is_believed() -> None:
    constraint = build(tuple(FEW), match=r"\w{2}")
    logits = columns(12, columns=5, symbols=3, sharp=3.0)
    made = encoded(images=list(range(12)), logits=logits)
    wish = Asked(constraint, EVERYTHING, 1)
    both, decoder, ctc = (list(search(made, wish, by=by)) for by in (None, "decoder", "ctc"))
    believed = []
    for image in range(12):
        most = [
            max(chances[ids] for ids in matching(r"\w{2}", FEW) if ids in chances)
            for chances in (chances_of_dice(image), chances_of_columns(logits[image]))
        ]
        believed.append(most[1] > most[0])
        expected = ctc[image] if believed[-1] else decoder[image]
        assert both[image].texts == expected.texts
    assert set(believed) == {True, False}
    none = list(search(encoded(logits=logits[:, :1]), Asked(constraint, 8, 1)))
    assert all(answer.texts == [] for answer in none)
    one_can = encoded(images=list(range(12)), logits=logits[:, :1])
    assert [answer.texts for answer in search(one_can, wish)] == [answer.texts for answer in decoder]


def test_a_head_that_is_not_there_cannot_be_asked() -> None:
    with pytest.raises(UserError, match="by=ctc needs a model trained with a CTC head"):
        list(search(encoded(images=[0]), Asked(None, 8, 1), by="ctc"))
    with pytest.raises(UserError, match="by=decoder needs a model with a decoder"):
        list(search(encoded(logits=columns(1)), Asked(None, 8, 1), by="decoder"))


def test_a_search_ends_when_nothing_better_can_come() -> None:
    steps = 0

    class Sure(Dice):
        def step(self, previous: Ids) -> tuple[Floats, Floats]:
            nonlocal steps
            steps += 1
            logits, looked = super().step(previous)
            logits[:, :] = -9.0
            logits[:, 3 if steps > 2 else 0] = 9.0  # two characters, and then the end
            return logits, looked

    found: list[Found] = beam_search(Sure([0, 1]), images=2, end=3, max_length=40, automaton=None, beam=4, n_best=1)
    assert [each.texts[0].ids for each in found] == [(0, 0), (0, 0)] and steps == 3
    constraint: Constraint | None = build(tuple(FEW), match="a+")
    assert constraint is not None
    beam_search(Sure([0]), images=1, end=3, max_length=40, automaton=constraint.automaton, beam=4, n_best=1)
    assert steps <= 8
