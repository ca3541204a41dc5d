"""The transformer decoder's parts: attention to remembered keys, the block, positions."""

import math

import pytest
import torch
from torch import nn

from vitocr.models.decoder import (
    DecoderBlock,
    KeysValues,
    MemoryAttention,
    attend_plain,
    causal_mask,
    reset,
    sine_positions,
)

CPU = torch.device("cpu")


def attention(heads: int = 4) -> MemoryAttention:
    torch.manual_seed(0)
    return MemoryAttention(16, heads)


def test_attention_is_torchs_multi_head_attention_with_the_same_weights() -> None:
    ours, theirs = attention(), nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    queries, memory, mask = torch.randn(3, 5, 16), torch.randn(3, 7, 16), torch.rand(5, 7) < 0.6
    mask[:, 0] = True
    expected, weights = theirs(queries, memory, memory, attn_mask=~mask, average_attn_weights=False)
    mixed, ours_weights = ours(queries, ours.remember(memory), mask=mask, want_weights=True)
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(ours_weights, weights)


@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_and_the_plain_way_agree(masked: bool) -> None:
    layer, x, memory = attention(), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    mask = causal_mask(5, CPU) if masked else None
    plain, _ = layer(x, layer.remember(memory), mask=mask)
    with torch.no_grad():
        fused, weights = layer(x, layer.remember(memory), mask=mask)
    assert weights is None
    torch.testing.assert_close(plain, fused, atol=1e-5, rtol=1e-5)


def test_a_mask_may_differ_from_image_to_image() -> None:
    layer, x, memory = attention(), torch.randn(2, 3, 16), torch.randn(2, 4, 16)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])[:, None, None]
    _, weights = layer(x, layer.remember(memory), mask=mask, want_weights=True)
    assert weights is not None
    assert (weights[0, :, :, 2:] == 0).all() and (weights[1] > 0).all()
    torch.testing.assert_close(weights.sum(dim=3), torch.ones(2, 4, 3))


def test_masked_attention_has_the_right_gradient() -> None:
    """The mask is written into the scores in place; the gradient must not notice."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = causal_mask(3, CPU)
    assert torch.autograd.gradcheck(lambda q, k, v: attend_plain(q, KeysValues(k, v), mask)[0], (q, k, v))


def test_keys_made_one_by_one_are_keys_made_together() -> None:
    layer, x = attention(), torch.randn(2, 4, 16)
    together, grown = layer.remember(x), layer.remember(x[:, :1])
    for at in range(1, 4):
        grown = grown.grown(layer.remember(x[:, at : at + 1]))
    torch.testing.assert_close(grown.keys, together.keys)
    torch.testing.assert_close(grown.values, together.values)
    kept = together.kept(torch.tensor([1]))
    torch.testing.assert_close(kept.keys, together.keys[1:])


def test_a_block_read_step_by_step_equals_the_causal_pass() -> None:
    torch.manual_seed(0)
    block, x = DecoderBlock(16, 4, mlp_ratio=2, activation="gelu"), torch.randn(2, 6, 16)
    image = block.image.remember(torch.randn(2, 9, 16))
    whole, looked = block(x, block.remember(x), image, mask=causal_mask(6, CPU), want_weights=True)
    assert looked is not None and looked.shape == (2, 6, 9)
    past = None
    for at in range(6):
        now = x[:, at : at + 1]
        past = block.remember(now) if past is None else past.grown(block.remember(now))
        step, weights = block(now, past, image, want_weights=True)
        torch.testing.assert_close(step[:, 0], whole[:, at], atol=1e-5, rtol=1e-5)
        assert weights is not None
        torch.testing.assert_close(weights[:, 0], looked[:, at], atol=1e-5, rtol=1e-5)


def test_a_fresh_block_changes_nothing() -> None:
    block = DecoderBlock(16, 4, mlp_ratio=2, activation="relu")
    reset(block)
    x = torch.randn(2, 3, 16)
    out, _ = block(x, block.remember(x), block.image.remember(torch.randn(2, 5, 16)))
    torch.testing.assert_close(out, x)


def test_the_causal_mask_lets_each_see_itself_and_those_before() -> None:
    assert causal_mask(3, CPU).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_sine_positions_are_those_of_the_paper() -> None:
    positions = sine_positions(10, 6)[0]
    for p in (0, 3, 9):
        for i in range(3):
            assert positions[p, 2 * i].item() == pytest.approx(math.sin(p / 10_000 ** (2 * i / 6)), abs=1e-5)
            assert positions[p, 2 * i + 1].item() == pytest.approx(math.cos(p / 10_000 ** (2 * i / 6)), abs=1e-5)


def test_a_width_that_does_not_divide_into_heads_is_named() -> None:
    with pytest.raises(ValueError, match=r"width 16 does not divide into head\.heads=3"):
        MemoryAttention(16, 3)
