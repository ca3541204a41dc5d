"""TrivialAugment on whole batches: one random operation a picture, at a random strength, without a loop over pictures.

After Mueller & Hutter, "TrivialAugment" (2021): no search and nothing to tune, and on par with searched policies.
Pictures are grouped by operation, so a batch costs a dozen tensor operations whatever its size; the five
geometric operations are one `grid_sample`. The random numbers are handed in, drawn for the global batch, so that
ranks and resumed runs see the same thing.

Shapes: B images, 3 colours, H x W pixels, float 0 to 255.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
LUMA = (0.299, 0.587, 0.114)


def blend(images: Tensor, other: Tensor, strength: Tensor) -> Tensor:
    """Away from `other` (strength > 0) or towards it (strength < 0), by up to 0.9."""
    return (other + (images - other) * (1 + 0.9 * strength)).clamp_(0, 255)


def grey(images: Tensor) -> Tensor:
    return (images * torch.tensor(LUMA, device=images.device).view(3, 1, 1)).sum(dim=1, keepdim=True)


def brightness(images: Tensor, strength: Tensor) -> Tensor:
    return blend(images, torch.zeros((), device=images.device), strength)


def contrast(images: Tensor, strength: Tensor) -> Tensor:
    return blend(images, grey(images).mean(dim=(2, 3), keepdim=True), strength)


def saturation(images: Tensor, strength: Tensor) -> Tensor:
    return blend(images, grey(images), strength)


def sharpness(images: Tensor, strength: Tensor) -> Tensor:
    smooth = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return blend(images, smooth, strength)


def solarize(images: Tensor, strength: Tensor) -> Tensor:
    return torch.where(images >= 255 * (1 - strength.abs()), 255 - images, images)


def posterize(images: Tensor, strength: Tensor) -> Tensor:
    step = 2 ** (6 * strength.abs()).round()  # drops up to six of the eight bits
    return (images / step).floor() * step


def autocontrast(images: Tensor, strength: Tensor) -> Tensor:
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return (images - low) * (255 / (high - low).clamp_(min=1))


COLOUR: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    brightness, contrast, saturation, sharpness, solarize, posterize, autocontrast,
)  # fmt: skip
OPERATIONS = len(GEOMETRIC) + len(COLOUR)


def one_operation_each(images: Tensor, which: NDArray[np.int64], strength: NDArray[np.float64]) -> Tensor:
    """`which` (B,) from 0 to OPERATIONS - 1, or -1 to leave a picture as it is; `strength` (B,) from -1 to 1."""
    images = images.clone()
    strengths = torch.from_numpy(strength).float().to(images.device)
    geometric = torch.from_numpy(np.flatnonzero((which >= 0) & (which < len(GEOMETRIC)))).to(images.device)
    if len(geometric):
        matrices = affine_matrices(which, strength)[geometric.cpu()].to(images.device)  # (n, 2, 3)
        grid = F.affine_grid(matrices, [len(geometric), *images.shape[1:]], align_corners=False)
        images[geometric] = F.grid_sample(images[geometric], grid, padding_mode="reflection", align_corners=False)
    for number, operation in enumerate(COLOUR, start=len(GEOMETRIC)):
        rows = torch.from_numpy(np.flatnonzero(which == number)).to(images.device)
        if len(rows):
            images[rows] = operation(images[rows], strengths[rows].view(-1, 1, 1, 1))
    return images


def affine_matrices(which: NDArray[np.int64], strength: NDArray[np.float64]) -> Tensor:
    """(B, 2, 3): where each pixel of the result is taken from, in coordinates from -1 to 1."""
    shear, shift = 0.5 * strength, 0.6 * strength  # at most: half the side, and three tenths of it
    angle = np.where(which == GEOMETRIC.index("rotate"), np.deg2rad(45) * strength, 0.0)
    matrices = np.zeros((len(which), 2, 3))
    matrices[:, 0, 0] = matrices[:, 1, 1] = np.cos(angle)
    matrices[:, 0, 1] = -np.sin(angle) + np.where(which == GEOMETRIC.index("shear_x"), shear, 0)
    matrices[:, 1, 0] = np.sin(angle) + np.where(which == GEOMETRIC.index("shear_y"), shear, 0)
    matrices[:, 0, 2] = np.where(which == GEOMETRIC.index("translate_x"), shift, 0)
    matrices[:, 1, 2] = np.where(which == GEOMETRIC.index("translate_y"), shift, 0)
    return torch.from_numpy(matrices).float()
