"""Sparse attention on a GPU: FlexAttention, whose kernels leave out blocks of scores that nobody sees.

Blocks are 128 tokens square, and every one of them holds some multiple of l: as it stands, the strided
pattern leaves out nothing. So it is computed in parts, as in sparse.py, each with its tokens in an order in
which what is seen lies in few blocks, and the parts are joined by their log-sum-exps.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from vitocr.models.patterns import Pattern

Sees = Callable[[Tensor, Tensor], Tensor]


class Part(NamedTuple):
    sees: Sees  # of tokens as they stand in the sequence
    queries: Tensor | None = None  # the order in which to take them; None leaves them as they are
    keys: Tensor | None = None  # likewise; may leave some out


def parts_of(pattern: Pattern, tokens: int, *, causal: bool, device: torch.device) -> list[Part]:
    """Parts that share no pair of tokens and together are the pattern."""
    first, span = pattern.prefix, pattern.span

    def whole(i: Tensor, j: Tensor) -> Tensor:
        return pattern.sees(i, j, tokens, causal=causal)

    at = torch.arange(tokens, device=device)
    body = at[first:] - first
    if pattern.kind == "strided":

        def near(i: Tensor, j: Tensor) -> Tensor:
            return ((i - j).abs() <= span) | (i < first) | (j < first)

        by_column = torch.cat([at[:first], first + (body % span).argsort(stable=True)])
        return [
            Part(lambda i, j: whole(i, j) & near(i, j)),
            Part(lambda i, j: whole(i, j) & ~near(i, j), by_column, by_column),
        ]
    if pattern.kind == "fixed":
        summary = pattern.sums_up(body, tokens - first)
        shared = torch.cat([at[:first], first + body[summary]])

        def for_all(j: Tensor) -> Tensor:
            return (j < first) | pattern.sums_up(j - first, tokens - first)

        return [
            Part(lambda i, j: whole(i, j) & ~for_all(j)),
            Part(lambda i, j: whole(i, j) & for_all(j), None, shared),
        ]
    return [Part(whole)]


def in_order(part: Part, rows: Tensor, columns: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def seen(image: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return part.sees(rows[i], columns[j])

    return seen


@lru_cache(maxsize=32)
def masks_of(pattern: Pattern, tokens: int, causal: bool, device: torch.device) -> list[tuple[Part, BlockMask]]:
    everyone = torch.arange(tokens, device=device)
    found = []
    for part in parts_of(pattern, tokens, causal=causal, device=device):
        rows = everyone if part.queries is None else part.queries
        columns = everyone if part.keys is None else part.keys
        mask = create_block_mask(in_order(part, rows, columns), None, None, len(rows), len(columns), device)
        found.append((part, mask))
    return found


@cache
def kernel() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def attend_flex(
    q_BHNd: Tensor, k_BHNd: Tensor, v_BHNd: Tensor, pattern: Pattern, *, causal: bool = False, flex: Any = None
) -> Tensor:
    """As sparse.attend_sparse. `flex` stands in for the compiled kernel."""
    flex = flex or kernel()
    outs, sums = [], []
    for part, mask in masks_of(pattern, q_BHNd.shape[2], causal, q_BHNd.device):
        q = q_BHNd if part.queries is None else q_BHNd[:, :, part.queries]
        k, v = (x if part.keys is None else x[:, :, part.keys] for x in (k_BHNd, v_BHNd))
        out, told = flex(q, k, v, block_mask=mask, scale=1.0, return_aux=AuxRequest(lse=True))
        lse = told.lse  # (B, H, N), -inf for queries that see nothing of this part
        if part.queries is not None:
            back = part.queries.argsort()
            out, lse = out[:, :, back], lse[:, :, back]
        outs.append(out)
        sums.append(lse)
    if len(outs) == 1:
        return outs[0]
    shares = torch.stack(sums).softmax(dim=0)[..., None]  # (parts, B, H, N, 1)
    return sum(share * out for share, out in zip(shares, outs, strict=True)).to(q_BHNd.dtype)
