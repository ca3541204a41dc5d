"""How good a model is on a data set: the engine of `vitocr eval`.

Classes are matched by name, never by position: the same data set read from folders in another order,
or one that has only some of the model's classes, is measured rightly, and another data set is refused.
"""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitocr.calibration import operating_points
from vitocr.data.arrays import ImageArrays, Rows, Splits
from vitocr.errors import UserError, did_you_mean
from vitocr.metrics import log_softmax, summarise_classification
from vitocr.results import Failure
from vitocr.text_metrics import protocol_for, summarise_text

if TYPE_CHECKING:
    from vitocr.data.text_rows import TextSource
    from vitocr.predict import Predictor

Watch = Callable[[Iterable[Any], int], Iterable[Any]]


def evaluate(
    predictor: Predictor,
    data: str | Path,
    *,
    split: str | None = None,
    data_dir: str | Path = "data",
    batch_size: int = 64,
    watch: Watch = lambda items, total: items,
) -> dict[str, Any]:
    """The figures of `predictor` on "cifar10" or on a folder of images, in plain types.

    split: train, val or test; by default test, else val, else all of a folder that is not divided.
    watch: wraps the (iterable, length) of what is evaluated, for a progress bar.
    """
    started = time.perf_counter()
    name, split, measured = measure_on(predictor, data, split, data_dir, batch_size=batch_size, watch=watch)
    seconds = time.perf_counter() - started
    # As the predictor has it, so that the calibration error is that of the confidences people are given.
    logits, labels = np.asarray(measured.logits) / predictor.temperature, measured.labels
    images = len(labels) + len(measured.skipped)
    return {
        "data": name,
        "split": split,
        **summarise_classification(logits, labels, predictor.classes),
        "thresholds": operating_points(np.exp(log_softmax(logits).max(axis=1)), logits.argmax(axis=1) == labels),
        "seconds": seconds,
        "images_per_second": images / seconds,
        "skipped": [failure.to_dict() for failure in measured.skipped],
    }


class Measured(NamedTuple):
    logits: Any  # (n, C) of the rows that could be read, a tensor if the model runs in torch
    labels: NDArray[np.int64]  # (n,) as the data set counts its classes; of `measure_on`, as the model does
    rows: NDArray[np.int64]  # (n,) which rows these are
    skipped: list[Failure]


def measure(
    predictor: Predictor, rows: Rows, *, batch_size: int = 64, watch: Watch = lambda items, total: items
) -> Measured:
    """What the model says of every row that can be read."""
    images: Iterable[Any] = rows.images if isinstance(rows, ImageArrays) else map(rows.path, range(len(rows)))
    logits: list[Any] = []
    read: list[int] = []
    skipped: list[Failure] = []
    for row, answer in enumerate(watch(predictor.stream_logits(images, batch_size=batch_size), len(rows))):
        if isinstance(answer.logits, Failure):
            skipped.append(answer.logits)
        else:
            logits.append(answer.logits)
            read.append(row)
    index = np.array(read, dtype=np.int64)
    return Measured(predictor.stack(logits), np.asarray(rows.labels)[index], index, skipped)


def measure_on(
    predictor: Predictor,
    data: str | Path,
    split: str | None,
    data_dir: str | Path,
    *,
    batch_size: int,
    watch: Watch,
) -> tuple[str, str, Measured]:
    """What the model says of the data set and split of these names, which are returned with it."""
    recipe = predictor.description["provenance"].get("config", {}).get("data", {})
    name, split, rows, classes = _open(data, split, Path(data_dir), recipe)
    to_model = np.array(match_classes(classes, predictor.classes, data=name))
    measured = measure(predictor, rows, batch_size=batch_size, watch=watch)
    if not len(measured.rows):
        raise UserError(f"None of the {len(rows)} images of {name} ({split}) could be read.")
    return name, split, measured._replace(labels=to_model[measured.labels])


def match_classes(classes: Sequence[str], known: Sequence[str], *, data: str) -> list[int]:
    """For every class of a data set, its id in a model that knows the classes `known`."""
    ids = {name: index for index, name in enumerate(known)}
    names = [unicodedata.normalize("NFC", name) for name in classes]
    strangers = [name for name in names if name not in ids]
    if strangers:
        shown = ", ".join(f"{name!r}" for name in strangers[:5]) + (", ..." if len(strangers) > 5 else "")
        model_names = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise UserError(
            f"{data} has {len(strangers)} of {len(names)} classes that the model does not know: {shown}."
            f"{did_you_mean(strangers[0], known)} The model's classes are: {model_names}."
        )
    return [ids[name] for name in names]


def _open(
    data: str | Path, split: str | None, data_dir: Path, recipe: Mapping[str, Any]
) -> tuple[str, str, Rows, tuple[str, ...]]:
    """recipe: how the model's own training divided its data, so that its val split is held out again."""
    seed = recipe.get("seed", 0)
    if str(data) == "cifar10":
        from vitocr.data.cifar10 import load_cifar10

        splits = load_cifar10(
            data_dir,
            fraction=recipe.get("fraction", 1.0),
            val_size=recipe.get("val_size", 0),
            seed=seed,
            say=partial(print, file=sys.stderr),
        )
    elif Path(data).is_dir() or Path(data).suffix == ".csv":
        from vitocr.data.folder import scan_folder

        # Unless a split is asked for, a folder without splits is one set.
        held_out = recipe.get("val_fraction", 0.1) if split else 0.0
        splits = scan_folder(Path(data), val_fraction=held_out, seed=seed)
    else:
        hint = did_you_mean(str(data), ["cifar10", *(entry.name for entry in Path().iterdir() if entry.is_dir())])
        raise UserError(f"There is no data set {str(data)!r}: give `cifar10` or a folder of images.{hint}")
    split, rows = _choose(splits, split)
    return splits.name, split, rows, splits.classes


def _choose(splits: Splits, split: str | None) -> tuple[str, Rows]:
    there = {name: rows for name in ("test", "val", "train") if (rows := getattr(splits, name)) is not None}
    if split is None:
        split = next(iter(there))
        return ("all" if list(there) == ["train"] else split), there[split]
    if split not in there:
        raise UserError(f"{splits.name} has no split {split!r}; it has {', '.join(there)}.{did_you_mean(split, there)}")
    return split, there[split]


def usual_protocol(predictor: Predictor) -> str:
    """What a text model was made to be judged by; else the narrowest protocol that sees all it can write."""
    made = predictor.description["provenance"].get("config", {}).get("protocol")
    return str(made) if made else protocol_for(predictor.codec.characters)  # type: ignore[union-attr]


def read_all(
    predictor: Predictor,
    source: TextSource,
    *,
    protocol: str,
    batch_size: int = 64,
    watch: Watch = lambda items, total: items,
    **options: Any,
) -> tuple[dict[str, Any], tuple[list[NDArray[np.uint8]], list[str], list[Any]]]:
    """The figures of a set of words, and the images, labels and readings. Rows that are broken are listed.

    options: of `predictor.stream`. What the model reads is judged, however unsure it is of it: what a threshold would
    make of that is among the figures.
    """
    images: list[NDArray[np.uint8]] = []
    labels: list[str] = []
    broken: list[str] = []

    def readable() -> Iterator[NDArray[np.uint8]]:
        for number in range(len(source)):
            try:
                row = source.read(number)
            except UserError as error:
                broken.append(str(error))
                continue
            images.append(row.image)
            labels.append(row.text)
            yield row.image

    began = time.perf_counter()
    readings = list(watch(predictor.stream(readable(), batch_size=batch_size, threshold=0, **options), len(source)))
    seconds = time.perf_counter() - began
    texts = ["" if isinstance(reading, Failure) else reading.text for reading in readings]
    confidences = [0.0 if isinstance(reading, Failure) else reading.confidence for reading in readings]
    summary = summarise_text(texts, labels, confidences, protocol=protocol)
    summary |= {"seconds": seconds, "words_per_second": len(labels) / seconds, "broken": broken}
    return summary, (images, labels, readings)
