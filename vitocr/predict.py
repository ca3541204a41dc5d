"""Images in, Labels or Readings out, in batches: `vitocr.load("model.safetensors")(["a.jpg", "b.jpg"])`.

A predictor is the preprocessing and the model of a checkpoint, nothing else. Images are decoded and
resized by a few threads while the model works on the batch before, and no more than two batches are
held at a time, so a stream of any length takes the same memory. What an image is answered does not
depend on what else is in its batch.

The model runs in torch (`run_torch`) or, from an ONNX file, in onnxruntime (`run_onnx`); torch is imported
for the former only.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.catalog import find_model
from vitocr.codec import Charset, Classes, codec_from_dict
from vitocr.data.folder import decode_image, to_rgb
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess
from vitocr.results import Character, Failure, Label, Reading

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Picture = str | Path | Image.Image | NDArray[Any] | Tensor

Result = Label | Reading | Failure
Item = TypeVar("Item")
Out = TypeVar("Out")


def load(model: str | Path, device: str | torch.device | None = None) -> Predictor:
    """The predictor of a checkpoint or ONNX file, of a run's folder, or of a model that ships with vitocr.

    device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one. ONNX models run on the CPU.
    """
    path = find_model(model)
    if path.suffix == ".onnx":
        from vitocr.run_onnx import open_onnx

        if device is not None and str(device) != "cpu":
            raise UserError(f"device={device}: {path} is an ONNX model, which vitocr runs on the CPU.")
        exported = open_onnx(path)
        return Predictor(exported, exported.description)
    try:
        from vitocr.run_torch import load_on
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise UserError(
            f"{path} is read with torch, and there is no {error.name} here. Either pip install vitocr with all it "
            f"needs, or, where that is done, make an ONNX file of the model: vitocr export {path.name} --to onnx"
        ) from error
    network, description = load_on(path, device)
    return Predictor(network, description)


class Runner(Protocol):
    """What makes answers of batches: `run_torch.TorchModel` or `run_onnx.Graphs`."""

    def answers(self, pixels: NDArray[np.float32]) -> Iterable[Any]:
        """Of every image of (B, 3, h, w) its logits (C,), or the fields of `heads.text.Decoded`."""

    def stack(self, answers: Sequence[Any], classes: int) -> Any:
        """Logits of single images, or of none, as one array or tensor (N, classes)."""


class Answer(NamedTuple):
    """What the model made of one input, before it is put into words."""

    source: str | None
    logits: Any  # (C,) for a class; the fields of heads.text.Decoded, one row of each, for a text; or a Failure
    size: tuple[int, int] = (0, 0)  # height and width of the image


class Predictor:
    """Call it with an image (a path, PIL image, array or tensor), or with a list or stack of them.

    Arrays are (H, W), (H, W, 3) or (H, W, 4), tensors (3, H, W); uint8, or floats from 0 to 1.
    """

    def __init__(self, model: nn.Module | Runner, description: dict[str, Any]) -> None:
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
        self.runner: Runner
        if hasattr(model, "answers"):
            self.runner = cast(Runner, model)
        else:
            from vitocr.run_torch import TorchModel

            self.runner = TorchModel(cast("nn.Module", model), reads_text=self.reads_text)

    @property
    def classes(self) -> tuple[str, ...]:
        if isinstance(self.codec, Charset):
            raise UserError("This model reads text, it does not tell classes apart.")
        return self.codec.names

    @overload  # a str is also an iterable of str, hence the overlap
    def __call__(  # type: ignore[overload-overlap]
        self, inputs: str | Path | Image.Image, *, batch_size: int = ..., top_k: int = ...
    ) -> Label | Reading: ...
    @overload  # one image or a stack of them: the number of dimensions tells, which types cannot
    def __call__(self, inputs: NDArray[Any] | Tensor, *, batch_size: int = ..., top_k: int = ...) -> Any: ...
    @overload
    def __call__(self, inputs: Iterable[Picture], *, batch_size: int = ..., top_k: int = ...) -> list[Result]: ...
    def __call__(self, inputs: Any, *, batch_size: int = 64, top_k: int = 5) -> Any:
        """A Label or Reading for one image; a list for several, with a Failure where one could not be read.

        A single image that cannot be read raises UserError.
        """
        is_array = isinstance(inputs, np.ndarray) or _is_tensor(inputs)
        if inputs.ndim == 4 if is_array else not isinstance(inputs, str | Path | Image.Image):
            return list(self.stream(inputs, batch_size=batch_size, top_k=top_k))
        (result,) = self.stream([inputs], batch_size=1, top_k=top_k)
        if isinstance(result, Failure):
            raise UserError(result.message)
        return result

    def stream(self, inputs: Iterable[Picture], *, batch_size: int = 64, top_k: int = 5) -> Iterator[Result]:
        """Results one by one, in the order of `inputs`, which may be endless."""
        for answer in self.stream_logits(inputs, batch_size=batch_size):
            if isinstance(answer.logits, Failure):
                yield answer.logits
            else:
                yield self._reading(answer) if self.reads_text else self._label(answer, top_k)

    def stream_logits(self, inputs: Iterable[Picture], *, batch_size: int = 64) -> Iterator[Answer]:
        """The bare output of the model for every input, for those who measure."""
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: a batch has at least one image.")
        prepared = _in_order(self._prepare, enumerate(inputs), ahead=batch_size)
        while batch := list(islice(prepared, batch_size)):
            readable = [pixels for _, pixels, _ in batch if not isinstance(pixels, Failure)]
            rows = iter(self.runner.answers(np.stack(readable)) if readable else ())
            for source, pixels, size in batch:
                yield Answer(source, pixels if isinstance(pixels, Failure) else next(rows), size)

    def logits(self, images: NDArray[np.uint8], *, batch_size: int = 64) -> Any:
        """(N, H, W, 3) uint8 images of any size to (N, C) logits: a tensor on the CPU, or an array without torch."""
        return self.stack([answer.logits for answer in self.stream_logits(images, batch_size=batch_size)])

    def stack(self, logits: Sequence[Any]) -> Any:
        """Those of `stream_logits` as one tensor or array (N, C)."""
        return self.runner.stack(logits, len(self.classes))

    def _prepare(
        self, numbered: tuple[int, Picture]
    ) -> tuple[str | None, NDArray[np.float32] | Failure, tuple[int, int]]:
        number, item = numbered
        source = str(item) if isinstance(item, str | Path) else None
        try:
            image = _pixels(item)
            return source, self.preprocess(image), image.shape[:2]
        except UserError as error:
            return source, Failure(source or f"input {number}", str(error)), (0, 0)

    def _label(self, answer: Answer, top_k: int) -> Label:
        logits = np.asarray(answer.logits)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        best = np.argsort(-shares, kind="stable")[: max(top_k, 1)].tolist()
        top = tuple((self.classes[index], float(shares[index])) for index in best)
        return Label(name=top[0][0], confidence=top[0][1], top=top, index=best[0], source=answer.source)

    def _reading(self, answer: Answer) -> Reading:
        assert isinstance(self.codec, Charset)
        ids, length, probs, confidence, where = answer.logits
        height, width = answer.size
        characters = tuple(
            Character(self.codec.decode([index]), prob, (x0 * width, y0 * height, x1 * width, y1 * height))
            for index, prob, (x0, y0, x1, y1) in zip(
                ids[:length].tolist(), probs[:length].tolist(), where[:length].tolist(), strict=True
            )
        )
        text = "".join(character.text for character in characters)
        return Reading(text, float(confidence), characters, answer.source)


def _is_tensor(item: Any) -> bool:
    """Of torch, without importing it: who has a tensor has done that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def _pixels(item: Any) -> NDArray[np.uint8]:
    """Whatever people call an image, as uint8 (H, W, 3)."""
    if isinstance(item, str | Path):
        return decode_image(item)
    if isinstance(item, Image.Image):
        try:
            return to_rgb(item)
        except (OSError, SyntaxError, ValueError) as error:  # a lazily opened file turns out to be damaged
            raise UserError(f"The image cannot be decoded: {error}") from error
    if _is_tensor(item):
        item = item.detach().cpu().float().numpy() if item.is_floating_point() else item.detach().cpu().numpy()
        if item.ndim == 3 and item.shape[0] in (1, 3, 4):  # torch's order
            item = item.transpose(1, 2, 0)
    if not isinstance(item, np.ndarray):
        raise UserError(f"An image is a path, a PIL image, an array or a tensor, not {type(item).__name__}.")
    if item.ndim == 3 and item.shape[2] == 1:
        item = item[:, :, 0]
    if not (item.ndim == 2 or (item.ndim == 3 and item.shape[2] in (3, 4))) or 0 in item.shape:
        raise UserError(f"An image array is (H, W), (H, W, 3) or (H, W, 4), not {item.shape}.")
    return to_rgb(Image.fromarray(_as_uint8(item)))


def _as_uint8(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if np.issubdtype(array.dtype, np.floating):
        # The comparison is false for NaN as well. Normalised floats would be answered with nonsense.
        if not (array.min() >= 0 and array.max() <= 1):
            raise UserError(
                f"A float image has values from 0 to 1, not {array.min():.3g} to {array.max():.3g}: "
                "give the pixels as they are; the model's own normalisation is applied here."
            )
        return (array * 255).round().astype(np.uint8)
    raise UserError(f"Pixels are uint8 (0 to 255) or floats (0 to 1), not {array.dtype}.")


def _in_order(function: Callable[[Item], Out], items: Iterable[Item], *, ahead: int) -> Iterator[Out]:
    """`map(function, items)` in threads, at most `ahead` results in advance of the consumer."""
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
    waiting: deque[Future[Out]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also when the consumer stops early
        pool.shutdown(wait=False, cancel_futures=True)
