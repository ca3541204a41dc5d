"""The renderer as a source of text rows: drawn once into a cache on disk, or anew for every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitocr.codec import PRESETS, nfc
from vitocr.cores import usable_cores
from vitocr.data.render.cache import RenderCache, prerender
from vitocr.data.render.renderer import Renderer
from vitocr.data.render.spec import Effects, RenderSpec
from vitocr.data.text_rows import Rendered, StoredRow, TextRow, TextSource, encode_row

CROPS_PER_SECOND = 1200  # of one core, on the safe side
SHARE_OF_BUDGET = 0.12  # that rendering may take, when the cache is made as part of a run ...
SHARE_IF_SLOW = 0.04  # ... on a machine that would not get round to training on so many words
ROWS_WITHOUT_BUDGET = 100_000
KOREAN_SHARE = 0.6  # of the words rendered for charset=korean; the rest are Latin, numbers and marks


class CachedRows:
    """The crops of a render cache as rows."""

    def __init__(self, cache: RenderCache) -> None:
        self.cache, self.name = cache, "render"

    def __len__(self) -> int:
        return len(self.cache)

    def read(self, row: int) -> TextRow:
        taken = self.cache.take([row])
        text = nfc(taken.texts[0])
        return TextRow(taken.images[0], text, np.asarray(taken.boxes[0, : len(text)], dtype=np.float32))

    def expect(self, rows: NDArray[np.int64]) -> None:
        self.cache.expect(rows)

    def stored(self, row: int) -> StoredRow:
        return encode_row(self.read(row))

    def text(self, row: int) -> str | None:
        return None  # looking through a million labels costs more than meeting a bad one

    def fingerprint(self) -> str:
        return f"{self.cache.fingerprint}:{len(self)}"


def open_rendered(
    options: Mapping[str, Any],
    *,
    charset: str,
    size: tuple[int, int],
    max_length: int,
    budget_s: float | None,
    trains_slowly: bool = False,
    say: Callable[[str], object] = print,
) -> TextSource:
    """`options` is conf `render:` — RenderSpec's fields, and `rows` (of an epoch; "auto" goes by the budget, and by
    whether the machine `trains_slowly`) and `cache` (a folder; null renders every row anew)."""
    options = dict(options)
    options["effects"] = asdict(Effects.named(options.get("effects", "all")))
    # A set of one case is drawn in both: the codec folds them, the world does not.
    drawn = PRESETS["62"] if str(charset) == "36" else PRESETS.get(str(charset))
    if charset == "korean":
        options = {"korean": KOREAN_SHARE} | options
    rows, cache = options.pop("rows"), options.pop("cache")
    spec = RenderSpec.from_dict({"size": size, "max_length": max_length, "charset": drawn, **options})
    if rows == "auto":
        rows = ROWS_WITHOUT_BUDGET if budget_s is None else rows_for(budget_s, trains_slowly=trains_slowly)
    if cache is None:
        return Rendered(Renderer(spec), rows)
    folder = Path(cache)
    return CachedRows(prerender(folder, spec, rows, workers=usable_cores(), say=say))


def rows_for(budget_s: float, *, trains_slowly: bool) -> int:
    """How many words are worth rendering for a training of so many seconds, rendering included."""
    share = SHARE_IF_SLOW if trains_slowly else SHARE_OF_BUDGET
    return max(1, round(share * budget_s * CROPS_PER_SECOND * usable_cores()))
