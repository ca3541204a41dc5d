"""Rows of text data as plain arrays on disk: what the renderer's cache is made of, as nothing reads faster.

A folder holds images.npy (N, h, w, 3) uint8 and boxes.npy (all characters, 4) float32 in pixels, both memory-mapped,
and rows.json with the texts. rows.json is written last: a folder without it was not finished. Several processes
write a folder each, side by side; `open_source` reads the folder above them as one source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitocr.data.text_rows import StoredRow, TextRow, encode_row, fingerprint
from vitocr.errors import UserError

FORMAT = 1


class ArraySource:
    """about: whatever its writer noted, for example the fingerprint of the renderer."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.name = self.folder.resolve().name
        try:
            rows = json.loads((self.folder / "rows.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UserError(f"{str(folder)!r} was not written to its end: remove it and make it again.") from error
        except ValueError as error:
            raise UserError(f"{str(self.folder / 'rows.json')!r} is damaged: {error}") from error
        if rows.get("format") != FORMAT:
            raise UserError(f"{str(folder)!r} was written by another version of vitocr: make it again.")
        self.texts: list[str] = rows["texts"]
        self.about: dict[str, object] = rows["about"]
        self.ends = np.cumsum([len(text) for text in self.texts], dtype=np.int64)
        self._open()

    def _open(self) -> None:
        try:
            self.images = np.load(self.folder / "images.npy", mmap_mode="r")
            self.boxes = np.load(self.folder / "boxes.npy", mmap_mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"The arrays in {str(self.folder)!r} cannot be read: {error}") from error
        if len(self.images) != len(self.texts) or len(self.boxes) != (self.ends[-1] if self.texts else 0):
            raise UserError(f"The arrays in {str(self.folder)!r} do not fit its rows.json: make them again.")

    def __getstate__(self) -> dict[str, object]:
        """Without the maps: pickled, they would be copied whole."""
        return {name: value for name, value in vars(self).items() if name not in ("images", "boxes")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, row: int) -> TextRow:
        text, end = self.texts[row], int(self.ends[row])
        boxes = np.array(self.boxes[end - len(text) : end])
        return TextRow(np.array(self.images[row]), text, None if np.isnan(boxes).any() else boxes)

    def stored(self, row: int) -> StoredRow:
        return encode_row(self.read(row))

    def text(self, row: int) -> str | None:
        return self.texts[row]

    def fingerprint(self) -> str:
        return fingerprint(self)


def write_arrays(
    rows: Iterable[TextRow], out: str | Path, *, count: int, size: tuple[int, int], about: dict[str, object]
) -> ArraySource:
    """Write `count` rows whose images are all of `size` (height, width). Fewer, if `rows` end before."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.json").unlink(missing_ok=True)
    images = np.lib.format.open_memmap(out / "images.npy", mode="w+", dtype=np.uint8, shape=(count, *size, 3))
    texts: list[str] = []
    boxes: list[NDArray[np.float32]] = []
    for row in rows:
        images[len(texts)] = row.image
        boxes.append(np.full((len(row.text), 4), np.nan, np.float32) if row.boxes is None else row.boxes)
        texts.append(row.text)
        if len(texts) == count:
            break
    images.flush()
    del images
    if len(texts) < count:  # the clock ran out, say
        _shorten(out / "images.npy", len(texts))
    np.save(out / "boxes.npy", np.concatenate(boxes) if boxes else np.empty((0, 4), np.float32))
    temporary = out / "rows.json.tmp"
    temporary.write_text(
        json.dumps({"format": FORMAT, "about": about, "texts": texts}, ensure_ascii=False), encoding="utf-8"
    )
    temporary.replace(out / "rows.json")
    return ArraySource(out)


def _shorten(path: Path, rows: int) -> None:
    """Cut a .npy file to its first rows, without copying it: the header is written anew in its own space."""
    with path.open("r+b") as file:
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        start = file.tell()
        file.seek(0)
        header = {"shape": (rows, *shape[1:]), "fortran_order": fortran, "descr": np.lib.format.dtype_to_descr(dtype)}
        np.lib.format.write_array_header_1_0(file, header)
        # numpy leaves room for a growing first dimension; should it not suffice, data would be overwritten.
        assert file.tell() == start
        file.truncate(start + rows * int(np.prod(shape[1:])) * dtype.itemsize)
        os.fsync(file.fileno())
