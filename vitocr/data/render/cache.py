"""Crops rendered beforehand, for when the processor has better things to do during training.

A cache is a folder of shards, each three arrays: images (n, H, W, 3) uint8, texts (n,) of
fixed-width unicode, boxes (n, max_length, 4) float16 in pixels (NaN beyond the text). Row i is Renderer(spec)(first +
i), whoever rendered it and in whatever order, so a cache can be interrupted, resumed and enlarged. A shard appears
under its name only when complete, and carries its checksum.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitocr.cores import usable_cores
from vitocr.data.render.renderer import Renderer, set_threads
from vitocr.data.render.spec import RenderSpec
from vitocr.errors import UserError

SHARD = 2048  # crops; 25 MB of images at 32x128
ABOUT = "render.json"
SAY_EVERY_SECONDS = 5.0
PARTS = ("images", "texts", "boxes")


class Rows(NamedTuple):
    images: NDArray[np.uint8]  # (n, H, W, 3)
    texts: list[str]
    boxes: NDArray[np.float16]  # (n, max_length, 4), NaN beyond the text


class RenderCache:
    """The complete shards of a folder, as one sequence of rows.

    Rows are read one by one out of files that are opened for it and closed again: a million crops lie in more files
    than a process may hold open, and a memory map would have the disk read ten times what a row takes.
    """

    def __init__(self, folder: Path) -> None:
        about = _read_about(folder)
        self.folder = folder
        self.spec = RenderSpec.from_dict(about["spec"])
        self.fingerprint = str(about["fingerprint"])
        self._shard = int(about["shard"])
        self._shards = 0
        while _is_complete(folder, self._shards):
            self._shards += 1
        self._like = {part: np.load(_file(folder, part, 0), mmap_mode="r") for part in PARTS if self._shards}

    def __len__(self) -> int:
        return self._shard * self._shards

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> Rows:
        """These rows, in this order, copied out of the shards."""
        wanted = np.asarray(rows, dtype=np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of a cache of {len(self)}")
        height, width = self.spec.size
        images = np.empty((len(wanted), height, width, 3), np.uint8)
        boxes = np.empty((len(wanted), self.spec.max_length, 4), np.float16)
        texts = np.empty(len(wanted), f"<U{self.spec.max_length}")
        arrays: list[Any] = [images, texts, boxes]
        for part, array in zip(PARTS, arrays, strict=True):
            for at, row in enumerate(wanted.tolist()):
                path, first, size = self._place(part, row)
                with open(path, "rb", buffering=0) as file:
                    file.seek(first)
                    if file.readinto(array[at : at + 1].view(np.uint8)) != size:
                        raise UserError(f"{path} has been cut short: delete it and render again, only it is redone.")
        return Rows(images, texts.tolist(), boxes)

    def expect(self, rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Has the system read these rows from the disk while the caller does something else."""
        if not hasattr(os, "posix_fadvise"):
            return
        for row in rows:
            for part in PARTS:
                path, first, size = self._place(part, int(row))
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, first, size, os.POSIX_FADV_WILLNEED)
                os.close(file)

    def _place(self, part: str, row: int) -> tuple[str, int, int]:
        """The file of a row, and at which byte it begins and how many it takes."""
        shard, offset = divmod(row, self._shard)
        like = self._like[part]
        size = like.nbytes // len(like)
        return f"{self.folder}/{part}-{shard:05}.npy", int(like.offset) + offset * size, size

    def verify(self) -> None:
        """Reads everything; UserError naming the first shard that is not what was written."""
        for number in range(self._shards):
            written = json.loads(_file(self.folder, "done", number).read_text())
            if _checksums(self.folder, number) != written:
                raise UserError(
                    f"Shard {number} of the rendered crops in {self.folder} is damaged. Delete "
                    f"{_file(self.folder, 'done', number).name} there and render again: only that shard is redone."
                )


def prerender(
    folder: Path,
    spec: RenderSpec,
    count: int,
    *,
    workers: int | None = None,
    shard: int = SHARD,
    say: Callable[[str], object] = print,
) -> RenderCache:
    """Make sure `folder` holds at least `count` crops of `spec` (rounded up to whole shards), using all cores.

    A folder with crops of another spec, or of the same spec with other fonts, is refused rather than mixed.
    """
    if spec.shape != "stretch":
        raise UserError("Rendering into a cache needs crops of one size: render.shape=stretch.")
    folder.mkdir(parents=True, exist_ok=True)
    about = {"spec": spec.to_dict(), "fingerprint": Renderer(spec).fingerprint, "shard": shard}
    if (folder / ABOUT).exists():
        found = _read_about(folder)
        if found["fingerprint"] != about["fingerprint"] or found["shard"] != shard:
            raise UserError(
                f"{folder} holds crops rendered with other settings or other fonts. Choose another folder or delete it."
            )
    else:
        _write(folder / ABOUT, json.dumps(about, indent=1, default=str).encode())
    shards = -(-count // shard)
    missing = [number for number in range(shards) if not _is_complete(folder, number)]
    if missing:
        _render_shards(folder, spec, missing, shard, workers or usable_cores(), say)
    say(f"{shards * shard:,} rendered crops are in {folder}")
    return RenderCache(folder)


def _render_shards(
    folder: Path,
    spec: RenderSpec,
    missing: list[int],
    shard: int,
    workers: int,
    say: Callable[[str], object],
) -> None:
    say(f"Rendering {len(missing) * shard:,} crops into {folder} with {workers} processes")
    started, said, done = time.monotonic(), time.monotonic(), 0
    # Spawned, not forked: the caller may already run threads (torch, Lightning) that a fork would break.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (spec,)) as pool:
        waiting: set[Future[None]] = {pool.submit(_render_shard, folder, number, shard) for number in missing}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=SAY_EVERY_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                done += len(finished)
                if finished and time.monotonic() - said > SAY_EVERY_SECONDS:
                    said = time.monotonic()
                    rate = done * shard / (said - started)
                    left = len(waiting) * shard / rate
                    say(f"  {done * shard:,} of {len(missing) * shard:,} crops, {rate:.0f} a second, {left:.0f} s left")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_renderer: Renderer | None = None


def _start_worker(spec: RenderSpec) -> None:
    global _renderer
    set_threads()
    _renderer = Renderer(spec)


def _render_shard(folder: Path, number: int, shard: int) -> None:
    assert _renderer is not None
    spec = _renderer.spec
    images = np.empty((shard, *spec.size, 3), np.uint8)
    texts = np.empty(shard, f"<U{spec.max_length}")
    boxes = np.full((shard, spec.max_length, 4), np.nan, np.float16)
    for row in range(shard):
        crop = _renderer(number * shard + row)
        images[row], texts[row], boxes[row, : len(crop.text)] = crop.image, crop.text, crop.boxes
    arrays: dict[str, NDArray] = dict(zip(PARTS, (images, texts, boxes), strict=True))
    for part, array in arrays.items():
        target = _file(folder, part, number)
        scratch = target.with_suffix(f".{os.getpid()}.tmp")
        with scratch.open("wb") as file:
            np.save(file, array)
        scratch.replace(target)
    _write(_file(folder, "done", number), json.dumps(_checksums(folder, number)).encode())


def _file(folder: Path, part: str, number: int) -> Path:
    return folder / f"{part}-{number:05}.{'json' if part == 'done' else 'npy'}"


def _is_complete(folder: Path, number: int) -> bool:
    return _file(folder, "done", number).exists() and all(_file(folder, part, number).exists() for part in PARTS)


def _checksums(folder: Path, number: int) -> dict[str, int]:
    return {part: zlib.crc32(_file(folder, part, number).read_bytes()) for part in PARTS}


def _write(path: Path, data: bytes) -> None:
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_bytes(data)
    scratch.replace(path)


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return about
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} is no folder of rendered crops ({ABOUT}: {error}). `vitocr data render` makes one."
        ) from error
