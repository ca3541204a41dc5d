"""Where a patch is, told without anything to learn: sines and cosines, added to tokens or turning queries and keys.

Both take rows and columns apart: half of the channels tell the row, half the column. Coordinates count
patches of the grid the model was built for; an image of another size is stretched over the same
coordinates, as learned positions are.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ("learned", "sinusoidal", "rotary", "none")
BEGINNINGS = ("sines", "noise")  # of a learned table


def coordinates(grid: tuple[int, int], built_for: tuple[int, int], device: torch.device) -> Tensor:
    """Row and column of each patch of `grid` (N, 2), on the scale of the grid the model was built for."""
    rows, columns = (
        (torch.arange(n, device=device) + 0.5) * (known / n) - 0.5 for n, known in zip(grid, built_for, strict=True)
    )
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)


def angles(where: Tensor, each: int, longest: float) -> Tensor:
    """Coordinates (N, 2) to angles (N, 2 * each): `each` for the row, then as many for the column.

    Their wavelengths, over 2 pi, go from 1 patch towards `longest`, evenly on a logarithmic scale."""
    frequency = torch.exp(torch.arange(each, device=where.device) * (-math.log(longest) / each))
    return (where[:, :, None] * frequency).flatten(1)


def sinusoidal(where: Tensor, dim: int) -> Tensor:
    """Coordinates (N, 2) to embeddings (N, dim), each of a norm like that of a patch's: "Attention Is All You Need",
    in two dimensions."""
    angle = angles(where, dim // 4, 10_000.0)  # (N, dim / 2)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Turn(NamedTuple):
    """Cosines and sines that turn queries and keys, (1 or B, 1, N, d / 2)."""

    cos: Tensor
    sin: Tensor


def turn_by(angle: Tensor, *, prefix: int, dtype: torch.dtype) -> Turn:
    """Angles (1 or B, N, d / 2) of patches; the tokens before them are not turned."""
    angle = F.pad(angle, (0, 0, prefix, 0))[:, None]
    return Turn(angle.cos().to(dtype), angle.sin().to(dtype))


def rotate(x_BHNd: Tensor, turn: Turn) -> Tensor:
    """Rotary positions (Su et al. 2021): pairs of channels turned by the patch's angles, so that the product of a
    query and a key depends on how far apart, and in which direction, their patches are."""
    a, b = x_BHNd.chunk(2, dim=-1)
    cos, sin = turn.cos.to(x_BHNd.dtype), turn.sin.to(x_BHNd.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def check_positions(positions: str, positions_from: str, dim: int, heads: int) -> None:
    """What a backbone's configuration says of its positions."""
    if positions not in KINDS:
        raise ValueError(f"backbone.positions={positions}: choose one of {', '.join(KINDS)}")
    if positions_from not in BEGINNINGS:
        raise ValueError(f"backbone.positions_from={positions_from}: choose one of {', '.join(BEGINNINGS)}")
    if positions == "sinusoidal" and dim % 4:
        raise ValueError(f"backbone.positions=sinusoidal has four parts of one size: dim={dim} is no multiple of 4")
    if positions == "rotary" and dim // heads % 4:
        raise ValueError(
            f"backbone.positions=rotary turns a head's channels in four parts of one size: "
            f"dim={dim} over heads={heads} is {dim // heads}, no multiple of 4"
        )
