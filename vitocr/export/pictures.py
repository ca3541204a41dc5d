"""The images on which exported models are held against their originals, and which INT8 is calibrated on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitocr.codec import Charset
from vitocr.data.arrays import PathRows
from vitocr.data.folder import EXTENSIONS, scan_folder
from vitocr.data.text_sources import open_source
from vitocr.data.text_table import TABLES
from vitocr.errors import UserError
from vitocr.evaluate import match_classes
from vitocr.output import find_images
from vitocr.predict import Predictor

SAMPLES = 64


class Picture(NamedTuple):
    name: str
    image: Any  # whatever a Predictor takes
    label: str | None = None  # the text or class that it shows, where somebody has said


@dataclass(frozen=True)
class Pictures:
    count: int
    read: Callable[[int], Picture]  # by number; UserError if a row of words is broken

    def each(self, limit: int | None = None) -> Iterator[Picture]:
        """One after the other; with `limit` at most so many, evenly spaced."""
        count = self.count if limit is None else min(limit, self.count)
        for number in range(count):
            with suppress(UserError):  # `vitocr data check` names the broken rows
                yield self.read(number * self.count // count)


def open_pictures(paths: Sequence[str | Path], predictor: Predictor) -> Pictures:
    """Files, folders of images, with classes or without, LMDBs or tables of words; without any, images drawn here."""
    if not paths:
        drawn = draw_samples(predictor)
        return Pictures(len(drawn), drawn.__getitem__)
    parts = [open_one(Path(path), predictor) for path in paths]
    ends = np.cumsum([part.count for part in parts])

    def read(number: int) -> Picture:
        which = int(np.searchsorted(ends, number, side="right"))
        return parts[which].read(number - int(ends[which]) + parts[which].count)

    return Pictures(int(ends[-1]), read)


def open_one(path: Path, predictor: Predictor) -> Pictures:
    if not path.exists():
        raise UserError(f"There are no images at {path}.")
    if predictor.reads_text and holds_words(path):
        source = open_source(path)

        def read(number: int) -> Picture:
            row = source.read(number)
            return Picture(f"{source.name}, row {number}", row.image, row.text)

        return Pictures(len(source), read)
    if not predictor.reads_text and holds_classes(path, predictor.classes):
        splits = scan_folder(path, val_fraction=0)
        match_classes(splits.classes, predictor.classes, data=splits.name)  # a class of the CSV may be a stranger
        rows = next(rows for rows in (splits.test, splits.val, splits.train) if rows is not None)
        assert isinstance(rows, PathRows)  # those of a folder are
        files, labels = [rows.path(number) for number in range(len(rows))], rows.labels
        return Pictures(len(rows), lambda n: Picture(str(files[n]), files[n], splits.classes[labels[n]]))
    found = find_images([str(path)], EXTENSIONS)
    return Pictures(len(found), lambda n: Picture(str(found[n]), found[n]))


def holds_words(path: Path) -> bool:
    names = {*TABLES, "data.mdb"}
    if path.is_file():
        return path.suffix.lower() not in EXTENSIONS
    return any(file.name in names for file in path.rglob("*"))


def holds_classes(path: Path, classes: Sequence[str]) -> bool:
    """Whether the images have a class each: a CSV says so, or the names of the folders that they are in."""
    if path.is_file():
        return path.suffix.lower() == ".csv"
    if (path / "labels.csv").is_file():
        return True
    folders = {normalize("NFC", file.parent.name) for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS}
    return bool(folders) and folders <= set(classes)


def draw_samples(predictor: Predictor) -> list[Picture]:
    """Words where words are read, blocks of colour, and noise: what makes a model answer this and that."""
    rng = np.random.default_rng(0)
    samples: list[Picture] = []
    for number in range(SAMPLES):
        height, width = (int(side * rng.uniform(0.5, 2)) for side in predictor.preprocess.size)
        paper, ink = rng.integers(0, 256, (2, 3))
        image = Image.new("RGB", (max(width, 8), max(height, 8)), tuple(paper.tolist()))
        if isinstance(predictor.codec, Charset) and number % 2 == 0:
            word = predictor.codec.decode(rng.integers(0, len(predictor.codec), rng.integers(1, 12)).tolist())
            font = ImageFont.load_default(image.height * rng.uniform(0.4, 0.9))
            ImageDraw.Draw(image).text((2, image.height // 2), word, tuple(ink.tolist()), font, anchor="lm")
        else:
            blocks = rng.integers(0, 256, (*rng.integers(1, 9, 2), 3), dtype=np.uint8)
            image = Image.fromarray(blocks).resize(image.size, Image.Resampling.NEAREST)
        pixels: NDArray[Any] = np.asarray(image) + rng.normal(0, rng.uniform(0, 30), (*image.size[::-1], 1))
        samples.append(Picture(f"drawn image {number}", pixels.clip(0, 255).astype(np.uint8)))
    return samples
