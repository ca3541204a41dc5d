"""What every constraint is compiled to: a deterministic automaton over the ids of the model's characters.

A state stands for what has been read so far. No state is a dead end: `follow` leads only to where a text that
satisfies the constraint can still come of it, and how much room that takes at least is known beforehand, so a search
that minds the room never reads its way into a corner.

Shapes: S symbols, U different states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Automaton(Protocol):
    @property
    def start(self) -> int: ...

    def follow(self, state: int) -> NDArray[np.int32]:
        """(S,): the state after each symbol, or -1 where no text that satisfies goes on with it."""

    def accepts(self, states: Ids) -> Mask:
        """Whether a text may end there."""

    def fewest(self, states: Ids) -> Ids:
        """How many characters at least are missing to the end of a text."""

    def columns(self, states: Ids) -> tuple[Ids, Ids]:
        """How many columns of CTC these take at least, if the last symbol was not the one given second.

        CTC tells a doubled letter by a blank between the two: where all shortest ways on begin with the symbol
        read last, one more column is needed. -1: it makes no difference what was read last.
        """


class OneOf:
    """Any text of the symbols that `mask` (S,) allows: a single state."""

    start = 0

    def __init__(self, mask: Mask) -> None:
        self.row = np.where(mask, 0, -1).astype(np.int32)

    def follow(self, state: int) -> NDArray[np.int32]:
        return self.row

    def accepts(self, states: Ids) -> Mask:
        return np.ones(states.shape, dtype=bool)

    def fewest(self, states: Ids) -> Ids:
        return np.zeros(states.shape, dtype=np.int64)

    def columns(self, states: Ids) -> tuple[Ids, Ids]:
        return self.fewest(states), np.full(states.shape, -1)


def successors(automaton: Automaton, states: Ids) -> tuple[Ids, Ids]:
    """`follow` of the different ones of states (n,): (U, S), and which row of it is that of each, (n,)."""
    different, which = np.unique(states, return_inverse=True)
    return np.stack([automaton.follow(state) for state in different.tolist()]).astype(np.int64), which


def holds(automaton: Automaton, ids: Iterable[int]) -> bool:
    """Whether a text satisfies the constraint."""
    state = automaton.start
    for index in ids:
        state = int(automaton.follow(state)[index])
        if state < 0:
            return False
    return bool(automaton.accepts(np.array([state]))[0])
