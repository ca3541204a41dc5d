r"""Reading under a constraint: the best text among those that satisfy it.

    constraint = build(characters, match=r"[A-Z]{2}\d{4}")

A regular expression, a whitelist of characters and a lexicon all become one automaton (automaton.py) that a beam
search walks along: beam.py for decoders, ctc_beam.py for CTC, search.py puts the two together. What is asked for at
the same time must hold at the same time; a lexicon is then cut down to the words that satisfy the rest.

Numpy only: the same code reads in torch and from ONNX files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitocr.codec import Charset, nfc
from vitocr.constraints.automaton import Automaton, Mask, OneOf, holds
from vitocr.constraints.dfa import Dfa
from vitocr.constraints.lexicon import Trie, open_words, readable_words
from vitocr.constraints.regex import parse
from vitocr.errors import UserError

__all__ = ["Constraint", "build"]


@dataclass(frozen=True)
class Constraint:
    automaton: Automaton | None  # what must hold; None: any text may be read
    words: Trie | None = None  # what is preferred
    bonus: float = 0.0  # by how much: added to the log-probability of those words, in nats
    notes: tuple[str, ...] = ()  # what was left out when it was made, for people

    def holds(self, ids: Iterable[int]) -> bool:
        """Whether a text satisfies it."""
        return self.automaton is None or holds(self.automaton, ids)


def build(
    characters: Sequence[str],
    *,
    match: str | None = None,
    whitelist: Iterable[str] | None = None,
    lexicon: str | Path | Iterable[str] | None = None,
    bonus: float | None = None,
) -> Constraint | None:
    """What is asked of the texts that a model with these `characters`, in the order of their ids, may read.

    match: a regular expression that the whole text matches. whitelist: the characters it may hold. lexicon: words, or
    a file with one word a line; the text is one of them, or, with a `bonus`, may be any text, but theirs is the
    advantage of so many nats of log-probability (ln 10 = 2.3 makes a word ten times as likely).

    What is left out of a whitelist or a lexicon is warned of once. None if nothing is asked.
    """
    if bonus is not None and lexicon is None:
        raise UserError("A bonus is given to the words of a lexicon, and there is none: name a lexicon, too.")
    if bonus is not None and not (0 <= bonus < np.inf):
        raise UserError(f"bonus={bonus} is added to the log-probability of words: a number from 0 up.")
    if match is None and whitelist is None and lexicon is None:
        return None
    charset = Charset(tuple(characters))
    notes: list[str] = []
    allowed = np.ones(len(charset), dtype=bool)
    if whitelist is not None:
        allowed, said = _allowed(whitelist, charset)
        notes += said
    automaton: Automaton | None = None
    if match is not None:
        automaton, said = _pattern(match, charset, allowed)
        notes += said
    elif whitelist is not None:
        automaton = OneOf(allowed)
    words = None
    if lexicon is not None:
        words, said = _lexicon(lexicon, charset, automaton)
        notes += said
    if notes:
        warnings.warn(" ".join(notes), stacklevel=2)
    if words is None or bonus is None:
        return Constraint(words or automaton, notes=tuple(notes))
    return Constraint(automaton, words, bonus, tuple(notes))


def _allowed(whitelist: Iterable[str], charset: Charset) -> tuple[Mask, list[str]]:
    asked = list(dict.fromkeys(nfc("".join(whitelist))))
    ids = {character: charset.id_of(character) for character in asked}
    allowed = np.zeros(len(charset), dtype=bool)
    allowed[[index for index in ids.values() if index >= 0]] = True
    if not allowed.any():
        raise UserError(
            f"whitelist={''.join(asked)!r}: this model knows none of these characters. It knows {_shown(charset)}."
        )
    unknown = [character for character, index in ids.items() if index < 0]
    if not unknown:
        return allowed, []
    return allowed, [
        f"{len(unknown)} of {len(asked)} characters of the whitelist are none that this model can write and were left "
        f"out: {' '.join(unknown[:20])}."
    ]


def _pattern(match: str, charset: Charset, allowed: Mask) -> tuple[Dfa, list[str]]:
    pattern = parse(match, charset.characters)
    dfa = Dfa(pattern, allowed)
    unknown = ", ".join(pattern.unknown[:20])
    if dfa.matches_nothing:
        why = f" There is no character for {unknown}." if unknown else ""
        cased = {character.isupper() for character in charset.characters if character.lower() != character.upper()}
        hint = " Its letters are all of one case: begin the pattern with (?i)." if unknown and len(cased) == 1 else ""
        among = _shown(charset) if allowed.all() else "those of the whitelist that this model knows"
        raise UserError(f"match={match!r} matches no text written in the characters {among}.{why}{hint}")
    if not unknown:
        return dfa, []
    return dfa, [f"match={match!r}: this model has no character for {unknown}, so what needs one is never read."]


def _lexicon(
    lexicon: str | Path | Iterable[str], charset: Charset, automaton: Automaton | None
) -> tuple[Trie, list[str]]:
    given = open_words(lexicon)
    kept, notes = readable_words(given, charset)
    if not kept:
        raise UserError(" ".join(["The lexicon holds no word that can be read.", *notes]))
    fitting = {word for word in kept if automaton is None or holds(automaton, charset.slots(word))}
    if not fitting:
        raise UserError(
            f"None of the {len(kept):,} words of the lexicon satisfies what else is asked (match, whitelist): as in "
            f"{min(kept)!r}."
        )
    return Trie(fitting, charset.characters), notes


def _shown(charset: Charset) -> str:
    return "".join(charset.characters[:100]) + (" ..." if len(charset) > 100 else "")
