"""A transformer decoder's parts: attention to keys and values made elsewhere, its block, its positions.

Keys and values are made apart from the queries (`remember`), because that is what a decoder saves by
remembering: those of the image are made once, those of a character when it is read (`KeysValues.grown`).

In training the texts of a batch are of different lengths, and most of their places are padding. Whatever treats
each place by itself is given the T real ones alone (`Packed`); only attention, which is cheap here, sees them padded.

Shapes: B images, N queries, M keys, D model width, H heads, d = D / H.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.models.vit import Mlp


class KeysValues(NamedTuple):
    keys: Tensor  # (B, H, M, d)
    values: Tensor  # (B, H, M, d)

    def grown(self, new: "KeysValues") -> "KeysValues":
        return KeysValues(torch.cat([self.keys, new.keys], dim=2), torch.cat([self.values, new.values], dim=2))

    def kept(self, rows: Tensor) -> "KeysValues":
        return KeysValues(self.keys[rows], self.values[rows])


class Packed(NamedTuple):
    """Which places of (B, N) are real: x (T, D) holds those alone, in their order."""

    at: Tensor  # (T,) places in the flattened (B, N)
    shape: tuple[int, int]  # (B, N)

    def padded(self, x_TD: Tensor) -> Tensor:
        B, N = self.shape
        return x_TD.new_zeros(B * N, x_TD.shape[1]).index_copy(0, self.at, x_TD).view(B, N, -1)

    def real(self, x_BND: Tensor) -> Tensor:
        return x_BND.flatten(0, 1).index_select(0, self.at)


def packed_where(real: Tensor) -> Packed:
    """real: (B, N) bool."""
    B, N = real.shape
    return Packed(real.flatten().nonzero()[:, 0], (B, N))


def attend_plain(q_BHNd: Tensor, past: KeysValues, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of scaled queries in plain steps, whose backward pass is the fastest on a CPU."""
    B, H, N, d = q_BHNd.shape
    M = past.keys.shape[2]
    keys, values = past.keys.reshape(B * H, M, d), past.values.reshape(B * H, M, d)
    scores = torch.bmm(q_BHNd.reshape(B * H, N, d), keys.transpose(1, 2)).view(B, H, N, M)
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf)  # no backward pass needs what the product was
    weights = scores.softmax(dim=-1)
    mixed = torch.bmm(weights.view(B * H, N, M), values)
    return mixed.view(B, H, N, d), weights


class MemoryAttention(nn.Module):
    """Queries (B, N, D) look at keys and values that `remember` made of anything (B, M, D)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"the backbone's width {dim} does not divide into head.heads={heads}")
        self.heads = heads
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.value, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def split_heads(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        x_BND = x if packed is None else packed.padded(x)
        B, N, D = x_BND.shape
        return x_BND.view(B, N, self.heads, D // self.heads).transpose(1, 2)  # (B, H, N, d)

    def remember(self, x: Tensor, packed: Packed | None = None) -> KeysValues:
        return KeysValues(self.split_heads(self.key(x), packed), self.split_heads(self.value(x), packed))

    def forward(
        self,
        x: Tensor,
        past: KeysValues,
        *,
        mask: Tensor | None = None,
        want_weights: bool = False,
        packed: Packed | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D), or (T, D) with `packed`, and so the result. mask: bool, broadcasts to (B, H, N, M), True
        where a query may look. Weights are (B, H, N, M)."""
        scale = (x.shape[-1] // self.heads) ** -0.5  # on the small matrix, as in models/attention.py
        q = self.split_heads(F.linear(x, self.query.weight * scale, self.query.bias * scale), packed)
        weights = None
        if want_weights or (q.device.type == "cpu" and torch.is_grad_enabled()):
            mixed, weights = attend_plain(q, past, mask)
        else:
            mixed = F.scaled_dot_product_attention(q, past.keys, past.values, attn_mask=mask, scale=1.0)
        mixed = mixed.transpose(1, 2).flatten(2)  # (B, N, D)
        return self.out(mixed if packed is None else packed.real(mixed)), weights


class DecoderBlock(nn.Module):
    """Look at the text so far, look at the image, think; each added to what came in (pre-norm)."""

    def __init__(self, dim: int, heads: int, *, mlp_ratio: float, activation: str) -> None:
        super().__init__()
        self.norm_text, self.norm_image, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.text, self.image = MemoryAttention(dim, heads), MemoryAttention(dim, heads)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), activation, bias=True)

    def remember(self, x: Tensor, packed: Packed | None = None) -> KeysValues:
        """Keys and values of characters in the stream itself, for those that look back at them."""
        return self.text.remember(self.norm_text(x), packed)

    def forward(
        self,
        x: Tensor,
        past: KeysValues,
        image: KeysValues,
        *,
        mask: Tensor | None = None,
        want_weights: bool = False,
        packed: Packed | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D), or (T, D) with `packed`, and so the result. `mask` is for the text. Weights (B, N, M) are
        those on the image, a mean over heads."""
        x = x + self.text(self.norm_text(x), past, mask=mask, packed=packed)[0]
        looked, weights = self.image(self.norm_image(x), image, want_weights=want_weights, packed=packed)
        x = x + looked
        x = x + self.mlp(self.norm_mlp(x))
        return x, weights.float().mean(dim=1) if weights is not None and want_weights else None


def reset(module: nn.Module) -> None:
    """Initial weights of a decoder: branches that end in zero, so that it starts as the identity."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=part.in_features**-0.5)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=0.02)
    for part in module.modules():
        if isinstance(part, DecoderBlock):
            for last in (part.text.out, part.image.out, part.mlp.down):
                nn.init.zeros_(last.weight)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """(length, length): each sees itself and those before it."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def sine_positions(length: int, dim: int) -> Tensor:
    """(1, length, dim), as in "Attention Is All You Need": sines and cosines of falling frequency."""
    frequency = torch.exp(torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim))
    angle = torch.arange(length)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[None, :, :dim]
