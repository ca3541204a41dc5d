"""The other end of `contender.py`: the crops it reads from, its process, and talking to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vitocr.data.text_sources import open_source
from vitocr.errors import UserError
from vitocr.output import progress

THREAD_LIMITS = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Entrant(NamedTuple):
    name: str
    kind: str  # of contender.READERS
    model: str  # "" for a peer, which brings its own
    python: str

    @property
    def ours(self) -> bool:
        return self.kind.startswith("vitocr")


class Words(NamedTuple):
    """The crops of all sets, one after the other, as a contender reads them from `file`."""

    file: Path
    places: list[tuple[int, int, int]]  # offset, height, width
    labels: list[str]
    sets: dict[str, range]  # which of them are whose
    broken: dict[str, int]  # crops that could not be decoded, which nobody is asked for


class Failed(UserError):
    """A contender that cannot be had, or that ended before its answer."""


def write_words(paths: Sequence[str], file: Path, *, limit: int | None = None) -> Words:
    """Decode the crops once, for all contenders. limit: at most so many of each set, evenly spaced."""
    words = Words(file, [], [], {}, {})
    with file.open("wb") as out:
        for path in paths:
            source = open_source(path)
            if source.name in words.sets:
                raise UserError(f"Two sets are called {source.name!r}: rename the folder of one.")
            rows = range(len(source)) if limit is None else evenly(len(source), limit)
            first, broken = len(words.labels), 0
            for number in progress(rows, len(rows), what=f"decoding {source.name}"):
                try:
                    row = source.read(number)
                except UserError as error:
                    print(f"left out: {error}", file=sys.stderr)
                    broken += 1
                    continue
                height, width = row.image.shape[:2]
                words.places.append((out.tell(), height, width))
                words.labels.append(row.text)
                out.write(np.ascontiguousarray(row.image).tobytes())
            if len(words.labels) == first:
                raise UserError(f"None of the {len(rows)} crops of {path} can be decoded.")
            words.sets[source.name], words.broken[source.name] = range(first, len(words.labels)), broken
    return words


def evenly(size: int, count: int) -> list[int]:
    """`count` of range(size), evenly spaced; all of them if there are no more."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(int)).tolist()


class Contender:
    """A running one. `greeting` is what it said first: {"about": ...} or {"missing": ...}."""

    def __init__(self, entrant: Entrant, words: Words, process: subprocess.Popen[str], noise: IO[bytes]) -> None:
        self.entrant, self.words, self.process, self.noise = entrant, words, process, noise
        self.greeting = self._hear()

    def read(self, rows: Sequence[int], *, batch: int) -> dict[str, Any]:
        """texts, the seconds of every batch, peak_bytes."""
        assert self.process.stdin is not None
        asked = {"crops": [self.words.places[row] for row in rows], "batch": batch}
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; what it left behind says why
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.noise.seek(0)
            last = self.noise.read().decode(errors="replace").strip().splitlines()[-1:] or ["it did not say why"]
            raise Failed(f"{self.entrant.name} ended with code {code}: {last[0]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def started(entrant: Entrant, words: Words, *, threads: int) -> Iterator[Contender]:
    """A contender, once it has loaded its model; it ends with the `with`."""
    script = Path(__file__).with_name("contender.py")
    command = [entrant.python, str(script), entrant.kind, entrant.model, str(threads), str(words.file)]
    environment = os.environ | dict.fromkeys(THREAD_LIMITS, str(threads))
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as noise,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=noise, text=True, env=environment) as process,
    ):
        try:
            yield Contender(entrant, words, process, noise)
        finally:
            process.kill()
