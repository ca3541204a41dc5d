"""Batches: every row once an epoch, whoever reads them, and from wherever reading is taken up."""

import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitocr.data.arrays import ImageArrays, PathRows, split_off
from vitocr.data.loader import ArrayLoader, Batch, FileLoader, epoch_order
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

PREPROCESS = Preprocess(size=(6, 6), mean=(0.0,) * 3, std=(1 / 255,) * 3)


def arrays(n: int = 22) -> ImageArrays:
    """The pixels and the label of a row are its number."""
    images = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 6, 6, 3)).copy()
    return ImageArrays(images, np.arange(n))


@pytest.fixture
def files(tmp_path) -> PathRows:
    for row, image in enumerate(arrays().images):
        Image.fromarray(image).save(tmp_path / f"{row}.png")
    return PathRows(tmp_path, tuple(f"{row}.png" for row in range(22)), np.arange(22))


def shaken(image: np.ndarray, seed: int) -> np.ndarray:
    """A random augmentation: what a row becomes depends on the seed."""
    return image.transpose(2, 0, 1) + np.random.default_rng(seed).random((3, 6, 6), dtype=np.float32)


def make(kind: str, rows: PathRows, **kwargs) -> ArrayLoader | FileLoader:
    kwargs = {"batch_size": 4, "seed": 1} | kwargs
    if kind == "arrays":
        return ArrayLoader(arrays(), **kwargs)
    return FileLoader(rows, preprocess=PREPROCESS, augment=shaken, **kwargs)


def same(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a.images, b.images) and torch.equal(a.targets, b.targets) and a.position == b.position
        for a, b in zip(left, right, strict=True)
    )


both_kinds = pytest.mark.parametrize("kind", ["arrays", "files"])


@both_kinds
def test_an_epoch_shows_every_row_once_in_an_order_of_its_own(kind, files):
    loader = make(kind, files, batch_size=11)
    first, second = ([b.targets for b in loader] for _ in range(2))
    for epoch in (first, second):
        assert sorted(torch.cat(epoch).tolist()) == list(range(22))
    assert torch.cat(first).tolist() != torch.cat(second).tolist()


@both_kinds
def test_images_belong_to_their_targets(kind, files):
    for batch in make(kind, files):
        assert torch.equal(batch.images.float().flatten(1).amin(dim=1).floor().long(), batch.targets)


@both_kinds
def test_positions_count_on_across_epochs_and_the_short_batch_is_left_out(kind, files):
    loader = make(kind, files)
    assert len(loader) == 5
    assert [b.position for _ in range(2) for b in loader] == list(range(10))


@both_kinds
@pytest.mark.parametrize("position", [0, 3, 5, 12])
def test_from_any_position_come_the_batches_of_an_uninterrupted_run(kind, files, position):
    whole = make(kind, files)
    expected = [b for _ in range(3) for b in whole]
    resumed = make(kind, files)
    resumed.set_position(position)
    got = [b for _ in range(3 - position // 5) for b in resumed]
    assert same(got, expected[position:])


@both_kinds
def test_the_state_holds_the_position_behind_the_last_batch_given_out(kind, files):
    loader, other = make(kind, files), make(kind, files)
    seen = list(islice(loader, 3))
    other.load_state_dict(loader.state_dict())
    assert loader.state_dict() == {"position": 3}
    assert same(seen + list(other), list(make(kind, files)))


@both_kinds
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_read_what_one_process_reads(kind, files, world):
    ranks = [list(make(kind, files, rank=rank, world=world)) for rank in range(world)]
    together = [
        Batch(torch.cat([p.images for p in parts]), torch.cat([p.targets for p in parts]), parts[0].position)
        for parts in zip(*ranks, strict=True)
    ]
    assert same(together, list(make(kind, files)))


def test_worker_processes_end_with_their_loader(files):
    loader = make("files", files, workers=1)
    next(iter(loader))
    (worker,) = loader.loader._iterator._workers
    started = time.monotonic()
    del loader
    assert not worker.is_alive() and time.monotonic() - started < 4  # PyTorch gives up waiting after 5


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_the_number_of_workers_changes_nothing(files):
    alone, helped = make("files", files), make("files", files, workers=2)
    for _ in range(2):  # workers live on into the next epoch
        assert same(list(helped), list(alone))
    helped.set_position(7)
    alone.set_position(7)
    assert same(list(helped), list(alone))


@both_kinds
@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_sees_every_row_exactly_once_in_order_at_every_pass(kind, files, world):
    where = {"world": world, "shuffle": False, "drop_last": False}
    loaders = [make(kind, files, rank=rank, **where) for rank in range(world)]
    next(iter(loaders[0]))  # a pass that was broken off does not matter
    for _ in range(2):
        parts = [(b.position, rank, b.targets) for rank, loader in enumerate(loaders) for b in loader]
        parts.sort(key=lambda part: part[:2])
        assert torch.cat([targets for _, _, targets in parts]).tolist() == list(range(22))
        assert all(len(targets) for _, _, targets in parts)  # a rank with nothing left is not asked


def test_without_augmentation_files_are_preprocessed_as_in_use(files):
    loader = FileLoader(files, preprocess=PREPROCESS, batch_size=4, shuffle=False, drop_last=False)
    batch = next(iter(loader))
    assert batch.images.shape == (4, 3, 6, 6)
    np.testing.assert_array_equal(batch.images[2], PREPROCESS(arrays().images[2]))


def test_arrays_can_be_augmented_one_by_one_as_well(files):
    from_arrays = FileLoader(arrays(), preprocess=PREPROCESS, augment=shaken, batch_size=4, seed=1)
    assert same(list(from_arrays), list(make("files", files)))


def test_a_row_is_augmented_anew_in_every_epoch(files):
    loader = make("files", files, batch_size=22)
    first, second = (next(iter(loader)) for _ in range(2))
    assert not torch.equal(first.images[first.targets.argsort()].frac(), second.images[second.targets.argsort()].frac())


def test_the_order_is_a_pure_function_of_its_arguments():
    assert np.array_equal(epoch_order(100, seed=1, epoch=2), epoch_order(100, seed=1, epoch=2))
    others = [epoch_order(100, seed=s, epoch=e) for s, e in ((2, 2), (1, 3), (2, 1))]
    assert not any(np.array_equal(epoch_order(100, seed=1, epoch=2), other) for other in others)


def spoil(rows: PathRows, *numbers: int) -> None:
    for number in numbers:
        data = rows.path(number).read_bytes()
        rows.path(number).write_bytes(data[: len(data) // 2])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
@pytest.mark.parametrize("workers", [0, 2])
def test_in_training_an_unreadable_image_is_named_counted_and_replaced(files, workers):
    spoil(files, 7)
    said: list[str] = []
    loader = make("files", files, workers=workers, say=said.append)
    batches = [b for _ in range(2) for b in loader]
    assert all(len(b.targets) == 4 for b in batches)
    assert 7 not in torch.cat([b.targets for b in batches])
    assert len(said) == 1  # once, however often it is met
    assert said[0].startswith("Skipped an unreadable image (1 so far): ") and "7.png" in said[0]


def test_the_stand_in_is_the_next_row_of_the_batch_for_every_number_of_ranks(files):
    good = next(iter(make("files", files))).targets.tolist()
    spoil(files, good[1])
    expected = [good[0], good[2], good[2], good[3]]
    batch = next(iter(make("files", files, say=lambda _: None)))
    halves = [next(iter(make("files", files, rank=r, world=2, say=lambda _: None))) for r in (0, 1)]
    assert batch.targets.tolist() == expected
    assert torch.equal(torch.cat([half.images for half in halves]), batch.images)
    assert not torch.equal(batch.images[1], batch.images[2])  # augmented on its own


def test_in_evaluation_an_unreadable_image_is_left_out(files):
    spoil(files, 7)
    said: list[str] = []
    loader = make("files", files, shuffle=False, drop_last=False, say=said.append)
    assert torch.cat([b.targets for b in loader]).tolist() == [row for row in range(22) if row != 7]
    assert len(said) == 1


def test_too_many_unreadable_images_stop_the_run_with_their_names(files):
    spoil(files, 3, 7, 11)
    with pytest.raises(UserError) as error:
        list(make("files", files, batch_size=22, max_bad_fraction=0.1, say=lambda _: None))
    message = str(error.value)
    assert message.startswith("3 of 22 images cannot be read, more than the 2 that are put up with:")
    assert all(f"{row}.png' cannot be read as an image" in message for row in (3, 7, 11))
    assert "raise max_bad_fraction" in message


def test_a_missing_image_is_treated_like_an_unreadable_one(files):
    Path(files.path(4)).unlink()
    said: list[str] = []
    list(make("files", files, say=said.append, batch_size=22))
    assert "There is no image" in said[0]


@both_kinds
def test_a_batch_larger_than_the_data_is_refused_with_a_size_that_fits(kind, files):
    with pytest.raises(UserError, match="has 22 images, fewer than one batch of 128: set batch_size to 22 or"):
        make(kind, files, batch_size=128)


def test_a_batch_that_cannot_be_shared_out_is_refused():
    with pytest.raises(UserError, match="batch_size=5 counts the images of all 2 processes: make it a multiple of 2"):
        ArrayLoader(arrays(), batch_size=5, world=2)


def test_held_out_rows_are_stratified_even_when_classes_differ_in_size():
    rows = ImageArrays(np.zeros((115, 1, 1, 3), np.uint8), np.repeat([0, 1, 2, 3], [100, 10, 4, 1]))
    kept, held = split_off(rows, 0.2, seed=0)
    assert np.bincount(held.labels, minlength=4).tolist() == [20, 2, 1, 0]
    assert np.bincount(kept.labels).tolist() == [80, 8, 3, 1]
