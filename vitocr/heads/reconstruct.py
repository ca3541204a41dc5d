"""Tells the pixels of hidden patches from the tokens of visible ones: the head of pretraining, thrown away after it.

A query is nothing but the position of a hidden patch. It looks at the other queries and at the visible tokens
(`DecoderBlock`, as in the heads that read), so what is visible is never decoded, and the decoder is narrow: the
understanding is to be in the backbone, which is all that is kept.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.models.decoder import DecoderBlock, reset
from vitocr.models.masked import Mask, MaskedModel

FLAT = 1e-3  # added to the variance of a patch: what is nearly one colour holds noise alone, not worth learning


def normalised(patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Patches (B, n, P) with mean 0 and variance 1 each, and the mean and deviation they had (B, n, 1)."""
    patches = patches.float()
    variance, mean = torch.var_mean(patches, dim=2, keepdim=True, correction=0)
    deviation = (variance + FLAT).sqrt()
    return (patches - mean) / deviation, mean, deviation


class Reconstruct(nn.Module):
    """mask: share of the patches that are hidden. pixels: numbers of a patch, all channels. width: of the decoder."""

    model_class = MaskedModel

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        grid: tuple[int, int],
        pixels: int,
        mask: float = 0.75,
        width: int = 96,
        depth: int = 2,
        heads: int = 3,
        mlp_ratio: float = 2.0,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        if not 0 < mask < 1:
            raise ValueError(f"head.mask={mask} is the share of the patches that are hidden: above 0 and below 1")
        if depth < 1:
            raise ValueError(f"head.depth={depth}: a decoder has at least one layer")
        if width % heads:
            raise ValueError(f"head.width={width} does not divide into head.heads={heads}")
        self.mask = mask
        self.narrow = nn.Linear(dim, width)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, *grid, width), std=0.02))
        self.blocks = nn.ModuleList(
            DecoderBlock(width, heads, mlp_ratio=mlp_ratio, activation=activation) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.pixels = nn.Linear(width, pixels)
        reset(self.narrow)
        reset(self.blocks)
        nn.init.zeros_(self.pixels.weight)  # starts by telling every patch grey
        nn.init.zeros_(self.pixels.bias)

    def forward(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Tokens (B, prefix + K, D), with the positions of visible patches in them, to pixels (B, M, P)."""
        memory = self.narrow(tokens)  # (B, prefix + K, width)
        grid = self.positions.flatten(1, 2)[0].to(memory.dtype)  # (N, width)
        prefix = memory.shape[1] - mask.visible.shape[1]
        memory = memory + F.pad(grid[mask.visible], (0, 0, prefix, 0))
        x = grid[mask.hidden]  # (B, M, width)
        for block in self.blocks:
            assert isinstance(block, DecoderBlock)
            x, _ = block(x, block.remember(x), block.image.remember(memory))
        return self.pixels(self.norm(x))

    def loss(self, tokens: Tensor, mask: Mask, hidden: Tensor) -> dict[str, Tensor]:
        """Mean square of what is missed of the hidden patches (B, M, P); 1 is what the mean colour alone would get."""
        return {"loss": F.mse_loss(self(tokens, mask).float(), normalised(hidden)[0])}
