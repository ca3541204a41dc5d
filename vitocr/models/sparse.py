"""Sparse attention that computes only the scores its pattern asks for (patterns.py says which those are).

The keys of a pattern come in parts (parts.py): those nearby, those in the same column, the summaries, the
prefix. No key is in two parts, so the softmax over all of them joins the parts by their log-sum-exps.

- Work goes tile by tile, each small enough to stay in cache from the scores to the mixed values.
- The backward pass makes the scores again from the log-sum-exp, so that memory is linear in the length.
- On a GPU FlexAttention does the same with kernels of its own (flex.py).

Below some hundreds of tokens dense attention is faster: it has nothing to gather.

Shapes: B images, H heads, N tokens, G = B * H; a tile is (groups, queries, keys) scores of a part.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitocr.models.parts import Blocks, Part, parts_of, prefix_part
from vitocr.models.patterns import Pattern

TILE = 2**17  # scores; half a megabyte, of which the backward pass holds two


class Tile(NamedTuple):
    groups: slice
    queries: slice


def tiles(groups: int, queries: int, keys: int) -> Iterator[Tile]:
    """Whole groups as far as they fit; of a group that does not, as many queries as do."""
    fit = max(1, TILE // max(1, keys))
    if fit >= queries:
        step = fit // queries
        for first in range(0, groups, step):
            yield Tile(slice(first, min(first + step, groups)), slice(0, queries))
    else:
        for group in range(groups):
            for first in range(0, queries, fit):
                yield Tile(slice(group, group + 1), slice(first, min(first + fit, queries)))


def keys_of(x: Tensor, groups: slice, neighbours: int) -> Tensor:
    """Keys (or values) of the groups, (groups, keys, d): windows that overlap, and are not copied for it."""
    if neighbours == 1:
        return x[groups]
    each = x.shape[1]
    flat = x[groups.start : groups.stop + neighbours - 1].flatten(0, 1)
    return flat.unfold(0, neighbours * each, each).transpose(1, 2)


def add_to_keys(into: Tensor, groups: slice, gradient: Tensor) -> None:
    """What `keys_of` took apart, put together again: a key's gradients from all groups that have it, summed."""
    each = into.shape[1]
    for i, piece in enumerate(gradient.split(each, dim=1)):
        into[groups.start + i : groups.stop + i] += piece


def scores_of(part: Part, q: Tensor, k: Tensor, tile: Tile) -> Tensor:
    found = torch.bmm(q[tile.groups, tile.queries], keys_of(k, tile.groups, part.neighbours).transpose(1, 2)).float()
    part.hide(found, tile.groups.start, tile.queries.start)
    return found


def part_forward(part: Part, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each query: values weighted by exp(score - highest), that highest score, the sum of the weights."""
    mixed = torch.empty_like(q)
    highest = q.new_empty(*q.shape[:2], 1, dtype=torch.float32)
    total = torch.empty_like(highest)
    for tile in tiles(len(q), q.shape[1], k.shape[1] * part.neighbours):
        scores = scores_of(part, q, k, tile)
        top = scores.amax(dim=-1, keepdim=True)
        weights = scores.sub_(top).exp_()
        highest[tile], total[tile] = top, weights.sum(dim=-1, keepdim=True)
        mixed[tile] = torch.bmm(weights.to(q.dtype), keys_of(v, tile.groups, part.neighbours))
    return mixed, highest, total


def part_backward(
    part: Part, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lse: Tensor, inner: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, given that of the output; `inner` is its product with the output."""
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for tile in tiles(len(q), q.shape[1], k.shape[1] * part.neighbours):
        weights = scores_of(part, q, k, tile).sub_(lse[tile]).exp_()
        add_to_keys(dv, tile.groups, torch.bmm(weights.to(q.dtype).transpose(1, 2), grad[tile]))
        values = keys_of(v, tile.groups, part.neighbours)
        steep = torch.bmm(grad[tile], values.transpose(1, 2)).float()  # by the weights, and then by the scores
        steep = steep.sub_(inner[tile]).mul_(weights).to(q.dtype)
        dq[tile] = torch.bmm(steep, keys_of(k, tile.groups, part.neighbours))
        add_to_keys(dk, tile.groups, torch.bmm(steep.transpose(1, 2), q[tile]))
    return dq, dk, dv


def in_blocks(x: Tensor, blocks: Blocks) -> Tensor:
    """(B, H, n, d) -> (G, blocks, size, d), zeros behind the end."""
    x = x.reshape(blocks.sequences, *x.shape[2:])
    empty = blocks.size - blocks.tail
    return (F.pad(x, (0, 0, 0, empty)) if empty else x).unflatten(1, (blocks.number, blocks.size))


def out_of_blocks(x: Tensor, shape: torch.Size) -> Tensor:
    return x.flatten(1, 2)[:, : shape[2]].unflatten(0, shape[:2])


class Sparse(torch.autograd.Function):
    """q, k, v (B, H, n, d) behind the prefix, whose keys and values are k0, v0 (B, H, prefix, d)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, k0: Tensor, v0: Tensor, pattern: Pattern, causal: bool
    ) -> Tensor:
        blocks = Blocks.of(q.shape[0] * q.shape[1], q.shape[2], pattern.span)
        ctx.shape, ctx.blocks, ctx.parts = q.shape, blocks, parts_of(pattern, blocks, causal=causal)
        q, k, v = in_blocks(q, blocks), in_blocks(k, blocks), in_blocks(v, blocks)
        k0, v0 = k0.flatten(0, 1), v0.flatten(0, 1)
        sources = [(part, k, v) for part in ctx.parts]
        if pattern.prefix:
            sources.append((prefix_part(blocks), k0, v0))
        found = []
        for part, keys, values in sources:
            told = part_forward(part, part.queries(q), part.keys(keys), part.keys(values))
            found.append([part.queries_home(x) for x in told])
        sums = torch.stack([highest + total.log() for _, highest, total in found])  # (parts, G, blocks, size, 1)
        lse = sums.logsumexp(dim=0)
        mixed, highest, _ = found[0]
        out = mixed * (highest - lse).exp()
        for mixed, highest, _ in found[1:]:
            out.addcmul_(mixed, (highest - lse).exp())
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, k0, v0, out, lse)
        return out_of_blocks(out, ctx.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, k0, v0, out, lse = ctx.saved_tensors
        grad = in_blocks(grad, ctx.blocks)
        inner = (grad.float() * out).sum(dim=-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dk0, dv0 = torch.zeros_like(k0), torch.zeros_like(v0)
        sources = [(part, k, v, dk, dv) for part in ctx.parts]
        if k0.shape[1]:
            sources.append((prefix_part(ctx.blocks), k0, v0, dk0, dv0))
        for part, keys, values, into_k, into_v in sources:
            queries = [part.queries(x) for x in (q, grad, lse, inner)]
            told = part_backward(part, queries[0], part.keys(keys), part.keys(values), *queries[1:])
            dq += part.queries_home(told[0])
            into_k += part.keys_home(told[1])
            into_v += part.keys_home(told[2])
        dq, dk, dv = (out_of_blocks(x, ctx.shape) for x in (dq, dk, dv))
        return dq, dk, dv, dk0.unflatten(0, ctx.shape[:2]), dv0.unflatten(0, ctx.shape[:2]), None, None


def attend_masked(q_BHNd: Tensor, k_BHMd: Tensor, v_BHMd: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Dense attention of scaled queries to keys that `mask` (N, M) shows; the mixed values and the weights."""
    scores = q_BHNd @ k_BHMd.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights.to(v_BHMd.dtype) @ v_BHMd, weights


def attend_sparse(q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, pattern: Pattern, *, causal: bool = False) -> Tensor:
    """Attention of scaled queries over the pattern, (B, H, N, d); N counts the prefix of the pattern too."""
    # The number of tiles goes by the number of images, and a traced graph must not.
    if torch.compiler.is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return attend_masked(q_BHNd, k_BHNd, v_BHNd, pattern.mask(q_BHNd.shape[2], causal=causal))[0]
    if q_BHNd.device.type == "cuda":
        from vitocr.models.flex import attend_flex

        return attend_flex(q_BHNd, k_BHNd, v_BHNd, pattern, causal=causal)
    first = pattern.prefix
    head, rest = zip(*((x[:, :, :first], x[:, :, first:]) for x in (q_BHNd, k_BHNd, v_BHNd)), strict=True)
    out = Sparse.apply(*rest, *head[1:], pattern, causal)
    if first == 0:
        return out
    seen = first if causal else q_BHNd.shape[2]
    mask = torch.ones(first, first, dtype=torch.bool, device=out.device).tril() if causal else None
    of_prefix = attend_masked(head[0], k_BHNd[:, :, :seen], v_BHNd[:, :, :seen], mask)[0]
    return torch.cat([of_prefix, out], dim=2)
