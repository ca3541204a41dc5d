"""What the text heads do with their logits, in numpy: reading where there is no torch.

The same as `heads/text.py`, `heads/ctc.py` and `heads/joint.py` say it for torch, with the graphs of an exported model
in place of the modules; `export/check.py` holds the two against each other for every model that is exported.

Shapes: B images, L characters (padded with -1), N = rows x columns tokens, T columns, S symbols, P places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitocr.errors import UserError, did_you_mean

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]
Tensors = Mapping[str, NDArray[Any]]
Run = Callable[[Tensors], Tensors]  # a graph: named inputs to named outputs

WAYS = ("decoder", "ctc", "surer")
CTC_COUNTS = 0.3  # as in heads/joint.py
TOGETHER = 16  # texts of about one length that are looked at at once: on one core, the padding of more would show
RESCALE = 8  # columns: so many of the least that float32 can tell do not yet come to nothing in float64
CROWDED = 0.75  # words that have ended stay in the batch until they are a quarter of it: leaving costs a copy


class Spelled(NamedTuple):
    """What was read, not yet where. Beyond the length of a text: -1 in ids, 1 in probs, anything in seen."""

    ids: Ids  # (B, L)
    lengths: Ids  # (B,)
    probs: Floats  # (B, L)
    confidence: Floats  # (B,)
    seen: Floats  # (B, L, N): how much of each character stands on each token


class Decoded(NamedTuple):
    """As `heads.text.Decoded`. Entries beyond the length of a text are -1 in ids, 1 in probs, 0 in where."""

    ids: Ids  # (B, L)
    lengths: Ids  # (B,)
    probs: Floats  # (B, L)
    confidence: Floats  # (B,)
    where: Floats  # (B, L, 4)


def decode(
    encoded: Tensors,
    step: Run | None,
    reading: Mapping[str, Any],
    *,
    by: str | None = None,
    mode: str = "ar",
    refine: int = 1,
) -> Decoded:
    """What an exported text model reads. encoded: what `encode` gave; the options are those of the heads."""
    spelled = spell(encoded, step, reading, by=by, mode=mode, refine=refine)
    return Decoded(*spelled[:4], boxes(spelled.seen, spelled.lengths, reading["rows"]))


def spell(
    encoded: Tensors, step: Run | None, reading: Mapping[str, Any], *, by: str | None, mode: str, refine: int
) -> Spelled:
    if reading["head"] == "ctc":
        return spell_ctc(encoded, rows=reading["rows"], blank=reading["blank"])
    by = way_of(by, decoder=True, ctc=reading["ctc"])
    if by != "decoder":
        aligned = spell_ctc(encoded, rows=reading["rows"], blank=reading["end"])
        if by == "ctc":
            return aligned
    assert step is not None
    image = {name: encoded[name] for name in reading["image"]}
    of_aligned = None
    if reading["head"] == "permuted":
        decoded = read_permuted(step, image, reading, mode=mode, refine=refine)
    elif by == "surer" and reading.get("many"):  # exports of an older vitocr take one symbol at a time
        decoded, of_aligned = read_by_guess(step, image, reading, aligned)
    else:
        decoded = read_stepwise(step, image, reading)
    if by == "decoder":
        return decoded
    take_ctc = aligned.confidence > decoded.confidence
    if of_aligned is not None:
        differ = np.flatnonzero(texts_differ(decoded, aligned) & ~np.isnan(of_aligned))
        if differ.size:
            chances, ids = softmax(encoded["ctc_logits"][differ]), decoded.ids[differ]
            with np.errstate(divide="ignore"):  # no chance at all is -inf
                of_decoded = np.log(text_probability(chances, ids, decoded.lengths[differ], blank=reading["end"]))
                one, two = np.log(aligned.confidence[differ]), np.log(decoded.confidence[differ])
            take_ctc[differ] = of_aligned[differ] + CTC_COUNTS * one > two + CTC_COUNTS * of_decoded
    return choose(decoded, aligned, take_ctc)


def texts_differ(a: Spelled, b: Spelled) -> NDArray[np.bool_]:
    """(B,)"""
    both = min(a.ids.shape[1], b.ids.shape[1])
    return (a.lengths != b.lengths) | (a.ids[:, :both] != b.ids[:, :both]).any(axis=1)


def way_of(by: str | None, *, decoder: bool, ctc: bool) -> str:
    """Which of the heads that there are is to read, checked; by default the surer of two."""
    if by is None:
        return "surer" if decoder and ctc else "decoder" if decoder else "ctc"
    if by not in WAYS:
        raise UserError(f"by={by}: choose one of {', '.join(WAYS)}.{did_you_mean(by, WAYS)}")
    if by != "decoder" and not ctc:
        raise UserError(f"by={by} needs a model trained with a CTC head (head.ctc > 0), which this one lacks")
    if by != "ctc" and not decoder:
        raise UserError(f"by={by} needs a model with a decoder, and this one is CTC alone")
    return by


def softmax(logits: Floats) -> Floats:
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def read_stepwise(step: Run, image: Tensors, reading: Mapping[str, Any]) -> Spelled:
    """The likeliest symbol at every step, until the last word has ended."""
    end, max_length = reading["end"], reading["max_length"]
    B = len(next(iter(image.values())))
    state = beginning(reading, B)
    ids = np.full((B, max_length + 1), end, dtype=np.int64)
    probs = np.ones((B, max_length + 1), dtype=np.float32)
    weights = None
    running = np.arange(B)  # which images are in the batch, and which of these are still being read
    going = np.ones(B, dtype=bool)
    previous = np.full(B, end, dtype=np.int64)
    for at in range(max_length + 1):
        logits, looked, state = run_step(step, previous, at, image, state, reading)
        chances = softmax(logits)
        previous = chances.argmax(axis=1) if at < max_length else np.full(len(running), end)
        rows = running[going]
        if weights is None:
            weights = np.zeros((B, max_length + 1, looked.shape[1]), dtype=np.float32)
        ids[rows, at], weights[rows, at] = previous[going], looked[going]
        probs[rows, at] = np.take_along_axis(chances, previous[:, None], axis=1)[going, 0]
        going &= previous != end
        left = int(going.sum())
        if left == 0:
            break
        if left <= CROWDED * len(running):
            running, previous = running[going], previous[going]
            image = {name: tensor[going] for name, tensor in image.items()}
            state = {name: tensor[going] for name, tensor in state.items()}
            going = going[going]
    assert weights is not None
    return until_the_end(ids, probs, weights, end=end)


def read_by_guess(step: Run, image: Tensors, reading: Mapping[str, Any], guess: Spelled) -> tuple[Spelled, Floats]:
    """What `read_stepwise` reads, in a pass or two over whole texts, and the logarithm (B,) of the probability that the
    decoder gives the guess: `heads.guess` tells how."""
    end, max_length = reading["end"], reading["max_length"]
    B = len(guess.ids)
    ids = np.full((B, max_length + 1), end, dtype=np.int64)
    probs = np.ones((B, max_length + 1), dtype=np.float32)
    weights, of_guess = None, np.where(guess.lengths > max_length, np.nan, 0.0)
    guessed = np.where(guess.ids >= 0, guess.ids, end)[:, :max_length]
    order = np.argsort(guess.lengths, kind="stable") if B > TOGETHER else np.arange(B)
    for first in range(0, B, TOGETHER):
        rows = order[first : first + TOGETHER]  # the images whose text may still change
        text = without_tail(guessed[rows], end)
        for turn in range(max_length + 1):
            P = min(text.shape[1] + 2, max_length + 1)  # a place to end at, and one to grow by
            given = np.full((len(rows), P), end, dtype=np.int64)
            given[:, 1 : 1 + text.shape[1]] = text
            some = image if len(rows) == B else {name: tensor[rows] for name, tensor in image.items()}
            found = step({"given": given, **some, **beginning(reading, len(rows))})
            chances = softmax(found["logits"])  # (R, P, S + 1)
            said, prob = chances.argmax(axis=2), chances.max(axis=2)
            if max_length < P:  # no room for another character
                said[:, max_length], prob[:, max_length] = end, chances[:, max_length, end]
            said[(said == end).cumsum(axis=1) > 0] = end
            if weights is None:
                weights = np.zeros((B, max_length + 1, found["weights"].shape[2]), dtype=np.float32)
            ids[rows, :P], probs[rows, :P], weights[rows, :P] = said, prob, found["weights"]
            ids[rows, P:] = end
            expected = np.full_like(given, end)
            expected[:, :-1] = given[:, 1:]
            if turn == 0:
                ends = expected == end
                asked = ends.cumsum(axis=1) == ends  # the places of the text, and its end
                of_guess[rows] += log_product(np.take_along_axis(chances, expected[..., None], axis=2)[..., 0], asked)
            changed = (said != expected).any(axis=1)
            if not changed.any():
                break
            rows, text = rows[changed], without_tail(said[changed][:, :max_length], end)
    assert weights is not None
    ids[:, max_length] = end  # should rounding have kept a text from settling, it is cut here
    return until_the_end(ids, probs, weights, end=end), of_guess


def log_product(chances: Floats, asked: NDArray[np.bool_]) -> Floats:
    """(B,) of (B, P)."""
    with np.errstate(divide="ignore"):
        return np.log(np.where(asked, chances, 1)).sum(axis=1)


def without_tail(text: Ids, end: int) -> Ids:
    """(R, L) as wide as its longest text."""
    return text[:, : (text != end).sum(axis=1).max()]


def run_step(
    step: Run, previous: Ids, at: int, image: Tensors, state: Tensors, reading: Mapping[str, Any]
) -> tuple[Floats, Floats, dict[str, NDArray[Any]]]:
    """Given the last symbols (B,): the logits (B, S + 1) of the next, where it looked (B, N), and the state after."""
    feeds: dict[str, Any] = {"given": previous[:, None], **image, **state}
    if reading["head"] == "permuted":
        feeds |= {"places": np.array([at]), "written": np.full(len(previous), at + 1)}
    found = step(feeds)
    logits, looked = (found[name].reshape(len(previous), -1) for name in ("logits", "weights"))
    return logits, looked, {entry["in"]: found[entry["out"]] for entry in reading["state"]}


class Reading:
    """An exported decoder in the middle of reading some images, as a beam search drives it (`constraints.beam`)."""

    def __init__(self, step: Run, image: Tensors, reading: Mapping[str, Any]) -> None:
        self.run, self.image, self.reading, self.at = step, image, reading, 0
        self.state: Tensors = beginning(reading, len(next(iter(image.values()))))

    def step(self, previous: Ids) -> tuple[Floats, Floats]:
        logits, looked, self.state = run_step(self.run, previous, self.at, self.image, self.state, self.reading)
        self.at += 1
        return logits, looked

    def keep(self, rows: Ids, *, same_images: bool) -> None:
        self.state = {name: tensor[rows] for name, tensor in self.state.items()}
        if not same_images:
            self.image = {name: tensor[rows] for name, tensor in self.image.items()}


def beginning(reading: Mapping[str, Any], B: int) -> dict[str, NDArray[np.float32]]:
    """The state of a reading of which nothing is read yet."""
    return {entry["in"]: np.zeros((B, *entry["shape"]), dtype=np.float32) for entry in reading["state"]}


def read_permuted(step: Run, image: Tensors, reading: Mapping[str, Any], *, mode: str, refine: int) -> Spelled:
    """As `heads.permuted.Permuted.read`."""
    if mode not in ("ar", "parallel"):
        raise UserError(f"mode={mode}: choose ar or parallel")
    found = read_stepwise(step, image, reading) if mode == "ar" else read_places(step, image, reading, None)
    for _ in range(refine):
        found = read_places(step, image, reading, found)
    return found


def read_places(step: Run, image: Tensors, reading: Mapping[str, Any], guess: Spelled | None) -> Spelled:
    """One pass over all places, given nothing or a guess, which may grow by one character."""
    end, max_length = reading["end"], reading["max_length"]
    B = len(next(iter(image.values())))
    P = max_length + 1
    if guess is None:
        given = np.full((B, 1), end, dtype=np.int64)
        written, longest = np.ones(B, dtype=np.int64), np.full(B, max_length)
    else:
        P = min(P, guess.ids.shape[1] + 2)
        given = np.full((B, P), end, dtype=np.int64)
        given[:, 1 : 1 + guess.ids.shape[1]] = np.where(guess.ids >= 0, guess.ids, end)[:, : P - 1]
        written, longest = guess.lengths + 1, np.minimum(guess.lengths + 1, max_length)
    asked = {"given": given, "places": np.arange(P), "written": written}
    found = step({**asked, **image, **beginning(reading, B)})
    chances = softmax(found["logits"])  # (B, P, S + 1)
    ids, probs = chances.argmax(axis=2), chances.max(axis=2)
    no_room = np.arange(P) >= longest[:, None]
    ids, probs = np.where(no_room, end, ids), np.where(no_room, chances[..., end], probs)
    return until_the_end(ids, probs, found["weights"], end=end)


def until_the_end(ids: Ids, probs: Floats, weights: Floats, *, end: int) -> Spelled:
    """Symbols (B, P) of which at least the last is the end, cut at the first end."""
    lengths = (ids == end).argmax(axis=1)
    spoken = np.arange(ids.shape[1]) <= lengths[:, None]  # the end included
    confidence = np.where(spoken, probs, 1).prod(axis=1)
    longest = int(lengths.max(initial=0))
    real = np.arange(longest) < lengths[:, None]
    return Spelled(
        np.where(real, ids[:, :longest], -1),
        lengths,
        np.where(real, probs[:, :longest], 1),
        confidence,
        weights[:, :longest],
    )


def spell_ctc(encoded: Tensors, *, rows: int, blank: int) -> Spelled:
    """Greedy, with the probability of the text over all its ways on the columns, as `heads.ctc.Ctc.decode`."""
    chances = softmax(encoded["ctc_logits"])  # (B, T, S + 1)
    B, T, _ = chances.shape
    said, best = chances.argmax(axis=2), chances.max(axis=2)  # (B, T)
    before = np.concatenate([np.full((B, 1), blank), said[:, :-1]], axis=1)
    fresh = (said != blank) & (said != before)
    lengths = fresh.sum(axis=1)
    longest = int(lengths.max(initial=0))
    places = np.arange(longest)
    character = np.where(said != blank, fresh.cumsum(axis=1) - 1, longest)
    belongs = character[:, None] == places[:, None]  # (B, L, T)
    real = places < lengths[:, None]
    ids = np.where(real, (belongs * said[:, None]).max(axis=2, initial=0), -1)
    probs = np.where(real, (belongs * best[:, None]).max(axis=2, initial=0), 1)
    shares = encoded.get("ctc_shares")  # (B, rows, T)
    if shares is None:
        shares = np.full((B, rows, T), 1 / rows, dtype=np.float32)
    seen = belongs[:, :, None] * shares[:, None]  # (B, L, rows, T)
    confidence = text_probability(chances, ids, lengths, blank=blank)
    return Spelled(ids, lengths, probs, confidence, seen.reshape(B, longest, rows * T))


def text_probability(chances: Floats, ids: Ids, lengths: Ids, *, blank: int) -> Floats:
    """The probability (B,) of texts (B, L), summed over all ways to lay them on the columns of (B, T, S + 1).

    Graves et al. 2006: symbols stand between blanks; a column stays, goes on, or skips the blank between two that
    differ. Each column is counted in units of its likeliest symbol, and now and then the sums are brought back to 1, so
    that neither runs out of digits. The loop works in place: for one word, numpy's calls are most of its time.
    """
    B, T, _ = chances.shape
    L = ids.shape[1]
    states = np.full((B, 2 * L + 1), blank)
    states[:, 1::2] = np.where(ids >= 0, ids, blank)
    within = np.arange(2 * L + 1) <= 2 * lengths[:, None]
    skips = np.zeros((B, 2 * L + 1))
    skips[:, 3::2] = ids[:, 1:] != ids[:, :-1]
    at = np.take_along_axis(chances, states[:, None], axis=2).astype(np.float64) * within[:, None]  # (B, T, 2L + 1)
    units = np.maximum(at.max(axis=2, keepdims=True), np.finfo(np.float64).tiny)
    at /= units
    logs = np.log(units).sum(axis=(1, 2))
    ways = np.zeros((B, 2 * L + 3))  # two states that never are, so that every state has two before it
    here, one_before, two_before = ways[:, 2:], ways[:, 1:-1], ways[:, :-2]
    here[:, :2] = at[:, 0, :2]
    come = np.empty_like(here)
    for column in range(1, T):
        np.multiply(skips, two_before, out=come)
        come += one_before
        come += here
        np.multiply(come, at[:, column], out=here)
        if column % RESCALE == 0:
            total = np.maximum(ways.sum(axis=1), np.finfo(np.float64).tiny)
            ways /= total[:, None]
            logs += np.log(total)
    last = 2 * lengths[:, None] + 2
    ends = np.take_along_axis(ways, last, axis=1) + np.take_along_axis(ways, last - 1, axis=1)
    return ends[:, 0] * np.exp(logs)


def boxes(weights: Floats, lengths: Ids, rows: int) -> Floats:
    """(B, L, N) weights on the grid to boxes (B, L, 4): around the peak, as far as half its height."""
    B, L, N = weights.shape
    grid = weights.reshape(B, L, rows, N // rows)
    top, bottom = run_around_peak(grid.sum(axis=3))
    left, right = run_around_peak(grid.sum(axis=2))
    box = np.stack([left, top, right, bottom], axis=2)
    return np.where((np.arange(L) < lengths[:, None])[..., None], box, 0)


def run_around_peak(profile: Floats) -> tuple[Floats, Floats]:
    """Begin and end, as shares, of the cells next to the highest of (..., n) that are at least half as high."""
    n = profile.shape[-1]
    cells = np.arange(n)
    peak = profile.argmax(axis=-1)[..., None]
    low = profile < profile.max(axis=-1, keepdims=True) / 2
    first = np.where(low & (cells < peak), cells, -1).max(axis=-1) + 1
    last = np.where(low & (cells > peak), cells, n).min(axis=-1)
    return first / n, last / n


def choose(first: Spelled, second: Spelled, take_second: NDArray[np.bool_]) -> Spelled:
    """Row by row one of two readings; `take_second` (B,)."""
    if take_second.all():
        return second
    if not take_second.any():
        return first
    lengths = np.where(take_second, second.lengths, first.lengths)
    longest = int(lengths.max())

    def pick(a: NDArray[Any], b: NDArray[Any], empty: float) -> NDArray[Any]:
        chosen = np.full((len(a), longest, *a.shape[2:]), empty, dtype=a.dtype)
        for some, rows in ((a, ~take_second), (b, take_second)):
            width = min(longest, some.shape[1])
            chosen[rows, :width] = some[rows, :width]
        return chosen

    return Spelled(
        pick(first.ids, second.ids, -1),
        lengths,
        pick(first.probs, second.probs, 1),
        np.where(take_second, second.confidence, first.confidence),
        pick(first.seen, second.seen, 0),
    )
