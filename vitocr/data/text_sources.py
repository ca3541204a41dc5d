"""Finding text data by its path, and mixing several sources by weight.

`open_source` knows by what is there: a table of labels, an LMDB; or a folder with any number of these at
any depth, as archives of LMDBs unpack, which is read as one source in the order of their names.

In an epoch of a mixture each source gives exactly its share, and goes through its own rows in shuffled cycles, each
row once before any comes twice. Which row stands where is a pure function of (seed, epoch, place).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitocr.data.lmdb_store import LmdbSource
from vitocr.data.text_rows import Concat, TextSource
from vitocr.data.text_table import TABLES, TableSource
from vitocr.errors import UserError, did_you_mean

KNOWN = f"{', '.join(TABLES)} beside images, an LMDB (data.mdb), or folders of these"


def open_source(path: str | Path) -> TextSource:
    path = Path(path)
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"There is no text data at {str(path)!r}.{did_you_mean(path.name, siblings)}")
    if path.is_file():
        if path.name == "data.mdb":
            return LmdbSource(path.parent)
        if path.suffix.lower() in (".tar", ".zip", ".gz", ".tgz"):
            raise UserError(f"{str(path)!r} is an archive: unpack it first, and give the folder.")
        return TableSource(path)
    sources = list(_below(path))
    if not sources:
        raise UserError(f"There is no text data in {str(path)!r}: expected {KNOWN}.")
    return sources[0] if len(sources) == 1 else Concat(sources, name=path.resolve().name)


def _below(folder: Path) -> Iterator[TextSource]:
    if (folder / "data.mdb").is_file():
        yield LmdbSource(folder)
    elif tables := [folder / name for name in TABLES if (folder / name).is_file()]:
        if len(tables) > 1:
            names = " and ".join(table.name for table in tables)
            raise UserError(f"{str(folder)!r} has {names}: give the path of the one that is meant.")
        yield TableSource(tables[0])
    else:
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith((".", "__MACOSX")):
                yield from _below(entry)


class Mixture:
    """Sources with their shares of every epoch, which is as long as all sources together.

    weights: any positive numbers, one a source; None takes each source as large as it is.
    """

    def __init__(self, sources: Sequence[TextSource], weights: Sequence[float] | None = None, *, seed: int = 0) -> None:
        self.rows = Concat(sources, name=" + ".join(source.name for source in sources))
        self.weights, self.seed = weights, seed
        self.sizes = np.array([len(source) for source in sources], dtype=np.int64)
        for source in sources:
            if len(source) == 0:
                raise UserError(f"{source.name} has no rows to train on.")
        shares = np.asarray(self.sizes if weights is None else weights, dtype=np.float64)
        if len(shares) != len(sources) or not (np.isfinite(shares) & (shares > 0)).all():
            raise UserError(f"Weights of sources are positive numbers, one a source; not {list(weights or [])}.")
        ends = np.round(np.cumsum(shares / shares.sum()) * len(self)).astype(np.int64)
        self.draws = np.diff(ends, prepend=0)  # of each source in an epoch; rounded so that they add up

    @property
    def sources(self) -> tuple[TextSource, ...]:
        return self.rows.sources

    def __len__(self) -> int:
        """Rows of an epoch."""
        return int(self.sizes.sum())

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The rows (of `self.rows`) that this epoch shows, first to last."""
        which = np.repeat(np.arange(len(self.sizes), dtype=np.int16), self.draws)
        np.random.default_rng([self.seed, 0x3A1C, epoch]).shuffle(which)
        order = np.empty(len(self), dtype=np.int64)
        for index, (size, draws, end) in enumerate(zip(self.sizes, self.draws, self.rows.ends, strict=True)):
            # The source's rows in cycle after cycle, taken up where the epoch before left it.
            cycle, skip = divmod(epoch * int(draws), int(size))
            cycles = range(cycle, cycle + (skip + int(draws)) // int(size) + 1)
            shuffled = [np.random.default_rng([self.seed, 0x3A1D, index, c]).permutation(size) for c in cycles]
            order[which == index] = np.concatenate(shuffled)[skip : skip + draws] + (end - size)
        return order


def parse_entries(entries: Any) -> tuple[list[Any], list[float] | None]:
    """What is to be opened, and how each weighs; nothing is opened yet. None: each weighs as much as it has rows."""
    if isinstance(entries, str | Path | Mapping):
        entries = [entries]
    paths: list[Any] = []
    weights: list[float] = []
    for entry in entries:
        if isinstance(entry, Mapping):
            unknown = sorted(set(entry) - {"path", "weight"})
            if unknown or "path" not in entry:
                raise UserError(f"A source of data is a path or {{path: ..., weight: ...}}, not {dict(entry)}.")
            if (weight := entry.get("weight")) is not None:
                weights.append(_number(weight, entry["path"]))
            entry = entry["path"]
        paths.append(entry)
    if not paths:
        raise UserError("There is no source of data: data.train is empty.")
    if weights and len(weights) != len(paths):
        raise UserError(f"{len(weights)} of {len(paths)} sources have a weight: give one to each, or to none.")
    return paths, weights or None


def _number(weight: Any, path: Any) -> float:
    try:
        return float(weight)
    except (TypeError, ValueError) as error:
        raise UserError(f"The weight of {path} is {weight!r}, which is not a number.") from error
