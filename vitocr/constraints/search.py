"""Reading text with a beam search: what `answers` of a torch model and of an ONNX file do when asked for one.

`asked` tells whether a search is asked for, `search` carries it out on what the encoder made of the images. The
confidence of a text is its probability by the model, renormalised: divided by the probability that a text satisfies the
constraint, so it says how sure the reading is given that the constraint holds. That divisor is estimated from what the
beam has seen, and is never less than the sum of the texts found. Without a constraint it is 1, and the confidence is
that of ordinary reading. Where some words are preferred, theirs count e^bonus fold in both.

Which head of two was surer is told by the probabilities before that: they also say how far a head had to be bent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from vitocr.constraints import Constraint
from vitocr.constraints.automaton import Automaton, Ids, holds
from vitocr.constraints.beam import Steps, beam_search
from vitocr.constraints.ctc_beam import ctc_beam_search
from vitocr.constraints.found import Floats, Found, Text
from vitocr.errors import UserError
from vitocr.inference.numpy_decode import boxes, way_of

BEAM = 8
ROWS = 256  # beginnings of texts that a decoder goes on with at a time: each holds the keys and values of its image


class Asked(NamedTuple):
    constraint: Constraint | None
    beam: int
    n_best: int

    @property
    def is_plain(self) -> bool:
        """Whether ordinary reading does: the one best guess at every place."""
        return self.constraint is None and self.beam == self.n_best == 1

    @property
    def images(self) -> int:
        """How many are searched at a time."""
        return max(1, ROWS // self.beam)


class Encoded(NamedTuple):
    """What the encoder made of B images, and how to go on from there."""

    images: int
    rows: int  # of the grid
    logits: Floats | None  # (B, T, S + 1) of CTC, the blank last; None without such a head
    shares: Floats | None  # (B, rows, T) of each row in a column of these; None: all alike
    start: Callable[[], Steps] | None  # a decoder that has read nothing yet; None without such a head
    end: int
    max_length: int
    summary: Floats | None = None  # (B, D) mean of the tokens


class Answer(NamedTuple):
    """The fields of `Decoded` for one image, and the texts that were found."""

    ids: Ids  # (L,)
    length: int
    probs: Floats  # (L,) of each character, among those that were allowed in its place
    confidence: float
    where: Floats  # (L, 4)
    summary: Floats  # (D,)
    texts: list[tuple[list[int], float]]  # ids and confidence, the best first; none: nothing satisfies the constraint


def asked(
    *, constraint: Constraint | None = None, beam: int | None = None, n_best: int | None = None, **others: Any
) -> tuple[Asked | None, dict[str, Any]]:
    """What of the options of `answers` asks for a search, None if nothing does, and the options that remain."""
    others = {name: value for name, value in others.items() if value is not None}
    if constraint is None and beam is None and n_best is None:
        return None, others
    for name, value in (("beam", beam), ("n_best", n_best)):
        if value is not None and value < 1:
            raise UserError(f"{name}={value}: a search keeps at least one text.")
    if beam is None:
        beam = 1 if constraint is None and n_best in (None, 1) else max(BEAM, n_best or 1)
    wish = Asked(constraint, beam, n_best or 1)
    if not wish.is_plain:
        if others.get("mode", "ar") != "ar" or others.get("refine"):
            raise UserError(
                "What a constraint, beam or n_best asks is searched left to right: mode=parallel reads all places at "
                "once, and refine changes a text after it is found. Leave them out."
            )
        others = {name: value for name, value in others.items() if name not in ("mode", "refine")}
    return wish, others


def plainly(decoded: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Ordinary readings, one row of `Decoded` each, with the list of texts that a search would give."""
    for ids, length, probs, confidence, *more in decoded:
        yield ids, length, probs, confidence, *more, [(ids[: int(length)].tolist(), float(confidence))]


def search(encoded: Encoded, wish: Asked, *, by: str | None = None) -> Iterator[Answer]:
    """What each image reads. by: as for the heads with a decoder (`heads.joint`)."""
    by = way_of(by, decoder=encoded.start is not None, ctc=encoded.logits is not None)
    found: list[Found] = []
    if by != "decoder":
        found = preferring(lambda automaton: read_columns(encoded, automaton, wish), wish.constraint)
    if by != "ctc":
        other = preferring(lambda automaton: read_steps(encoded, automaton, wish), wish.constraint)
        found = [surer(*pair) for pair in zip(other, found, strict=True)] if found else other
    summaries = np.empty((encoded.images, 0), np.float32) if encoded.summary is None else encoded.summary
    for each, summary in zip(found, summaries, strict=True):
        yield answer(each, wish.n_best, encoded.rows, summary)


def read_columns(encoded: Encoded, automaton: Automaton | None, wish: Asked) -> list[Found]:
    assert encoded.logits is not None
    shares = encoded.shares
    if shares is None:
        shares = np.full((encoded.images, encoded.rows, encoded.logits.shape[1]), 1 / encoded.rows, dtype=np.float32)
    return ctc_beam_search(encoded.logits, shares, automaton=automaton, beam=wish.beam, n_best=wish.n_best)


def read_steps(encoded: Encoded, automaton: Automaton | None, wish: Asked) -> list[Found]:
    assert encoded.start is not None
    return beam_search(
        encoded.start(),
        images=encoded.images,
        end=encoded.end,
        max_length=encoded.max_length,
        automaton=automaton,
        beam=wish.beam,
        n_best=wish.n_best,
    )


def preferring(read: Callable[[Automaton | None], list[Found]], constraint: Constraint | None) -> list[Found]:
    """What `read` finds under a constraint.

    Where words are preferred, it is read once more among these alone: a word that needs the bonus to win is likely to
    have fallen out of the beam before it ended.
    """
    if constraint is None:
        return read(None)
    found = read(constraint.automaton)
    if constraint.words is None:
        return found
    return [
        with_bonus(anything, words, constraint) for anything, words in zip(found, read(constraint.words), strict=True)
    ]


def with_bonus(anything: Found, words: Found, constraint: Constraint) -> Found:
    assert constraint.words is not None
    texts: dict[tuple[int, ...], Text] = {}
    for text in [*anything.texts, *words.texts]:  # of one in both that among all: its probabilities are the model's
        bonus = constraint.bonus if holds(constraint.words, text.ids) else 0.0
        texts.setdefault(text.ids, text._replace(weight=text.log_prob + bonus))
    total = anything.log_total
    if words.texts:  # these count e^bonus - 1 times more
        with np.errstate(divide="ignore"):
            more = constraint.bonus + np.log(-np.expm1(-constraint.bonus))
        total = float(np.logaddexp(total, words.log_total + more))
    return Found(sorted(texts.values(), key=lambda text: -text.weight), total)


def surer(decoder: Found, ctc: Found) -> Found:
    """That of the two whose best text is more probable; the decoder's where they are equal. (Ordinary reading asks both
    about both texts, `heads.joint`; here a beam may not have come by the other's.)"""
    if not decoder.texts or not ctc.texts:
        return decoder if decoder.texts else ctc
    return ctc if ctc.texts[0].weight > decoder.texts[0].weight else decoder


def answer(found: Found, n_best: int, rows: int, summary: Floats) -> Answer:
    texts = [(list(text.ids), share(text, found)) for text in found.texts[:n_best]]
    if not texts:
        nothing = np.zeros(0, dtype=np.float32)
        return Answer(np.zeros(0, dtype=np.int64), 0, nothing, 0.0, np.zeros((0, 4), dtype=np.float32), summary, [])
    best = found.texts[0]
    length = len(best.ids)
    where = boxes(best.seen[None], np.array([length]), rows)[0]
    return Answer(np.array(best.ids, dtype=np.int64), length, best.probs, texts[0][1], where, summary, texts)


def share(text: Text, found: Found) -> float:
    """Of all that satisfies the constraint, what falls to this text."""
    return float(np.exp(min(0.0, text.weight - found.log_total)))
