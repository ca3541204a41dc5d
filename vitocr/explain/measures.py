"""Figures of what attention does and what a model has learned, from tensors alone.

Shapes: L layers, H heads, N = prefix + gh x gw tokens. A row of attention is a query and sums to one; the prefix
holds the class token and its like, which stand nowhere in the image.
"""

import torch
from torch import Tensor


def rollout(attention_LHNN: Tensor) -> Tensor:
    """(N, N): how much of what each token has become comes from each patch (Abnar and Zuidema, 2020).

    A layer passes on half of what came in (its residual path) and half of what its heads, averaged, gathered.
    """
    N = attention_LHNN.shape[-1]
    flow = torch.eye(N)
    for layer_NN in attention_LHNN.float().mean(dim=1):
        step = (layer_NN + torch.eye(N)) / 2
        flow = step / step.sum(dim=-1, keepdim=True) @ flow
    return flow


def cell_centres(grid: tuple[int, int], cell: tuple[float, float]) -> Tensor:
    """(gh x gw, 2): the centre of each patch, down and across, in pixels; `cell` is the size of a patch."""
    down, across = (torch.arange(count) * size + size / 2 for count, size in zip(grid, cell, strict=True))
    return torch.cartesian_prod(down, across)


def attention_distance(
    attention_LHNN: Tensor, *, prefix: int, grid: tuple[int, int], cell: tuple[float, float]
) -> Tensor:
    """(L, H): how far away, in pixels, what a patch attends to lies, on average: the receptive field of a head.

    Patches alone, as queries and as keys: what a query gives to the prefix is left out of its average.
    """
    centres = cell_centres(grid, cell)
    away = torch.cdist(centres, centres)  # (N', N')
    among = attention_LHNN[..., prefix:, prefix:].float()  # (L, H, N', N')
    share = among / among.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    return (share * away).sum(dim=-1).mean(dim=-1)


def even_distance(grid: tuple[int, int], cell: tuple[float, float]) -> float:
    """The attention distance of a head that looks at every patch alike."""
    N = grid[0] * grid[1]
    return float(attention_distance(torch.full((1, 1, N, N), 1 / N), prefix=0, grid=grid, cell=cell))


def similarity(positions: Tensor) -> Tensor:
    """Position embeddings (gh, gw, D) to cosines (gh, gw, gh, gw): of each position with every other."""
    flat = positions.float().flatten(0, 1)
    flat = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return (flat @ flat.T).view(*positions.shape[:2], *positions.shape[:2])


def principal_components(filters: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Of filters (D, ...): the `limit` strongest components (k, ...) of unit length, and their shares of the variance.

    A component's sign means nothing; it is turned so that its strongest entry is positive.
    """
    flat = filters.float().flatten(1)
    _, strength, components = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    # Centring takes one dimension away: of D filters at most D - 1 components are left.
    components = components[: min(limit, len(flat) - 1, flat.shape[1])]
    variance = strength.square()
    strongest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    shares = variance / variance.sum().clamp(min=1e-12)
    return (components * strongest.sign()).view(-1, *filters.shape[1:]), shares[: len(components)]
