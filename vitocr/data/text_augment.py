"""Batches of word crops made a little different each time they come round.

What the renderer does to a word it does once, and a photographed word is one of few: colours, angle, slant
and size are varied again here, on the whole batch. Moderately: a word must stay inside its crop.
The random numbers are drawn for the global batch, so that ranks and resumed runs see the same thing.

Shapes: B images, 3 colours, H x W pixels, float 0 to 255.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitocr.data.batch_ops import COLOUR, GEOMETRIC, one_operation_each

TURN = np.deg2rad(5)  # at most, either way
SLANT = 0.3  # of the height, to either side
SEEN = (1.06, 1.08)  # of the height, of the width: a little more than the crop, as a turned word needs room ...
SIZE = 0.12  # ... give or take this, each on its own
SHIFT = (0.06, 0.02)  # of the height, of the width
TAPER = 0.08  # one end of the word larger than the other, as seen from the side


class Draw(NamedTuple):
    """What happens to each image of a batch."""

    operation: NDArray[np.int64]  # (B,) of batch_ops; -1 for none
    strength: NDArray[np.float64]  # (B,)
    warped: NDArray[np.bool_]  # (B,)
    warp: NDArray[np.float64]  # (B, 7) from -1 to 1: turn, slant, height, width, down, across, taper

    def of(self, rows: slice) -> Draw:
        return Draw(self.operation[rows], self.strength[rows], self.warped[rows], self.warp[rows])


def draw(total: int, rng: np.random.Generator, *, ops: float, warp: float) -> Draw:
    """ops, warp: shares of the images that undergo one operation of colour, or are warped."""
    operation = rng.integers(len(GEOMETRIC), len(GEOMETRIC) + len(COLOUR), total)
    operation[rng.random(total) >= ops] = -1
    return Draw(operation, rng.uniform(-1, 1, total), rng.random(total) < warp, rng.uniform(-1, 1, (total, 7)))


def augment(images: Tensor, drawn: Draw, *, movable: Tensor) -> Tensor:
    """movable (B,): whether an image may be warped, or its characters must stay where they are said to be."""
    rows = torch.from_numpy(np.flatnonzero(drawn.warped & movable.cpu().numpy())).to(images.device)
    if len(rows):
        images = images.clone()
        images[rows] = warped(images[rows], torch.from_numpy(drawn.warp).float()[rows.cpu()].to(images.device))
    if (drawn.operation >= 0).any():
        images = one_operation_each(images, drawn.operation, drawn.strength)
    return images


def warped(images: Tensor, warp: Tensor) -> Tensor:
    """Each image seen through its own projective map; what comes from outside repeats the border."""
    B, _, H, W = images.shape
    turn, slant, tall, wide, down, across, taper = warp.unbind(dim=1)
    aspect = W / H  # in units of the height; turning is about pixels, not about shares of the sides
    cos, sin = (TURN * turn).cos(), (TURN * turn).sin()
    y_of, x_of = SEEN[0] + SIZE * tall, SEEN[1] + SIZE * wide
    zero, one = torch.zeros_like(turn), torch.ones_like(turn)
    # From the place of a pixel in the result (x, y, 1), from -1 to 1, to where it is taken from.
    matrix = torch.stack([
        torch.stack([x_of * cos, (-sin + SLANT * slant) * y_of / aspect, 2 * SHIFT[1] * across], dim=1),
        torch.stack([sin * aspect * x_of, cos * y_of, 2 * SHIFT[0] * down], dim=1),
        torch.stack([TAPER * taper, zero, one], dim=1),
    ], dim=1)  # (B, 3, 3)  # fmt: skip
    y, x = torch.meshgrid(
        (torch.arange(H, device=images.device) + 0.5) * 2 / H - 1,
        (torch.arange(W, device=images.device) + 0.5) * 2 / W - 1,
        indexing="ij",
    )
    places = torch.stack([x, y, torch.ones_like(x)], dim=-1).view(1, H * W, 3)
    found = places @ matrix.transpose(1, 2)  # (B, H * W, 3)
    grid = (found[..., :2] / found[..., 2:]).view(B, H, W, 2)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
