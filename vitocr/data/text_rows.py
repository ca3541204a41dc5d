"""Rows of text data: an image, what it says, and where its characters stand if anybody knows.

A *source* is anything with these few methods (see `TextSource`): tables of labels, LMDBs, arrays on disk, the
renderer. Sources are cheap to pickle, open their files when first read from, and never change. `Concat` and
`Subset` make sources of sources. A row that is broken raises UserError, which names it, whenever it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.codec import nfc
from vitocr.data.folder import to_rgb
from vitocr.errors import UserError

FINGERPRINT_IMAGES = 256


class TextRow(NamedTuple):
    image: NDArray[np.uint8]  # (H, W, 3)
    text: str  # NFC
    boxes: NDArray[np.float32] | None  # (len(text), 4) x0, y0, x1, y1 in pixels of the image


class StoredRow(NamedTuple):
    """A row as it is kept: the image still a JPEG, PNG, ... file."""

    image: bytes
    text: str  # NFC
    boxes: NDArray[np.float32] | None


class TextSource(Protocol):
    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def read(self, row: int) -> TextRow: ...

    def stored(self, row: int) -> StoredRow: ...

    def text(self, row: int) -> str | None:
        """The label without the image. None: only reading the row would tell, as it is rendered."""

    def fingerprint(self) -> str:
        """Of the rows: the same data in another format has the same one."""


@runtime_checkable
class Expecting(Protocol):
    """A source that reads sooner if it is told a little earlier."""

    def expect(self, rows: NDArray[np.int64]) -> None: ...


def decode_row(stored: StoredRow, where: str) -> TextRow:
    """where: names the row, should its image be broken."""
    try:
        with Image.open(io.BytesIO(stored.image)) as image:
            return TextRow(to_rgb(image), stored.text, stored.boxes)
    except Exception as error:  # Pillow's plugins raise whatever they trip over: SyntaxError, struct.error, ...
        what = str(error).replace(" <", " of bytes <") if stored.image else "it is empty"
        raise UserError(f"{where}: its image cannot be decoded: {what}") from error


def encode_row(row: TextRow) -> StoredRow:
    """As PNG, which loses nothing; lightly compressed, as that is what takes the time."""
    buffer = io.BytesIO()
    Image.fromarray(row.image).save(buffer, "PNG", compress_level=1)
    return StoredRow(buffer.getvalue(), row.text, row.boxes)


def check_boxes(boxes: Any, text: str, where: str) -> NDArray[np.float32] | None:
    """Boxes as read from somewhere: one of four numbers for each character, or UserError."""
    if boxes is None:
        return None
    try:
        array = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: its boxes are not lists of four numbers: {error}") from error
    if len(array) != len(text):
        raise UserError(f"{where}: it has {len(array)} boxes for the {len(text)} characters of {text!r}.")
    return array


def check_text(text: str, where: str) -> str:
    """A label as read from somewhere, in NFC; UserError if it says nothing."""
    if not text:
        raise UserError(f"{where}: its label is empty.")
    return nfc(text)


def fingerprint(source: TextSource) -> str:
    """Of all labels and of some images, evenly spaced: cheap even for millions of rows."""
    digest = hashlib.sha256(f"{len(source)}\n".encode())
    for row in range(len(source)):
        try:
            digest.update(json.dumps(source.text(row)).encode())
        except UserError:
            digest.update(b"broken")
    for row in np.unique(np.linspace(0, len(source) - 1, FINGERPRINT_IMAGES).astype(int)) if len(source) else ():
        try:
            digest.update(hashlib.sha256(source.stored(int(row)).image).digest())
        except UserError:
            digest.update(b"broken")
    return digest.hexdigest()


class Concat:
    """Sources one after the other."""

    def __init__(self, sources: Sequence[TextSource], *, name: str) -> None:
        self.sources, self.name = tuple(sources), name
        self.ends = np.array(list(accumulate(map(len, self.sources))), dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def locate(self, row: int) -> tuple[int, int]:
        """Which source, and which row of it."""
        which = int(np.searchsorted(self.ends, row, side="right"))
        return which, int(row) - (int(self.ends[which - 1]) if which else 0)

    def read(self, row: int) -> TextRow:
        which, inner = self.locate(row)
        return self.sources[which].read(inner)

    def expect(self, rows: NDArray[np.int64]) -> None:
        """Tell those sources that care which rows will be asked for next."""
        which = np.searchsorted(self.ends, rows, side="right")
        for number in np.unique(which).tolist():
            source = self.sources[number]
            if isinstance(source, Expecting):
                source.expect(rows[which == number] - (self.ends[number - 1] if number else 0))

    def stored(self, row: int) -> StoredRow:
        which, inner = self.locate(row)
        return self.sources[which].stored(inner)

    def text(self, row: int) -> str | None:
        which, inner = self.locate(row)
        return self.sources[which].text(inner)

    def fingerprint(self) -> str:
        return fingerprint(self)


class Subset:
    """Some rows of a source, in the order given."""

    def __init__(self, source: TextSource, rows: NDArray[np.int64], *, name: str | None = None) -> None:
        self.source, self.rows, self.name = source, rows, name or source.name

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, row: int) -> TextRow:
        return self.source.read(int(self.rows[row]))

    def expect(self, rows: NDArray[np.int64]) -> None:
        if isinstance(self.source, Expecting):
            self.source.expect(self.rows[rows])

    def stored(self, row: int) -> StoredRow:
        return self.source.stored(int(self.rows[row]))

    def text(self, row: int) -> str | None:
        return self.source.text(int(self.rows[row]))

    def fingerprint(self) -> str:
        return fingerprint(self)


def hold_out(source: TextSource, rows: int, *, seed: int) -> tuple[Subset, Subset]:
    """Divide a source into (kept, held out), always the same way for the same seed."""
    if not 0 < rows < len(source):
        raise UserError(
            f"Cannot hold out {rows} of the {len(source)} rows of {source.name}: ask for at least 1 and fewer than all."
        )
    order = np.random.default_rng([seed, 0x7E87]).permutation(len(source))
    held, kept = np.sort(order[:rows]), np.sort(order[rows:])
    return Subset(source, kept), Subset(source, held, name=f"{source.name} (held out)")


class Kept:
    """A source that remembers its rows once they were read, brought to the size of the model. The real words
    people have are few beside rendered ones, and come round again and again.

    most_bytes: of images; rows beyond are read anew every time.
    """

    def __init__(self, source: TextSource, fit: Callable[[TextRow], TextRow], *, most_bytes: int = 2**30) -> None:
        self.source, self.name, self.fit = source, source.name, fit
        self.kept: dict[int, TextRow] = {}
        self.free = most_bytes

    def __len__(self) -> int:
        return len(self.source)

    def read(self, row: int) -> TextRow:
        kept = self.kept.get(row)
        if kept is None:
            kept = self.fit(self.source.read(row))
            if kept.image.nbytes <= self.free:
                self.free -= kept.image.nbytes
                self.kept[row] = kept
        return kept

    def read_ahead(self, rows: Iterable[int]) -> None:
        """Have these rows ready. Before processes are forked, they share them. Broken ones are named when drawn."""
        for row in rows:
            with suppress(UserError):
                self.read(row)

    def stored(self, row: int) -> StoredRow:
        return self.source.stored(row)

    def text(self, row: int) -> str | None:
        return self.source.text(row)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


class Rendered:
    """Rows made when they are asked for: `render(index)` gives an object with image, text and boxes.

    rows: how many make an epoch; they are those from index `start` on.
    """

    def __init__(self, render: Callable[[int], Any], rows: int, *, start: int = 0, name: str = "render") -> None:
        self.render, self.rows, self.start, self.name = render, rows, start, name

    def __len__(self) -> int:
        return self.rows

    def read(self, row: int) -> TextRow:
        crop = self.render(self.start + row)
        return TextRow(crop.image, nfc(crop.text), crop.boxes)

    def stored(self, row: int) -> StoredRow:
        return encode_row(self.read(row))

    def text(self, row: int) -> str | None:
        return None

    def fingerprint(self) -> str:
        """The renderer's own, if it has one: rendering all rows to know them would defeat the purpose."""
        own = getattr(self.render, "fingerprint", None)
        return f"{own or fingerprint(self)}:{self.start}+{self.rows}"
