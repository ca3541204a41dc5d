"""Pictures of any kind, without asking what they show: what pretraining looks at.

Everything here is a source of text rows (see text_rows.py) that say nothing, so that folders of images, arrays in
memory, LMDBs and the renderer can be joined, divided and remembered by what is there for text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from vitocr.data.folder import decode_image, images_below
from vitocr.data.loader import Batch, BatchPlan, ReadingLoader, Slice, read_slots
from vitocr.data.text_loader import fit_row
from vitocr.data.text_rows import StoredRow, TextRow, TextSource, encode_row
from vitocr.data.text_sources import open_source
from vitocr.errors import UserError, did_you_mean
from vitocr.preprocess import Preprocess


class PictureFiles:
    """The image files of a folder, at any depth, in the order of their names."""

    def __init__(self, root: Path, paths: Sequence[Path]) -> None:
        self.root, self.name = root, root.resolve().name
        self.paths = [path.relative_to(root).as_posix() for path in paths]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> TextRow:
        return TextRow(decode_image(self.root / self.paths[row]), "", None)

    def stored(self, row: int) -> StoredRow:
        return StoredRow((self.root / self.paths[row]).read_bytes(), "", None)

    def text(self, row: int) -> str | None:
        return ""

    def fingerprint(self) -> str:
        """Of names and sizes: cheap, and it changes when files come, go or are replaced."""
        sizes = ((path, (self.root / path).stat().st_size) for path in self.paths)
        return hashlib.sha256("".join(f"{path}\0{size}\n" for path, size in sizes).encode()).hexdigest()


class PictureArrays:
    """Decoded images (N, H, W, 3) uint8, in memory or memory-mapped."""

    def __init__(self, images: NDArray[np.uint8], *, name: str, fingerprint: str) -> None:
        self.images, self.name, self.known = images, name, fingerprint

    def __len__(self) -> int:
        return len(self.images)

    def read(self, row: int) -> TextRow:
        return TextRow(self.images[row], "", None)

    def stored(self, row: int) -> StoredRow:
        return encode_row(self.read(row))

    def text(self, row: int) -> str | None:
        return ""

    def fingerprint(self) -> str:
        return self.known


def open_pictures(path: str | Path) -> TextSource:
    """A folder of images at any depth, whatever its sub-folders mean; or text data: an LMDB, a table of labels."""
    path = Path(path)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = did_you_mean(path.name, [*siblings, "cifar10", "render"])
        raise UserError(f"There are no pictures at {str(path)!r}.{near}")
    if path.is_dir():
        files = list(images_below(path))
        if files:
            return PictureFiles(path, files)
        if not any(path.rglob("data.mdb")):
            raise UserError(f"There are no pictures in {str(path)!r}: neither image files nor an LMDB (data.mdb).")
    return open_source(path)


class PictureLoader(ReadingLoader):
    """Batches of uint8 images at the size of the model; their targets mean nothing.

    Order, positions, ranks and broken rows are as in `vitocr.data.loader`, whose plan this uses.
    """

    def __init__(
        self,
        source: TextSource,
        *,
        preprocess: Preprocess,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
        workers: int = 0,
        max_bad_fraction: float = 0.05,
        say: Callable[[str], object] = print,
    ) -> None:
        """batch_size: images of a global batch, all ranks together. workers: processes of this rank."""
        plan = BatchPlan(len(source), batch_size, seed, rank, world, shuffle, drop_last)
        pictures = _Pictures(source, preprocess, replace_bad=shuffle)
        super().__init__(pictures, plan, workers=workers, max_bad_fraction=max_bad_fraction, say=say)


class _Pictures(Dataset[tuple[Batch, dict[int, str]]]):
    """Makes one batch from one `Slice`. This is what worker processes get a copy of."""

    def __init__(self, source: TextSource, preprocess: Preprocess, *, replace_bad: bool) -> None:
        self.source, self.preprocess, self.replace_bad = source, preprocess, replace_bad

    def __getitem__(self, part: Slice) -> tuple[Batch, dict[int, str]]:
        def read(row: int, slot: int) -> NDArray[np.uint8]:
            return fit_row(self.source.read(row), self.preprocess).image

        good, bad = read_slots(part, read, replace_bad=self.replace_bad)
        images = np.stack(good) if good else np.empty((0, *self.preprocess.size, 3), np.uint8)
        return Batch(torch.from_numpy(images), torch.zeros(len(good), dtype=torch.int64), part.position), bad
