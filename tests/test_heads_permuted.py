"""The permuted decoder: its masks, and that its ways of reading look at what they may and nothing else."""

import pytest
import torch
import torch.nn.functional as F
from heads_kit import (
    LONGEST,
    SYMBOLS,
    half_taught,
    head_of,
    random_texts,
    shaken,
    some_tokens,
    targets_of,
    texts_of,
    tokens_showing,
    train,
    unclear_tokens,
)
from torch import Tensor

from vitocr.heads.permuted import Permuted, cloze_mask, draw_orders, order_mask
from vitocr.models.decoder import causal_mask

CPU = torch.device("cpu")


def test_the_mask_of_left_to_right_is_the_causal_mask() -> None:
    for places in (1, 2, 9):
        assert torch.equal(order_mask(torch.arange(places)[None])[0], causal_mask(places, CPU))


def test_any_order_shows_each_place_what_comes_before_it_in_that_order() -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        turns = torch.randperm(6)
        mask = order_mask(turns[None])[0]
        for place in range(6):
            assert mask[place, 0]  # the begin
            for character in range(5):
                assert mask[place, 1 + character] == (turns[character] < turns[place])
            if place < 5:
                assert not mask[place, 1 + place]  # never itself


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_orders_come_in_mirrored_pairs_and_begin_with_left_to_right(count: int) -> None:
    turns = draw_orders(count, 7, CPU)
    assert turns.shape == (count, 7)
    assert turns[0].tolist() == list(range(7))
    for odd in range(1, count, 2):
        assert (turns[odd] + turns[odd - 1] == 6).all()
    assert all(sorted(turn) == list(range(7)) for turn in turns.tolist())


def test_the_cloze_mask_hides_ones_own_character_only() -> None:
    assert cloze_mask(4, CPU).tolist() == [
        [True, False, True, True],
        [True, True, False, True],
        [True, True, True, False],
        [True, True, True, True],  # the place after the last character
    ]


def full_pass(head: Permuted, memory: Tensor, text: list[int], mask: Tensor) -> Tensor:
    """Logits of all places of a text under a mask: the whole computation, nothing remembered."""
    given = torch.tensor([[SYMBOLS, *text]])
    x, _ = head.answers(
        head.queries(memory, 0, len(text) + 1),
        head.content(given, 0, memory.dtype),
        head.block.image.remember(memory),
        mask=mask,
        want_weights=False,
    )
    return head.logits(x)[0]


def test_reading_left_to_right_equals_the_full_masked_pass_step_by_step() -> None:
    head, tokens = half_taught("permuted"), unclear_tokens(20)
    found = head.decode(tokens, refine=0)
    with torch.no_grad():
        for i, text in enumerate(texts_of(found)):
            chances = full_pass(head, tokens[i : i + 1], text, causal_mask(len(text) + 1, CPU)).softmax(dim=1)
            if len(text) < LONGEST:
                assert chances.argmax(dim=1).tolist() == [*text, SYMBOLS]
            right = chances.gather(1, torch.tensor([*text, SYMBOLS])[:, None])[:, 0]
            torch.testing.assert_close(right[:-1], found.probs[i, : len(text)], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(right.prod(), found.confidence[i], atol=1e-5, rtol=1e-5)


def test_a_refining_pass_answers_each_place_from_all_the_others() -> None:
    head, tokens = half_taught("permuted"), unclear_tokens(20)
    first, second = head.decode(tokens, refine=0), head.decode(tokens, refine=1)
    changed = 0
    with torch.no_grad():
        for i, text in enumerate(texts_of(first)):
            P = len(text) + 1
            said = full_pass(head, tokens[i : i + 1], text, cloze_mask(P, CPU)).argmax(dim=1).tolist()
            refined = texts_of(second)[i]
            ended = said.index(SYMBOLS) if SYMBOLS in said else min(P, LONGEST)
            assert refined[:P] == said[:ended]
            assert len(refined) <= min(LONGEST, len(text) + 1)
            changed += refined != text
    assert changed  # or nothing was shown


def test_a_place_never_sees_its_own_character_while_refining() -> None:
    head, memory = shaken("permuted"), some_tokens(1)
    text = [1, 2, 3, 4]
    with torch.no_grad():
        before = full_pass(head, memory, text, cloze_mask(5, CPU))
        for place in range(4):
            other = [9 if i == place else symbol for i, symbol in enumerate(text)]
            after = full_pass(head, memory, other, cloze_mask(5, CPU))
            same = (before - after).abs().amax(dim=1) < 1e-6
            assert same.tolist() == [i == place for i in range(5)]


def test_training_looks_at_no_padding() -> None:
    """The loss of a short text does not change with what stands beside it in the batch."""
    head, tokens = shaken("permuted"), some_tokens(2)
    head.orders = 2  # left to right and its mirror: nothing random
    alone = [head.loss(tokens[i : i + 1], targets_of([text]))["loss"] for i, text in enumerate([[1, 2], [3] * 7])]
    both = head.loss(tokens, targets_of([[1, 2], [3] * 7]))["loss"]
    torch.testing.assert_close(both, (3 * alone[0] + 8 * alone[1]) / 11)


def test_parallel_reading_is_a_single_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    head, tokens = shaken("permuted"), some_tokens(5)
    passes = []
    answers = head.answers
    monkeypatch.setattr(head, "answers", lambda *a, **k: passes.append(1) or answers(*a, **k))
    head.decode(tokens, mode="parallel", refine=0)
    assert len(passes) == 1
    head.decode(tokens, mode="parallel", refine=2)
    assert len(passes) == 1 + 3


def test_parallel_reading_sees_the_begin_only() -> None:
    head, tokens = shaken("permuted"), some_tokens(3)
    only_begin = torch.zeros(LONGEST + 1, LONGEST + 1, dtype=torch.bool)
    only_begin[:, 0] = True
    with torch.no_grad():
        expected = [full_pass(head, tokens[i : i + 1], [4] * LONGEST, only_begin) for i in range(3)]
    torch.testing.assert_close(head(tokens), torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_all_ways_of_reading_agree_once_it_is_learned() -> None:
    texts = random_texts(24)
    tokens, head = tokens_showing(texts), head_of("permuted")
    train(head, tokens, targets_of(texts), steps=300, align=0.3)
    for options in ({"refine": 0}, {"refine": 2}, {"mode": "parallel", "refine": 0}, {"mode": "parallel"}):
        assert texts_of(head.decode(tokens, **options)) == texts, options


def test_refining_mends_a_character() -> None:
    """Given a wrong first guess of a learned text, the pass over all places puts it right."""
    texts = [text for text in random_texts(24) if len(text) > 3]
    tokens, head = tokens_showing(texts), head_of("permuted")
    train(head, tokens, targets_of(texts), steps=300, align=0.3)
    guess = head.decode(tokens, refine=0)
    spoiled = guess._replace(ids=guess.ids.index_fill(1, torch.tensor([1]), 0))
    mended = texts_of(head.read_places(tokens, spoiled))
    assert sum(a == b for a, b in zip(mended, texts, strict=True)) > 0.8 * len(texts)


def test_the_loss_is_the_mean_over_the_orders_each_as_its_full_masked_pass() -> None:
    head, tokens, text = shaken("permuted"), some_tokens(1), [1, 2, 3]
    head.orders = 4
    torch.manual_seed(0)
    loss = head.loss(tokens, targets_of([text]))["loss"]
    torch.manual_seed(0)
    masks = order_mask(draw_orders(4, 4, CPU))
    answers = torch.tensor([*text, SYMBOLS])
    each = [F.cross_entropy(full_pass(head, tokens, text, mask), answers) for mask in masks]
    torch.testing.assert_close(loss, torch.stack(each).mean())
