"""LMDB in the layout of clovaai's and PARSeq's archives: `num-samples`, and counted from 1 `image-000000001` (the bytes
of an image file) and `label-000000001` (UTF-8). Ours may also hold `boxes-000000001`, which others ignore.

`pack` writes one from any source. The image files go in as they are, so that every row stays what it was. Each
transaction also notes how far it came and a checksum, so that an interrupted pack goes on where it stopped; the
key `num-samples` comes last, so that an unfinished file is not taken for a short one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from vitocr.data.bad_files import BadFiles
from vitocr.data.text_rows import StoredRow, TextRow, TextSource, check_boxes, check_text, decode_row, fingerprint
from vitocr.errors import UserError

COUNT, STATE = b"num-samples", b"vitocr-pack"
ROWS_A_TRANSACTION = 1000
BYTES_A_TRANSACTION = 32 << 20
FIRST_MAP_BYTES = 64 << 20
SAY_EVERY_SECONDS = 5.0

# LMDB allows one open environment a file and process, and none may be used across a fork: so they are kept here,
# by file, with the process that opened them.
_open: dict[str, tuple[int, int, lmdb.Environment]] = {}


def _environment(path: str) -> lmdb.Environment:
    process, _, environment = _open.get(path, (0, 0, None))
    if environment is None or process != os.getpid():
        if environment is not None:
            environment.close()  # the parent's, in a child: LMDB must forget it before opening the file again
        try:
            environment = lmdb.open(path, readonly=True, lock=False, readahead=False, meminit=False, create=False)
        except lmdb.Error as error:
            raise UserError(f"The LMDB {path!r} cannot be opened: {error}") from error
        _open[path] = (os.getpid(), _inode(path), environment)
    return environment


def _inode(path: str) -> int:
    data = os.path.join(path, "data.mdb")
    return os.stat(data).st_ino if os.path.exists(data) else 0


def _close(path: str) -> None:
    with contextlib.suppress(KeyError):
        _open.pop(path)[2].close()


class LmdbSource:
    def __init__(self, path: str | Path) -> None:
        self.path = os.path.realpath(path)  # one name a file, however it is reached
        self.name = Path(self.path).name
        if self.path in _open and _open[self.path][1] != _inode(self.path):  # written anew since
            _close(self.path)
        count = self._get(COUNT)
        if count is None:
            if self._get(STATE) is not None:
                raise UserError(f"Packing {self.path!r} was interrupted: run the same `vitocr data pack` again.")
            raise UserError(f"The LMDB {self.path!r} has no key num-samples: it holds no text data set.")
        try:
            self.rows = int(count)
        except ValueError as error:
            raise UserError(f"The LMDB {self.path!r} says num-samples={count!r}, which is not a number.") from error

    def __len__(self) -> int:
        return self.rows

    def read(self, row: int) -> TextRow:
        return decode_row(self.stored(row), self._where(row))

    def stored(self, row: int) -> StoredRow:
        text = self.text(row)
        image, boxes = self._get(f"image-{row + 1:09d}".encode()), self._get(f"boxes-{row + 1:09d}".encode())
        if image is None:
            raise UserError(f"{self._where(row)}: there is no image-{row + 1:09d}.")
        floats = None if boxes is None else np.frombuffer(boxes, dtype="<f4")
        return StoredRow(image, text, check_boxes(floats, text, self._where(row)))

    def text(self, row: int) -> str:
        label = self._get(f"label-{row + 1:09d}".encode())
        if label is None:
            raise UserError(f"{self._where(row)}: there is no label-{row + 1:09d}.")
        try:
            return check_text(label.decode("utf-8"), self._where(row))
        except UnicodeDecodeError as error:
            raise UserError(f"{self._where(row)}: its label is not in UTF-8: {label!r}.") from error

    def fingerprint(self) -> str:
        return fingerprint(self)

    def _get(self, key: bytes) -> bytes | None:
        try:
            with _environment(self.path).begin() as transaction:
                return transaction.get(key)
        except lmdb.Error as error:
            raise UserError(f"The LMDB {self.path!r} is damaged: {error}") from error

    def _where(self, row: int) -> str:
        return f"{self.path!r}, row {row + 1:,}"


def pack(
    source: TextSource,
    out: str | Path,
    *,
    max_bad_fraction: float = 0.05,
    say: Callable[[str], object] = print,
) -> LmdbSource:
    """Write `source` into the LMDB folder `out`, or finish what an interrupted `pack` began; check what was written.

    Broken rows are named, counted and left out; more than `max_bad_fraction` of them are an error.
    """
    out = Path(out)
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / "data.mdb").exists()):
        raise UserError(f"Cannot pack into {str(out)!r}: it is there already, and no LMDB. Choose a new folder.")
    path = os.path.realpath(out)
    _close(path)
    out.mkdir(parents=True, exist_ok=True)
    size = max(FIRST_MAP_BYTES, 2 * (out / "data.mdb").stat().st_size if (out / "data.mdb").exists() else 0)
    try:
        with lmdb.open(path, map_size=size, meminit=False) as environment:
            _Packer(environment, source, str(out), max_bad_fraction, say).run()
    except (lmdb.Error, OSError) as error:
        raise UserError(f"Packing into {str(out)!r} stopped: {error}. What is there is kept: run it again.") from error
    packed = LmdbSource(path)
    say(f"{out}: {len(packed):,} rows, written and verified.")
    return packed


class _Packer:
    """The state of a pack, which is what is stored with every transaction."""

    def __init__(
        self,
        environment: lmdb.Environment,
        source: TextSource,
        out: str,
        max_bad_fraction: float,
        say: Callable[[str], object],
    ) -> None:
        self.environment, self.source, self.out, self.say = environment, source, out, say
        self.bad = BadFiles(len(source), max_fraction=max_bad_fraction, say=say)
        self.state: dict[str, Any] = {"source": source.fingerprint(), "read": 0, "written": 0, "digest": ""}

    def run(self) -> None:
        self._take_up()
        started = said = time.monotonic()
        first = self.state["read"]
        while self.state["read"] < len(self.source):
            self._transaction()
            if time.monotonic() - said > SAY_EVERY_SECONDS:
                said, done = time.monotonic(), self.state["read"]
                speed = (done - first) / (said - started)
                self.say(f"packed {done:,} of {len(self.source):,} rows ({speed:,.0f}/s)")
        if not self.state["written"]:
            raise UserError(f"There is nothing to pack: {self.source.name} has no readable row.")
        self._verify()
        self._put({COUNT: str(self.state["written"]).encode()})
        self.environment.sync(True)

    def _take_up(self) -> None:
        with self.environment.begin() as transaction:
            state, count = transaction.get(STATE), transaction.get(COUNT)
        if state is None:
            if count is not None or self.environment.stat()["entries"]:
                raise UserError(f"{self.out!r} holds an LMDB that was not made by `pack`. Choose a new folder.")
            return
        before = json.loads(state)
        if before["source"] != self.state["source"]:
            raise UserError(
                f"{self.out!r} holds rows of another source than {self.source.name!r} (or it has changed since). "
                "Choose a new folder, or remove this one."
            )
        self.state = before
        if before["read"] < len(self.source):
            self._verify()
            self.say(f"{self.out}: {before['read']:,} of {len(self.source):,} rows are there; going on from them.")

    def _transaction(self) -> None:
        """As many rows as one transaction takes, and how far that brought us."""
        state = dict(self.state)
        puts: dict[bytes, bytes] = {}
        waiting = 0
        stop = min(state["read"] + ROWS_A_TRANSACTION, len(self.source))
        for row in range(state["read"], stop):
            state["read"] = row + 1
            try:
                stored = self.source.stored(row)
                decode_row(stored, f"row {row + 1:,} of {self.source.name}")  # what is packed can be read
            except UserError as error:
                self.bad.add(row, str(error))
                continue
            state["written"] += 1
            state["digest"] = _chain(state["digest"], stored)
            number = state["written"]
            puts[f"image-{number:09d}".encode()] = stored.image
            puts[f"label-{number:09d}".encode()] = stored.text.encode()
            if stored.boxes is not None:
                puts[f"boxes-{number:09d}".encode()] = stored.boxes.astype("<f4").tobytes()
            waiting += len(stored.image)
            if waiting > BYTES_A_TRANSACTION:
                break
        self._put(puts | {STATE: json.dumps(state).encode()})
        self.state = state

    def _put(self, puts: dict[bytes, bytes]) -> None:
        while True:
            try:
                with self.environment.begin(write=True) as transaction:
                    for key in sorted(puts):
                        transaction.put(key, puts[key])
                return
            except lmdb.MapFullError:
                self.environment.set_mapsize(2 * self.environment.info()["map_size"])

    def _verify(self) -> None:
        """Read back everything that was written, against the checksum of what was read from the source."""
        digest = ""
        with self.environment.begin() as transaction:
            for number in range(1, self.state["written"] + 1):
                image, label = (transaction.get(f"{kind}-{number:09d}".encode()) for kind in ("image", "label"))
                boxes = transaction.get(f"boxes-{number:09d}".encode())
                if image is None or label is None:
                    raise UserError(f"{self.out!r} is damaged: row {number:,} is missing. Remove it and pack again.")
                floats = None if boxes is None else np.frombuffer(boxes, dtype="<f4").reshape(-1, 4)
                digest = _chain(digest, StoredRow(image, label.decode("utf-8", "replace"), floats))
        if digest != self.state["digest"]:
            raise UserError(f"{self.out!r} is damaged: its rows are not those packed. Remove it and pack again.")


def _chain(digest: str, row: StoredRow) -> str:
    """A checksum that can be taken up again: of the one before and this row."""
    label = row.text.encode()
    boxes = b"" if row.boxes is None else row.boxes.astype("<f4").tobytes()
    lengths = f"{digest} {len(label)} {len(row.image)} {len(boxes)}\n".encode()
    return hashlib.sha256(b"".join((lengths, label, row.image, boxes))).hexdigest()
