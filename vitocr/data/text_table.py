"""A table of labels beside images: labels.tsv, labels.csv or labels.jsonl.

The first column is the path of the image (relative to the table), the second its label; a heading is optional,
and if there is one its names decide which column is which. Labels are kept as written, only NFC-normalised.
- TSV: nothing is quoted, so that a label may hold quotation marks; tabs cannot be part of it.
- CSV: quoted as usual: a label with a comma stands in quotation marks.
- JSONL: {"image": path, "text": label} a line, and "boxes": [[x0, y0, x1, y1], ...] in pixels where known.

A row that is broken stays in its place and says so (file, line, what is wrong) when it is read, so that the
reader can count such rows; a table that is wrong as a whole is refused at once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitocr.data.text_rows import StoredRow, TextRow, check_boxes, check_text, decode_row, fingerprint
from vitocr.errors import UserError, did_you_mean

TABLES = ("labels.tsv", "labels.csv", "labels.jsonl")
IMAGE_COLUMNS = ("image", "path", "file", "filename", "image_path", "img", "name")
LABEL_COLUMNS = ("text", "label", "words", "word", "transcription", "gt", "caption")

Row = tuple[str, str, NDArray[np.float32] | None]  # path, NFC text, boxes


class TableSource:
    def __init__(self, table: str | Path) -> None:
        self.table = Path(table)
        self.name = self.table.parent.resolve().name
        read = {".tsv": _tsv, ".txt": _tsv, ".csv": _csv, ".jsonl": _jsonl}.get(self.table.suffix.lower())
        if read is None:
            raise UserError(f"{str(self.table)!r} is not a table of labels: give a .tsv, .csv or .jsonl file.")
        lines = _lines(self.table)
        self.rows: list[Row | str] = []  # a string says what is wrong with the row
        for number, cells in read(lines, str(self.table)):
            where = f"{str(self.table)!r}, line {number}"
            self.rows.append(cells if isinstance(cells, str) else _row(cells, where))
        if not self.rows:
            raise UserError(f"{str(self.table)!r} has no rows: expected a path and a label a line.")
        self._check_some()

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, row: int) -> TextRow:
        stored = self.stored(row)
        return decode_row(stored, self._where(row))

    def stored(self, row: int) -> StoredRow:
        path, text, boxes = self._good(row)
        try:
            return StoredRow((self.table.parent / path).read_bytes(), text, boxes)
        except FileNotFoundError as error:
            raise UserError(f"{self._where(row)}: there is no such image.") from error
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise UserError(f"{self._where(row)}: its image cannot be read: {error}") from error

    def text(self, row: int) -> str | None:
        return self._good(row)[1]

    def fingerprint(self) -> str:
        return fingerprint(self)

    def _good(self, row: int) -> Row:
        entry = self.rows[row]
        if isinstance(entry, str):
            raise UserError(entry)
        return entry

    def _where(self, row: int) -> str:
        return f"{str(self.table)!r}, image {self._good(row)[0]!r}"

    def _check_some(self) -> None:
        """If none of the first images is there, the whole table is meant for another folder."""
        paths = [row[0] for row in self.rows[:20] if not isinstance(row, str)]
        if paths and not any((self.table.parent / path).is_file() for path in paths):
            raise UserError(
                f"None of the first {len(paths)} images that {str(self.table)!r} names is there, {paths[0]!r} for "
                f"example: paths are relative to {str(self.table.parent)!r}."
            )


def _row(cells: dict[str, Any], where: str) -> Row | str:
    try:
        path, text = cells["image"], cells["text"]
        for what, value in (("path", path), ("label", text)):
            if not isinstance(value, str):
                raise UserError(f"{where}: its {what} is not a text but {json.dumps(value, ensure_ascii=False)}.")
            if any("\udc80" <= character <= "\udcff" for character in value):
                shown = value.encode("utf-8", "surrogateescape")
                raise UserError(f"{where}: its {what} is not in UTF-8: {shown!r}.")
        if not path.strip():
            raise UserError(f"{where}: the path of its image is empty.")
        text = check_text(text, where)
        return path.strip(), text, check_boxes(cells.get("boxes"), text, where)
    except UserError as error:
        return str(error)


def _lines(table: Path) -> Iterator[str]:
    """With line ends. Bytes that are not UTF-8 survive as surrogates, to be complained about line by line."""
    try:
        data = table.read_bytes()
    except FileNotFoundError as error:
        siblings = [entry.name for entry in table.parent.iterdir()] if table.parent.is_dir() else []
        raise UserError(f"There is no table {str(table)!r}.{did_you_mean(table.name, siblings)}") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{str(table)!r} is in UTF-16: save it as UTF-8.")
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    # Not `splitlines`, which also splits at characters that a label may hold.
    yield from (f"{line}\n" for line in text.replace("\r\n", "\n").split("\n"))


def _tsv(lines: Iterable[str], table: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    return _columns(((number, line.rstrip("\n").split("\t")) for number, line in enumerate(lines, 1)), table, "tab")


def _csv(lines: Iterable[str], table: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    reader = csv.reader(lines)

    def numbered() -> Iterator[tuple[int, list[str]]]:
        try:
            for cells in reader:
                yield reader.line_num, cells
        except csv.Error as error:
            raise UserError(f"{table!r}, line {reader.line_num}: not a CSV file: {error}") from error

    return _columns(numbered(), table, "comma")


def _columns(
    numbered: Iterable[tuple[int, list[str]]], table: str, separator: str
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    image, label, count = 0, 1, 2
    first = True
    for number, cells in numbered:
        if not any(cells):  # an empty line
            continue
        if first:
            first = False
            names = [cell.strip().lower() for cell in cells]
            images = [names.index(name) for name in IMAGE_COLUMNS if name in names]
            labels = [names.index(name) for name in LABEL_COLUMNS if name in names]
            if images and labels:
                image, label, count = images[0], labels[0], len(cells)
                continue
        if len(cells) == count:
            yield number, {"image": cells[image], "text": cells[label]}
        else:
            hint = " A label that holds a comma must stand in quotation marks." if separator == "comma" else ""
            what = f"expected {count} columns separated by a {separator}, not {len(cells)}."
            yield number, f"{table!r}, line {number}: {what}{hint if len(cells) > count else ''}"


def _jsonl(lines: Iterable[str], table: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{table!r}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            yield number, f"{where}: not JSON: {error}"
            continue
        if not isinstance(entry, dict):
            yield number, f'{where}: expected an object such as {{"image": "1.png", "text": "word"}}.'
            continue
        images = [entry[name] for name in IMAGE_COLUMNS if name in entry]
        labels = [entry[name] for name in LABEL_COLUMNS if name in entry]
        if images and labels:
            yield number, {"image": images[0], "text": labels[0], "boxes": entry.get("boxes")}
        else:
            missing = "text" if images else "image"
            yield number, f"{where}: has no {missing!r}, only {', '.join(map(str, entry)) or 'nothing'}."
