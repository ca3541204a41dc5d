"""The Vision Transformer: cut an image into patches, embed each, let them attend to each other.

    images (B, C, H, W) -> patches (B, N, C*ph*pw) -> tokens (B, N, D) -> depth x Block -> tokens (B, N, D)

Design choices, each an argument:
- patches of any shape (`patch=4` or `patch=[8, 4]`) through one linear map, or through a small
  convolutional stem (`stem=[[64, 1], [128, 2]]`: widths and strides; the hybrid of the ViT paper);
- learned position embeddings, kept as a grid and interpolated when the image is another size;
- pre-norm (default) or post-norm; ReLU MLP (13 % faster than GELU on a CPU, as accurate);
- stochastic depth that skips work instead of masking it;
- `keep < 1` drops a random part of the patches before they are embedded: half the tokens, nearly
  half the cost, and early in training nearly as much to learn from. `keep_patches` is what the
  trainer passes for it, and for how long is the trainer's affair.

Every residual branch ends in a matrix that starts at zero, so that the model starts as the identity.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.models.attention import Attention

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.relu(x, inplace=True),  # its backward pass needs the output only
    "gelu": F.gelu,
    "silu": F.silu,
}


def pair(size: int | Sequence[int]) -> tuple[int, int]:
    """4 -> (4, 4); [8, 4] -> (8, 4): heights come before widths everywhere."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


def patch_grid(
    image_size: tuple[int, int], patch: tuple[int, int], stride: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """Rows and columns of patches behind a stem of `stride`, or an error that says what would fit."""
    step = tuple(side * s for side, s in zip(patch, stride, strict=True))
    if any(size % s or size < s for size, s in zip(image_size, step, strict=True)):
        near = tuple(max(s, round(size / s) * s) for size, s in zip(image_size, step, strict=True))
        stem = f" behind a stem of stride {stride[0]}x{stride[1]}" if math.prod(stride) > 1 else ""
        raise ValueError(
            f"an image of {image_size[0]}x{image_size[1]} (height x width) does not divide into patches "
            f"of {patch[0]}x{patch[1]}{stem}; use another backbone.patch, "
            f"or an image size such as {near[0]}x{near[1]}"
        )
    return image_size[0] // step[0], image_size[1] // step[1]


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

    def residual(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: nn.LayerNorm) -> Tensor:
        dropped = round(self.drop_path * len(x)) if self.training else 0
        if not self.pre_norm:  # as in "Attention Is All You Need": normalise the sum
            return norm(self.add_to_some(x, branch, dropped))
        return self.add_to_some(x, lambda some: branch(norm(some)), dropped)

    @staticmethod
    def add_to_some(x: Tensor, branch: Callable[[Tensor], Tensor], dropped: int) -> Tensor:
        """x + branch(x), but `dropped` random images of the batch skip the branch, and its cost."""
        if dropped == 0:
            return x + branch(x)
        B = len(x)
        kept = torch.randperm(B, device=x.device)[dropped:]
        # Scaled up so that the expectation equals what evaluation, which drops nothing, will see.
        return x.index_add(0, kept, branch(x[kept]).to(x.dtype), alpha=B / (B - dropped))

    def forward(self, x_BND: Tensor, seen: dict[str, Tensor] | None = None, name: str = "") -> Tensor:
        def attention(x: Tensor) -> Tensor:
            out, weights = self.attention(x, want_weights=seen is not None)
            if seen is not None and weights is not None:
                seen[f"{name}.attention"] = weights  # (B, H, N, N)
            return out

        x_BND = self.residual(x_BND, attention, self.norm1)
        return self.residual(x_BND, self.mlp, self.norm2)


class ConvStem(nn.Module):
    """3x3 convolutions that the image goes through before it is cut into patches.

    `spec`: a width and a stride each; a stride of [2, 1] halves the height alone.
    """

    def __init__(self, channels: int, spec: Sequence[tuple[int, int | Sequence[int]]]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        self.stride = (1, 1)
        for width, strides in spec:
            down, across = pair(strides)
            self.stride = (self.stride[0] * down, self.stride[1] * across)
            layers += [
                nn.Conv2d(channels, width, 3, stride=(down, across), padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        self.layers = nn.Sequential(*layers)
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.contiguous(memory_format=torch.channels_last))


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
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"backbone.norm={norm}: choose pre or post")
        if activation not in ACTIVATIONS:
            raise ValueError(f"backbone.activation={activation}: choose one of {', '.join(ACTIVATIONS)}")
        if not 0 <= drop_path < 1:
            raise ValueError(f"backbone.drop_path={drop_path} is a share of the images: at least 0 and below 1")
        self.image_size, self.patch, self.dim = pair(image_size), pair(patch), dim
        if not 0 < keep_patches <= 1:
            raise ValueError(f"keep_patches={keep_patches} is a share of the patches: above 0, at most 1")
        self.keep_patches = keep_patches
        self.stem = ConvStem(channels, stem) if stem else None
        self.stride = (1, 1)
        if self.stem is not None:
            channels, self.stride = self.stem.channels, self.stem.stride
        self.grid = self.grid_of(self.image_size)
        self.prefix = int(class_token)
        self.embed = nn.Linear(channels * math.prod(self.patch), dim)
        self.positions = nn.Parameter(torch.empty(1, *self.grid, dim))
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
        self.reset(zero_branches=norm == "pre")

    def reset(self, zero_branches: bool) -> None:
        nn.init.trunc_normal_(self.positions, std=0.02)
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
        patches = images.view(B, C, H // ph, ph, W // pw, pw).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(B, (H // ph) * (W // pw), C * ph * pw)

    def positions_for(self, grid: tuple[int, int]) -> Tensor:
        """Position embeddings (1, gh*gw, D), interpolated if the grid is not the one they were learned on."""
        positions: Tensor = self.positions
        if grid != self.grid:
            as_image = positions.permute(0, 3, 1, 2).float()
            resized = F.interpolate(as_image, size=grid, mode="bicubic", align_corners=False, antialias=True)
            positions = resized.permute(0, 2, 3, 1)
        return positions.reshape(1, grid[0] * grid[1], self.dim)

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        """`seen`, if given, is filled with the named intermediates (tokens per block, attention per head)."""
        grid = self.grid_of((images.shape[2], images.shape[3]))
        if self.stem is not None:
            images = self.stem(images).contiguous()
        patches = self.cut(images)  # (B, N, P)
        positions = self.positions_for(grid)  # (1, N, D)
        if keep < 1.0:
            B, N, P = patches.shape
            kept = torch.rand(B, N, device=patches.device).argsort(dim=1)[:, : max(1, round(N * keep))]  # (B, K)
            patches = patches.gather(1, kept[..., None].expand(-1, -1, P))  # (B, K, P)
            positions = positions[0][kept]  # (B, K, D)
        tokens = self.embed(patches)
        # In the matmuls' own precision: a float32 stream would double the traffic of every element-wise step.
        tokens = tokens + positions.to(tokens.dtype)  # (B, N, D)
        if self.class_token is not None:
            first = self.class_token.to(tokens.dtype).expand(len(tokens), -1, -1)
            tokens = torch.cat([first, tokens], dim=1)  # (B, 1 + N, D)
        if seen is not None:
            seen["embedded"] = tokens
        for i, block in enumerate(self.blocks):
            tokens = block(tokens, seen, f"block{i}")
            if seen is not None:
                seen[f"block{i}.tokens"] = tokens
        return self.norm(tokens)
