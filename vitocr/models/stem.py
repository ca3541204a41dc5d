"""From an image to a grid: sizes that go by height and width, and the convolutions before the first token."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
            f"of {patch[0]}x{patch[1]}{stem}; use another backbone.{'stem' if stem else 'patch'}, "
            f"or an image size such as {near[0]}x{near[1]}"
        )
    return image_size[0] // step[0], image_size[1] // step[1]


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
