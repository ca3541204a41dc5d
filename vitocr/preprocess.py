"""What happens to an image before the backbone, at evaluation and in use.

One description, stored in the checkpoint and applied by both the data loader and the predictor, so that the
two cannot drift apart. numpy and PIL only: it runs on machines that do nothing but predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.errors import UserError, did_you_mean

INTERPOLATIONS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
RESIZES = ("stretch", "crop", "pad")


@dataclass(frozen=True)
class Preprocess:
    """Resize to `size`, scale to 0..1, subtract `mean`, divide by `std`.

    resize: "stretch" ignores the shape of the image; "crop" keeps it and cuts off what sticks out at both
    sides; "pad" keeps it and fills the rest with the mean colour.
    """

    size: tuple[int, int]  # height, width in pixels
    mean: tuple[float, ...]  # of each channel, images scaled to 0..1
    std: tuple[float, ...]
    resize: str = "stretch"
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name, options in (("resize", RESIZES), ("interpolation", tuple(INTERPOLATIONS))):
            value = getattr(self, name)
            if value not in options:
                raise UserError(f"{name}={value!r} is not one of {', '.join(options)}.{did_you_mean(value, options)}")

    def __call__(self, image: NDArray[np.uint8] | Image.Image) -> NDArray[np.float32]:
        """(H, W, 3) uint8 or PIL -> (3, h, w) float32, normalised."""
        return self.normalised(self.fit(image)[None])[0]

    def normalised(self, fitted: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(B, h, w, 3) uint8 to (B, 3, h, w) float32: a whole batch in two passes over its numbers."""
        scale = np.array([1 / (255 * s) for s in self.std], dtype=np.float32)
        bias = np.array([-m / s for m, s in zip(self.mean, self.std, strict=True)], dtype=np.float32)
        planes = fitted.transpose(0, 3, 1, 2)
        normalised = np.multiply(planes, scale[:, None, None], out=np.empty(planes.shape, dtype=np.float32))
        normalised += bias[:, None, None]
        return normalised

    def fit(self, image: NDArray[np.uint8] | Image.Image) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 or PIL -> (h, w, 3) uint8: the geometry alone."""
        height, width = self.size
        pil = image.convert("RGB") if isinstance(image, Image.Image) else Image.fromarray(image)
        if pil.size == (width, height):
            return np.array(pil)
        how = INTERPOLATIONS[self.interpolation]
        if self.resize == "stretch":
            return np.array(pil.resize((width, height), how))
        ratios = (width / pil.width, height / pil.height)
        ratio = max(ratios) if self.resize == "crop" else min(ratios)
        if self.resize == "crop":
            # The part of the image that fills the frame, cut out and resized in one step.
            part_w, part_h = width / ratio, height / ratio
            left, top = (pil.width - part_w) / 2, (pil.height - part_h) / 2
            return np.array(pil.resize((width, height), how, box=(left, top, left + part_w, top + part_h)))
        inner = pil.resize((max(1, round(pil.width * ratio)), max(1, round(pil.height * ratio))), how)
        colour = tuple(round(255 * m) for m in self.mean)
        frame = Image.new("RGB", (width, height), colour)
        frame.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
        return np.array(frame)

    def to_dict(self) -> dict[str, Any]:
        return {
            "size": list(self.size),
            "mean": list(self.mean),
            "std": list(self.std),
            "resize": self.resize,
            "interpolation": self.interpolation,
        }

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Preprocess:
        height, width = description["size"]
        return cls(
            size=(int(height), int(width)),
            mean=tuple(float(m) for m in description["mean"]),
            std=tuple(float(s) for s in description["std"]),
            resize=description["resize"],
            interpolation=description["interpolation"],
        )
