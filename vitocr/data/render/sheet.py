"""A sheet of crops to look at: the quickest way to find out what is wrong with a source of words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitocr.data.render.spec import Crop

GAP = 3


def contact_sheet(
    crops: Sequence[Crop],
    path: str | Path,
    columns: int = 8,
    *,
    cell: tuple[int, int] | None = None,
    boxes: bool = False,
    texts: bool = False,
) -> None:
    """Write a PNG of the crops, row by row. cell: height and width they are scaled to (default: twice the first
    crop's). boxes: draw the characters' boxes; texts: print what each says below it (ASCII only)."""
    height, width = cell or (2 * crops[0].image.shape[0], 2 * crops[0].image.shape[1])
    caption = 12 if texts else 0
    rows = -(-len(crops) // columns)
    step = (height + caption + GAP, width + GAP)
    sheet = np.full((rows * step[0] + GAP, columns * step[1] + GAP, 3), 255, np.uint8)
    for number, crop in enumerate(crops):
        top, left = (GAP + at * size for at, size in zip(divmod(number, columns), step, strict=True))
        sheet[top : top + height, left : left + width] = _cell(crop, height, width, boxes)
    picture = Image.fromarray(sheet)
    if texts:
        draw = ImageDraw.Draw(picture)
        for number, crop in enumerate(crops):
            top, left = (GAP + at * size for at, size in zip(divmod(number, columns), step, strict=True))
            draw.text((left, top + height), crop.text.encode("ascii", "backslashreplace").decode(), fill=(0, 0, 0))
    picture.save(path)


def _cell(crop: Crop, height: int, width: int, boxes: bool) -> NDArray[np.uint8]:
    image = cv2.resize(crop.image, (width, height), interpolation=cv2.INTER_CUBIC)
    if boxes:
        scale = np.array([width / crop.image.shape[1], height / crop.image.shape[0]] * 2)
        for x0, y0, x1, y1 in np.round(crop.boxes * scale).astype(int).tolist():
            cv2.rectangle(image, (x0, y0), (x1 - 1, y1 - 1), (255, 0, 60), 1)
    return image
