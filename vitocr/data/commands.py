"""What `vitocr data pack` and `vitocr data look` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vitocr.data.bad_files import BadFiles
from vitocr.data.lmdb_store import LmdbSource, pack
from vitocr.data.text_rows import Concat, TextRow, TextSource
from vitocr.data.text_sources import open_source
from vitocr.errors import UserError


def pack_data(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    max_bad_fraction: float = 0.05,
    say: Callable[[str], object] = print,
) -> LmdbSource:
    """Any sources, one after the other, into one LMDB; run again, it goes on where it was interrupted."""
    sources = [open_source(path) for path in paths]
    source = sources[0] if len(sources) == 1 else Concat(sources, name=" + ".join(each.name for each in sources))
    return pack(source, out, max_bad_fraction=max_bad_fraction, say=say)


def look_at(
    source: TextSource | str | Path,
    out: str | Path,
    *,
    rows: int = 64,
    columns: int = 8,
    cell: tuple[int, int] = (64, 256),
    seed: int | None = None,
    boxes: bool = False,
    say: Callable[[str], object] = print,
) -> list[TextRow]:
    """A contact sheet of some rows, what they say below each. cell: height and width of each in pixels.

    seed: draw the rows at random; without, they are the first ones.
    """
    from vitocr.data.render.sheet import contact_sheet
    from vitocr.data.render.spec import Crop

    source = source if not isinstance(source, str | Path) else open_source(source)
    order = np.arange(len(source)) if seed is None else np.random.default_rng(seed).permutation(len(source))
    bad = BadFiles(len(source), max_fraction=1.0, say=say)
    shown: list[TextRow] = []
    for row in order.tolist():
        if len(shown) == rows:
            break
        try:
            shown.append(source.read(row))
        except UserError as error:
            bad.add(row, str(error))
    if not shown:
        raise UserError(f"{source.name} has no readable row to look at.")
    none = np.empty((0, 4), np.float32)
    crops = [Crop(row.image, row.text, none if row.boxes is None else row.boxes) for row in shown]
    contact_sheet(crops, out, columns, cell=cell, boxes=boxes, texts=True)
    return shown
