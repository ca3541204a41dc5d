"""What the heads that read text share: their types, greedy reading, and where a character was seen.

Ids 0 .. symbols-1 are the characters of the codec. The id `symbols` is special to each head: the blank of
CTC; for a decoder the begin where it is given and the end where it is predicted, so both fit one table.

Shapes: B images, L characters (padded with -1), N = rows x columns tokens, S symbols.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.errors import UserError

UNLIKELY = 0.01  # what is left of the probability of a symbol that is nothing but smoothing


class TextTargets(NamedTuple):
    ids: Tensor  # (B, L) int64, padded with -1
    lengths: Tensor  # (B,) int64
    spans: Tensor  # (B, L, 2) left and right edge of each character in shares of the image width, NaN if unknown


class Decoded(NamedTuple):
    """What was read. Entries beyond the length of a text are -1 in ids, 1 in probs, 0 in where."""

    ids: Tensor  # (B, L) int64
    lengths: Tensor  # (B,) int64
    probs: Tensor  # (B, L) probability of each character
    confidence: Tensor  # (B,) probability of the whole text, its end included; each head says how it is told
    where: Tensor  # (B, L, 4) box of the grid cells a character was seen in: x0, y0, x1, y1 in shares of the image


class Reader(Protocol):
    """A decoder in the middle of reading some images, one symbol after another."""

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Given the last symbols (B,): the logits (B, S + 1) of the next, and where it looked (B, N)."""

    def keep(self, rows: Tensor, *, same_images: bool = False) -> None:
        """Go on with these rows only, in this order; one may be there several times, each to go on differently.

        same_images: every place holds a text of the same image as before, so what is known of the images may stay.
        """


class SymbolLogits(nn.Linear):
    """The last layer of a head: logits (..., S + 1), nearly all symbols alike at first.

    smoothing: share of label smoothing that it is taught with, and that its answers are freed of once it reads. What
    such a model means by probability q, it has learned to call (1 - smoothing) q + smoothing / (S + 1); of a whole
    word that leaves a half and less, the longer the word the less. Undone, `str-tiny` tells its right words from its
    wrong ones better by far (docs/records/ablations.md). Which symbol is the likeliest stays as it is.
    """

    def __init__(self, dim: int, symbols: int, smoothing: float) -> None:
        super().__init__(dim, symbols + 1)
        if not 0 <= smoothing < 1:
            raise ValueError(f"head.smoothing={smoothing} is a share: at least 0 and below 1")
        self.smoothing = smoothing
        nn.init.trunc_normal_(self.weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        if self.training or not self.smoothing:
            return logits
        logits = logits.float()
        by_smoothing = self.smoothing / logits.shape[-1] / logits.softmax(dim=-1)  # of every probability, what share
        # What is all smoothing is not impossible: among such symbols a constraint may have to choose.
        return logits + (1 - by_smoothing).clamp(min=UNLIKELY).log()


def patch_tokens(tokens: Tensor, prefix: int, grid: tuple[int, int]) -> Tensor:
    """The tokens of the grid, (B, rows x columns, D). Wider images than the model's have more columns."""
    patches = tokens[:, prefix:]
    if patches.shape[1] % grid[0]:
        raise UserError(
            f"{patches.shape[1]} tokens do not make {grid[0]} rows: text is read from whole images; "
            "set backbone.keep_patches=1 and leave the image height as the model has it"
        )
    return patches


def teacher_forcing(targets: TextTargets, *, end: int, max_length: int) -> tuple[Tensor, Tensor]:
    """What a decoder is given and what it should answer, (B, L + 1) each; -1 is not asked for."""
    longest = int(targets.lengths.max())
    if longest > max_length:
        raise UserError(
            f"a text has {longest} characters but the head was made for head.max_length={max_length}: "
            "raise that, or drop longer texts from the data"
        )
    ids = targets.ids[:, :longest]
    expected = F.pad(ids, (0, 1), value=-1).scatter(1, targets.lengths[:, None], end)
    given = F.pad(ids.where(ids >= 0, end), (1, 0), value=end)
    return given, expected


def symbol_loss(logits: Tensor, expected: Tensor, label_smoothing: float) -> dict[str, Tensor]:
    """Cross-entropy of logits (n, S + 1) against (n,), and the share of symbols that are right."""
    logits = logits.float()
    right = logits.detach().argmax(dim=-1) == expected
    return {
        "loss": F.cross_entropy(logits, expected, label_smoothing=label_smoothing),
        "accuracy": right.float().mean(),
    }


def span_cover(spans: Tensor, columns: int) -> Tensor:
    """How much of each column each character covers, (B, L, columns) from 0 to 1; all 0 if unknown."""
    edges = torch.arange(columns + 1, device=spans.device, dtype=torch.float32)
    left, right = (spans.float() * columns).nan_to_num(nan=-1.0).split(1, dim=2)  # (B, L, 1): no width, outside
    return (torch.minimum(right, edges[1:]) - torch.maximum(left, edges[:-1])).clamp(min=0)


def look_loss(weights: Tensor, targets: TextTargets, rows: int) -> Tensor:
    """-log of the attention (B, L or more, N) that fell on the columns of the character being read.

    Any place inside the span will do; characters without a known span do not count.
    """
    B, _, N = weights.shape
    longest = min(weights.shape[1], targets.spans.shape[1])
    cover = span_cover(targets.spans[:, :longest], N // rows)  # (B, L, columns)
    most = cover.amax(dim=2, keepdim=True)
    inside = cover / most.clamp(min=1e-6)  # a character narrower than a column claims the whole of it
    per_column = weights[:, :longest].float().reshape(B, longest, rows, N // rows).sum(dim=2)  # (B, L, columns)
    missed = -(per_column * inside).sum(dim=2).clamp(min=1e-6).log()  # (B, L)
    known = (most[..., 0] > 0) & (targets.ids[:, :longest] >= 0)
    return missed.where(known, 0.0).sum() / known.sum().clamp(min=1)


def boxes(weights: Tensor, lengths: Tensor, rows: int) -> Tensor:
    """(B, L, N) weights on the grid to boxes (B, L, 4): around the peak, as far as half its height."""
    B, L, N = weights.shape
    grid = weights.float().reshape(B, L, rows, N // rows)
    top, bottom = run_around_peak(grid.sum(dim=3))
    left, right = run_around_peak(grid.sum(dim=2))
    box = torch.stack([left, top, right, bottom], dim=2)
    return box.where(within(lengths, L)[..., None], 0.0)


def run_around_peak(profile: Tensor) -> tuple[Tensor, Tensor]:
    """Begin and end, as shares, of the cells next to the highest of (..., n) that are at least half as high."""
    n = profile.shape[-1]
    height, peak = profile.max(dim=-1, keepdim=True)
    low = profile < height / 2
    cells = torch.arange(n, device=profile.device).expand_as(profile)
    first = cells.where(low & (cells < peak), -1).amax(dim=-1) + 1
    last = cells.where(low & (cells > peak), n).amin(dim=-1)
    return first / n, last / n


def within(lengths: Tensor, longest: int) -> Tensor:
    """(B, longest) bool: which places hold a character."""
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def read_stepwise(reader: Reader, *, images: int, end: int, max_length: int, rows: int, like: Tensor) -> Decoded:
    """The likeliest symbol at every step. A word leaves the batch at its end, the cost goes down with it.

    Confidence is the product of the probabilities of all characters and of the end after them.
    """
    device = like.device
    N = like.shape[1]
    ids = torch.full((images, max_length + 1), end, device=device)
    probs = torch.ones(images, max_length + 1, device=device)
    weights = torch.zeros(images, max_length + 1, N, device=device)
    reading = torch.arange(images, device=device)  # the rows still being read
    previous = torch.full((images,), end, device=device)
    for at in range(max_length + 1):
        logits, looked = reader.step(previous)
        chances = logits.float().softmax(dim=-1)
        prob, previous = chances.max(dim=-1)
        if at == max_length:  # no room for another character
            prob, previous = chances[:, end], torch.full_like(previous, end)
        ids[reading, at], probs[reading, at], weights[reading, at] = previous, prob, looked.float()
        going = (previous != end).nonzero()[:, 0]
        if len(going) == 0:
            break
        if len(going) < len(reading):
            reading, previous = reading[going], previous[going]
            reader.keep(going)
    return until_the_end(ids, probs, weights, end=end, rows=rows)


def full_length_logits(reader: Reader, *, images: int, end: int, max_length: int, device: torch.device) -> Tensor:
    """(B, max_length + 1, S + 1) of the same reading, but to the full length, whatever is read."""
    previous = torch.full((images,), end, device=device)
    steps = []
    for _ in range(max_length + 1):
        steps.append(reader.step(previous)[0])
        previous = steps[-1].argmax(dim=-1)
    return torch.stack(steps, dim=1)


def read_at_once(logits: Tensor, weights: Tensor, longest: Tensor, *, end: int, rows: int) -> Decoded:
    """The likeliest symbol at every place of logits (B, P, S + 1), up to the first end.

    longest: (B,) most characters each text may have, so that no text depends on how long others are.
    """
    chances = logits.float().softmax(dim=-1)
    probs, ids = chances.max(dim=-1)
    no_room = torch.arange(ids.shape[1], device=ids.device) >= longest[:, None]  # (B, P)
    ids, probs = ids.where(~no_room, end), probs.where(~no_room, chances[..., end])
    return until_the_end(ids, probs, weights, end=end, rows=rows)


def until_the_end(ids: Tensor, probs: Tensor, weights: Tensor, *, end: int, rows: int) -> Decoded:
    """Symbols (B, P) of which at least the last is the end, cut at the first end."""
    lengths = (ids == end).int().argmax(dim=1)
    spoken = torch.arange(ids.shape[1], device=ids.device) <= lengths[:, None]  # the end included
    confidence = probs.where(spoken, 1.0).prod(dim=1)
    longest = int(lengths.max())
    real = within(lengths, longest)
    return Decoded(
        ids[:, :longest].where(real, -1),
        lengths,
        probs[:, :longest].where(real, 1.0),
        confidence,
        boxes(weights[:, :longest], lengths, rows),
    )


def choose(first: Decoded, second: Decoded, take_second: Tensor) -> Decoded:
    """Row by row one of two readings; `take_second` (B,) bool."""
    lengths = second.lengths.where(take_second, first.lengths)
    longest = int(lengths.max())

    def pick(a: Tensor, b: Tensor, empty: float) -> Tensor:
        if a.ndim > 1:  # a negative width of the padding cuts
            tail = [0, 0] * (a.ndim - 2)
            a = F.pad(a, [*tail, 0, longest - a.shape[1]], value=empty)
            b = F.pad(b, [*tail, 0, longest - b.shape[1]], value=empty)
        return torch.where(take_second.view(-1, *[1] * (a.ndim - 1)), b, a)

    padding = (-1, 0, 1, 0, 0)  # of ids, lengths, probs, confidence, where
    return Decoded(*(pick(a, b, empty) for a, b, empty in zip(first, second, padding, strict=True)))
