"""The file that a long job fills line by line: a job that was killed goes on in it where it stopped.

Beside the file, as long as it is not finished, stands `FILE.unfinished`, which says what fills it: the model (by its
checksum), the options, the form. The same command goes on with such a file; another one is refused, for the answers
would not belong together. A finished file is left alone unless one says what is to become of it. What a kill left of
the last line is cut off; every line before it is an answer, and its image is not asked about again.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TextIO

from vitocr.errors import UserError

FEW = 5  # failures that are named at the end
# File names need not be UTF-8. What is not becomes \udcff, which in JSON even means just that.
ODD = "backslashreplace"


@dataclass
class Tally:
    """What was answered so far, this time and before."""

    answered: int = 0
    failed: int = 0
    named: list[str] = field(default_factory=list)  # the first failures

    def add(self, error: str | None) -> None:
        self.answered += 1
        if error:
            self.failed += 1
            if len(self.named) < FEW:
                self.named.append(error)


class Opened(NamedTuple):
    file: TextIO
    tally: Tally
    sources: set[str]  # that are answered in it, as `key` has them
    fresh: bool  # nothing stands in it yet, a heading neither


@dataclass
class Output:
    """columns: of a CSV with a heading; None for JSON lines. answers: what an answer has, "text" or "name"."""

    path: Path
    columns: Sequence[str] | None
    answers: str
    made_with: Mapping[str, Any]  # in plain JSON types

    @property
    def note(self) -> Path:
        return self.path.with_name(self.path.name + ".unfinished")

    def open(self, *, resume: bool = False, overwrite: bool = False) -> Opened:
        tally, sources, held = Tally(), set(), 0
        keeps = not self.path.exists() or self.path.is_file()  # a device or a pipe keeps nothing
        if keeps and not overwrite and self.path.exists() and self.path.stat().st_size:
            self._check(resume)
            for source, error, end in self._entries():
                held = end
                if source is not None:
                    sources.add(key(source))
                    tally.add(error)
            if not held and not self.note.exists():
                self._refuse(1, "has no end")
        try:
            if held:
                os.truncate(self.path, held)
            file = text_file(self.path, "a" if held else "w")
            if keeps and not (held and self.note.exists()):
                self.note.write_text(json.dumps(self.made_with, ensure_ascii=False), encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write to {self.path}: {error.strerror}.") from error
        return Opened(file, tally, sources, not held)

    def finish(self) -> None:
        self.note.unlink(missing_ok=True)

    def _check(self, resume: bool) -> None:
        if not self.note.exists():
            if not resume:
                raise UserError(
                    f"{self.path} is there already. --overwrite writes it anew; --resume adds what it lacks, if it "
                    "was made with the same model and options."
                )
            return
        try:
            before = json.loads(self.note.read_text(encoding="utf-8"))
            names = sorted({*before, *self.made_with})
            differing = [name for name in names if before.get(name) != self.made_with.get(name)]
        except (ValueError, TypeError) as error:
            raise UserError(f"{self.note} is damaged: --overwrite begins {self.path} anew.") from error
        if differing:
            told = ", ".join(f"{name} was {before.get(name)!r}, now {self.made_with.get(name)!r}" for name in differing)
            raise UserError(
                f"{self.path} was begun in another way, and its answers would not belong together: {told}. Give the "
                "command as it was, another --out, or --overwrite to begin anew."
            )

    def _entries(self) -> Iterator[tuple[str | None, str | None, int]]:
        """Of every whole line: source and error, and where it ends. The heading has neither."""
        with open(self.path, "rb") as file:
            for number, (line, end) in enumerate(whole_lines(file, quoted=self.columns is not None), 1):
                if self.columns is None:
                    yield *self._from_json(line, number), end
                elif number == 1:
                    if self._cells(line, number) != list(self.columns):
                        self._refuse(number, f"(the heading) is not {','.join(self.columns)}")
                    yield None, None, end
                else:
                    yield *self._from_csv(line, number), end

    def _from_json(self, line: str, number: int) -> tuple[str, str | None]:
        try:
            entry = json.loads(line)
            source = entry["source"]
        except (ValueError, KeyError, TypeError):
            self._refuse(number, "is no JSON object with a source")
        if "error" not in entry and self.answers not in entry:
            self._refuse(number, f"has no {self.answers}")
        return str(source), entry.get("error")

    def _from_csv(self, line: str, number: int) -> tuple[str, str | None]:
        assert self.columns is not None
        cells = self._cells(line, number)
        if len(cells) != len(self.columns):
            self._refuse(number, f"has {len(cells)} of {len(self.columns)} columns")
        row = dict(zip(self.columns, cells, strict=True))
        return row["source"], row["error"]

    def _cells(self, line: str, number: int) -> list[str]:
        try:
            return next(csv.reader([line]), [])  # all of an entry at once, line breaks within quotes included
        except csv.Error as error:
            self._refuse(number, f"is not CSV ({error})")

    def _refuse(self, number: int, why: str) -> NoReturn:
        raise UserError(
            f"{self.path} was not written by this command, so that it cannot go on there: entry {number} {why}. Give "
            "another --out, or --overwrite."
        )


def whole_lines(file: Any, *, quoted: bool) -> Iterator[tuple[str, int]]:
    """Lines of a binary file that are there to their end, and where that is. quoted: a CSV's, where a cell in quotes
    may go over several lines."""
    end, pending = 0, b""
    for line in file:
        end += len(line)
        pending += line
        if pending.endswith(b"\n") and not (quoted and pending.count(b'"') % 2):
            yield pending.decode("utf-8", "replace"), end
            pending = b""


def key(source: str) -> str:
    """A source as it can be found in the file."""
    return source if source.isascii() else source.encode("utf-8", ODD).decode("utf-8")


def new_file(path: Path, *, overwrite: bool) -> TextIO:
    """For what nobody goes on with."""
    if not overwrite and path.is_file() and path.stat().st_size:
        raise UserError(f"{path} is there already: --overwrite writes it anew.")
    try:
        return text_file(path, "w")
    except OSError as error:
        raise UserError(f"Cannot write to {path}: {error.strerror}.") from error


def text_file(path: Path, mode: Literal["a", "w"]) -> TextIO:
    return open(path, mode, encoding="utf-8", errors=ODD, newline="")


def unanswered(names: Sequence[str], sources: set[str]) -> list[str]:
    return [name for name in names if key(name) not in sources]


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
