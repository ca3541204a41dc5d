"""Prefix beam search for CTC (Graves 2012; Hannun et al. 2014) along an automaton, for all images of a batch at once.

A prefix has two probabilities, of the ways over the columns so far that end in a blank and of those that end in its
last symbol; all ways of the same text are summed. No prefix is kept that the remaining columns have no room to bring
to an end that satisfies the constraint (`Automaton.columns`), so if there is such a text, one is found. What was found
is weighed again exactly, over all its ways, and laid on the columns in its likeliest way to say where it was seen.

Shapes: B images, T columns, K prefixes, S symbols, U states, n texts, L characters, P = 2L + 1 places on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitocr.constraints.automaton import Automaton, Ids, OneOf, successors
from vitocr.constraints.found import NEVER, Floats, Found, Text, log_growth, log_softmax, log_sum


class Beam(NamedTuple):
    """K prefixes of every image, all (B, K); where there are fewer, the probabilities are -inf."""

    blank: Floats  # log of the probability of all ways that end in a blank
    label: Floats  # and of those that end in the last symbol
    node: Ids  # which prefix it is, in `Prefixes`; -1 for none
    parent: Ids  # the prefix without its last symbol; -1 for none
    last: Ids  # its last symbol; -1 for none
    state: Ids


class Prefixes:
    """All prefixes that were ever in the beam. The first B are the empty ones of the images."""

    def __init__(self, images: int) -> None:
        self.above, self.symbol = [-1] * images, [-1] * images
        self.known: dict[tuple[int, int], int] = {}

    def grown(self, parent: int, symbol: int) -> int:
        node = self.known.setdefault((parent, symbol), len(self.above))
        if node == len(self.above):
            self.above.append(parent)
            self.symbol.append(symbol)
        return node

    def text(self, node: int) -> tuple[int, ...]:
        ids = []
        while self.above[node] >= 0:
            ids.append(self.symbol[node])
            node = self.above[node]
        return tuple(ids[::-1])


def ctc_beam_search(
    logits: Floats, shares: Floats, *, automaton: Automaton | None, beam: int, n_best: int
) -> list[Found]:
    """The likeliest texts of logits (B, T, S + 1), the blank last; shares (B, rows, T) of each row in a column."""
    log_probs = log_softmax(logits)
    B, T, symbols = len(log_probs), log_probs.shape[1], log_probs.shape[2] - 1
    free = automaton is None
    automaton = automaton or OneOf(np.ones(symbols, dtype=bool))
    prefixes = Prefixes(B)
    now = empty_beam(B, beam, automaton.start)
    now.node[:, 0] = np.arange(B)
    if automaton.columns(np.array([automaton.start]))[0][0] <= T:
        now.blank[:, 0] = 0.0
    totals = np.zeros(B)
    for column in range(T):
        now, growth = advance(now, log_probs[:, column], T - 1 - column, automaton, prefixes)
        totals += growth
    rows, slots = np.nonzero(np.logaddexp(now.blank, now.label) > NEVER)
    texts = [prefixes.text(node) for node in now.node[rows, slots].tolist()]
    return weighed(log_probs, rows, texts, shares, totals, None if free else automaton, n_best)


def empty_beam(images: int, beam: int, start: int) -> Beam:
    shape = images, beam
    return Beam(
        blank=np.full(shape, NEVER),
        label=np.full(shape, NEVER),
        node=np.full(shape, -1),
        parent=np.full(shape, -1),
        last=np.full(shape, -1),
        state=np.full(shape, start),
    )


def advance(now: Beam, here: Floats, left: int, automaton: Automaton, prefixes: Prefixes) -> tuple[Beam, Floats]:
    """The beam after one column, log-probabilities (B, S + 1), with `left` columns after it.

    Also the log (B,) of how much more there would be of it if nothing had been dropped.
    """
    B, K = now.node.shape
    S = here.shape[1] - 1
    some = np.arange(B)[:, None]
    table, which = successors(automaton, now.state.ravel())
    which = which.reshape(B, K)
    total = np.logaddexp(now.blank, now.label)  # (B, K)

    # The text stays: a blank, or its last symbol once more.
    need, only = automaton.columns(now.state)
    blank = np.where(need <= left, total + here[:, S:], NEVER)
    again = now.label + np.take_along_axis(here, np.maximum(now.last, 0), axis=1)
    again = np.where(need + ((only == now.last) & (now.last >= 0)) <= left, again, NEVER)

    # The text goes on; with the symbol it ends in only after a blank.
    need, only = automaton.columns(table)  # (U, S)
    fits = (table >= 0) & (need + (only == np.arange(S)) <= left)
    reach = np.where(fits[which], total[..., None] + here[:, None, :S], NEVER)  # (B, K, S)
    b, k = np.nonzero(now.last >= 0)
    last = now.last[b, k]
    doubled = now.blank[b, k] + here[b, last]
    reach[b, k, last] = np.where(reach[b, k, last] > NEVER, doubled, NEVER)

    # Where that makes a text that is there already, the two are one.
    b, i, k = np.nonzero((now.parent[:, None] == now.node[:, :, None]) & (now.node[:, :, None] >= 0))
    last = now.last[b, k]
    again[b, k] = np.logaddexp(again[b, k], reach[b, i, last])
    reach[b, i, last] = NEVER

    stay = np.logaddexp(blank, again)
    most = min(K, S)
    near = np.sort(np.argpartition(-reach, most - 1, axis=2)[..., :most], axis=2)  # (B, K, most)
    values = np.concatenate([stay, np.take_along_axis(reach, near, axis=2).reshape(B, -1)], axis=1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :K]
    best = np.take_along_axis(values, order, axis=1)
    alive, new = best > NEVER, order >= K
    origin = np.where(new, (order - K) // most, order)
    symbol = np.where(new, near.reshape(B, -1)[some, np.maximum(order - K, 0)], now.last[some, origin])

    stay[np.nonzero(~new)[0], order[~new]] = NEVER  # what is left is dropped
    reach[np.nonzero(new)[0], origin[new], symbol[new]] = NEVER
    dropped = np.logaddexp(log_sum(reach.reshape(B, -1)), log_sum(stay))

    node = np.where(alive, now.node[some, origin], -1)
    parent = np.where(new, node, np.where(alive, now.parent[some, origin], -1))
    state = np.where(new, table[which[some, origin], symbol], now.state[some, origin])
    for row, slot in np.argwhere(new & alive).tolist():
        node[row, slot] = prefixes.grown(int(node[row, slot]), int(symbol[row, slot]))
    after = Beam(
        np.where(new, NEVER, blank[some, origin]),
        np.where(new, best, again[some, origin]),
        node,
        parent,
        np.where(alive, symbol, -1),
        np.where(alive, state, automaton.start),
    )
    return after, log_growth(log_sum(best), dropped)


def weighed(
    log_probs: Floats,
    image: Ids,
    texts: list[tuple[int, ...]],
    shares: Floats,
    totals: Floats,
    automaton: Automaton | None,
    n_best: int,
) -> list[Found]:
    """What was found of each image: texts, which are of the images (n,), weighed over all their ways, the best first.

    totals: log of what would be there for each that was found, had nothing been dropped on the way.
    """
    exact = text_log_probs(log_probs, image, texts)
    order = np.lexsort((-exact, image))  # those of an image side by side, the best first
    rank = np.arange(len(order)) - np.searchsorted(image[order], image[order])
    best = order[rank < n_best]
    ended: list[list[Text]] = [[] for _ in log_probs]
    for n, cover in zip(best.tolist(), align(log_probs, image[best], [texts[n] for n in best]), strict=True):
        row = int(image[n])
        probs = symbol_probs(log_probs[row], texts[n], cover, automaton)
        seen = (cover[:, None] * shares[row]).reshape(len(cover), shares[row].size)  # (L, rows x T)
        ended[row].append(Text(texts[n], float(exact[n]), float(exact[n]), probs, seen))
    if automaton is None:
        return [Found(each, 0.0) for each in ended]
    return [Found(each, float(log_sum(exact[image == row]) + totals[row])) for row, each in enumerate(ended)]


def symbol_probs(log_probs: Floats, ids: tuple[int, ...], cover: Floats, automaton: Automaton | None) -> Floats:
    """(L,) of each character its probability in its surest column, among the symbols that were allowed there."""
    probs = np.ones(len(ids), dtype=np.float32)
    state = automaton.start if automaton is not None else 0
    for place, symbol in enumerate(ids):
        columns = log_probs[cover[place] > 0]  # (n, S + 1)
        said = columns[:, symbol]
        if automaton is not None:
            row = automaton.follow(state)
            allowed = np.append(row >= 0, True)  # the blank always is
            allowed[list(ids[max(place - 1, 0) : place])] = True  # and so is saying the last symbol once more
            said = said - log_sum(columns[:, allowed])
            state = int(row[symbol])
        probs[place] = np.exp(said.max())
    return probs


class Ways(NamedTuple):
    """Texts spread out as CTC lays them on columns: blank, symbol, blank, symbol, ..., blank."""

    at: Floats  # (n, T, P) log-probability of each place in each column
    skips: Floats  # (n, P) 0 where the blank before may be left out, else -inf
    last: Ids  # (n,) the last place of each


def ways_of(log_probs: Floats, image: Ids, texts: list[tuple[int, ...]]) -> Ways:
    T, blank = log_probs.shape[1], log_probs.shape[2] - 1
    longest = max(map(len, texts), default=0)
    places = np.full((len(texts), 2 * longest + 1), blank)
    for row, ids in enumerate(texts):
        places[row, 1 : 2 * len(ids) : 2] = ids
    skips = np.full(places.shape, NEVER)
    skips[:, 3::2] = np.where(places[:, 3::2] != places[:, 1:-2:2], 0.0, NEVER)
    last = 2 * np.array([len(ids) for ids in texts], dtype=np.int64)
    at = log_probs[image[:, None, None], np.arange(T)[:, None], places[:, None]]
    return Ways(at, skips, last)


def came_from(before: Floats, skips: Floats) -> Floats:
    """(3, n, P) the logs of having stayed, gone on, and left out a blank, of logs (n, P) a column earlier."""
    stay, on, over = before, np.full_like(before, NEVER), np.full_like(before, NEVER)
    on[:, 1:] = before[:, :-1]
    over[:, 2:] = before[:, :-2] + skips[:, 2:]
    return np.stack([stay, on, over])


def first_column(ways: Ways) -> Floats:
    begin = np.full(ways.skips.shape, NEVER)
    begin[:, :2] = ways.at[:, 0, :2]
    return begin


def text_log_probs(log_probs: Floats, image: Ids, texts: list[tuple[int, ...]]) -> Floats:
    """(n,) log-probability of each text over all its ways on the columns of its image."""
    ways = ways_of(log_probs, image, texts)
    logs = first_column(ways)
    for column in range(1, ways.at.shape[1]):
        logs = np.logaddexp.reduce(came_from(logs, ways.skips), axis=0) + ways.at[:, column]
    row = np.arange(len(texts))
    before_last = np.where(ways.last > 0, logs[row, ways.last - 1], NEVER)
    return np.logaddexp(logs[row, ways.last], before_last)


def align(log_probs: Floats, image: Ids, texts: list[tuple[int, ...]]) -> list[Floats]:
    """Of each text (L, T), 1 where a column says that character on the likeliest way."""
    ways = ways_of(log_probs, image, texts)
    T = ways.at.shape[1]
    logs, moves = first_column(ways), np.zeros(ways.at.shape, dtype=np.int64)
    for column in range(1, T):
        options = came_from(logs, ways.skips)
        moves[:, column] = options.argmax(axis=0)  # how many places further
        logs = options.max(axis=0) + ways.at[:, column]
    covers = []
    for row, ids in enumerate(texts):
        place = int(ways.last[row])
        if place and logs[row, place - 1] > logs[row, place]:
            place -= 1
        cover = np.zeros((len(ids), T), dtype=np.float32)
        for column in range(T - 1, -1, -1):
            if place % 2:
                cover[place // 2, column] = 1.0
            place -= int(moves[row, column, place])
        covers.append(cover)
    return covers
