"""The parts a sparse pattern comes in: for each, which tokens are a group, which keys they share, what to hide.

A part takes the queries of all tokens, grouped so that a group's scores are one small dense matrix. The
groups of all images and heads lie one behind the other, so that a part is one batched matmul; where a
group ends at the edge of its sequence, the scores of what lies beyond are hidden.

Tensors come in blocks of the pattern's span, (G, blocks, size, x): G sequences, one an image and head.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitocr.models.patterns import Pattern

HIDDEN = -1e30  # a score that comes to nothing beside any other, but is a number among its like

Arrange = Callable[[Tensor], Tensor]


class Blocks(NamedTuple):
    """G sequences of so many tokens in blocks of one size, the last with `tail` of them."""

    sequences: int
    number: int
    size: int
    tail: int

    @classmethod
    def of(cls, sequences: int, tokens: int, span: int) -> "Blocks":
        size = min(span, tokens)
        number = -(-tokens // size)
        return cls(sequences, number, size, tokens - (number - 1) * size)

    @property
    def tokens(self) -> int:
        return (self.number - 1) * self.size + self.tail


class Part(NamedTuple):
    """One set of keys for every query. A group has the keys of `neighbours` successive entries of `keys`."""

    queries: Arrange  # (G, blocks, size, x) -> (groups, queries, x)
    queries_home: Arrange  # and back
    keys: Arrange  # (G, blocks, size, x) -> (groups + neighbours - 1, keys / neighbours, x)
    keys_home: Arrange
    hide: Callable[[Tensor, int, int], None]  # scores that do not count, given the first group and query they are of
    neighbours: int = 1


def parts_of(pattern: Pattern, blocks: Blocks, *, causal: bool) -> list[Part]:
    """The parts whose keys stand in the blocks; the prefix is one more."""
    if pattern.kind == "fixed":
        shared = summary_part(blocks, min(pattern.summary, blocks.size), causal=causal)
        if pattern.summary >= blocks.size:  # a short sequence: nothing is left out of the summary
            return [shared]
        return [block_part(blocks, pattern.summary, causal=causal), shared]
    local = local_part(blocks, causal=causal)
    if pattern.kind == "window" or blocks.number <= 2:  # then no column reaches further
        return [local]
    return [local, column_part(blocks, causal=causal)]


def local_part(blocks: Blocks, *, causal: bool) -> Part:
    """At most `size` tokens away: a block of queries has the keys of its own block and of the one on either side."""
    _, number, size, tail = blocks
    neighbours = 2 if causal else 3
    ahead = torch.arange(neighbours * size) - size - torch.arange(size)[:, None]
    away = (ahead > 0) | (ahead < -size) if causal else ahead.abs() > size
    bias = torch.zeros(away.shape).masked_fill(away, HIDDEN)

    def hide(scores: Tensor, group: int, query: int) -> None:
        def of_block(which: int) -> slice:
            return slice((which - group) % number, None, number)

        scores += bias[query : query + scores.shape[1]].to(scores.device)
        scores[of_block(0), :, :size] = HIDDEN
        scores[of_block(number - 1), :, size + tail :] = HIDDEN
        if number > 1 and not causal:
            scores[of_block(number - 2), :, 2 * size + tail :] = HIDDEN

    return Part(
        queries=lambda x: x.flatten(0, 1),
        queries_home=lambda y: y.unflatten(0, (-1, number)),
        keys=lambda x: F.pad(x.flatten(0, 1), (0, 0, 0, 0, 1, neighbours - 2)),
        keys_home=lambda y: y[1 : len(y) + 2 - neighbours].unflatten(0, (-1, number)),
        hide=hide,
        neighbours=neighbours,
    )


def column_part(blocks: Blocks, *, causal: bool) -> Part:
    """A multiple of `size` away, further than the local part sees: the r-th tokens of all blocks are a group."""
    sequences, number, size, tail = blocks
    behind = torch.arange(number)[:, None] - torch.arange(number)
    local = behind <= 1 if causal else behind.abs() <= 1
    bias = torch.zeros(number, number).masked_fill(local, HIDDEN)

    def hide(scores: Tensor, group: int, query: int) -> None:
        scores += bias[query : query + scores.shape[1]].to(scores.device)
        # Groups come in the order of r, so those without a token in the last block come last.
        scores[max(0, tail * sequences - group) :, :, -1] = HIDDEN

    def columns(x: Tensor) -> Tensor:
        return x.permute(2, 0, 1, 3).flatten(0, 1)

    def home(y: Tensor) -> Tensor:
        return y.unflatten(0, (size, sequences)).permute(1, 2, 0, 3)

    return Part(lambda x: columns(x).contiguous(), home, lambda x: columns(x).contiguous(), home, hide)


def block_part(blocks: Blocks, summary: int, *, causal: bool) -> Part:
    """The same block, without its summary."""
    _, number, size, tail = blocks
    later = torch.arange(size - summary) > torch.arange(size)[:, None]
    bias = torch.zeros(later.shape).masked_fill(later, HIDDEN)

    def hide(scores: Tensor, group: int, query: int) -> None:
        if causal:
            scores += bias[query : query + scores.shape[1]].to(scores.device)
        scores[(number - 1 - group) % number :: number, :, max(0, tail - summary) :] = HIDDEN

    return Part(
        queries=lambda x: x.flatten(0, 1),
        queries_home=lambda y: y.unflatten(0, (-1, number)),
        keys=lambda x: x[:, :, : size - summary].flatten(0, 1),
        keys_home=lambda y: F.pad(y, (0, 0, 0, summary)).unflatten(0, (-1, number)),
        hide=hide,
    )


def summary_part(blocks: Blocks, summary: int, *, causal: bool) -> Part:
    """The summaries of all blocks, for everyone."""
    _, number, size, _ = blocks
    at = torch.arange(blocks.tokens)
    at = at[Pattern("fixed", size, summary).sums_up(at, blocks.tokens)]

    def hide(scores: Tensor, _: int, query: int) -> None:
        if causal:
            rows = torch.arange(query, query + scores.shape[1])
            scores.masked_fill_((at > rows[:, None]).to(scores.device), HIDDEN)

    def keys_home(y: Tensor) -> Tensor:
        whole = y.new_zeros(len(y), number * size, y.shape[2])
        return whole.index_copy_(1, at.to(y.device), y).unflatten(1, (number, size))

    return Part(
        queries=lambda x: x.flatten(1, 2),
        queries_home=lambda y: y.unflatten(1, (number, size)),
        keys=lambda x: x.flatten(1, 2)[:, at.to(x.device)],
        keys_home=keys_home,
        hide=hide,
    )


def prefix_part(blocks: Blocks) -> Part:
    """The prefix, for everyone. Its keys stand apart from the blocks: (G, prefix, x)."""
    _, number, size, _ = blocks
    return Part(
        queries=lambda x: x.flatten(1, 2),
        queries_home=lambda y: y.unflatten(1, (number, size)),
        keys=lambda x: x,
        keys_home=lambda y: y,
        hide=lambda scores, group, query: None,
    )
