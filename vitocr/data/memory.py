"""A folder of images, decoded once into memory: the way to augment whole batches of them (augment=batch)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from vitocr.data.arrays import ImageArrays, PathRows
from vitocr.data.bad_files import BadFiles
from vitocr.data.folder import decode_image
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

SAY_EVERY_SECONDS = 2.0


def load_arrays(
    rows: PathRows,
    *,
    preprocess: Preprocess,
    max_bytes: int = 1 << 30,
    max_bad_fraction: float = 0.05,
    say: Callable[[str], object] = print,
) -> ImageArrays:
    """All images at the size of the model, uint8. Files that cannot be read are named and left out."""
    height, width = preprocess.size
    needed = len(rows) * height * width * 3
    if needed > max_bytes:
        raise UserError(
            f"{len(rows)} images of {height} x {width} pixels take {needed / 1e9:.1f} GB of memory, more "
            f"than the {max_bytes / 1e9:.1f} GB they may: use augment=light, which reads the files anew in "
            "every epoch, or a smaller preprocess.size."
        )
    images = np.empty((len(rows), height, width, 3), np.uint8)

    def read(row: int) -> str | None:
        try:
            images[row] = preprocess.fit(decode_image(rows.path(row)))
        except UserError as error:
            return str(error)
        return None

    bad = BadFiles(len(rows), max_fraction=max_bad_fraction, say=say)
    readable: NDArray[np.bool_] = np.ones(len(rows), dtype=bool)
    said = time.monotonic()
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        for row, why in enumerate(pool.map(read, range(len(rows)))):
            if why:
                readable[row] = False
                bad.add(row, why)
            if time.monotonic() - said > SAY_EVERY_SECONDS:
                said = time.monotonic()
                say(f"  decoded {row + 1} of {len(rows)} images")
    finally:
        pool.shutdown(cancel_futures=True)
    if readable.all():
        return ImageArrays(images, rows.labels)
    return ImageArrays(images[readable], rows.labels[readable])
