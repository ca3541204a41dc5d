"""Pretraining by hidden patches: the backbone sees a few patches of an image, the head tells what the others were.

    images (B, C, H, W) -> patches (B, N, P) -> the K visible ones -> backbone -> tokens (B, K, D)
                                             -> head -> pixels of the M hidden ones (B, M, P)

After He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners". What is hidden never enters the
backbone, so with three quarters of the patches hidden a step costs about a quarter, and nothing of them can leak.
The backbone is the plain ViT that any other task uses, weight by weight.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitocr.errors import UserError
from vitocr.models.model import Model, import_module_class
from vitocr.models.stem import pair, patch_grid
from vitocr.models.vit import ViT


class Mask(NamedTuple):
    """Which patches of each image are seen, and which are to be told."""

    visible: Tensor  # (B, K) int64
    hidden: Tensor  # (B, M) int64; K + M = N


def split_patches(noise: Tensor, share: float) -> Mask:
    """Hide `share` of the patches, those with the highest `noise` (B, N); at least one is hidden and one is seen.

    Both in the order of the image, which the sparse patterns of attention go by."""
    N = noise.shape[1]
    count = min(N - 1, max(1, round(N * (1 - share))))
    order = noise.argsort(dim=1)
    return Mask(order[:, :count].sort(dim=1).values, order[:, count:].sort(dim=1).values)


def take(patches: Tensor, which: Tensor) -> Tensor:
    """Of patches (B, N, P) those that `which` (B, n) names, (B, n, P)."""
    return patches.gather(1, which[..., None].expand(-1, -1, patches.shape[2]))


def join(patches: Tensor, size: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Flat patches (B, N, C*ph*pw) back to images (B, C, H, W): undoes `ViT.cut`."""
    (H, W), (ph, pw) = size, patch
    grid = patches.reshape(len(patches), H // ph, W // pw, -1, ph, pw)  # (B, gh, gw, C, ph, pw)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), -1, H, W)


def patches_of(backbone: Mapping[str, Any], image_size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Patch and grid of a backbone's spec; a backbone that cannot leave patches out is refused."""
    found = import_module_class(backbone["_target_"])
    why = ""
    if not issubclass(found, ViT):
        why = f"{found.__name__} takes whole images only"
    elif backbone.get("stem"):
        why = "the convolutions of its stem (backbone.stem) see across patches"
    if why:
        raise UserError(
            f"pretraining hides patches from the backbone, but {why}: use a plain ViT, "
            "such as backbone=vit_micro, vit_tiny or vit_small"
        )
    patch = pair(backbone.get("patch", 4))
    try:
        grid = patch_grid(image_size, patch)
    except ValueError as error:
        raise UserError(f"backbone: {error}") from error
    if grid[0] * grid[1] < 2:
        raise UserError(
            f"an image of {image_size[0]}x{image_size[1]} is a single patch of {patch[0]}x{patch[1]}: with that one "
            "hidden nothing is left to see. Use a smaller backbone.patch"
        )
    return patch, grid


def encode_visible(vit: ViT, patches: Tensor, visible: Tensor) -> Tensor:
    """Tokens (B, prefix + K, D) of the visible patches (B, K of N, P) alone."""
    return vit.encode(patches.to(vit.embed.weight.dtype), vit.grid, kept=visible)


class MaskedModel(Model):
    """A ViT and the head that it is pretrained with."""

    def __init__(self, backbone: nn.Module, head: nn.Module, spec: dict[str, Any]) -> None:
        super().__init__(backbone, head, spec)
        patches_of(spec["backbone"], pair(spec["image_size"]))

    @property
    def vit(self) -> ViT:
        assert isinstance(self.backbone, ViT)
        return self.backbone

    def reconstruct(self, images: Tensor, mask: Mask) -> Tensor:
        """The pixels of the hidden patches (B, M, P), each patch normalised by itself."""
        return self.head(encode_visible(self.vit, self.vit.cut(images), mask.visible), mask)

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        """The same with patches hidden at random: what a training step computes. `keep` has no meaning here."""
        noise = torch.rand(len(images), self.vit.grid[0] * self.vit.grid[1], device=images.device)
        return self.reconstruct(images, split_patches(noise, self.head.mask))  # type: ignore[arg-type]

    def loss(self, images: Tensor, targets: Mask, *, keep: float = 1.0, **options: Any) -> dict[str, Tensor]:
        patches = self.vit.cut(images)  # (B, N, P)
        tokens = encode_visible(self.vit, patches, targets.visible)
        return self.head.loss(tokens, targets, take(patches, targets.hidden))  # type: ignore[operator]
