"""Images in, Labels out, in batches: `vitocr.load("model.safetensors")(["a.jpg", "b.jpg"])`.

A predictor is the preprocessing and the model of a checkpoint, nothing else. Images are decoded and
resized by a few threads while the model works on the batch before, and no more than two batches are
held at a time, so a stream of any length takes the same memory. What an image is answered does not
depend on what else is in its batch.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitocr.catalog import find_model
from vitocr.checkpoint import load_model
from vitocr.codec import codec_from_dict
from vitocr.data.folder import decode_image, to_rgb
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess
from vitocr.results import Failure, Label

Picture = str | Path | Image.Image | NDArray[Any] | Tensor
_ONE = (str, Path, Image.Image, np.ndarray, Tensor)  # anything else is a collection of them
Item = TypeVar("Item")
Out = TypeVar("Out")


def load(model: str | Path, device: str | torch.device | None = None) -> Predictor:
    """The predictor of a checkpoint file, of a run's folder, or of a model that ships with vitocr.

    device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one.
    """
    path = find_model(model)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    network, description = load_model(path)
    try:
        network.to(device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch built without CUDA
        raise UserError(f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return Predictor(network, description)


class Answer(NamedTuple):
    source: str | None
    logits: Tensor | Failure  # (C,)


class Predictor:
    """Call it with an image (a path, PIL image, array or tensor), or with a list or stack of them.

    Arrays are (H, W), (H, W, 3) or (H, W, 4), tensors (3, H, W); uint8, or floats from 0 to 1.
    """

    def __init__(self, model: nn.Module, description: dict[str, Any]) -> None:
        if description["kind"] != "classify":
            raise UserError(f"This vitocr cannot use a model of kind {description['kind']!r}: upgrade vitocr.")
        self.model = model.eval()
        self.description = description
        self.preprocess = Preprocess.from_dict(description["preprocess"])
        self.classes = codec_from_dict(description["codec"]).names
        self.device = next(model.parameters()).device

    @overload  # a str is also an iterable of str, hence the overlap
    def __call__(  # type: ignore[overload-overlap]
        self, inputs: str | Path | Image.Image, *, batch_size: int = ..., top_k: int = ...
    ) -> Label: ...
    @overload  # one image or a stack of them: the number of dimensions tells, which types cannot
    def __call__(self, inputs: NDArray[Any] | Tensor, *, batch_size: int = ..., top_k: int = ...) -> Any: ...
    @overload
    def __call__(
        self, inputs: Iterable[Picture], *, batch_size: int = ..., top_k: int = ...
    ) -> list[Label | Failure]: ...
    def __call__(self, inputs: Any, *, batch_size: int = 64, top_k: int = 5) -> Any:
        """A Label for one image; a list for several, with a Failure where one could not be read.

        A single image that cannot be read raises UserError.
        """
        is_stack = isinstance(inputs, np.ndarray | Tensor) and inputs.ndim == 4
        if is_stack or not isinstance(inputs, _ONE):
            return list(self.stream(inputs, batch_size=batch_size, top_k=top_k))
        (result,) = self.stream([inputs], batch_size=1, top_k=top_k)
        if isinstance(result, Failure):
            raise UserError(result.message)
        return result

    def stream(self, inputs: Iterable[Picture], *, batch_size: int = 64, top_k: int = 5) -> Iterator[Label | Failure]:
        """Results one by one, in the order of `inputs`, which may be endless."""
        for source, logits in self.stream_logits(inputs, batch_size=batch_size):
            yield logits if isinstance(logits, Failure) else self._label(source, logits, top_k)

    def stream_logits(self, inputs: Iterable[Picture], *, batch_size: int = 64) -> Iterator[Answer]:
        """The bare output of the model for every input, for those who measure."""
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}: a batch has at least one image.")
        prepared = _in_order(self._prepare, enumerate(inputs), ahead=batch_size)
        while batch := list(islice(prepared, batch_size)):
            readable = [pixels for _, pixels in batch if not isinstance(pixels, Failure)]
            rows = iter(self._forward(np.stack(readable)) if readable else ())
            for source, pixels in batch:
                yield Answer(source, pixels if isinstance(pixels, Failure) else next(rows))

    def logits(self, images: NDArray[np.uint8], *, batch_size: int = 64) -> Tensor:
        """(N, H, W, 3) uint8 images of any size to (N, C) logits, on the CPU."""
        batches = (images[start : start + batch_size] for start in range(0, len(images), batch_size))
        outputs = [self._forward(np.stack([self.preprocess(image) for image in batch])) for batch in batches]
        return torch.cat(outputs) if outputs else torch.empty(0, len(self.classes))

    def _prepare(self, numbered: tuple[int, Picture]) -> tuple[str | None, NDArray[np.float32] | Failure]:
        number, item = numbered
        source = str(item) if isinstance(item, str | Path) else None
        try:
            return source, self.preprocess(_pixels(item))
        except UserError as error:
            return source, Failure(source or f"input {number}", str(error))

    @torch.inference_mode()
    def _forward(self, pixels_BCHW: NDArray[np.float32]) -> Tensor:
        logits: Tensor = self.model(torch.from_numpy(pixels_BCHW).to(self.device))  # (B, C)
        return logits.float().cpu()

    def _label(self, source: str | None, logits: Tensor, top_k: int) -> Label:
        probs, ids = logits.softmax(dim=-1).topk(min(max(top_k, 1), len(self.classes)))
        top = tuple((self.classes[i], p) for i, p in zip(ids.tolist(), probs.tolist(), strict=True))
        return Label(name=top[0][0], confidence=top[0][1], top=top, index=int(ids[0]), source=source)


def _pixels(item: Picture) -> NDArray[np.uint8]:
    """Whatever people call an image, as uint8 (H, W, 3)."""
    if isinstance(item, str | Path):
        return decode_image(item)
    if isinstance(item, Image.Image):
        try:
            return to_rgb(item)
        except (OSError, SyntaxError, ValueError) as error:  # a lazily opened file turns out to be damaged
            raise UserError(f"The image cannot be decoded: {error}") from error
    if isinstance(item, Tensor):
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
