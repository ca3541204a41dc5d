"""Sparse attention: the patterns are those of the paper, and what is computed fast equals a masked dense reference."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vitocr.errors import UserError
from vitocr.models import flex, sparse
from vitocr.models.flops import training_flops
from vitocr.models.model import build_model
from vitocr.models.patterns import Pattern, span_for
from vitocr.models.sparse import attend_masked, attend_sparse
from vitocr.models.vit import ViT

BOTH_WAYS = pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])


def looks_at(pattern: Pattern, token: int, tokens: int, *, causal: bool = False) -> list[int]:
    return pattern.mask(tokens, causal=causal)[token].nonzero().flatten().tolist()


# What the patterns are


def test_strided_sees_a_window_and_every_l_th_token() -> None:
    assert looks_at(Pattern("strided", 4), 9, 20) == [1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17]
    assert looks_at(Pattern("strided", 4), 9, 20, causal=True) == [1, 5, 6, 7, 8, 9]


def test_strided_by_the_columns_of_a_grid_sees_the_whole_column() -> None:
    seen = Pattern("strided", 8).mask(64)[3 * 8 + 5].reshape(8, 8)
    assert seen[:, 5].all()
    assert seen.sum() == 8 + 14  # and seven tokens on either side that are not of the column


def test_fixed_sees_its_block_and_the_summary_of_every_block() -> None:
    pattern = Pattern("fixed", 4, summary=1)
    assert looks_at(pattern, 9, 20) == [3, 7, 8, 9, 10, 11, 15, 19]
    assert looks_at(pattern, 9, 20, causal=True) == [3, 7, 8, 9]


def test_a_short_last_block_is_summed_up_too() -> None:
    assert looks_at(Pattern("fixed", 4, summary=2), 0, 11) == [0, 1, 2, 3, 6, 7, 9, 10]
    assert looks_at(Pattern("fixed", 4, summary=2), 0, 9) == [0, 1, 2, 3, 6, 7, 8]


def test_a_window_sees_so_many_on_either_side() -> None:
    assert looks_at(Pattern("window", 2), 5, 20) == [3, 4, 5, 6, 7]
    assert looks_at(Pattern("window", 2), 0, 20) == [0, 1, 2]


def test_the_prefix_sees_all_and_is_seen_by_all() -> None:
    mask = Pattern("window", 1, prefix=1).mask(9)
    assert mask[0].all() and mask[:, 0].all()
    assert torch.equal(mask[1:, 1:], Pattern("window", 1).mask(8))
    assert torch.equal(Pattern("window", 1, prefix=2).mask(9, causal=True)[1], torch.arange(9) < 2)


@pytest.mark.parametrize("kind", ["strided", "fixed"])
@pytest.mark.parametrize("tokens", [16, 50, 64, 100, 196])
def test_two_layers_of_the_spans_chosen_connect_any_two_tokens(kind: str, tokens: int) -> None:
    mask = Pattern(kind, span_for(kind, tokens)).mask(tokens).float()
    assert (mask @ mask).bool().all()


def test_the_span_chosen_is_about_the_square_root_and_divides_the_columns_if_it_can() -> None:
    assert span_for("strided", 4096, columns=64) == 64
    assert span_for("strided", 32 * 128, columns=128) == 64
    assert span_for("strided", 197, columns=None) == 14
    assert span_for("strided", 1000, columns=1000) == 25
    assert span_for("window", 97, columns=97) == 10  # a prime number of columns
    assert span_for("fixed", 4096, summary=4) == 128
    assert span_for("fixed", 2, summary=4) == 5


# The fast way equals the slow one


def inputs(tokens: int, *, images: int = 2, heads: int = 2, dim: int = 8, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    # As attention hands them over: heads split from tokens, so not contiguous, and queries scaled.
    made = [torch.randn(images, tokens, heads, dim, generator=random).transpose(1, 2) for _ in range(3)]
    return [(x * scale).requires_grad_() for x, scale in zip(made, (dim**-0.5, 1, 1), strict=True)]


def assert_as_masked_dense(pattern: Pattern, tokens: int, *, causal: bool, seed: int = 0) -> None:
    fast, slow = inputs(tokens, seed=seed), inputs(tokens, seed=seed)
    a = attend_sparse(*fast, pattern, causal=causal)
    b = attend_masked(*slow, pattern.mask(tokens, causal=causal))[0]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    direction = torch.randn(b.shape, generator=torch.Generator().manual_seed(seed + 1))
    ours = torch.autograd.grad((a * direction).sum(), fast)
    theirs = torch.autograd.grad((b * direction).sum(), slow)
    for name, x, y in zip("qkv", ours, theirs, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=0, msg=lambda told, name=name: f"gradient of {name}: {told}")


LENGTHS = [*range(1, 20), 24, 25, 31, 32, 33, 49, 64, 97]


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
@pytest.mark.parametrize("span", [1, 2, 3, 5, 8, 40])
def test_it_equals_masked_dense_attention_at_every_length(kind: str, span: int, causal: bool) -> None:
    for tokens in LENGTHS:
        for summary in (1, 3) if kind == "fixed" else (1,):
            assert_as_masked_dense(Pattern(kind, span, summary), tokens, causal=causal, seed=tokens)


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
def test_it_equals_masked_dense_attention_with_a_prefix(kind: str, causal: bool) -> None:
    for tokens in (2, 5, 17, 33):
        for prefix in (1, 2):
            if prefix < tokens:
                assert_as_masked_dense(Pattern(kind, 4, 2, prefix), tokens, causal=causal, seed=tokens)


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
@pytest.mark.parametrize("tile", [1, 7, 64, 500])
def test_the_size_of_the_tiles_changes_nothing(
    kind: str, tile: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "TILE", tile)
    assert_as_masked_dense(Pattern(kind, 5, 2, prefix=1), 38, causal=causal)


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_large_scores_neither_overflow_nor_lose_their_way(kind: str) -> None:
    q, k, v = (x.detach() * 30 for x in inputs(45))  # scores in the thousands
    pattern = Pattern(kind, 6, 2)
    exact = attend_masked(q.double(), k.double(), v.double(), pattern.mask(45))[0].float()
    torch.testing.assert_close(
        attend_sparse(q, k, v, pattern), exact, rtol=1e-3, atol=1e-2
    )  # of values up to a hundred


def test_half_precision_stays_half_and_close() -> None:
    q, k, v = inputs(60)
    pattern = Pattern("strided", 8)
    exact = attend_sparse(q, k, v, pattern)
    halves = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    rough = attend_sparse(*halves, pattern)
    assert rough.dtype == torch.bfloat16
    assert (rough - exact).abs().max() < 0.05
    rough.float().square().sum().backward()
    exact.square().sum().backward()
    for x, y in zip(halves, (q, k, v), strict=True):
        assert x.grad is not None and y.grad is not None and x.grad.dtype == torch.bfloat16
        assert (x.grad - y.grad).norm() < 0.03 * y.grad.norm()


@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_the_work_grows_as_the_length_to_the_power_of_one_and_a_half(kind: str) -> None:
    """Counted, not timed: from 1,024 to 16,384 tokens 64 times the arithmetic, where dense attention has 256."""

    def work(tokens: int) -> int:
        q, k, v = (torch.empty(1, 1, tokens, 16, device="meta", requires_grad=True) for _ in range(3))
        with FlopCounterMode(display=False) as counter:
            attend_sparse(q, k, v, Pattern(kind, span_for(kind, tokens))).sum().backward()
        return counter.get_total_flops()

    assert work(16_384) / work(1_024) == pytest.approx(64, rel=0.05)
    dense = 7 * 2 * 4_096**2 * 16
    assert work(4_096) < dense / 12


def test_memory_for_the_backward_pass_is_linear_in_the_length() -> None:
    kept: Counter[int] = Counter()
    for tokens in (256, 1024):
        q, k, v = inputs(tokens)

        def count(x: Tensor, tokens: int = tokens) -> Tensor:
            kept[tokens] += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            attend_sparse(q, k, v, Pattern("strided", span_for("strided", tokens)))
    assert kept[1024] == 4 * kept[256]


# On a GPU


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
@pytest.mark.parametrize("prefix", [0, 1])
def test_the_parts_for_a_gpu_cover_the_pattern_once(kind: str, prefix: int, causal: bool) -> None:
    pattern = Pattern(kind, 5, 2, prefix)
    tokens = 43
    times = torch.zeros(tokens, tokens, dtype=torch.int)
    for part in flex.parts_of(pattern, tokens, causal=causal, device=torch.device("cpu")):
        rows = torch.arange(tokens) if part.queries is None else part.queries
        columns = torch.arange(tokens) if part.keys is None else part.keys
        times[rows[:, None], columns] += part.sees(rows[:, None], columns).int()
    assert torch.equal(times, pattern.mask(tokens, causal=causal).int())


def test_most_blocks_of_scores_are_left_out_on_a_gpu() -> None:
    tokens = 4096
    for kind in ("strided", "fixed", "window"):
        pattern = Pattern(kind, span_for(kind, tokens))
        masks = flex.masks_of(pattern, tokens, False, torch.device("cpu"))
        computed = sum(
            (1 - mask.sparsity() / 100) * len(part.keys if part.keys is not None else range(tokens))
            for part, mask in masks
        )
        assert computed < tokens / 6


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
def test_flex_attention_computes_the_same(kind: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plain implementation, which knows no backward pass on a CPU; the kernels need a GPU."""
    module = torch.nn.attention.flex_attention
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    pattern = Pattern(kind, 6, 2, prefix=1)
    q, k, v = (x.detach() for x in inputs(75, dim=16))
    found = flex.attend_flex(q, k, v, pattern, causal=causal, flex=module.flex_attention)
    torch.testing.assert_close(found, attend_sparse(q, k, v, pattern, causal=causal), atol=1e-5, rtol=0)


# In a model


def vit(**changes: Any) -> ViT:
    torch.manual_seed(0)
    model = ViT(**{"image_size": 32, "patch": 4, "dim": 32, "depth": 2, "heads": 2} | changes)
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.out.weight, std=0.1)
        torch.nn.init.normal_(block.mlp.down.weight, std=0.1)
    return model


def images(count: int = 2, height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
@pytest.mark.parametrize("changes", [{}, {"class_token": True}, {"norm": "post"}], ids=["plain", "class token", "post"])
def test_a_model_attends_by_the_pattern_and_shows_its_weights(kind: str, changes: dict) -> None:
    model = vit(attention=kind, **changes)
    seen: dict[str, Tensor] = {}
    tokens = model(images(), seen=seen)
    mask = model.pattern_for((8, 8), 64).mask(64 + model.prefix)  # type: ignore[union-attr]
    weights = seen["block1.attention"]
    assert (weights[:, :, ~mask] == 0).all() and (weights[:, :, mask] > 0).all()
    torch.testing.assert_close(model(images()), tokens, atol=1e-5, rtol=0)  # the fast way says the same
    assert not torch.allclose(vit(**changes)(images()), tokens, atol=1e-3)  # and dense attention something else
    assert model(images(1, 16, 48)).shape == (1, 4 * 12 + model.prefix, 32)  # at another size too


def test_a_wide_enough_window_is_dense_attention() -> None:
    torch.testing.assert_close(vit(attention="window", attention_span=64)(images()), vit()(images()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["strided", "fixed", "window"])
def test_dropped_patches_leave_the_others_in_the_order_of_the_image(kind: str) -> None:
    model = vit(attention=kind)
    with torch.no_grad():
        model.positions.copy_(torch.arange(64.0).view(1, 8, 8, 1).expand(-1, -1, -1, 32))  # type: ignore[union-attr]
        model.embed.weight.zero_()
    seen: dict[str, Tensor] = {}
    tokens = model(images(4), keep=0.5, seen=seen)
    assert tokens.shape == (4, 32, 32)
    assert (seen["embedded"][..., 0].diff(dim=1) > 0).all()


@pytest.mark.filterwarnings("ignore")  # tracing warns of every number that is the same for all images
@pytest.mark.parametrize("kind", ["strided", "fixed"])
def test_an_exported_graph_takes_any_number_of_images(kind: str) -> None:
    model = vit(attention=kind, positions="rotary", class_token=True, depth=1).eval()
    some, others = images(2), images(5)
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    with torch.no_grad():
        expected = model(others)
        exported = torch.export.export(model, (some,), dynamic_shapes=dynamic).module()
        traced = torch.jit.trace(model, (some,), check_trace=False)
        torch.testing.assert_close(exported(others), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(traced(others), expected, atol=1e-5, rtol=0)


def test_arithmetic_of_a_sparse_model_is_counted_and_is_less() -> None:
    def of(attention: str) -> float:
        backbone = {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 1, "heads": 2}
        head = {"_target_": "vitocr.heads.classify.Classify", "classes": 3}
        model = build_model({"image_size": [128, 128], "backbone": backbone | {"attention": attention}, "head": head})
        return training_flops(model, (128, 128))

    assert of("strided") < of("fixed") + of("window") < of("dense")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"attention": "stirded"}, "attention=stirded: choose one of dense, strided, fixed, window"),
        ({"attention_span": 0}, "attention_span=0 is a number of tokens, at least 1, or auto"),
        ({"attention_span": "wide"}, "attention_span=wide is a number of tokens"),
        ({"attention_summary": 0}, "attention_summary=0 is a number of tokens"),
        ({"attention": "fixed", "attention_span": 4}, "attention_summary=4 of the attention_span=4 tokens"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(argument: dict, message: str) -> None:
    backbone = {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 1, "heads": 2} | argument
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 3}
    with pytest.raises(UserError, match=message):
        build_model({"image_size": [32, 32], "backbone": backbone, "head": head})
