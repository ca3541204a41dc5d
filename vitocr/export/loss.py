"""How much worse an INT8 model answers than the float32 one it was made of, and whether that is still allowed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from vitocr.codec import Charset
from vitocr.errors import UserError
from vitocr.export.check import side_by_side
from vitocr.export.pictures import Pictures
from vitocr.predict import Predictor
from vitocr.results import Failure, Label, Reading
from vitocr.text_metrics import protocol_for, right_words


class Loss(NamedTuple):
    images: int  # that could be read
    unreadable: int
    judged: int  # images with a label; without any, what is told is the share of answers that are the same
    before: float  # share of the judged that are right, in float32; 1 without labels
    after: float  # in INT8; the share of the same answers without labels
    alike: float  # share of all images with the same answer

    @property
    def points(self) -> float:
        return 100 * (self.before - self.after)

    def told(self) -> str:
        if not self.judged:
            return (
                f"{self.alike:.2%} of {self.images:,} images get the answer that they get in float32 (nobody has said "
                "which are right: the images have no labels)"
            )
        return (
            f"{self.before:.2%} of {self.judged:,} images right in float32, {self.after:.2%} in INT8: a loss of "
            f"{self.points:.2f} points; {self.alike:.2%} of all answers are the same"
        )


def weigh(original: Predictor, quantised: Predictor, pictures: Pictures, *, what: str, batch_size: int = 64) -> Loss:
    """UserError if nothing can be told from these pictures."""
    protocol = protocol_for(original.codec.characters) if isinstance(original.codec, Charset) else "exact"
    images = unreadable = alike = judged = before = after = 0
    labelled = True
    for picture, expected, found in side_by_side(
        original, quantised, pictures, what=f"verifying {what}", batch_size=batch_size
    ):
        if isinstance(expected, Failure):
            unreadable += 1
            continue
        images += 1
        alike += said(expected) == said(found)
        if picture.label is None:
            labelled = False
            continue
        right, still = (right_words([said(answer)], [picture.label], protocol)[0] for answer in (expected, found))
        if not math.isnan(right):  # else the protocol cannot judge this word
            judged, before, after = judged + 1, before + int(right), after + int(still)
    if not images:
        raise UserError(f"None of the {unreadable:,} images to verify {what} with could be read.")
    if not labelled or not judged:
        return Loss(images, unreadable, 0, 1.0, alike / images, alike / images)
    if not before:
        raise UserError(
            f"None of the {judged:,} images to verify {what} with is answered right in float32, so no loss would show: "
            "give --verify a set that this model can read."
        )
    return Loss(images, unreadable, judged, before / judged, after / judged, alike / images)


def said(answer: Any) -> str:
    if isinstance(answer, Reading):
        return answer.text
    return answer.name if isinstance(answer, Label) else ""


def allow(loss: Loss, *, max_loss: float, what: str) -> None:
    """max_loss: points of accuracy, or of the same answers. UserError beyond."""
    if loss.points > max_loss + 1e-9:
        raise UserError(
            f"{what} loses too much: {loss.told()}. {max_loss} points are allowed. It was not kept. Calibrate on other "
            "images or on more (--calibrate), leave parts in float32 (--exclude backbone.stem; bench/int8.py measures "
            "which help), or allow more (--max-loss)."
        )
