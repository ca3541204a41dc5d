"""Whole batches at once: the same for one rank and many, exact in what it says about labels."""

import numpy as np
import pytest
import torch

from vitocr.data.batch_augment import BatchAugment, crop_and_flip, eval_images
from vitocr.data.loader import Batch
from vitocr.errors import UserError

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
OFF = {"crop_pad": 0, "flip": False, "cutmix": 0.0}


def batch(size: int = 8, position: int = 0, height: int = 16, width: int = 12) -> Batch:
    images = torch.randint(0, 256, (size, height, width, 3), generator=torch.Generator().manual_seed(size))
    return Batch(images.to(torch.uint8), torch.arange(size), position)


def solid(size: int = 64, position: int = 0) -> Batch:
    """Even rows black, odd rows white: the brightness of a mixed image is the share of its white part."""
    images = torch.zeros(size, 16, 12, 3, dtype=torch.uint8)
    images[1::2] = 255
    return Batch(images, torch.arange(size), position)


def test_with_everything_off_it_does_what_evaluation_does():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    augmented = BatchAugment(**OFF)(batch(), progress=0.0, mean=mean, std=std)
    expected = (batch().images / 255 - torch.tensor(mean)) / torch.tensor(std)
    torch.testing.assert_close(augmented.images, expected.permute(0, 3, 1, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(augmented.images, eval_images(batch().images, mean, std))
    assert augmented.images.is_contiguous() and augmented.mixed is None and augmented.lam == 1.0


def test_crop_and_flip_match_padding_cropping_and_mirroring_one_by_one():
    images, pad = batch(6).images, 3
    shift = np.random.default_rng(0).integers(0, 2 * pad + 1, (6, 2))
    mirror = np.array([0, 1, 0, 1, 1, 0], dtype=bool)
    got = crop_and_flip(images, shift, mirror, pad=pad)
    for i, (y, x) in enumerate(shift):
        padded = np.pad(images[i].numpy(), ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
        if mirror[i]:
            padded = padded[:, ::-1]
        expected = padded[y : y + 16, x : x + 12].transpose(2, 0, 1)
        np.testing.assert_array_equal(got[i].numpy(), expected)


@pytest.mark.parametrize("kind", [{"cutmix": 1.0}, {"cutmix": 0.0, "mixup": 1.0}, {"cutmix": 0.5, "erase": 0.5}])
def test_two_ranks_together_see_what_one_process_sees(kind):
    augment, whole = BatchAugment(**kind), batch(8, position=5)
    alone = augment(whole, progress=0.0, **PLAIN)
    halves = [
        augment(Batch(whole.images[part], whole.targets[part], 5), progress=0.0, rank=rank, world=2, **PLAIN)
        for rank, part in enumerate((slice(0, 4), slice(4, 8)))
    ]
    assert torch.equal(torch.cat([half.images for half in halves]), alone.images)
    if alone.mixed is not None:
        assert torch.equal(torch.cat([half.mixed for half in halves]), alone.mixed)
        assert torch.equal(torch.cat([half.lam for half in halves]), alone.lam)


def test_a_position_always_gives_the_same_images_and_another_gives_others():
    augment = BatchAugment(cutmix=1.0)
    first, again, later = (augment(batch(position=p), progress=0.0, **PLAIN).images for p in (3, 3, 4))
    other_seed = BatchAugment(cutmix=1.0, seed=1)(batch(position=3), progress=0.0, **PLAIN).images
    assert torch.equal(first, again)
    assert not torch.equal(first, later) and not torch.equal(first, other_seed)


@pytest.mark.parametrize("kind", [{"cutmix": 1.0}, {"cutmix": 0.0, "mixup": 1.0, "mixup_alpha": 1.0}])
def test_label_weights_are_the_shares_of_the_pixels(kind):
    weights = []
    for position in range(5):
        images, targets, mixed, lam = BatchAugment(**kind)(solid(position=position), progress=0.0, **PLAIN)
        white = images.mean(dim=(1, 2, 3))
        own = torch.where(targets % 2 == 1, white, 1 - white)
        torch.testing.assert_close(lam, own, atol=1e-5, rtol=0)
        assert torch.equal(mixed, targets ^ 1)
        weights.append(lam)
    assert torch.cat(weights).std() > 0.1  # each image has a weight of its own


def test_cutmix_pastes_one_box_and_leaves_the_rest_alone():
    images, _, _, lam = BatchAugment(cutmix=1.0)(solid(), progress=0.0, **PLAIN)
    for row, (image, weight) in enumerate(zip(images, lam, strict=True)):
        pasted = image[0] != (row % 2)
        assert image.unique().numel() <= 2
        ys, xs = pasted.any(dim=1), pasted.any(dim=0)
        assert int(pasted.sum()) == int(ys.sum()) * int(xs.sum())  # a full rectangle
        assert float(weight) == pytest.approx(1 - float(pasted.float().mean()))


def test_mixing_stops_at_the_off_ramp():
    augment = BatchAugment(cutmix=0.5, mixup=0.5, mix_until=0.8)
    assert augment(batch(), progress=0.79, **PLAIN).mixed is not None
    assert augment(batch(), progress=0.8, **PLAIN).mixed is None


def test_shares_are_shares_of_batches():
    augment = BatchAugment(cutmix=0.3, mixup=0.0)
    mixed = [augment(batch(position=p), progress=0.0, **PLAIN).mixed is not None for p in range(400)]
    assert 0.22 < np.mean(mixed) < 0.38


def test_auto_alters_more_images_the_more_often_each_will_be_seen():
    augment = BatchAugment(cutmix="auto", mixup="auto", ops="auto")
    assert augment.shares(0) == augment.shares(20) == (0.4, 0.0, 0.0)
    short, long = augment.shares(60), augment.shares(120)
    assert all(a < b for a, b in zip(short, long, strict=True))
    assert augment.shares(200) == augment.shares(2000) == pytest.approx((0.6, 0.4, 1.0))


def test_auto_takes_what_is_left_of_the_batches():
    assert BatchAugment(cutmix=1.0, mixup="auto").shares(500)[:2] == (1.0, 0.0)
    assert BatchAugment(cutmix="auto", mixup=0.8).shares(500)[:2] == pytest.approx((0.2, 0.8))
    with pytest.raises(UserError, match="together they must not exceed 1"):
        BatchAugment(cutmix=0.7, mixup=0.5)
    with pytest.raises(UserError, match=r"augment\.mixup=often: give a share"):
        BatchAugment(mixup="often")


def test_turning_mixing_off_leaves_crops_and_flips_as_they_were():
    plain = BatchAugment(cutmix=0.0)(batch(), progress=0.0, **PLAIN).images
    late = BatchAugment(cutmix=1.0)(batch(), progress=1.0, **PLAIN).images
    assert torch.equal(plain, late)


def test_erasing_puts_the_mean_colour_into_a_box():
    white = Batch(torch.full((200, 16, 12, 3), 255, dtype=torch.uint8), torch.zeros(200).long(), 0)
    images = BatchAugment(**OFF, erase=0.5)(white, progress=0.0, mean=(0.5,) * 3, std=(0.5,) * 3).images
    gone = (images == 0).float().mean(dim=(1, 2, 3))
    assert set(images.unique().tolist()) == {0.0, 1.0}
    assert 0.3 < (gone > 0).float().mean() < 0.6 and gone.max() <= 0.34


def test_an_odd_last_image_is_mixed_with_itself():
    augmented = BatchAugment(**OFF | {"cutmix": 1.0})(batch(5), progress=0.0, **PLAIN)
    assert augmented.mixed.tolist() == [1, 0, 3, 2, 4]
    torch.testing.assert_close(augmented.images[4], batch(5).images[4].permute(2, 0, 1) / 255)


def test_bf16_is_the_rounded_float32():
    augment = BatchAugment(cutmix=1.0)
    low = augment(batch(), progress=0.0, dtype=torch.bfloat16, **PLAIN).images
    assert torch.equal(low, augment(batch(), progress=0.0, **PLAIN).images.bfloat16())


def test_odd_slices_on_several_ranks_are_refused_with_a_batch_size_that_works():
    with pytest.raises(UserError, match="make batch_size a multiple of 4"):
        BatchAugment()(batch(3), progress=0.0, rank=0, world=2, **PLAIN)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cutmix": 1.5}, "augment.cutmix=1.5 is a share"),
        ({"cutmix": 0.7, "mixup": 0.7}, "together they must not exceed 1"),
        ({"mixup_alpha": 0.0}, "augment.mixup_alpha=0.0 must be positive"),
        ({"crop_pad": -1}, "augment.crop_pad=-1 must not be negative"),
    ],
)
def test_options_that_make_no_sense_are_named(wrong, message):
    with pytest.raises(UserError, match=message):
        BatchAugment(**wrong)


def test_a_border_wider_than_the_image_is_refused():
    with pytest.raises(UserError, match=r"crop_pad=12 must be smaller than the image \(16 x 12 pixels\)"):
        BatchAugment(crop_pad=12)(batch(), progress=0.0, **PLAIN)
