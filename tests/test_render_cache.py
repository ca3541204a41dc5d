"""Crops rendered beforehand are the crops rendered on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitocr.cores import usable_cores
from vitocr.data.render import Renderer, RenderSpec
from vitocr.data.render.cache import RenderCache, prerender
from vitocr.data.rendered import CROPS_PER_SECOND, rows_for
from vitocr.errors import UserError

SPEC = RenderSpec(size=(16, 64), seed=11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    prerender(folder, SPEC, 20, workers=1, shard=8, say=lambda line: None)
    return folder


def test_a_cache_holds_what_the_renderer_makes(folder: Path) -> None:
    cache, renderer = RenderCache(folder), Renderer(SPEC)
    assert len(cache) == 24  # 20, in whole shards of 8
    rows = cache.take([17, 0, 3])
    for at, index in enumerate((17, 0, 3)):
        crop = renderer(index)
        np.testing.assert_array_equal(rows.images[at], crop.image)
        assert rows.texts[at] == crop.text
        np.testing.assert_allclose(rows.boxes[at, : len(crop.text)], crop.boxes, atol=0.05)
        assert np.isnan(rows.boxes[at, len(crop.text) :]).all()


def test_a_cache_holds_no_file_open_however_many_it_has(folder: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    cache = RenderCache(folder)
    cache.take(range(24))
    cache.expect(range(24))
    held = len(list(Path("/proc/self/fd").iterdir())) - before
    assert held <= 3  # what one row is like, of each of the three arrays


def test_a_shard_cut_short_is_named(folder: Path) -> None:
    target = folder / "images-00001.npy"
    data = target.read_bytes()
    target.write_bytes(data[:-5])
    try:
        with pytest.raises(UserError, match=r"images-00001\.npy has been cut short"):
            RenderCache(folder).take([15])
    finally:
        target.write_bytes(data)


def test_only_missing_shards_are_rendered(folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "done-00001.json").unlink()
    assert len(RenderCache(folder)) == 8  # up to the gap
    cache = prerender(folder, SPEC, 20, workers=1, shard=8, say=lambda line: None)
    assert len(cache) == 24
    after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {
        "done-00001.json", "images-00001.npy", "texts-00001.npy", "boxes-00001.npy"
    }  # fmt: skip


def test_damage_is_found(folder: Path) -> None:
    RenderCache(folder).verify()
    target = folder / "images-00002.npy"
    data = target.read_bytes()
    target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UserError, match="Shard 2"):
        RenderCache(folder).verify()
    target.write_bytes(data)


def test_crops_of_other_settings_are_not_mixed_in(folder: Path) -> None:
    with pytest.raises(UserError, match="other settings"):
        prerender(folder, RenderSpec(size=(16, 64), seed=12), 20, workers=1, shard=8)
    with pytest.raises(UserError, match="stretch"):
        prerender(folder, RenderSpec(shape="natural"), 20)
    with pytest.raises(UserError, match="no folder of rendered crops"):
        RenderCache(folder / "absent")


def test_rendering_takes_a_small_part_of_a_budget_and_less_where_few_of_the_words_would_be_trained_on() -> None:
    rows = rows_for(600, trains_slowly=False)
    assert 0.05 * 600 < rows / (CROPS_PER_SECOND * usable_cores()) < 0.2 * 600
    assert 0 < rows_for(600, trains_slowly=True) < rows / 2
