"""Batches of word crops made a little different each time they come round.

What the renderer does to a word it does once, and a photographed word is one of few: colours, angle, slant
and size are varied again here, on the whole batch. Moderately: a word must stay inside its crop.
Photographed words, which come round a hundred times in a long training and are then known by heart, may be
disguised besides: in other colours, as their own negative, and seen with fewer pixels they are other pictures.
The random numbers are drawn for the global batch, so that ranks and resumed runs see the same thing.

Shapes: B images, 3 colours, H x W pixels, float 0 to 255.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitocr.data.batch_ops import COLOUR, GEOMETRIC, one_operation_each

TURN = np.deg2rad(5)  # at most, either way
LEAN = np.deg2rad(18)  # at most, either way: of photographed words that are to lean
SLANT = 0.3  # of the height, to either side
SEEN = (1.06, 1.08)  # of the height, of the width: a little more than the crop, as a turned word needs room ...
SIZE = 0.12  # ... give or take this, each on its own
SHIFT = (0.06, 0.02)  # of the height, of the width
TAPER = 0.08  # one end of the word larger than the other, as seen from the side
COLOURS = tuple(permutations(range(3)))  # which channel becomes red, green, blue
PIXELS = (1.0, 0.75, 0.5, 0.375)  # of the height and of the width


class Draw(NamedTuple):
    """What happens to each image of a batch."""

    operation: NDArray[np.int64]  # (B,) of batch_ops; -1 for none
    strength: NDArray[np.float64]  # (B,)
    warped: NDArray[np.bool_]  # (B,)
    warp: NDArray[np.float64]  # (B, 7) from -1 to 1: turn, slant, height, width, down, across, taper
    disguised: NDArray[np.bool_]  # (B,)
    disguise: NDArray[np.int64]  # (B, 3): which of COLOURS, negative or not, which of PIXELS
    lean: NDArray[np.float64]  # (B,) from -1 to 1: how far it leans if it is a photograph; 0 for not at all

    def of(self, rows: slice) -> Draw:
        return Draw._make(drawn[rows] for drawn in self)


def draw(
    total: int, rng: np.random.Generator, *, ops: float, warp: float, disguise: float = 0.0, lean: float = 0.0
) -> Draw:
    """ops, warp: shares of the images that undergo one operation of colour, or are warped. disguise, lean: of those
    that are photographs the shares that are disguised, and that are turned a good deal."""
    operation = rng.integers(len(GEOMETRIC), len(GEOMETRIC) + len(COLOUR), total)
    operation[rng.random(total) >= ops] = -1
    strength, warps = rng.uniform(-1, 1, total), rng.random(total) < warp
    warping = rng.uniform(-1, 1, (total, 7))
    return Draw(
        operation,
        strength,
        warps,
        warping,
        rng.random(total) < disguise,
        rng.integers((len(COLOURS), 2, len(PIXELS)), size=(total, 3)),
        np.where(rng.random(total) < lean, rng.uniform(-1, 1, total), 0.0),
    )


def augment(images: Tensor, drawn: Draw, *, movable: Tensor, photographs: Tensor | None = None) -> Tensor:
    """movable (B,): whether an image may be warped, or its characters must stay where they are said to be.
    photographs (B,): whether it may be disguised, and lean; by default none is and does."""
    some = torch.zeros(len(images), dtype=torch.bool) if photographs is None else photographs.cpu()
    leaning = torch.from_numpy(drawn.lean).float() * some
    if (hidden := drawn.disguised & some.numpy()).any():
        images = images.clone()
        rows = torch.from_numpy(np.flatnonzero(hidden)).to(images.device)
        images[rows] = disguised(images[rows], drawn.disguise[hidden])
    rows = ((torch.from_numpy(drawn.warped) | (leaning != 0)) & movable.cpu()).nonzero()[:, 0]
    if len(rows):
        images, here = images.clone(), images.device
        warp = torch.from_numpy(drawn.warp).float()[rows].to(here)
        images[rows.to(here)] = warped(images[rows.to(here)], warp, lean=leaning[rows].to(here))
    if (drawn.operation >= 0).any():
        images = one_operation_each(images, drawn.operation, drawn.strength)
    return images


def disguised(images: Tensor, disguise: NDArray[np.int64]) -> Tensor:
    """The same words in other pictures: channels exchanged, light and dark exchanged, fewer pixels."""
    H, W = images.shape[2:]
    colours, negative, pixels = torch.from_numpy(disguise).to(images.device).unbind(dim=1)
    channels = torch.tensor(COLOURS, device=images.device)[colours]  # (B, 3)
    images = images.gather(1, channels[:, :, None, None].expand_as(images))
    images = torch.where(negative.bool()[:, None, None, None], 255 - images, images)
    for number, share in enumerate(PIXELS):
        rows = (pixels == number).nonzero()[:, 0]
        if share < 1 and len(rows):
            small = F.interpolate(images[rows], (round(share * H), round(share * W)), mode="bilinear", antialias=True)
            images[rows] = F.interpolate(small, (H, W), mode="bilinear")
    return images


def warped(images: Tensor, warp: Tensor, *, lean: Tensor | None = None) -> Tensor:
    """Each image seen through its own projective map; what comes from outside repeats the border. lean (B,): turned by
    so much of LEAN besides, and so much smaller that all of it is still seen."""
    B, _, H, W = images.shape
    turn, slant, tall, wide, down, across, taper = warp.unbind(dim=1)
    aspect = W / H  # in units of the height; turning is about pixels, not about shares of the sides
    angle = TURN * turn
    y_of, x_of = SEEN[0] + SIZE * tall, SEEN[1] + SIZE * wide
    if lean is not None:
        far = (LEAN * lean).abs()
        angle = angle + LEAN * lean
        y_of, x_of = y_of * (far.cos() + aspect * far.sin()), x_of * (far.cos() + far.sin() / aspect)
    cos, sin = angle.cos(), angle.sin()
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
