"""Beam search for decoders that read one symbol after another, in torch or in ONNX graphs: they come as `Steps`.

Of every image the `beam` likeliest beginnings go on, each along the automaton of the constraint, so that no beginning
is followed of which nothing can come that satisfies it. An image leaves when no beginning can still become better than
the texts it has. All images are searched at once; what is found for one does not depend on the others.

How likely it is that a text satisfies the constraint is estimated on the way (`Found.log_total`): summed over all
texts seen to end, and beginnings that were dropped are taken to satisfy it as often as those kept beside them.

Shapes: B images, R rows (beginnings of texts, those of an image side by side), S symbols, N tokens, U states.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple, Protocol

import numpy as np

from vitocr.constraints.automaton import Automaton, Ids, Mask, OneOf, successors
from vitocr.constraints.found import NEVER, Floats, Found, Text, log_growth, log_softmax, log_sum

NEGLIGIBLE = np.log(0.001)  # share of what has ended below which unfinished beginnings do not matter for confidence


class Steps(Protocol):
    """A decoder in the middle of reading, as the search drives it."""

    def step(self, previous: Ids) -> tuple[Floats, Floats]:
        """Given the last symbols (R,): the logits (R, S + 1) of the next, and where it looked (R, N)."""

    def keep(self, rows: Ids, *, same_images: bool) -> None:
        """Go on with these rows, in this order; one may be there several times.

        same_images: every place holds a text of the same image as before.
        """


class Grown(NamedTuple):
    """The rows of a step: how each came of those of the step before."""

    parents: Ids  # (R,)
    symbols: Ids  # (R,)
    shares: Floats  # (R,) probability of the symbol among those that were allowed
    looked: Floats  # (R, N)


class Mass(NamedTuple):
    """What became of an image's probability in a step, in logs (B,)."""

    ended: Floats
    kept: Floats
    dropped: Floats
    left: Floats  # kept, but not followed any further


def beam_search(
    reader: Steps, *, images: int, end: int, max_length: int, automaton: Automaton | None, beam: int, n_best: int
) -> list[Found]:
    """The likeliest texts of every image, of up to `max_length` characters; all of them satisfy the automaton."""
    free = automaton is None
    automaton = automaton or OneOf(np.ones(end, dtype=bool))
    books: list[list[tuple[float, int, int]]] = [[] for _ in range(images)]  # -log, step and row of texts, best first
    worst = np.full(images, NEVER)  # what a text of an image must beat to get in
    image = np.arange(images)
    score: Floats = np.zeros(images)
    state, previous = np.full(images, automaton.start), np.full(images, end)
    history: list[Grown] = []
    masses: list[Mass] = []
    for at in range(max_length + 1):
        logits, looked = reader.step(previous)
        log_probs = log_softmax(logits)  # (R, S + 1)
        table, which = successors(automaton, state)  # (U, S), (R,)
        fits = (table >= 0) & (automaton.fewest(table) < max_length - at)
        going = np.where(fits[which], log_probs[:, :end], NEVER)  # (R, S)
        stopping = np.where(automaton.accepts(state), log_probs[:, end], NEVER)  # (R,)
        done = score + stopping
        for row in np.flatnonzero(done > worst[image]).tolist():
            book = books[image[row]]
            insort(book, (-float(done[row]), at, row))
            del book[n_best:]
            if len(book) == n_best:
                worst[image[row]] = -book[-1][0]
        allowed = np.zeros(len(image)) if free else np.logaddexp(log_sum(going), stopping)
        reach = score[:, None] + going
        parents, symbols, scores = widest(reach, image, beam)
        over = enough(image[parents], scores, worst)
        if not free:
            reach[parents, symbols] = NEVER  # what is left is dropped
            ended = summed_by_image(image, done, images)
            kept = summed_by_image(image[parents], scores, images)
            dropped = summed_by_image(image, log_sum(reach), images)
            seen = np.logaddexp.reduce([ended, *(mass.ended for mass in masses)], axis=0)
            over &= kept <= seen + NEGLIGIBLE
            masses.append(Mass(ended, kept, dropped, np.where(over, kept, NEVER)))
        on = ~over[image[parents]]
        parents, symbols, scores = parents[on], symbols[on], scores[on]
        if len(parents) == 0:
            break
        shares = np.exp(log_probs[parents, symbols] - allowed[parents])
        history.append(Grown(parents, symbols, shares, looked[parents]))
        same_images = len(parents) == len(image) and bool((image[parents] == image).all())
        reader.keep(parents, same_images=same_images)
        image, score, state, previous = image[parents], scores, table[which[parents], symbols], symbols
    totals = np.zeros(images) if free else total_mass(masses)
    tokens = looked.shape[1]
    return [
        Found([traced(history, *entry, tokens=tokens) for entry in book], float(total))
        for book, total in zip(books, totals, strict=True)
    ]


def widest(reach: Floats, image: Ids, beam: int) -> tuple[Ids, Ids, Floats]:
    """Row, symbol and score of the `beam` best of every image, the best first, of the scores (R, S)."""
    rows, symbols = reach.shape
    most = min(beam, symbols)
    near = np.sort(np.argpartition(-reach, most - 1, axis=1)[:, :most], axis=1)
    values = np.take_along_axis(reach, near, axis=1).ravel()
    row, symbol = np.repeat(np.arange(rows), most), near.ravel()
    order = np.lexsort((-values, image[row]))  # stable: of equals the first
    owner = image[row][order]
    rank = np.arange(len(order)) - np.searchsorted(owner, owner)
    taken = order[(rank < beam) & (values[order] > NEVER)]
    return row[taken], symbol[taken], values[taken]


def summed_by_image(image: Ids, logs: Floats, images: int) -> Floats:
    total = np.full(images, NEVER)
    np.logaddexp.at(total, image, logs)
    return total


def enough(image: Ids, scores: Floats, worst: Floats) -> Mask:
    """(B,) whether no beginning of an image, all of which can only lose, is better than its worst text."""
    best = np.full(len(worst), NEVER)
    np.maximum.at(best, image, scores)
    return best <= worst


def total_mass(masses: list[Mass]) -> Floats:
    """log of the probability (B,) that a text satisfies the constraint, from the last step backwards."""
    total = np.full(len(masses[0].ended), NEVER)
    for mass in reversed(masses):
        kept = np.logaddexp(total, mass.left)
        total = np.logaddexp(mass.ended, kept + log_growth(mass.kept, mass.dropped))
    return total


def traced(history: list[Grown], negative: float, at: int, row: int, *, tokens: int) -> Text:
    """The text that ended at a row of a step."""
    ids, probs, seen = [], [], np.zeros((at, tokens), dtype=np.float32)
    for step in range(at - 1, -1, -1):
        grown = history[step]
        ids.append(int(grown.symbols[row]))
        probs.append(grown.shares[row])
        seen[step] = grown.looked[row]
        row = int(grown.parents[row])
    return Text(tuple(ids[::-1]), -negative, -negative, np.array(probs[::-1], dtype=np.float32), seen)
