"""A model in an ONNX file, run by onnxruntime on the CPU. No torch, here or in anything this imports.

One file holds everything: the graph `encode`, and in its metadata
- `vitocr`: the description, as in every checkpoint: task, codec, preprocessing, ...;
- `vitocr.reading`: how the graphs fit together (vitocr/export/parts.py says what is in it);
- `vitocr.step`: for heads with a decoder the graph of one step, an ONNX model of its own, in base64.

Why the step is kept like that: it must stop early and be steered from outside, so it is a graph by itself; onnxruntime
runs a graph whole or not at all, so the two cannot stand side by side in one; and hidden in an `If` or a `Loop` it
would be out of reach of quantisers, and of whoever steers the reading.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitocr.cores import multiplies_int8, usable_cores
from vitocr.description import check
from vitocr.errors import UserError, did_you_mean
from vitocr.inference.numpy_decode import Decoded, Reading, Run, Tensors, decode

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import onnxruntime

    from vitocr.constraints.search import Asked, Encoded

SHARE = 16  # images that one core takes at a time: they stay in its cache, and no core waits long for the last


class Graphs:
    """An exported model as `vitocr.predict` uses it: arrays to answers, by graphs that somebody runs."""

    def __init__(self, encode: Run, step: Run | None, reading: dict[str, Any], description: dict[str, Any]) -> None:
        self.encode, self.step, self.reading, self.description = encode, step, reading, description

    def answers(self, pixels: NDArray[np.float32], **options: Any) -> Iterable[Any]:
        """Of every image its logits, or the fields of `Decoded` and the mean of its tokens.

        With any of `constraint`, `beam` and `n_best` these are followed by the texts that were found, best first
        (`constraints.search`). Other options are those of the head's own `decode`.
        """
        if self.reading["head"] == "classify":
            if any(value is not None for value in options.values()):
                raise UserError("This model tells classes apart: how to read text is nothing to ask of it.")
            return self.encode({"images": pixels})["logits"]
        if not options:
            return self.rows(pixels)
        from vitocr.constraints.search import asked, plainly  # takes as long to import as a dozen words to read

        wish, options = asked(**options)
        if wish is not None and not wish.is_plain:
            return self.search(pixels, wish, **options)
        rows = self.rows(pixels, **options)
        return plainly(rows) if wish is not None else rows

    def rows(self, pixels: NDArray[np.float32], **options: Any) -> Iterator[tuple[Any, ...]]:
        made = self.encode({"images": pixels})
        return zip(*self.read(made, **options), summary(made, len(pixels)), strict=True)

    def search(self, pixels: NDArray[np.float32], wish: Asked, *, by: str | None = None) -> Iterable[Any]:
        from vitocr.constraints.search import search

        by = by or self.reading.get("by")
        for first in range(0, len(pixels), wish.images):
            yield from search(self.encoded(pixels[first : first + wish.images]), wish, by=by)

    def encoded(self, pixels: NDArray[np.float32]) -> Encoded:
        from vitocr.constraints.search import Encoded

        made, reading, step = self.encode({"images": pixels}), self.reading, self.step
        image = {name: made[name] for name in reading.get("image", ())}
        return Encoded(
            images=len(pixels),
            rows=reading["rows"],
            logits=made.get("ctc_logits"),
            shares=made.get("ctc_shares"),
            start=None if step is None else lambda: Reading(step, image, reading),
            end=reading.get("end", 0),
            max_length=reading.get("max_length", 0),
            summary=summary(made, len(pixels)),
        )

    def decode(self, pixels: NDArray[np.float32], **options: Any) -> Decoded:
        """What images (B, 3, h, w) read; `options` as those of the head's own `decode`.

        Unless asked otherwise, a model is read `by` what it was exported to be read by.
        """
        return self.read(self.encode({"images": pixels}), **options)

    def read(self, encoded: Tensors, **options: Any) -> Decoded:
        if "by" in self.reading:
            options = {"by": self.reading["by"], **options}
        return decode(encoded, self.step, self.reading, **options)

    def stack(self, answers: Sequence[NDArray[np.float32]], classes: int) -> NDArray[np.float32]:
        return np.stack(answers) if answers else np.empty((0, classes), dtype=np.float32)


def summary(encoded: Tensors, images: int) -> NDArray[np.float32]:
    """The mean of each image's tokens, (B, D); of nothing, (B, 0), if the export is older than it."""
    return encoded.get("summary", np.empty((images, 0), dtype=np.float32))


class SideBySide(Graphs):
    """Of a single image every operation is shared by all cores; of a batch each core takes images of its own.

    A core then waits for the others once a batch instead of twice an operation, and what is done between the graphs,
    in numpy, is shared as well. It takes the model a second time, which is opened for the first batch.
    """

    def __init__(self, shared: Graphs, path: Path, cores: int) -> None:
        super().__init__(shared.encode, shared.step, shared.reading, shared.description)
        self.path, self.cores, self.version = path, cores, version(path)
        self.pool: ThreadPoolExecutor | None = None

    def answers(self, pixels: NDArray[np.float32], **options: Any) -> Iterable[Any]:
        alone = self.alone if len(pixels) > 1 else None
        if alone is None:
            return super().answers(pixels, **options)
        from concurrent.futures import ThreadPoolExecutor

        self.pool = self.pool or ThreadPoolExecutor(self.cores, thread_name_prefix="vitocr-read")
        shares = np.array_split(pixels, max(min(self.cores, len(pixels)), math.ceil(len(pixels) / SHARE)))
        return chain.from_iterable(self.pool.map(lambda share: list(alone.answers(share, **options)), shares))

    @cached_property
    def alone(self) -> Graphs | None:
        """The model on one thread; None if its file is another by now, and reading goes on with what is open."""
        return open_graphs(self.path, threads=1) if version(self.path) == self.version else None


def version(path: Path) -> tuple[int, ...]:
    """Differs once a file was written anew; nothing if it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_onnx(path: str | Path) -> Graphs:
    """On as many threads as torch would take: OMP_NUM_THREADS, else the cores this process may use."""
    path = Path(path)
    wish = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(wish) if wish.isdigit() and int(wish) > 0 else usable_cores()
    graphs = open_graphs(path, threads=threads)
    return graphs if threads == 1 else SideBySide(graphs, path, threads)


def open_graphs(path: Path, *, threads: int) -> Graphs:
    encode = open_session(path, threads=threads)
    metadata = encode.get_modelmeta().custom_metadata_map
    if "vitocr" not in metadata or "vitocr.reading" not in metadata:
        raise UserError(
            f"{path} is an ONNX model, but holds no description that says how to use it: it was not made by "
            "`vitocr export`."
        )
    description = check(json.loads(metadata["vitocr"]), path)
    step = metadata.get("vitocr.step")
    run_step = as_run(open_session(base64.b64decode(step), threads=threads)) if step else None
    return Graphs(as_run(encode), run_step, json.loads(metadata["vitocr.reading"]), description)


def open_session(model: Path | bytes, *, threads: int) -> onnxruntime.InferenceSession:
    if isinstance(model, Path) and not model.is_file():
        if model.is_dir():
            raise UserError(f"{model} is a folder; name the ONNX file in it.")
        near = did_you_mean(model.name, [entry.name for entry in model.parent.glob("*")])
        raise UserError(f"There is no model at {model}.{near}")
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(
            f"An ONNX model is read by onnxruntime, which cannot be imported here ({error}): pip install onnxruntime"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors: what it warns of is how it rewrites the graph
    # A decoder's two sessions take turns. Threads that wait busily for the one would slow down the other.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not multiplies_int8():
        # Sums of products would overflow; this way they do not. onnxruntime takes it, at nearly twice the time, even
        # where it is not needed.
        options.add_session_config_entry("session.x64quantprecision", "1")
    source = str(model) if isinstance(model, Path) else model
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own types have nothing in common but this
        name = model if isinstance(model, Path) else "The step of the decoder"
        raise UserError(
            f"{name} is not an ONNX model that onnxruntime {onnxruntime.__version__} can read: it is damaged or cut "
            f"short, or needs a newer onnxruntime. What it says: {str(error).splitlines()[0]}"
        ) from error


def as_run(session: onnxruntime.InferenceSession) -> Run:
    outputs = [output.name for output in session.get_outputs()]

    def run(inputs: Tensors) -> Tensors:
        return dict(zip(outputs, session.run(outputs, inputs), strict=True))

    return run
