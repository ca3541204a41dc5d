"""Crops of words are varied moderately, and characters whose place is known stay where they are."""

import numpy as np
import torch
from torch import Tensor

from vitocr.data.text_augment import COLOURS, SEEN, augment, disguised, draw, warped


def crops(count: int) -> Tensor:
    """Dark crops with a bright square in the middle."""
    images = torch.full((count, 3, 32, 128), 40.0)
    images[:, :, 12:20, 60:68] = 220
    return images


def middle(image: Tensor) -> tuple[float, float]:
    bright = (image[0] > 130).float()
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(128.0), indexing="ij")
    return float((bright * y).sum() / bright.sum()), float((bright * x).sum() / bright.sum())


def test_no_strength_only_looks_at_a_little_more_than_the_crop() -> None:
    image = warped(crops(1), torch.zeros(1, 7))[0]
    assert middle(image) == (15.5, 63.5)
    light = float((image[0] - 40).sum() / (64 * 180))
    assert abs(light - 1 / (SEEN[0] * SEEN[1])) < 0.02  # seen from a little further away


def test_each_number_of_a_warp_does_what_it_is_called() -> None:
    left, right = crops(1), crops(1)
    left[:, :, 12:20, 20:28], right[:, :, 12:20, 100:108] = 220, 220
    left[:, :, 12:20, 60:68], right[:, :, 12:20, 60:68] = 40, 40

    def moved(image: Tensor, number: int, strength: float) -> tuple[float, float]:
        warp = torch.zeros(1, 7)
        warp[0, number] = strength
        (y, x), (y0, x0) = middle(warped(image, warp)[0]), middle(warped(image, torch.zeros(1, 7))[0])
        return y - y0, x - x0

    turned = moved(left, 0, 1.0)[0], moved(right, 0, 1.0)[0]
    assert turned[0] * turned[1] < 0 and min(map(abs, turned)) > 2  # one end up, the other down
    assert moved(left, 3, 1.0)[1] > 1 and moved(right, 3, 1.0)[1] < -1  # both towards the middle
    assert abs(moved(left, 4, 1.0)[0]) > 1 and abs(moved(left, 5, 1.0)[1]) > 1  # down, across
    assert abs(moved(left, 1, 1.0)[1]) < 0.2  # slanting leaves the middle line where it is
    assert max(abs(shift) for number in range(7) for shift in moved(right, number, -1.0)) < 12  # and all is moderate


def test_words_whose_characters_must_stay_are_not_moved() -> None:
    drawn = draw(64, np.random.default_rng(0), ops=0.0, warp=1.0)
    movable = torch.arange(64) % 2 == 0
    images = crops(64)
    result = augment(images, drawn, movable=movable)
    changed = (result != images).flatten(1).any(dim=1)
    assert torch.equal(changed, movable)


def test_shares_are_kept_and_two_ranks_draw_what_one_process_draws() -> None:
    drawn = draw(2000, np.random.default_rng(0), ops=0.3, warp=0.5)
    assert 0.25 < (drawn.operation >= 0).mean() < 0.35 and 0.45 < drawn.warped.mean() < 0.55
    images = crops(8) + torch.arange(8.0).view(8, 1, 1, 1)
    part = drawn.of(slice(0, 8))
    movable = torch.ones(8, dtype=torch.bool)
    whole = augment(images, part, movable=movable)
    halves = [augment(images[rows], part.of(rows), movable=movable[rows]) for rows in (slice(0, 4), slice(4, 8))]
    assert torch.allclose(torch.cat(halves), whole, atol=1e-3)


def test_the_batch_handed_in_stays_as_it_was() -> None:
    images = crops(16)
    before = images.clone()
    augment(images, draw(16, np.random.default_rng(1), ops=1.0, warp=1.0), movable=torch.ones(16, dtype=torch.bool))
    assert torch.equal(images, before)


def test_a_photographed_word_is_disguised_and_stays_where_it_is() -> None:
    images = crops(4)
    images[:, 0] += 10  # redder than green
    kinds = np.array([[0, 0, 0], [COLOURS.index((1, 0, 2)), 0, 0], [0, 1, 0], [0, 0, 3]])
    same, exchanged, negative, coarse = disguised(images, kinds)
    assert torch.equal(same, images[0])
    assert torch.equal(exchanged, images[0][[1, 0, 2]])
    assert torch.equal(negative, 255 - images[0])
    assert torch.allclose(coarse.mean(), same.mean(), atol=1) and (coarse - same).abs().max() > 20
    assert np.allclose(middle(coarse), middle(same), atol=0.5)


def test_only_photographs_are_disguised_and_as_many_as_asked_for() -> None:
    drawn = draw(2000, np.random.default_rng(0), ops=0.0, warp=0.0, disguise=0.5)
    assert 0.45 < drawn.disguised.mean() < 0.55
    images, photographs = crops(256), torch.arange(256) % 2 == 0
    images[:, 0] += 10
    part = drawn.of(slice(0, 256))
    changed = (augment(images, part, movable=photographs, photographs=photographs) != images).flatten(1).any(dim=1)
    assert not changed[~photographs].any()
    unchanged_by_chance = 1 / (6 * 2 * 4)
    assert abs(changed.float().mean() - 0.25 * (1 - unchanged_by_chance)) < 0.08
    assert torch.equal(augment(images, part, movable=photographs), images), "unless somebody says which they are"


def test_what_else_is_drawn_does_not_depend_on_disguises() -> None:
    plain, more = (draw(50, np.random.default_rng(3), ops=0.3, warp=0.5, disguise=share) for share in (0.0, 1.0))
    assert all(np.array_equal(a, b) for a, b in zip(plain[:4], more[:4], strict=True))


def test_photographed_words_lean_when_asked_to_and_are_still_seen_whole() -> None:
    words = torch.full((2, 3, 32, 128), 40.0)
    words[:, :, 6:26, 4:124] = 220  # a word that fills its crop
    flat, leaning = warped(words, torch.zeros(2, 7), lean=torch.tensor([0.0, 1.0]))
    assert torch.equal(flat, warped(words[:1], torch.zeros(1, 7))[0])
    rows = torch.arange(32.0)
    bright = (leaning[0] > 130).float()
    height = (bright * rows[:, None]).sum(dim=0) / bright.sum(dim=0)  # of the middle of the word, column by column
    assert abs(height[25] - height[103]) > 6, "one end stands higher"
    border = torch.cat([leaning[0, 0], leaning[0, -1], leaning[0, :, 0], leaning[0, :, -1]])
    assert (border > 130).float().mean() < 0.05, "and nothing is cut off"


def test_only_photographs_lean_and_as_many_as_asked_for() -> None:
    drawn = draw(256, np.random.default_rng(0), ops=0.0, warp=0.0, lean=0.5)
    assert 0.4 < (drawn.lean != 0).mean() < 0.6
    images, photographs = crops(256), torch.arange(256) % 2 == 0
    everywhere = torch.ones(256, dtype=torch.bool)
    changed = (augment(images, drawn, movable=everywhere, photographs=photographs) != images).flatten(1).any(dim=1)
    assert torch.equal(changed, photographs & torch.from_numpy(drawn.lean != 0))
    assert torch.equal(augment(images, drawn, movable=everywhere), images), "unless somebody says which they are"
