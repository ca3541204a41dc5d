"""Images in, Labels or Readings out, in batches: `vitocr.load("model.safetensors")(["a.jpg", "b.jpg"])`.

A predictor is the preprocessing and the model of a checkpoint, nothing else. Images are decoded and
resized by a few threads while the model works on the batch before, and no more than two batches are
held at a time, so a stream of any length takes the same memory. What an image is answered does not
depend on what else is in its batch.

Batches are in the order of the inputs, not sorted by width: preprocessing brings every image, and every window of a
long line, to the model's one size, so that there is no padding to save.

The model runs in torch (`run_torch`) or, from an ONNX file, in onnxruntime (`run_onnx`); torch is imported
for the former only. What a text model looks at of a picture, and what is made of its answers, is in `inference.views`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.calibration import Calibration
from vitocr.catalog import find_model
from vitocr.codec import Charset, Classes, codec_from_dict
from vitocr.drawing.pictures import is_one, pixels_of
from vitocr.errors import UserError
from vitocr.inference.ahead import in_order
from vitocr.inference.options import Options, asking
from vitocr.inference.views import View, aspect, put_together, reading_of, views_of
from vitocr.preprocess import Preprocess
from vitocr.results import Failure, Label, Reading

if TYPE_CHECKING:
    from typing import Unpack

    import torch
    from torch import Tensor, nn

    Picture = str | Path | Image.Image | NDArray[Any] | Tensor

Result = Label | Reading | Failure
Look = Callable[[NDArray[np.uint8]], list[View]]


def load(model: str | Path, device: str | torch.device | None = None, *, precision: str = "fp32") -> Predictor:
    """The predictor of a checkpoint or ONNX file, of a run's folder, or of a model that ships with vitocr.

    device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one. ONNX models run on the CPU.
    precision: what torch computes in: "fp32", "bf16", or "auto" for bf16 where the device has it natively. Whether a
    model reads as well in bf16 is for `vitocr eval --precision bf16` to say.
    """
    path = find_model(model)
    if path.suffix == ".onnx":
        from vitocr.inference.run_onnx import open_onnx

        if device is not None and str(device) != "cpu":
            raise UserError(f"device={device}: {path} is an ONNX model, which vitocr runs on the CPU.")
        if precision not in ("fp32", "auto"):
            raise UserError(
                f"precision={precision}: {path} is an ONNX model, which computes in what it was exported in."
            )
        exported = open_onnx(path)
        return Predictor(exported, exported.description, precision=precision)
    try:
        from vitocr.inference.run_torch import load_on
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise UserError(
            f"{path} is read with torch, and there is no {error.name} here. Either pip install vitocr with all it "
            f"needs, or, where that is done, make an ONNX file of the model: vitocr export {path.name} --to onnx"
        ) from error
    network, description = load_on(path, device)
    return Predictor(network, description, precision=precision)


class Runner(Protocol):
    """What makes answers of batches: `run_torch.TorchModel` or `run_onnx.Graphs`."""

    def answers(self, pixels: NDArray[np.float32], **asked: Any) -> Iterable[Any]:
        """Of every image of (B, 3, h, w) its logits (C,), or the fields of `heads.text.Decoded` and the mean of its
        tokens (D,).

        asked, of text models: `constraint`, `beam`, `n_best`. With the first or the last, one more item follows: a list
        of (ids, confidence), best first.
        """

    def stack(self, answers: Sequence[Any], classes: int) -> Any:
        """Logits of single images, or of none, as one array or tensor (N, classes)."""


class Answer(NamedTuple):
    """What the model made of one input, before it is put into words."""

    source: str | None
    logits: Any  # (C,) for a class; the fields of heads.text.Decoded, one row of each, for a text; or a Failure
    size: tuple[int, int] = (0, 0)  # height and width of the image


class Prepared(NamedTuple):
    """An input, ready for the model."""

    source: str | None
    views: list[View]  # none if there was a failure
    size: tuple[int, int] = (0, 0)  # height and width of the image
    failure: Failure | None = None


class Predictor:
    """Call it with an image (a path, PIL image, array or tensor), or with a list or stack of them.

    Arrays are (H, W), (H, W, 3) or (H, W, 4), tensors (3, H, W); uint8, or floats from 0 to 1.
    """

    def __init__(self, model: nn.Module | Runner, description: dict[str, Any], *, precision: str = "fp32") -> None:
        if description["kind"] == "pretrain":
            raise UserError(
                "This model was pretrained without labels: it has learned to see, and nothing to answer. Train it "
                "for a task first: python train.py task=cifar10 init=PATH, with the same backbone"
            )
        if description["kind"] not in ("classify", "text"):
            raise UserError(f"This vitocr cannot use a model of kind {description['kind']!r}: upgrade vitocr.")
        self.description = description
        self.preprocess = Preprocess.from_dict(description["preprocess"])
        self.codec: Classes | Charset = codec_from_dict(description["codec"])
        self.reads_text = description["kind"] == "text"
        stored = description.get("calibration", {})
        self.calibration = Calibration.from_dict(stored) if stored and self.reads_text else None
        self.threshold = self.calibration.threshold if self.calibration else 0.0
        self.temperature = float(stored.get("temperature", 1.0))  # of classes
        self.runner: Runner
        if hasattr(model, "answers"):
            self.runner = cast(Runner, model)
        else:
            from vitocr.inference.run_torch import TorchModel

            network = cast("nn.Module", model)
            self.runner = TorchModel(network, reads_text=self.reads_text, precision=precision)

    @property
    def classes(self) -> tuple[str, ...]:
        if isinstance(self.codec, Charset):
            raise UserError("This model reads text, it does not tell classes apart.")
        return self.codec.names

    @overload  # a str is also an iterable of str, hence the overlap
    def __call__(  # type: ignore[overload-overlap]
        self, inputs: str | Path | Image.Image, **options: Unpack[Options]
    ) -> Label | Reading: ...
    @overload  # one image or a stack of them: the number of dimensions tells, which types cannot
    def __call__(self, inputs: NDArray[Any] | Tensor, **options: Unpack[Options]) -> Any: ...
    @overload
    def __call__(self, inputs: Iterable[Picture], **options: Unpack[Options]) -> list[Result]: ...
    def __call__(self, inputs: Any, **options: Unpack[Options]) -> Any:
        """A Label or Reading for one image; a list for several, with a Failure where one could not be read.

        A single image that cannot be read raises UserError. The options are those of `stream`.
        """
        if not is_one(inputs):
            return list(self.stream(inputs, **options))
        (result,) = self.stream([inputs], **options)
        if isinstance(result, Failure):
            raise UserError(result.message)
        return result

    def stream(
        self,
        inputs: Iterable[Picture],
        *,
        batch_size: int = 64,
        top_k: int = 5,
        any_rotation: bool = False,
        tall_crops: Literal["auto", False] = "auto",
        long_lines: Literal["auto", False] = "auto",
        threshold: float | None = None,
        **constrained: Any,
    ) -> Iterator[Result]:
        """Results one by one, in the order of `inputs`, which may be endless. The options: `inference.options`."""
        if not isinstance(self.codec, Charset):
            if any_rotation or threshold or constrained:
                raise UserError(
                    "Orientations, thresholds, constraints and lists of readings are for models that read text; this "
                    "one tells classes apart."
                )
            yield from self._labels(inputs, batch_size=batch_size, top_k=top_k)
            return
        asked = asking(self.codec, **constrained)
        n_best, by_rule = asked.get("n_best", 1), "constraint" in asked
        least = self.threshold if threshold is None else threshold
        # Windows see parts of a text. Which parts may follow which is nothing that a rule for the whole can tell.
        windows = bool(long_lines) and n_best == 1 and not by_rule
        look = partial(
            views_of, preprocess=self.preprocess, any_rotation=any_rotation, tall_crops=bool(tall_crops),
            windows=windows,
        )  # fmt: skip
        for one, rows in self._answers(inputs, look, batch_size=batch_size, asked=asked):
            if one.failure is not None:
                yield one.failure
                continue
            read = [
                reading_of(row, view.size, self.codec, n_best=n_best, constrained=by_rule)
                for view, row in zip(one.views, rows, strict=True)
            ]
            reading = put_together(
                one.views, read, [row[5] for row in rows], size=one.size, aspect=aspect(self.preprocess),
                calibration=self.calibration, threshold=least,
            )  # fmt: skip
            yield replace(reading, source=one.source)

    def stream_logits(self, inputs: Iterable[Picture], *, batch_size: int = 64) -> Iterator[Answer]:
        """The bare output of the model for every input, seen whole, for those who measure."""
        look = partial(views_of, preprocess=self.preprocess)
        for one, rows in self._answers(inputs, look, batch_size=batch_size):
            yield Answer(one.source, rows[0] if one.failure is None else one.failure, one.size)

    def logits(self, images: NDArray[np.uint8], *, batch_size: int = 64) -> Any:
        """(N, H, W, 3) uint8 images of any size to (N, C) logits: a tensor on the CPU, or an array without torch."""
        return self.stack([answer.logits for answer in self.stream_logits(images, batch_size=batch_size)])

    def stack(self, logits: Sequence[Any]) -> Any:
        """Those of `stream_logits` as one tensor or array (N, C)."""
        return self.runner.stack(logits, len(self.classes))

    def _answers(
        self, inputs: Iterable[Picture], look: Look, *, batch_size: int, asked: dict[str, Any] | None = None
    ) -> Iterator[tuple[Prepared, list[Any]]]:
        """Every input with what the model answered to each of its views."""
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: a batch has at least one image.")
        prepared = in_order(partial(_prepare, look), enumerate(inputs), ahead=batch_size)
        while batch := _some(prepared, batch_size):
            pixels = [view.pixels for one in batch for view in one.views]
            rows = (
                row
                for start in range(0, len(pixels), batch_size)
                for row in self.runner.answers(self._normalised(pixels[start : start + batch_size]), **(asked or {}))
            )
            for one in batch:
                yield one, list(islice(rows, len(one.views)))

    def _normalised(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        return self.preprocess.normalised(np.stack(pixels))

    def _labels(self, inputs: Iterable[Picture], *, batch_size: int, top_k: int) -> Iterator[Label | Failure]:
        for answer in self.stream_logits(inputs, batch_size=batch_size):
            if isinstance(answer.logits, Failure):
                yield answer.logits
                continue
            logits = np.asarray(answer.logits) / self.temperature
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            best = np.argsort(-shares, kind="stable")[: max(top_k, 1)].tolist()
            top = tuple((self.classes[index], float(shares[index])) for index in best)
            yield Label(name=top[0][0], confidence=top[0][1], top=top, index=best[0], source=answer.source)


def _prepare(look: Look, numbered: tuple[int, Picture]) -> Prepared:
    number, item = numbered
    source = str(item) if isinstance(item, str | Path) else None
    try:
        image = pixels_of(item)
        return Prepared(source, look(image), (image.shape[0], image.shape[1]))
    except UserError as error:
        return Prepared(source, [], failure=Failure(source or f"input {number}", str(error)))


def _some(prepared: Iterator[Prepared], views: int) -> list[Prepared]:
    """The next inputs, as many as make a batch; those that could not be read count too, or a folder full of them
    would be collected without end."""
    batch: list[Prepared] = []
    counted = 0
    while counted < views and (one := next(prepared, None)) is not None:
        batch.append(one)
        counted += max(1, len(one.views))
    return batch
