"""A list of words as a trie, in arrays: 100,000 words take a second to build and a few megabytes to hold.

The nodes are numbered level by level, so the children of a node stand side by side: a node needs to know only where
its own begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitocr.codec import Charset, nfc
from vitocr.constraints.automaton import Ids, Mask
from vitocr.errors import UserError, did_you_mean

FAR = np.int32(1 << 30)


class Trie:
    """An automaton that reads the given words and no others."""

    start = 0

    def __init__(self, words: Iterable[str], characters: Sequence[str]) -> None:
        """words: in the model's characters, at least one."""
        ordered = sorted(set(words))
        lengths = np.array([len(word) for word in ordered])
        flat = _ids("".join(ordered), characters)  # all words end to end
        begins = np.cumsum(lengths) - lengths
        self.symbols = len(characters)
        parents, chars, ends = ([np.empty(0, dtype=np.int32)] for _ in range(3))  # of each level
        levels = [0, 1]  # where the nodes of each level begin
        running, node = np.arange(len(ordered)), np.zeros(len(ordered), dtype=np.int32)
        for depth in range(int(lengths.max()) + 1):
            over = lengths[running] == depth
            ends.append(node[over])
            running, node = running[~over], node[~over]
            symbol = flat[begins[running] + depth]
            fresh = np.ones(len(running), dtype=bool)  # sorted as they are, words that begin alike stand together
            fresh[1:] = (node[1:] != node[:-1]) | (symbol[1:] != symbol[:-1])
            parents.append(node[fresh])
            chars.append(symbol[fresh])
            node = (levels[-1] + np.cumsum(fresh) - 1).astype(np.int32)
            levels.append(levels[-1] + int(fresh.sum()))
        parent = np.concatenate(parents)  # of every node but the root
        self.size = len(parent) + 1
        self.char = np.concatenate([np.full(1, -1, dtype=np.int32), *chars])
        self.begin = (np.searchsorted(parent, np.arange(self.size + 1)) + 1).astype(np.int32)
        self.end = np.zeros(self.size, dtype=bool)
        self.end[np.concatenate(ends)] = True
        self._measure(parent, levels)

    def _measure(self, parent: NDArray[np.int32], levels: list[int]) -> None:
        """What is missing to the end of a word, from the leaves to the root."""
        self.missing = np.where(self.end, 0, FAR).astype(np.int32)
        self.missing_columns = self.missing.copy()
        self.only = np.full(self.size, -1, dtype=np.int32)
        for first, last in reversed([level for level in pairwise(levels[1:]) if level[0] < level[1]]):
            above, child = parent[first - 1 : last - 1], slice(first, last)
            np.minimum.at(self.missing, above, self.missing[child] + 1)
            # One more where the child's shortest way on begins with the child's own character.
            price = self.missing_columns[child] + (self.only[child] == self.char[child]) + 1
            np.minimum.at(self.missing_columns, above, price)
            best = (price == self.missing_columns[above]) & ~self.end[above]
            place = above - above[0]
            ways = np.bincount(place[best], minlength=int(place[-1]) + 1)
            alone = best & (ways[place] == 1)
            self.only[above[alone]] = self.char[child][alone]

    def follow(self, state: int) -> NDArray[np.int32]:
        row = np.full(self.symbols, -1, dtype=np.int32)
        first, last = self.begin[state], self.begin[state + 1]
        row[self.char[first:last]] = np.arange(first, last)
        return row

    def accepts(self, states: Ids) -> Mask:
        return self.end[states]

    def fewest(self, states: Ids) -> Ids:
        return self.missing[states].astype(np.int64)

    def columns(self, states: Ids) -> tuple[Ids, Ids]:
        return self.missing_columns[states].astype(np.int64), self.only[states].astype(np.int64)


def _ids(text: str, characters: Sequence[str]) -> NDArray[np.int32]:
    """The id of every character of a long text, all of which are known."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    known = np.array([ord(character) for character in characters])
    ids = np.zeros(int(known.max()) + 1, dtype=np.int32)
    ids[known] = np.arange(len(known))
    return ids[codes]


def open_words(lexicon: str | Path | Iterable[str]) -> list[str]:
    """Words as they are given, or those of a UTF-8 file, one a line."""
    if not isinstance(lexicon, str | Path):
        return list(lexicon)
    path = Path(lexicon).expanduser()
    if not path.is_file():
        near = did_you_mean(path.name, [entry.name for entry in path.parent.glob("*")])
        raise UserError(f"There is no lexicon at {path}: name a file with one word a line.{near}")
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise UserError(f"The lexicon {path} is not in UTF-8: {error}") from error


def readable_words(given: Sequence[str], charset: Charset) -> tuple[set[str], list[str]]:
    """Words as the model can write them, and what is to be said about those it cannot.

    Letters of the case that the model lacks mean the same to it, as they did in training (`Charset.id_of`).
    """
    known = frozenset(charset.characters)
    kept: set[str] = set()
    empty, foreign = 0, []
    for word in map(nfc, given):
        if not word:
            empty += 1
        elif known.issuperset(word):
            kept.add(word)
        elif -1 not in (ids := charset.slots(word)):
            kept.add(charset.decode(ids))
        else:
            foreign.append(word)
    notes = []
    if empty:
        notes.append(f"{empty:,} of {len(given):,} words of the lexicon are empty and were left out.")
    if foreign:
        unknown = sorted({character for word in foreign for character in word if charset.id_of(character) < 0})
        shown = " ".join(unknown[:20]) + (" ..." if len(unknown) > 20 else "")
        examples = ", ".join(map(repr, foreign[:3]))
        notes.append(
            f"{len(foreign):,} of {len(given):,} words of the lexicon hold characters that this model cannot write "
            f"({shown}) and were left out, such as {examples}."
        )
    return kept, notes
