"""The Vision Transformer: cut an image into patches, embed each, let them attend to each other.

    images (B, C, H, W) -> patches (B, N, C*ph*pw) -> tokens (B, N, D) -> depth x Block -> tokens (B, N, D)

Design choices, each an argument:
- patches of any shape (`patch=4` or `patch=[8, 4]`) through one linear map, or through a small
  convolutional stem (`stem=[[64, 1], [128, 2]]`: widths and strides; the hybrid of the ViT paper);
- learned position embeddings, which begin as sines, are kept as a grid and interpolated when the image is
  another size; or sinusoidal ones that are never learned, rotary ones (positions.py), or none;
- dense attention, or one of the sparse patterns (patterns.py);
- pre-norm (default) or post-norm; ReLU MLP (13 % faster than GELU on a CPU, as accurate);
- stochastic depth that skips work instead of masking it;
- `keep < 1` drops a random part of the patches before they are embedded: half the tokens, nearly
  half the cost, and early in training nearly as much to learn from. `keep_patches` is what the
  trainer passes for it, and for how long is the trainer's affair.

`vit.recompute = True` keeps a block's input alone for the backward pass and computes the rest again there:
less memory for a third more time. The trainer's affair too, and no part of the model.

Every residual branch ends in a matrix that starts at zero, so that the model starts as the identity.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitocr.models.attention import Attention
from vitocr.models.patterns import Pattern, check_attention, span_for
from vitocr.models.positions import Turn, angles, check_positions, coordinates, sinusoidal, turn_by
from vitocr.models.stem import ConvStem, pair, patch_grid

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.relu(x, inplace=True),  # its backward pass needs the output only
    "gelu": F.gelu,
    "silu": F.silu,
}
SINES = 0.3  # how large the sines are that a table of learned positions begins as; 1 learns as fast


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int, activation: str, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x_BND: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x_BND)))


class Block(nn.Module):
    """Attention, then an MLP, each added to what came in."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float,
        activation: str,
        norm: str,
        drop_path: float,
        bias: bool,
        norm_affine: bool,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=norm_affine)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=norm_affine)
        self.attention = Attention(dim, heads, bias)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), activation, bias)
        self.pre_norm = norm == "pre"
        self.drop_path = drop_path

    def residual(self, x: Tensor, branch: Callable[..., Tensor], norm: nn.LayerNorm, *of_images: Tensor) -> Tensor:
        dropped = round(self.drop_path * len(x)) if self.training else 0
        if not self.pre_norm:  # as in "Attention Is All You Need": normalise the sum
            return norm(self.add_to_some(x, branch, dropped, *of_images))
        return self.add_to_some(x, lambda some, *theirs: branch(norm(some), *theirs), dropped, *of_images)

    @staticmethod
    def add_to_some(x: Tensor, branch: Callable[..., Tensor], dropped: int, *of_images: Tensor) -> Tensor:
        """x + branch(x), but `dropped` random images of the batch skip the branch, and its cost.

        of_images: what else the branch is to know of each image that it gets."""
        if dropped == 0:
            return x + branch(x, *of_images)
        B = len(x)
        kept = torch.randperm(B, device=x.device)[dropped:]
        # Scaled up so that the expectation equals what evaluation, which drops nothing, will see.
        mixed = branch(x[kept], *(theirs[kept] for theirs in of_images))
        return x.index_add(0, kept, mixed.to(x.dtype), alpha=B / (B - dropped))

    def forward(
        self,
        x_BND: Tensor,
        seen: dict[str, Tensor] | None = None,
        name: str = "",
        turn: Turn | None = None,
        pattern: Pattern | None = None,
        recompute: bool = False,
    ) -> Tensor:
        if recompute:  # in here, so that what wraps a block (FSDP) sees it run once
            return checkpoint(self.compute, x_BND, None, "", turn, pattern, use_reentrant=False)
        return self.compute(x_BND, seen, name, turn, pattern)

    def compute(
        self, x_BND: Tensor, seen: dict[str, Tensor] | None, name: str, turn: Turn | None, pattern: Pattern | None
    ) -> Tensor:
        # Where each image has patches of its own, their positions are skipped with it.
        turns = turn if turn is not None and turn.cos.shape[0] == x_BND.shape[0] else ()

        def attention(x: Tensor, *theirs: Tensor) -> Tensor:
            here = Turn(*theirs) if theirs else turn
            out, weights = self.attention(x, want_weights=seen is not None, turn=here, pattern=pattern)
            if seen is not None and weights is not None:
                seen[f"{name}.attention"] = weights  # (B, H, N, N)
            return out

        x_BND = self.residual(x_BND, attention, self.norm1, *turns)
        return self.residual(x_BND, self.mlp, self.norm2)


class ViT(nn.Module):
    """Images (B, C, H, W) to tokens (B, N, D); N = prefix + grid height x grid width."""

    def __init__(
        self,
        *,
        image_size: int | Sequence[int],
        patch: int | Sequence[int] = 4,
        dim: int = 192,
        depth: int = 6,
        heads: int = 3,
        mlp_ratio: float = 2.0,
        activation: str = "relu",
        norm: str = "pre",
        class_token: bool = False,
        drop_path: float = 0.0,
        keep_patches: float = 1.0,
        bias: bool = True,
        norm_affine: bool = True,
        stem: Sequence[tuple[int, int | Sequence[int]]] = (),
        channels: int = 3,
        positions: str = "learned",
        positions_from: str = "sines",
        attention: str = "dense",
        attention_span: int | str = "auto",
        attention_summary: int = 4,
    ) -> None:
        """positions_from: what a learned table begins as, sines or noise. attention_span, attention_summary: tokens,
        l and c of a sparse pattern (patterns.py); "auto" is about the square root of all tokens."""
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"backbone.norm={norm}: choose pre or post")
        if activation not in ACTIVATIONS:
            raise ValueError(f"backbone.activation={activation}: choose one of {', '.join(ACTIVATIONS)}")
        if not 0 <= drop_path < 1:
            raise ValueError(f"backbone.drop_path={drop_path} is a share of the images: at least 0 and below 1")
        self.image_size, self.patch, self.dim, self.heads = pair(image_size), pair(patch), dim, heads
        if not 0 < keep_patches <= 1:
            raise ValueError(f"keep_patches={keep_patches} is a share of the patches: above 0, at most 1")
        self.keep_patches = keep_patches
        check_positions(positions, positions_from, dim, heads)
        check_attention(attention, attention_span, attention_summary)
        self.positions_by, self.attention = positions, attention
        self.attention_span, self.attention_summary = attention_span, attention_summary
        self.recompute = False
        self.stem = ConvStem(channels, stem) if stem else None
        self.stride = (1, 1)
        if self.stem is not None:
            channels, self.stride = self.stem.channels, self.stem.stride
        self.grid = self.grid_of(self.image_size)
        self.prefix = int(class_token)
        self.embed = nn.Linear(channels * math.prod(self.patch), dim)
        self.positions = nn.Parameter(torch.empty(1, *self.grid, dim)) if positions == "learned" else None
        self.class_token = nn.Parameter(torch.empty(1, 1, dim)) if class_token else None
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]  # deeper blocks are skipped more
        self.blocks = nn.ModuleList(
            Block(
                dim,
                heads,
                mlp_ratio=mlp_ratio,
                activation=activation,
                norm=norm,
                drop_path=rate,
                bias=bias,
                norm_affine=norm_affine,
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()  # post-norm blocks end normalised
        self.reset(zero_branches=norm == "pre", sines=positions_from == "sines")

    def reset(self, zero_branches: bool, sines: bool) -> None:
        if self.positions is not None:
            nn.init.trunc_normal_(self.positions, std=0.02)
            if sines:  # who is next to whom, from the first step: noise takes minutes to become a map
                where, channels = coordinates(self.grid, self.grid, self.positions.device), self.dim // 4 * 4
                with torch.no_grad():
                    self.positions[..., :channels] += SINES * sinusoidal(where, channels).view(*self.grid, channels)
        if self.class_token is not None:
            nn.init.trunc_normal_(self.class_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if zero_branches:
            for block in self.blocks:
                assert isinstance(block, Block)
                nn.init.zeros_(block.attention.out.weight)
                nn.init.zeros_(block.mlp.down.weight)

    def grid_of(self, image_size: tuple[int, int]) -> tuple[int, int]:
        return patch_grid(image_size, self.patch, self.stride)

    def cut(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to flat patches (B, gh*gw, C*ph*pw)."""
        B, C, H, W = images.shape
        ph, pw = self.patch
        if ph == H and pw == 1:  # a patch is a column: the same numbers by a plain transpose, which runtimes do faster
            return images.reshape(B, C * ph, W).transpose(1, 2)
        patches = images.view(B, C, H // ph, ph, W // pw, pw).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(B, (H // ph) * (W // pw), C * ph * pw)

    def positions_for(self, grid: tuple[int, int]) -> Tensor | None:
        """Position embeddings (1, gh*gw, D), interpolated if the grid is not the one they were learned on."""
        if self.positions_by == "sinusoidal":
            return sinusoidal(coordinates(grid, self.grid, self.embed.weight.device), self.dim)[None]
        if self.positions is None:
            return None
        positions: Tensor = self.positions
        if grid != self.grid:
            as_image = positions.permute(0, 3, 1, 2).float()
            resized = F.interpolate(as_image, size=grid, mode="bicubic", align_corners=False, antialias=True)
            positions = resized.permute(0, 2, 3, 1)
        return positions.reshape(1, grid[0] * grid[1], self.dim)

    def angles_for(self, grid: tuple[int, int]) -> Tensor | None:
        """By how much rotary positions turn the channels of a head, (1, gh*gw, d / 2)."""
        if self.positions_by != "rotary":
            return None
        where = coordinates(grid, self.grid, self.embed.weight.device)
        return angles(where, self.dim // self.heads // 4, 100.0)[None]

    def pattern_for(self, grid: tuple[int, int], tokens: int) -> Pattern | None:
        """Who looks at whom among `tokens` patches, in the order of the image, behind the class token."""
        if self.attention == "dense":
            return None
        span, summary = self.attention_span, self.attention_summary
        if not isinstance(span, int):
            columns = grid[1] if tokens == math.prod(grid) else None
            span = span_for(self.attention, tokens, columns=columns, summary=summary)
        return Pattern(self.attention, span, summary, prefix=self.prefix)

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        """`seen`, if given, is filled with the named intermediates (tokens per block, attention per head)."""
        grid = self.grid_of((images.shape[2], images.shape[3]))
        if self.stem is not None:
            images = self.stem(images).contiguous()
        patches = self.cut(images)  # (B, N, P)
        kept = None
        if keep < 1.0:
            B, N, _ = patches.shape
            kept = torch.rand(B, N, device=patches.device).argsort(dim=1)[:, : max(1, round(N * keep))]  # (B, K)
            if self.attention != "dense":
                kept = kept.sort(dim=1).values  # a pattern goes by the order of the image
        return self.encode(patches, grid, kept=kept, seen=seen)

    def encode(
        self,
        patches: Tensor,
        grid: tuple[int, int],
        *,
        kept: Tensor | None = None,
        seen: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Tokens (B, prefix + N, D) of all patches (B, N, P) of a grid; or of those that `kept` (B, K) names, alone."""
        positions, angle = self.positions_for(grid), self.angles_for(grid)  # (1, N, D) and (1, N, d / 2), or None
        if kept is not None:
            patches = patches.gather(1, kept[..., None].expand(-1, -1, patches.shape[2]))  # (B, K, P)
            positions = positions if positions is None else positions[0][kept]  # (B, K, D)
            angle = angle if angle is None else angle[0][kept]  # (B, K, d / 2)
        pattern = self.pattern_for(grid, patches.shape[1])
        tokens = self.embed(patches)
        if positions is not None:
            # In the matmuls' own precision: a float32 stream would double the traffic of every element-wise step.
            tokens = tokens + positions.to(tokens.dtype)  # (B, N, D)
        turn = None if angle is None else turn_by(angle, prefix=self.prefix, dtype=tokens.dtype)
        if self.class_token is not None:
            first = self.class_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
            tokens = torch.cat([first, tokens], dim=1)  # (B, 1 + N, D)
        if seen is not None:
            seen["embedded"] = tokens
        recompute = self.recompute and torch.is_grad_enabled() and seen is None
        for i, block in enumerate(self.blocks):
            tokens = block(tokens, seen, f"block{i}", turn, pattern, recompute)
            if seen is not None:
                seen[f"block{i}.tokens"] = tokens
        return self.norm(tokens)
