"""Whatever people call an image, as pixels: a path, a PIL image, an array or a tensor. No torch is imported here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.data.folder import decode_image, to_rgb
from vitocr.errors import UserError


def is_tensor(item: Any) -> bool:
    """Of torch, without importing it: who has a tensor has done that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def is_one(item: Any) -> bool:
    """One image, not several: of arrays and tensors the number of dimensions tells."""
    if isinstance(item, np.ndarray) or is_tensor(item):
        return bool(item.ndim != 4)
    return isinstance(item, str | Path | Image.Image)


def pixels_of(item: Any) -> NDArray[np.uint8]:
    """uint8 (H, W, 3); UserError for what is no image, or cannot be read."""
    if isinstance(item, str | Path):
        return decode_image(item)
    if isinstance(item, Image.Image):
        try:
            return to_rgb(item)
        except (OSError, SyntaxError, ValueError) as error:  # a lazily opened file turns out to be damaged
            raise UserError(f"The image cannot be decoded: {error}") from error
    if is_tensor(item):
        item = item.detach().cpu().float().numpy() if item.is_floating_point() else item.detach().cpu().numpy()
        if item.ndim == 3 and item.shape[0] in (1, 3, 4):  # torch's order
            item = item.transpose(1, 2, 0)
    if not isinstance(item, np.ndarray):
        raise UserError(f"An image is a path, a PIL image, an array or a tensor, not {type(item).__name__}.")
    if item.ndim == 3 and item.shape[2] == 1:
        item = item[:, :, 0]
    if not (item.ndim == 2 or (item.ndim == 3 and item.shape[2] in (3, 4))) or 0 in item.shape:
        raise UserError(f"An image array is (H, W), (H, W, 3) or (H, W, 4), not {item.shape}.")
    pixels = as_uint8(item)
    return pixels if pixels.shape[2:] == (3,) else to_rgb(Image.fromarray(pixels))


def as_uint8(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if np.issubdtype(array.dtype, np.floating):
        # The comparison is false for NaN as well. Normalised floats would be answered with nonsense.
        if not (array.min() >= 0 and array.max() <= 1):
            raise UserError(
                f"A float image has values from 0 to 1, not {array.min():.3g} to {array.max():.3g}: "
                "give the pixels as they are; the model's own normalisation is applied here."
            )
        return (array * 255).round().astype(np.uint8)
    raise UserError(f"Pixels are uint8 (0 to 255) or floats (0 to 1), not {array.dtype}.")
