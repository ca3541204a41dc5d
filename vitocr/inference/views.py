"""What of a picture goes into a text model, and how what it answers becomes one `Reading`.

Mostly a picture is looked at once, whole. A long line is looked at in windows (`long_lines`), a tall crop three times
and a picture whose orientation nobody knows four times (`orient`), and both can come together. Every look is a row of
a batch like any other; the answers are put together here. Numpy only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitocr.calibration import Calibration
from vitocr.codec import Charset
from vitocr.inference.long_lines import cut, join
from vitocr.inference.orient import size_when_turned, surest, turned, turned_back, turns_for
from vitocr.preprocess import Preprocess
from vitocr.results import Character, Reading


class View(NamedTuple):
    pixels: NDArray[np.uint8]  # (h, w, 3), of the size that the model takes; not yet normalised
    size: tuple[int, int]  # height and width of what it shows of the picture, in pixels of the picture
    turn: int = 0  # degrees clockwise by which the picture was turned before


def views_of(
    image: NDArray[np.uint8],
    preprocess: Preprocess,
    *,
    any_rotation: bool = False,
    tall_crops: bool = False,
    windows: bool = False,
) -> list[View]:
    """any_rotation, tall_crops: as `orient.turns_for` has them; windows: whether a long line is cut."""
    views = []
    for degrees in turns_for((image.shape[0], image.shape[1]), any_rotation=any_rotation, tall_crops=tall_crops):
        upright = turned(image, degrees)
        parts = cut(upright, aspect(preprocess)) if windows else [upright]
        views += [View(preprocess.fit(part), (part.shape[0], part.shape[1]), degrees) for part in parts]
    return views


def aspect(preprocess: Preprocess) -> float:
    """Width over height of what the model was trained to look at."""
    return preprocess.size[1] / preprocess.size[0]


def reading_of(
    fields: Sequence[Any], size: tuple[int, int], codec: Charset, *, n_best: int = 1, constrained: bool = False
) -> Reading:
    """The answer to one look, in the model's own confidence.

    fields: one row of each field of `heads.text.Decoded`, and the mean of the tokens; behind them, where several
    readings or a constraint were asked for, a list of (ids, confidence), best first, which is empty where nothing
    satisfies the constraint.
    size: height and width of what was looked at, for the boxes of the characters.
    """
    ids, length, probs, confidence, where, _, *listed = fields
    height, width = size
    likeliest: Iterable[tuple[Any, Any]] = listed[0] if listed else ()
    alternatives = tuple((codec.decode(np.asarray(each).tolist()), float(share)) for each, share in likeliest)
    if constrained and not alternatives:
        return Reading("", 0.0, (), unmatched=True)
    characters = tuple(
        Character(codec.decode([index]), prob, (x0 * width, y0 * height, x1 * width, y1 * height))
        for index, prob, (x0, y0, x1, y1) in zip(
            ids[:length].tolist(), probs[:length].tolist(), where[:length].tolist(), strict=True
        )
    )
    text = "".join(character.text for character in characters)
    return Reading(text, float(confidence), characters, alternatives=alternatives if n_best > 1 else ())


def put_together(
    views: Sequence[View],
    readings: Sequence[Reading],
    summaries: Sequence[NDArray[Any]],
    *,
    size: tuple[int, int],
    aspect: float,
    calibration: Calibration | None = None,
    threshold: float = 0.0,
) -> Reading:
    """One reading of a picture of `size` (height, width) from those of its views, and the means of their tokens.

    Windows first, as their characters make the text; then the confidence is made to mean something; by it the
    orientation is chosen, and by it, at last, whether there is anything to read.
    """
    of_turn: dict[int, list[Reading]] = {}
    seen: dict[int, list[NDArray[Any]]] = {}
    for view, reading, summary in zip(views, readings, summaries, strict=True):
        of_turn.setdefault(view.turn, []).append(reading)
        seen.setdefault(view.turn, []).append(summary)
    lines = {
        turn: parts[0] if len(parts) == 1 else join(parts, size_when_turned(size, turn), aspect)
        for turn, parts in of_turn.items()
    }
    if calibration is not None:
        lines = {turn: calibrated(line, calibration, seen[turn]) for turn, line in lines.items()}
    reading = next(iter(lines.values())) if len(lines) == 1 else turned_back(surest(lines), size)
    if reading.text and reading.confidence < threshold:
        return replace(reading, text="", characters=(), guess=reading.text)
    return reading


def calibrated(reading: Reading, calibration: Calibration, summaries: Sequence[NDArray[Any]]) -> Reading:
    if reading.unmatched:
        return reading
    there = calibration.of_text(summaries) if reading.text else 1.0
    alternatives = tuple((text, there * float(calibration(share))) for text, share in reading.alternatives)
    return replace(reading, confidence=there * float(calibration(reading.confidence)), alternatives=alternatives)
