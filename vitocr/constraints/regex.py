r"""A regular expression to a nondeterministic automaton (Thompson 1968). dfa.py makes a deterministic one of it.

Which characters a literal, a class or an escape stands for is asked of Python's `re`, once for every character of
the model, so `\w`, ranges, negation and `(?i)` mean exactly what they mean there. Only the structure (sequence,
choice, groups, repetition) is parsed here: it is small, and the parser of the standard library, `re._parser`, is
private and has changed from one Python to the next. `re` compiles the pattern first, so what comes here is well-formed.

What cannot be told by looking at one character after another (references back, looking ahead or behind, word
boundaries) is refused by name. The whole text is matched, so `^` in front and `$` at the end mean nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from vitocr.codec import nfc
from vitocr.errors import UserError

MOST = 2000  # characters a pattern may come to with its repetitions written out
FLAGS = {"a": re.ASCII, "i": re.IGNORECASE, "s": re.DOTALL, "u": re.UNICODE}
ESCAPES = {"x": 2, "u": 4, "U": 8}  # how many hexadecimal digits follow


class Atom(NamedTuple):
    """One character of a set, `Pattern.sets[number]`."""

    number: int


class InTurn(NamedTuple):
    parts: tuple[Part, ...]


class Either(NamedTuple):
    parts: tuple[Part, ...]


class Repeat(NamedTuple):
    part: Part
    least: int
    most: int | None  # None: any number


Part = Atom | InTurn | Either | Repeat


@dataclass
class Nfa:
    """State 0 is the start. Each state has either one move, over a set of characters, or steps without a character."""

    steps: list[list[int]] = field(default_factory=list)
    moves: dict[int, tuple[int, int]] = field(default_factory=dict)  # state: (index of the set, state after it)
    end: int = 0

    def new(self) -> int:
        self.steps.append([])
        return len(self.steps) - 1


class Pattern(NamedTuple):
    nfa: Nfa
    sets: NDArray[np.bool_]  # (n, S): which symbols each atom stands for
    unknown: tuple[str, ...]  # atoms for which the model has no character at all


def parse(pattern: str, characters: Sequence[str]) -> Pattern:
    """The automaton of `pattern` over the model's `characters`, in the order of their ids."""
    pattern = nfc(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of set operations that `re` may have some day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"match={pattern!r} is not a regular expression: {error}.") from error
    parser = _Parser(pattern, characters)
    part = parser.whole()
    nfa = Nfa()
    nfa.end = _build(part, nfa, nfa.new(), pattern)
    sets = np.array(parser.sets, dtype=bool).reshape(-1, len(characters))
    unknown = tuple(source for source, index in parser.written.items() if not sets[index].any())
    return Pattern(nfa, sets, unknown)


class _Parser:
    """Goes once through a pattern that `re` has found well-formed."""

    def __init__(self, pattern: str, characters: Sequence[str]) -> None:
        self.pattern, self.characters, self.at = pattern, characters, 0
        self.sets: list[list[bool]] = []
        self.known: dict[tuple[str, int], int] = {}  # source and flags of an atom: its index
        self.written: dict[str, int] = {}  # as it stands in the pattern: its index

    def whole(self) -> Part:
        flags = 0
        if found := re.match(r"\(\?([a-zA-Z]+)\)", self.pattern):
            self.at = found.end()
            for letter in found[1]:
                if letter not in FLAGS:
                    self.refuse(f"the flag {letter!r}", at=2)
                flags |= FLAGS[letter]
        self.first = self.at
        return self.choice(flags)

    def choice(self, flags: int) -> Part:
        options = [self.sequence(flags)]
        while self.take("|"):
            options.append(self.sequence(flags))
        return options[0] if len(options) == 1 else Either(tuple(options))

    def sequence(self, flags: int) -> Part:
        parts: list[Part] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            if self.at == self.first and (self.take("^") or self.take(r"\A")):
                continue
            if self.pattern[self.at :] in ("$", r"\Z", r"\z"):
                self.at = len(self.pattern)
                continue
            parts.append(self.repeated(self.single(flags)))
        return InTurn(tuple(parts))

    def repeated(self, part: Part) -> Part:
        begin = self.at
        if self.take("?"):
            least, most = 0, 1
        elif self.take("*"):
            least, most = 0, None
        elif self.take("+"):
            least, most = 1, None
        elif (found := re.compile(r"\{(\d*)(,?)(\d*)\}").match(self.pattern, self.at)) and found[0] != "{}":
            self.at = found.end()
            least = int(found[1] or 0)
            most = (int(found[3]) if found[3] else None) if found[2] else least
        else:
            return part
        if self.take("+"):
            self.refuse("a possessive repetition", at=begin)
        self.take("?")  # lazy or greedy: the same texts match
        return Repeat(part, least, most)

    def single(self, flags: int) -> Part:
        """A group, a class, an escape or a literal."""
        begin = self.at
        if self.take("("):
            return self.group(flags, begin)
        if self.take("["):
            self.take("^")
            self.take("]")  # in front it is a member
            while not self.take("]"):
                self.at += 2 if self.pattern[self.at] == "\\" else 1
        elif self.take("\\"):
            self.escape(begin)
        elif self.pattern[begin] in "^$":
            self.refuse(f"{self.pattern[begin]!r} in the middle", at=begin)
        else:
            self.at += 1
        source = self.pattern[begin : self.at]
        literal = len(source) == 1 and source != "."
        return self.atom(re.escape(source) if literal else source, flags, source)

    def escape(self, begin: int) -> None:
        letter = self.pattern[self.at]
        self.at += 1
        if letter in ESCAPES:
            self.at += ESCAPES[letter]
        elif letter == "N":
            self.at = self.pattern.index("}", self.at) + 1
        elif letter in "AZzbB":
            self.refuse(f"'\\{letter}', a position rather than a character,", at=begin)
        elif letter.isdigit():
            self.refuse(f"'\\{letter}', a reference back (or an octal number),", at=begin)

    def group(self, flags: int, begin: int) -> Part:
        if self.take("?"):
            if found := re.compile(r"P<\w+>").match(self.pattern, self.at):
                self.at = found.end()
            elif found := re.compile("(i?s?i?)(?:-(i?s?i?))?:").match(self.pattern, self.at):
                self.at = found.end()
                for letter in found[1]:
                    flags |= FLAGS[letter]
                for letter in found[2] or "":
                    flags &= ~FLAGS[letter]
            else:
                shown = re.compile(r"\(\?(P?[<=][=!]?|.)").match(self.pattern, begin)
                self.refuse(f"{shown[0] if shown else '(?'!r}", at=begin)
        part = self.choice(flags)
        self.at += 1  # the closing bracket
        return part

    def atom(self, source: str, flags: int, written: str) -> Atom:
        key = source, flags
        if key not in self.known:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                fits = re.compile(source, flags).fullmatch
            self.known[key] = len(self.sets)
            self.sets.append([fits(character) is not None for character in self.characters])
        self.written[written] = self.known[key]
        return Atom(self.known[key])

    def take(self, wanted: str) -> bool:
        found = self.pattern.startswith(wanted, self.at)
        self.at += len(wanted) * found
        return found

    def refuse(self, what: str, *, at: int) -> NoReturn:
        raise UserError(
            f"match={self.pattern!r}: {what} at character {at + 1} is nothing a reading can be held to. Literals, "
            r"classes such as [A-Z] or \d, ., groups, |, ?, *, + and {m,n} are; the whole text is matched."
        )


def _build(part: Part, nfa: Nfa, begin: int, pattern: str) -> int:
    """Add `part` to the automaton, from the state `begin` on; the state it ends in."""
    repeated = max(part.least, part.most or 0) if isinstance(part, Repeat) else 0
    if max(len(nfa.moves), len(nfa.steps) // 10, repeated) > MOST:
        raise UserError(
            f"match={pattern!r} is too large: with its repetitions written out it comes to more than {MOST:,} "
            "characters. Texts are short; use smaller numbers of repetitions, or a lexicon for lists of words."
        )
    if isinstance(part, Atom):
        target = nfa.new()
        nfa.moves[begin] = part.number, target
        return target
    if isinstance(part, InTurn):
        for each in part.parts:
            begin = _build(each, nfa, begin, pattern)
        return begin
    if isinstance(part, Either):
        end = nfa.new()
        for each in part.parts:
            nfa.steps[_build(each, nfa, _stepped(nfa, begin), pattern)].append(end)
        return end
    for _ in range(part.least):
        begin = _build(part.part, nfa, begin, pattern)
    if part.most is None:
        loop = _stepped(nfa, begin)
        nfa.steps[_build(part.part, nfa, _stepped(nfa, loop), pattern)].append(loop)
        return _stepped(nfa, loop)
    end = nfa.new()
    nfa.steps[begin].append(end)
    for _ in range(part.most - part.least):
        begin = _build(part.part, nfa, _stepped(nfa, begin), pattern)
        nfa.steps[begin].append(end)
    return end


def _stepped(nfa: Nfa, begin: int) -> int:
    """A new state, one step from `begin`."""
    state = nfa.new()
    nfa.steps[begin].append(state)
    return state
