"""Augmentation of whole uint8 batches, on the device they are on, with no Python loop over images.

Design choices
- Every random number is drawn on the CPU for the *global* batch, from a generator seeded by (seed, position).
  A rank then takes its rows, so one process and many see the same images, and so does a resumed run.
- Crop and flip are one gather: the batch becomes planar, its columns are padded by reflection, a mirrored
  copy is put behind it, and every row of every output image is a run of bytes somewhere in that buffer.
- CutMix and Mixup are one `lerp`: the weight of the partner is a 0/1 box for the one, a number for the other.
  Row i is mixed with row i^1, which never leaves a rank's slice as long as that slice is even.
- Mixing stops after `mix_until` of the training: the last stretch sees clean images (the off-ramp).

Shapes: B images of this rank, G images of the global batch, H x W pixels, P = crop_pad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitocr.data.batch_ops import OPERATIONS, one_operation_each
from vitocr.data.loader import Batch
from vitocr.errors import UserError


class Augmented(NamedTuple):
    """Images for the model and what they show: `lam` of `targets` and the rest of `mixed`."""

    images: Tensor  # (B, 3, H, W) normalised
    targets: Tensor  # (B,) int64
    mixed: Tensor | None  # (B,) int64, the labels of the mixing partners; None when nothing was mixed
    lam: Tensor | float  # (B,) float32, or 1.0 when nothing was mixed


class Shares(NamedTuple):
    """Of batches that are mixed one way or the other, and of images that undergo an operation."""

    cutmix: float
    mixup: float
    ops: float

    @classmethod
    def for_epochs(cls, epochs: float) -> Shares:
        """What "auto" comes to. The more often every image will be seen, the more of them are altered: over a short
        training, plain images teach more; over a long one, they are learned by heart. Operations: none up to 20 epochs,
        all images from 200 on. Mixing: 40 % of the batches up to 40 epochs, all of them from 200 on."""

        def between(few: float, many: float) -> float:
            return min(1.0, max(0.0, math.log(max(epochs, 1e-9) / few) / math.log(many / few)))

        long = between(40, 200)
        return cls(cutmix=0.4 + 0.2 * long, mixup=0.4 * long, ops=between(20, 200))


@dataclass(frozen=True)
class BatchAugment:
    """What is done to a training batch. Shares are between 0 and 1; 0 turns a thing off."""

    crop_pad: int = 4  # pixels of reflected border before a random crop of the original size
    flip: bool = True  # mirror half of the images
    cutmix: float | str = 0.4  # share of batches; or "auto", as for mixup and ops: see `Shares.for_epochs`
    mixup: float | str = 0.0  # share of batches
    cutmix_alpha: float = 1.0  # Beta(alpha, alpha) of the mixing weight
    mixup_alpha: float = 0.8
    erase: float = 0.0  # share of images that lose a box of 2 to 33 % of their area
    ops: float | str = 0.0  # share of images that undergo one random operation (batch_ops.py)
    mix_until: float = 0.85  # share of training after which nothing is mixed
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cutmix", "mixup", "ops"):
            if isinstance(value := getattr(self, name), str) and value != "auto":
                raise UserError(f"augment.{name}={value}: give a share between 0 and 1, or auto.")
        for name in ("cutmix", "mixup", "ops", "erase", "mix_until"):
            value = getattr(self, name)
            if value != "auto" and not 0 <= value <= 1:
                raise UserError(f"augment.{name}={value} is a share: give a number between 0 and 1.")
        given = [float(value) for value in (self.cutmix, self.mixup) if value != "auto"]
        if sum(given) > 1:
            raise UserError(
                f"augment.cutmix={self.cutmix} and augment.mixup={self.mixup} are shares of the same "
                "batches: together they must not exceed 1."
            )
        if self.crop_pad < 0:
            raise UserError(f"augment.crop_pad={self.crop_pad} must not be negative.")
        for name in ("cutmix", "mixup"):
            alpha = getattr(self, f"{name}_alpha")
            if alpha <= 0:
                raise UserError(f"augment.{name}_alpha={alpha} must be positive; to turn {name} off, say {name}=0.")

    def shares(self, epochs: float) -> Shares:
        """As numbers. Where only one way of mixing is "auto", it gets at most what the other leaves of the batches."""
        auto = Shares.for_epochs(epochs)
        cutmix, mixup, ops = (
            getattr(auto, name) if getattr(self, name) == "auto" else float(getattr(self, name))
            for name in Shares._fields
        )
        if self.cutmix == "auto":
            cutmix = min(cutmix, 1 - mixup)
        elif self.mixup == "auto":
            mixup = min(mixup, 1 - cutmix)
        return Shares(cutmix, mixup, ops)

    def __call__(
        self,
        batch: Batch,
        *,
        progress: float,
        mean: Sequence[float],
        std: Sequence[float],
        rank: int = 0,
        world: int = 1,
        dtype: torch.dtype = torch.float32,
        epochs: float = 0.0,
    ) -> Augmented:
        """Augment and normalise this rank's rows. progress: share of the training that is done, 0 to 1.

        epochs: how often training will see each image in all, for the shares that are "auto". Images that come from
        files are augmented one by one and normalised already (float, planar): those are mixed and erased, and no more.
        """
        from_files = batch.images.is_floating_point()
        size = len(batch.images)
        height, width = batch.images.shape[2:] if from_files else batch.images.shape[1:3]
        shares = self.shares(epochs)
        if world > 1 and size % 2 and shares.cutmix + shares.mixup > 0:
            raise UserError(
                f"Mixing pairs up neighbouring images, so every process needs an even share of the batch, "
                f"not {size}: make batch_size a multiple of {2 * world}."
            )
        rng = np.random.default_rng((self.seed, batch.position))
        mine = slice(rank * size, (rank + 1) * size)
        total = size * world
        # Always drawn, used or not, in this order: turning one thing off leaves the others as they were.
        shift = rng.integers(0, 2 * self.crop_pad + 1, (total, 2))[mine]
        mirror = (rng.random(total) < 0.5)[mine] & self.flip
        erased = (rng.random(total) < self.erase)[mine]
        erase_box = random_boxes(rng, rng.uniform(0.02, 0.33, total), height, width)[mine]
        kind = rng.random()

        if from_files:
            images = batch.images.clone()
        else:
            images = crop_and_flip(batch.images, shift, mirror, pad=self.crop_pad).float()
            if shares.ops > 0:
                ops_rng = np.random.default_rng((self.seed, batch.position, 1))
                which = ops_rng.integers(0, OPERATIONS, total)
                which[ops_rng.random(total) >= shares.ops] = -1
                images = one_operation_each(images, which[mine], ops_rng.uniform(-1, 1, total)[mine])
            scale, bias = scale_and_bias(mean, std, images.device)
            images = images.mul_(scale).add_(bias)
        mixed: Tensor | None = None
        lam: Tensor | float = 1.0
        if progress < self.mix_until and kind < shares.cutmix + shares.mixup:
            if kind < shares.cutmix:
                covered = rng.beta(self.cutmix_alpha, self.cutmix_alpha, total)
                boxes = random_boxes(rng, covered, height, width)[mine]
                weight = box_mask(boxes, height, width, images.device)  # (B, 1, H, W), 1 where the partner shows
                area = (boxes[:, 1] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 2]) / (height * width)
            else:
                area = rng.beta(self.mixup_alpha, self.mixup_alpha, total)[mine]
                weight = torch.from_numpy(area).float().to(images.device).view(-1, 1, 1, 1)
            partner = torch.arange(size, device=images.device) ^ 1
            partner[partner == size] = size - 1  # an odd last row has nobody but itself
            images.lerp_(images.index_select(0, partner), weight)
            mixed = batch.targets[partner]
            lam = 1 - torch.from_numpy(area).float().to(images.device)
        if erased.any():
            erase_box[~erased] = 0
            images.mul_(1 - box_mask(erase_box, height, width, images.device))  # 0 is the mean colour
        return Augmented(images.to(dtype), batch.targets, mixed, lam)


def eval_images(
    images: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 (B, H, W, 3) -> normalised (B, 3, H, W), contiguous."""
    planar = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    scale, bias = scale_and_bias(mean, std, images.device)
    return planar.mul_(scale).add_(bias).to(dtype)


def scale_and_bias(mean: Sequence[float], std: Sequence[float], device: torch.device) -> tuple[Tensor, Tensor]:
    """(3, 1, 1) each, so that pixel * scale + bias == (pixel / 255 - mean) / std."""
    scale = [1 / (255 * s) for s in std]
    bias = [-m / s for m, s in zip(mean, std, strict=True)]
    return torch.tensor([scale, bias], device=device).view(2, 3, 1, 1).unbind()  # type: ignore[return-value]


def crop_and_flip(images: Tensor, shift: NDArray[np.int64], mirror: NDArray[np.bool_], *, pad: int) -> Tensor:
    """uint8 (B, H, W, 3) -> uint8 (B, 3, H, W): padded by reflection, cropped at `shift` (B, 2), mirrored."""
    size, height, width, _ = images.shape
    if pad >= min(height, width):
        raise UserError(f"augment.crop_pad={pad} must be smaller than the image ({height} x {width} pixels).")
    planar = images.permute(0, 3, 1, 2).contiguous()  # (B, 3, H, W)
    left = planar[..., 1 : pad + 1].flip(3)
    right = planar[..., width - 1 - pad : width - 1].flip(3)
    padded = torch.cat([left, planar, right], dim=3)  # (B, 3, H, W+2P); rows are reflected by the index below
    both = torch.cat([padded, padded.flip(3)])  # (2B, 3, H, W+2P): as they are, then mirrored

    offset = torch.from_numpy(shift).to(images.device)  # (B, 2)
    source = torch.arange(size, device=images.device) + size * torch.from_numpy(mirror).to(images.device)  # (B,)
    row = (torch.arange(height, device=images.device) + offset[:, :1] - pad).abs()  # (B, H)
    row = height - 1 - (height - 1 - row).abs()
    plane = source[:, None] * 3 + torch.arange(3, device=images.device)  # (B, 3)
    start = (plane[:, :, None] * height + row[:, None, :]) * (width + 2 * pad) + offset[:, 1, None, None]  # (B, 3, H)
    # Every run of W bytes of the buffer, as an overlapping view: gathering rows of it copies whole lines.
    runs = both.as_strided((both.numel() - width + 1, width), (1, 1))
    return runs.index_select(0, start.flatten()).view(size, 3, height, width)


def random_boxes(rng: np.random.Generator, share: NDArray[np.float64], height: int, width: int) -> NDArray[np.int64]:
    """(N, 4) top, bottom, left, right: `share` (N,) of the area around a uniform centre, then clipped."""
    side = np.sqrt(share)
    half_h = (height * side / 2).astype(np.int64)
    half_w = (width * side / 2).astype(np.int64)
    y = rng.integers(0, height, len(share))
    x = rng.integers(0, width, len(share))
    return np.stack(
        [
            np.maximum(y - half_h, 0),
            np.minimum(y + half_h, height),
            np.maximum(x - half_w, 0),
            np.minimum(x + half_w, width),
        ],
        axis=1,
    )


def box_mask(boxes: NDArray[np.int64], height: int, width: int, device: torch.device) -> Tensor:
    """(B, 1, H, W) float32: 1 inside the box of each row, 0 outside."""
    top, bottom, left, right = torch.from_numpy(boxes).to(device).t()[..., None].unbind()  # (B, 1) each
    y = torch.arange(height, device=device)
    x = torch.arange(width, device=device)
    inside_y = ((y >= top) & (y < bottom)).float()  # (B, H)
    inside_x = ((x >= left) & (x < right)).float()  # (B, W)
    return (inside_y[:, :, None] * inside_x[:, None, :])[:, None]
