"""Making a model's confidence mean something, on data it was not trained on: the engine of `vitocr calibrate`.

What is found goes into the description in the model's own file; every tensor stays as it is, byte for byte. Exports
of the model take the description over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitocr.calibration import Calibration, fit_calibration, fit_temperature, threshold_for_blanks
from vitocr.checkpoint import atomic_write
from vitocr.data.text_rows import TextSource
from vitocr.data.text_sources import open_source
from vitocr.description import read_description, to_json
from vitocr.errors import UserError
from vitocr.evaluate import Watch, measure_on, read_all
from vitocr.metrics import log_softmax
from vitocr.predict import Predictor
from vitocr.presence import FEWEST, fit_presence
from vitocr.results import Failure, Reading
from vitocr.text_metrics import right_words


class Found(NamedTuple):
    calibration: dict[str, Any]  # as the description holds it
    before: NDArray[np.float64]  # (n,) confidences as the model gave them ...
    after: NDArray[np.float64]  # ... and calibrated
    right: NDArray[np.bool_]  # (n,)


def uncalibrated(predictor: Predictor) -> Predictor:
    """The same model with its confidences as they are."""
    told = {key: value for key, value in predictor.description.items() if key != "calibration"}
    return Predictor(predictor.runner, told)


def calibrate_text(
    predictor: Predictor,
    data: Sequence[str | Path | TextSource],
    *,
    protocol: str,
    batch_size: int,
    watch: Watch,
    alike: bool = False,
) -> Found:
    """On words with their labels. What counts as right is for the protocol to say. alike: every source counts the
    same, however many words it has; else every word does."""
    plain = uncalibrated(predictor)
    before: list[float] = []
    right: list[float] = []
    weights: list[float] = []
    for source in data:
        rows = open_source(source) if isinstance(source, str | Path) else source
        _, (_, labels, readings) = read_all(plain, rows, protocol=protocol, batch_size=batch_size, watch=watch)
        texts = ["" if isinstance(reading, Failure) else reading.text for reading in readings]
        right += right_words(texts, labels, protocol).tolist()
        before += [0.0 if isinstance(reading, Failure) else reading.confidence for reading in readings]
        weights += [1 / len(labels) if alike else 1.0] * len(labels)
    judged = ~np.isnan(right)
    sure, good = np.array(before)[judged], np.array(right)[judged] > 0.5
    calibration = fit_calibration(sure, good, weights=np.array(weights)[judged])
    return Found(calibration.to_dict(), sure, calibration(sure), good)


def calibrate_classes(
    predictor: Predictor,
    data: Sequence[str | Path],
    *,
    split: str | None,
    data_dir: str | Path,
    batch_size: int,
    watch: Watch,
) -> Found:
    logits, labels = [], []
    for name in data:
        _, _, measured = measure_on(predictor, name, split, data_dir, batch_size=batch_size, watch=watch)
        logits.append(np.asarray(measured.logits, dtype=np.float64))
        labels.append(measured.labels)
    z, y = np.concatenate(logits), np.concatenate(labels)
    temperature = fit_temperature(z, y)
    before, after = (np.exp(log_softmax(z / t).max(axis=1)) for t in (1.0, temperature))
    return Found({"temperature": temperature, "images": len(y)}, before, after, z.argmax(axis=1) == y)


def learn_blanks(
    predictor: Predictor,
    calibration: Calibration,
    words: Sequence[TextSource],
    blanks: Sequence[Any],
    *,
    share: float,
    batch_size: int,
    watch: Watch,
) -> Calibration:
    """The same calibration, that also knows images without any text: by what the encoder makes of them, and by the
    lowest confidence at which at most `share` of them are answered with a text.

    Every second word and image teaches the first; the others find the second, which would else believe too much."""
    taught, judged = list(blanks[::2]), list(blanks[1::2])
    pictures = [source.read(row).image for source in words for row in range(0, len(source), 2)]
    if min(len(pictures), len(taught)) >= FEWEST:
        seen = [summaries(predictor, each, batch_size=batch_size, watch=watch) for each in (pictures, taught)]
        if min(map(len, seen)) >= FEWEST and seen[0].shape[1]:
            calibration = replace(calibration, presence=fit_presence(*seen))
    else:
        judged = list(blanks)
    return replace(
        calibration,
        threshold=find_threshold(predictor, calibration, judged, share=share, batch_size=batch_size, watch=watch),
    )


def summaries(predictor: Predictor, images: Sequence[Any], *, batch_size: int, watch: Watch) -> NDArray[np.float64]:
    """The means of the tokens (n, D) of all images that could be read."""
    answers = watch(predictor.stream_logits(images, batch_size=batch_size), len(images))
    found = [answer.logits[5] for answer in answers if not isinstance(answer.logits, Failure)]
    return np.array(found, dtype=np.float64).reshape(len(found), -1)


def find_threshold(
    predictor: Predictor,
    calibration: Calibration,
    blanks: Sequence[Any],
    *,
    share: float,
    batch_size: int,
    watch: Watch,
) -> float:
    """The lowest confidence at which at most `share` of images without any text are answered with one."""
    judge = Predictor(predictor.runner, predictor.description | {"calibration": calibration.to_dict()})
    answers = watch(judge.stream(blanks, batch_size=batch_size, threshold=0), len(blanks))
    readings = [answer for answer in answers if isinstance(answer, Reading)]
    if not readings:
        raise UserError(f"None of the {len(blanks)} images without text could be read.")
    invented = [reading.confidence for reading in readings if reading.text]
    return threshold_for_blanks(invented, images=len(readings), share=share)


def check_form(path: Path, out: Path) -> None:
    """Before anything is measured: whether the model can be stored in `out`."""
    if path.suffix != ".safetensors" or out.suffix != ".safetensors":
        other = out if path.suffix == ".safetensors" else path
        raise UserError(
            f"A calibration is stored in a .safetensors file, not in {other}. Calibrate the model.safetensors of the "
            "run, and export that again where it is wanted in another form."
        )


def store(path: Path, out: Path, calibration: dict[str, Any]) -> None:
    """Write the model in `path` to `out`, which may be the same, with another calibration and all else alike."""
    check_form(path, out)
    description = read_description(path) | {"calibration": calibration}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header["__metadata__"]["vitocr"] = to_json(description)
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors begin where eight bytes do
        rest = file.read()
    atomic_write(out, lambda temporary: temporary.write_bytes(len(text).to_bytes(8, "little") + text + rest))
