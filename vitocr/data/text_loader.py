"""Batches of text rows, in an order that is a pure function of (seed, position) and can be taken up anywhere.

Before the first batch all labels are looked through (`survey`), which is cheap without the images: what the character
set cannot hold is reported once, and rows that cannot be trained on - too long, or nothing left of them - are not
drawn at all. In evaluation they stay in, to be counted as wrong: nothing is ever cut short.

Order, positions, ranks and broken rows are as in `vitocr.data.loader`, whose plan this uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from vitocr.codec import Charset, TextReport
from vitocr.data.bad_files import BadFiles
from vitocr.data.loader import BatchPlan, PositionedLoader, Slice, read_slots, whole_batches
from vitocr.data.text_rows import Concat, Subset, TextRow, TextSource
from vitocr.data.text_sources import Mixture
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess


class TextBatch(NamedTuple):
    """Rows of one global batch that belong to this rank. L is the length of the longest of them."""

    images: Tensor  # (B, h, w, 3) uint8
    ids: Tensor  # (B, L) int64, -1 behind the end
    lengths: Tensor  # (B,) int64; may exceed max_length in evaluation
    spans: Tensor  # (B, L, 2) float32: left and right edge of each character as a share of the width; NaN: unknown
    texts: tuple[str, ...]  # as labelled (NFC), whatever the character set holds
    position: int  # global batches since the start of training


class Survey(NamedTuple):
    rows: NDArray[np.int64] | None  # that can be trained on; None: all of them
    report: TextReport
    bad: dict[int, str]  # rows whose label cannot be read, and why


def survey(source: TextSource, charset: Charset, *, max_length: int) -> Survey:
    """Look through the labels of a source. A renderer has none before it renders; all its rows count as usable."""
    report = TextReport(max_length)
    fits = frozenset(charset.characters).issuperset
    usable = np.ones(len(source), dtype=bool)
    bad: dict[int, str] = {}
    for row in range(len(source)):
        try:
            text = source.text(row)
        except UserError as error:
            bad[row], usable[row] = str(error), False
            continue
        if text is None:
            continue
        if 0 < len(text) <= max_length and fits(text):  # nearly all of them
            report.texts += 1
        elif report.add(text, charset):
            usable[row] = False
    return Survey(None if usable.all() else np.flatnonzero(usable), report, bad)


def spans_of(boxes: NDArray[np.float32], *, size: tuple[int, int], preprocess: Preprocess) -> NDArray[np.float32]:
    """Boxes (n, 4) in pixels of an image of `size` (height, width) to (n, 2): left and right edge as shares of the
    width, once `preprocess` has brought the image to its own size."""
    return edges_of(boxes[:, [0, 2]], axis=1, size=size, preprocess=preprocess)


def edges_of(
    pixels: NDArray[np.float32], *, axis: int, size: tuple[int, int], preprocess: Preprocess
) -> NDArray[np.float32]:
    """Where pixels along `axis` (0 down, 1 across) of an image end up, as shares of its new height or width."""
    edges = pixels / size[axis]
    ratios = [new / old for new, old in zip(preprocess.size, size, strict=True)]
    length = preprocess.size[axis]
    if preprocess.resize == "crop":
        shown = length / max(ratios) / size[axis]
        edges = (edges - (1 - shown) / 2) / shown
    elif preprocess.resize == "pad":
        inner = max(1, round(size[axis] * min(ratios)))
        edges = (edges * inner + (length - inner) // 2) / length
    return edges.clip(0, 1).astype(np.float32)


def fit_row(row: TextRow, preprocess: Preprocess) -> TextRow:
    """The row with its image at the model's size, and its boxes moved along."""
    size = (row.image.shape[0], row.image.shape[1])
    if size == preprocess.size:
        return row
    boxes = row.boxes
    if boxes is not None:
        boxes = boxes.copy()
        for axis, edges in ((1, [0, 2]), (0, [1, 3])):
            moved = edges_of(boxes[:, edges], axis=axis, size=size, preprocess=preprocess)
            boxes[:, edges] = moved * preprocess.size[axis]
    return TextRow(preprocess.fit(row.image), row.text, boxes)


class TextLoader(PositionedLoader):
    """Training (`shuffle`) draws from a `Mixture`; evaluation goes through a source from first to last.

    A broken row is named once and counted. In training the next readable row of the same global batch takes its
    place; in evaluation it is left out. More than `max_bad_fraction` of a source's rows broken is an error.
    """

    def __init__(
        self,
        data: Mixture | TextSource,
        *,
        charset: Charset,
        max_length: int,
        preprocess: Preprocess,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        drop_last: bool = True,
        workers: int = 0,
        max_bad_fraction: float = 0.05,
        say: Callable[[str], object] = print,
    ) -> None:
        """batch_size: images of a global batch, all ranks together. max_length: characters of a text. workers:
        processes of this rank."""
        mixture = data if isinstance(data, Mixture) else Mixture([data], seed=seed)
        self.bad = [BadFiles(len(source), max_fraction=max_bad_fraction, say=say) for source in mixture.sources]
        self.reports: dict[str, TextReport] = {}  # of each source, by its name
        usable: list[TextSource] = []
        for bad, source in zip(self.bad, mixture.sources, strict=True):
            rows, report, broken = survey(source, charset, max_length=max_length)
            for row, why in broken.items():
                bad.add(row, why)
            for line in report.lines(then="are not trained on" if shuffle else "will count as misread"):
                say(f"{source.name}: {line}")
            self.reports[_unused(source.name, self.reports)] = report
            usable.append(source if rows is None or not shuffle else Subset(source, rows))
            if not len(usable[-1]):
                raise UserError(f"{source.name}: none of its {len(source)} rows can be trained on.")
        self.mixture = Mixture(usable, mixture.weights, seed=mixture.seed)
        super().__init__(BatchPlan(len(self.mixture), batch_size, seed, rank, world, shuffle, drop_last))
        longest = max_length if shuffle else None
        batches = _Batches(self.mixture.rows, charset, preprocess, longest=longest, replace_bad=shuffle)
        slices = _Drawn(self.plan, self.mixture) if shuffle else self.plan
        self.loader = whole_batches(batches, slices, workers=workers)

    def __iter__(self) -> Iterator[TextBatch]:
        for batch, broken in self.loader:
            for row, why in broken.items():
                which, inner = self.mixture.rows.locate(row)
                source = self.mixture.sources[which]
                self.bad[which].add(int(source.rows[inner]) if isinstance(source, Subset) else inner, why)
            self.plan.position = batch.position + 1
            if batch.texts:
                yield batch


def _unused(name: str, taken: dict[str, Any]) -> str:
    while name in taken:
        name += "'"
    return name


class _Drawn:
    """The plan's slices, showing the rows of a mixture. The plan's own order is of no use here: a mixture must order
    its epoch itself, for each source to go through its rows evenly. While a slice is trained on, the disk is at work
    on the next."""

    def __init__(self, plan: BatchPlan, mixture: Mixture) -> None:
        self.plan, self.mixture = plan, mixture

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[Slice]:
        order: NDArray[np.int64] | None = None
        before: Slice | None = None
        for part in self.plan:
            if order is None:  # a pass never leaves its epoch
                order = self.mixture.order(part.epoch)
            first = (part.position - part.epoch * len(self.plan)) * self.plan.batch_size
            part = part._replace(rows=order[first : first + len(part.rows)])
            self.mixture.rows.expect(part.rows[part.start : part.stop])
            if before is not None:
                yield before
            before = part
        if before is not None:
            yield before


class Encoded(NamedTuple):
    """A row at the size of the model, its text as ids."""

    image: NDArray[np.uint8]  # (h, w, 3)
    text: str
    ids: list[int]
    spans: NDArray[np.float32] | None  # (len(ids), 2)


class _Batches(Dataset[tuple[TextBatch, dict[int, str]]]):
    """Makes one batch from one `Slice`. This is what worker processes get a copy of."""

    def __init__(
        self, rows: Concat, charset: Charset, preprocess: Preprocess, *, longest: int | None, replace_bad: bool
    ) -> None:
        self.rows, self.charset, self.preprocess = rows, charset, preprocess
        self.longest, self.replace_bad = longest, replace_bad

    def __getitem__(self, part: Slice) -> tuple[TextBatch, dict[int, str]]:
        def read(row: int, slot: int) -> Encoded:
            fitted = fit_row(self.rows.read(row), self.preprocess)
            return Encoded(fitted.image, fitted.text, *self._encode(fitted, row))

        good, bad = read_slots(part, read, replace_bad=self.replace_bad)
        return self._stack(good, part.position), bad

    def _encode(self, row: TextRow, number: int) -> tuple[list[int], NDArray[np.float32] | None]:
        slots = self.charset.slots(row.text)
        ids = [index for index in slots if index >= 0]
        blank = not row.text  # labelled so; a text that has no character of the set is none, for its picture shows it
        if self.longest is not None and not (blank or 0 < len(ids) <= self.longest):  # surveys see no renderings
            raise UserError(
                f"{self.rows.name}, row {number + 1:,}: {row.text!r} has {len(ids)} characters of the set, not 1 to "
                f"{self.longest}."
            )
        if row.boxes is None:
            return ids, None
        spans = spans_of(row.boxes, size=row.image.shape[:2], preprocess=self.preprocess)
        return ids, spans[np.array(slots) >= 0]

    def _stack(self, rows: list[Encoded], position: int) -> TextBatch:
        lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
        longest = int(lengths.max(initial=1))
        images = np.stack([row.image for row in rows]) if rows else np.empty((0, *self.preprocess.size, 3), np.uint8)
        ids_BL = np.full((len(rows), longest), -1, dtype=np.int64)
        spans_BL2 = np.full((len(rows), longest, 2), np.nan, dtype=np.float32)
        for at, row in enumerate(rows):
            ids_BL[at, : len(row.ids)] = row.ids
            if row.spans is not None:
                spans_BL2[at, : len(row.ids)] = row.spans
        return TextBatch(
            images=torch.from_numpy(images),
            ids=torch.from_numpy(ids_BL),
            lengths=torch.from_numpy(lengths),
            spans=torch.from_numpy(spans_BL2),
            texts=tuple(row.text for row in rows),
            position=position,
        )
