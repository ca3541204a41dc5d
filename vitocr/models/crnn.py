"""The recurrent network that attention replaced (Shi et al. 2015): convolutions, then LSTMs over the columns.

    images (B, C, H, W) -> features (B, C', rows, columns) -> columns (B, columns, C'*rows) -> tokens (B, columns, D)

An LSTM reads the columns left to right, another right to left, and the next pair reads what both found.
With head=ctc this is the CRNN as published; any other head takes its tokens as it takes a ViT's.
The stem is the same list as a ViT's, so that the two can be compared with all else equal.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from vitocr.errors import UserError
from vitocr.models.stem import ConvStem, pair, patch_grid


class Crnn(nn.Module):
    """Images (B, C, H, W) to tokens (B, columns, D), D = 2 * hidden: a grid of one row."""

    prefix = 0

    def __init__(
        self,
        *,
        image_size: int | Sequence[int],
        stem: Sequence[tuple[int, int | Sequence[int]]],
        hidden: int = 256,
        depth: int = 2,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if hidden < 1 or depth < 1:
            raise ValueError(f"backbone.hidden={hidden} and backbone.depth={depth}: at least 1 each")
        if not stem:
            raise ValueError("backbone.stem is empty: a CRNN sees through its convolutions")
        self.image_size = pair(image_size)
        self.stem = ConvStem(channels, stem)
        self.stride = self.stem.stride
        self.rows, columns = patch_grid(self.image_size, (1, 1), self.stride)
        self.grid = (1, columns)
        self.dim = 2 * hidden
        widths = [self.stem.channels * self.rows] + [self.dim] * (depth - 1)
        self.layers = nn.ModuleList(nn.LSTM(width, hidden, batch_first=True, bidirectional=True) for width in widths)

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        """`seen`, if given, is filled with the named intermediates (tokens of the stem and of each layer)."""
        if keep < 1.0:
            raise UserError("a CRNN reads every column: call it with keep=1")
        height, width = images.shape[2:]
        if patch_grid((height, width), (1, 1), self.stride)[0] != self.rows:
            raise UserError(
                f"an image is {height} pixels high, and this CRNN reads images of {self.image_size[0]}: "
                "scale it to that height; its width is free"
            )
        features = self.stem(images)  # (B, C', rows, columns)
        tokens = features.permute(0, 3, 1, 2).flatten(2)  # (B, columns, C'*rows)
        if seen is not None:
            seen["embedded"] = tokens
        for i, layer in enumerate(self.layers):
            tokens = layer(tokens)[0]  # (B, columns, D)
            if seen is not None:
                seen[f"block{i}.tokens"] = tokens
        return tokens
