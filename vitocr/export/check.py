"""Whether an exported model says what its original says: the same text or label for every image, as surely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, tee
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitocr.codec import Charset
from vitocr.data.folder import EXTENSIONS
from vitocr.errors import UserError
from vitocr.output import find_images
from vitocr.predict import Predictor
from vitocr.results import Failure, Label, Reading

TOLERANCE = 1e-3  # of confidences, which are probabilities
SAMPLES = 64
FEW = 8  # images for the checks of other batches and widths

Pictures = Callable[[], Iterator[tuple[str, Any]]]  # names and images, from the first again at every call


class Agreement(NamedTuple):
    images: int
    unreadable: int
    difference: float  # of the confidences, the largest


def compare(
    original: Predictor,
    exported: Predictor,
    pictures: Pictures,
    *,
    what: str,
    limit: int | None = None,
    batch_size: int = 64,
) -> Agreement:
    """UserError if the two differ on any of the first `limit` pictures. what: the exported model's name."""

    named, *both = tee(islice(pictures(), limit), 3)
    expectations, findings = (
        predictor.stream((image for _, image in each), batch_size=batch_size, top_k=1)
        for predictor, each in zip((original, exported), both, strict=True)
    )
    images = unreadable = 0
    largest = 0.0
    differing = []
    for (name, _), expected, found in zip(named, expectations, findings, strict=True):
        if isinstance(expected, Failure) and isinstance(found, Failure):
            unreadable += 1
            continue
        images += 1
        difference = difference_of(expected, found)
        largest = max(largest, difference)
        if not difference <= TOLERANCE:  # NaN is no agreement
            differing.append(f"{name}: {told(expected)} became {told(found)}")
    if differing:
        more = f"; and {len(differing) - 3:,} more" if len(differing) > 3 else ""
        raise UserError(
            f"{what} does not say what the model says: it differs on {len(differing):,} of {images:,} images (another "
            f"text or label, or a confidence off by more than {TOLERANCE}). {'; '.join(differing[:3])}{more}. It was "
            "not kept."
        )
    if not images:
        raise UserError(f"None of the {unreadable:,} images to check the export with could be read.")
    return Agreement(images, unreadable, largest)


def difference_of(expected: Any, found: Any) -> float:
    """Of the confidences of two answers; infinite if they say different things."""
    if isinstance(expected, Label) and isinstance(found, Label) and expected.name == found.name:
        return abs(expected.confidence - found.confidence)
    if isinstance(expected, Reading) and isinstance(found, Reading) and expected.text == found.text:
        pairs = zip(expected.characters, found.characters, strict=True)
        return max([abs(expected.confidence - found.confidence), *(abs(a.confidence - b.confidence) for a, b in pairs)])
    return float("inf")


def told(answer: Any) -> str:
    if isinstance(answer, Failure):
        return f"a failure ({answer.message})"
    return f"{answer.text if isinstance(answer, Reading) else answer.name!r} ({answer.confidence:.5f})"


def open_pictures(paths: Sequence[str | Path], predictor: Predictor) -> Pictures:
    """Images to compare on: files, folders of images, LMDBs or tables of words; without any, such as are drawn here."""
    if not paths:
        drawn = draw_samples(predictor)
        return lambda: iter(drawn)
    openers = [open_one(Path(path)) for path in paths]
    return lambda: (picture for opener in openers for picture in opener())


def open_one(path: Path) -> Pictures:
    if not path.exists():
        raise UserError(f"There is nothing to check the export with at {path}.")
    has_images = path.suffix.lower() in EXTENSIONS or (
        path.is_dir() and any(file.suffix.lower() in EXTENSIONS for file in path.rglob("*"))
    )
    if has_images:
        files = find_images([str(path)], EXTENSIONS)
        return lambda: ((str(file), file) for file in files)
    from vitocr.data.text_sources import open_source

    source = open_source(path)

    def rows() -> Iterator[tuple[str, Any]]:
        for number in range(len(source)):
            with suppress(UserError):  # a broken row; `vitocr data check` names them
                yield f"{source.name}, row {number}", source.read(number).image

    return rows


def draw_samples(predictor: Predictor) -> list[tuple[str, NDArray[np.uint8]]]:
    """Words where words are read, blocks of colour, and noise: what makes a model answer this and that."""
    rng = np.random.default_rng(0)
    samples: list[tuple[str, NDArray[np.uint8]]] = []
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
        pixels = np.asarray(image) + rng.normal(0, rng.uniform(0, 30), (*image.size[::-1], 1))
        samples.append((f"drawn image {number}", pixels.clip(0, 255).astype(np.uint8)))
    return samples
