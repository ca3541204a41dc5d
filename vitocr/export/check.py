"""Whether an exported model says what its original says: the same text or label for every image, as surely."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from vitocr.errors import UserError
from vitocr.export.pictures import Picture, Pictures
from vitocr.output import progress
from vitocr.predict import Predictor
from vitocr.results import Failure, Label, Reading

TOLERANCE = 1e-3  # of confidences, which are probabilities
FEW = 8  # images for the checks of other batches and widths
BATCHES = 4  # that are held in memory


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
    """UserError if the two differ on any of the pictures. what: the exported model's name."""
    images = unreadable = 0
    largest = 0.0
    differing = []
    for picture, expected, found in side_by_side(
        original, exported, pictures, what=f"checking {what}", limit=limit, batch_size=batch_size
    ):
        if isinstance(expected, Failure) and isinstance(found, Failure):
            unreadable += 1
            continue
        images += 1
        difference = difference_of(expected, found)
        largest = max(largest, difference)
        if not difference <= TOLERANCE:  # NaN is no agreement
            differing.append(f"{picture.name}: {told(expected)} became {told(found)}")
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


def side_by_side(
    one: Predictor,
    other: Predictor,
    pictures: Pictures,
    *,
    what: str,
    limit: int | None = None,
    batch_size: int = 64,
) -> Iterator[tuple[Picture, Any, Any]]:
    """The answers of two predictors to each picture. Holds a few batches at a time, however many there are."""
    total = pictures.count if limit is None else min(limit, pictures.count)
    return iter(progress(answered(one, other, pictures.each(limit), batch_size), total, what=what))


def answered(
    one: Predictor, other: Predictor, pictures: Iterator[Picture], batch_size: int
) -> Iterator[tuple[Picture, Any, Any]]:
    while some := list(islice(pictures, BATCHES * batch_size)):
        images = [picture.image for picture in some]
        # What is read is compared, not what is sure enough to be said: a hair's breadth decides that at the threshold.
        both = [predictor(images, batch_size=batch_size, top_k=1, threshold=0.0) for predictor in (one, other)]
        yield from zip(some, *both, strict=True)


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
