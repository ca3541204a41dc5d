"""The deterministic automaton of a regular expression, made as far as it is walked.

A state is the set of moves that may come next, and whether the text may end here. How much is missing to the end is
worked out once for the moves of the nondeterministic automaton; for a set it is the least of its members, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitocr.constraints.automaton import Ids, Mask
from vitocr.constraints.regex import Nfa, Pattern

FAR = 1 << 30  # further away than any end is
ANY = -1  # no single symbol
REMEMBERED = 4096  # rows that are kept at hand, so that memory stays flat however many images are read

Place = tuple[frozenset[int], bool]  # moves that may come next, and whether the text may end


class Dfa:
    """The texts of a pattern that are written in the symbols `allowed` (S,)."""

    def __init__(self, pattern: Pattern, allowed: Mask) -> None:
        nfa = pattern.nfa
        moves = sorted(nfa.moves)
        number = {state: n for n, state in enumerate(moves)}
        sets = pattern.sets & allowed
        members = [np.flatnonzero(row) for row in sets]
        closures = [_closure(nfa, nfa.moves[state][1], number) for state in moves]
        after, ends = [place[0] for place in closures], [place[1] for place in closures]
        symbols = [members[nfa.moves[state][0]] for state in moves]
        self.cost = _distances(after, ends, symbols, doubles=False)[0]
        self.column_cost, self.column_only = _distances(after, ends, symbols, doubles=True)
        alive = self.cost < FAR
        self.after = [frozenset(n for n in each if alive[n]) for each in after]
        self.ends = ends
        # Symbols that no set tells apart lead to the same states: one look for each kind.
        table = np.vstack([np.zeros((1, len(allowed)), dtype=bool), sets])
        kinds, kind_of = np.unique(table, axis=1, return_inverse=True)
        self.kind_of = kind_of.reshape(-1)
        self.fits = [kinds[nfa.moves[state][0] + 1] for state in moves]  # of each move, (kinds,)
        self.kinds = kinds.shape[1]
        self.places: list[Place] = []
        self.numbers: dict[Place, int] = {}
        self.missing: list[tuple[int, int, int]] = []  # of each state: characters, columns, and the only symbol or ANY
        self.rows: dict[int, NDArray[np.int32]] = {}
        self.table = np.empty((0, 3), dtype=np.int64)  # `missing` as an array
        begin, empty = _closure(nfa, 0, number)
        self.start = self._state(frozenset(n for n in begin if alive[n]), empty)

    @property
    def matches_nothing(self) -> bool:
        return self.start < 0

    def follow(self, state: int) -> NDArray[np.int32]:
        row = self.rows.get(state)
        if row is None:
            if len(self.rows) >= REMEMBERED:
                self.rows.clear()
            moves = self.places[state][0]
            targets = np.array([self._after(moves, kind) for kind in range(self.kinds)], dtype=np.int32)
            row = self.rows[state] = targets[self.kind_of]
        return row

    def _after(self, moves: frozenset[int], kind: int) -> int:
        taken = [n for n in moves if self.fits[n][kind]]
        return self._state(frozenset(m for n in taken for m in self.after[n]), any(self.ends[n] for n in taken))

    def _state(self, moves: frozenset[int], end: bool) -> int:
        """Its number; -1 for where no text ends that begins like that."""
        if not moves and not end:
            return -1
        place = moves, end
        if place not in self.numbers:
            self.numbers[place] = len(self.places)
            self.places.append(place)
            columns, only = _cheapest(moves, self.column_cost, self.column_only)
            self.missing.append((0, 0, ANY) if end else (min(int(self.cost[n]) for n in moves), columns, only))
        return self.numbers[place]

    def _missing(self, states: Ids) -> Ids:
        if len(self.table) < len(self.missing):
            self.table = np.array(self.missing, dtype=np.int64)
        return self.table[states]

    def accepts(self, states: Ids) -> Mask:
        return self._missing(states)[..., 0] == 0

    def fewest(self, states: Ids) -> Ids:
        return self._missing(states)[..., 0]

    def columns(self, states: Ids) -> tuple[Ids, Ids]:
        missing = self._missing(states)
        return missing[..., 1], missing[..., 2]


def _closure(nfa: Nfa, begin: int, number: dict[int, int]) -> Place:
    """The moves that may come next in a state, and whether the text may end there."""
    seen, waiting = {begin}, [begin]
    while waiting:
        for state in nfa.steps[waiting.pop()]:
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return frozenset(number[state] for state in seen if state in number), nfa.end in seen


def _cheapest(moves: frozenset[int], cost: Ids, only: Ids) -> tuple[int, int]:
    """The least cost of some moves, and the symbol they take at that cost, if it is a single one."""
    least = min((int(cost[n]) for n in moves), default=FAR)
    symbols = {int(only[n]) for n in moves if cost[n] == least}
    return least, symbols.pop() if len(symbols) == 1 else ANY


def _distances(
    after: Sequence[frozenset[int]], ends: Sequence[bool], symbols: Sequence[Ids], *, doubles: bool
) -> tuple[Ids, Ids]:
    """Of every move the fewest characters to the end of a text, itself included, and the only symbol that does with so
    few, or ANY. doubles: a symbol that is the same as the one before it counts twice.

    From the ends backwards. A move costs one more than the cheapest that may follow it, and what it costs depends on
    its symbol only where all of those take the same one: that symbol costs one more here.
    """
    before: list[list[int]] = [[] for _ in after]
    for n, following in enumerate(after):
        for m in following:
            before[m].append(n)
    cost, only = np.full(len(after), FAR), np.full(len(after), ANY)
    waiting: dict[int, list[int]] = {}  # moves by their cost

    def settle(n: int, rest: int, follower: int) -> None:
        good = symbols[n][symbols[n] != follower] if doubles else symbols[n]
        if len(good) == 0:  # all it could say is said again by what follows
            good, rest = symbols[n], rest + 1
        cost[n], only[n] = rest + 1, good[0] if len(good) == 1 else ANY
        waiting.setdefault(rest + 1, []).append(n)

    for n, end in enumerate(ends):
        if end and len(symbols[n]):
            settle(n, 0, ANY)
    price = 0
    while waiting:
        price += 1
        reached: dict[int, int] = {}
        for m in waiting.pop(price, ()):
            for n in before[m]:
                if cost[n] == FAR and len(symbols[n]):
                    reached[n] = int(only[m]) if reached.get(n, only[m]) == only[m] else ANY
        for n, follower in reached.items():
            settle(n, price, follower)
    return cost, only
