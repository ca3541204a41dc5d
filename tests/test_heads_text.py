"""What holds for every head that reads text, whichever way it does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from heads_kit import (
    COLUMNS,
    DECODERS,
    DIM,
    HEADS,
    LONGEST,
    SMALL,
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
from omegaconf import OmegaConf
from torch import Tensor

from vitocr.errors import UserError
from vitocr.heads.joint import CTC_COUNTS
from vitocr.heads.text import (
    Decoded,
    SymbolLogits,
    boxes,
    choose,
    look_loss,
    read_at_once,
    run_around_peak,
    span_cover,
    teacher_forcing,
)
from vitocr.models.model import build_model

every_head = pytest.mark.parametrize("name", list(HEADS))
every_decoder = pytest.mark.parametrize("name", DECODERS)


# Learning


@every_head
def test_a_head_learns_a_batch_by_heart_whether_empty_short_or_full_length(name: str) -> None:
    texts = random_texts(24)
    tokens, head = tokens_showing(texts), head_of(name)
    train(head, tokens, targets_of(texts, spans=False), steps=250 if "permuted" in name else 150)
    assert texts_of(head.decode(tokens)) == texts


@every_head
def test_spans_teach_where_to_look(name: str) -> None:
    """Trained with the spans, the middle of a character's box lies inside the character (nearly always)."""
    texts = [text for text in random_texts(24) if text]
    targets, tokens, head = targets_of(texts), tokens_showing(texts), head_of(name)
    train(head, tokens, targets, steps=150, align=1.0)
    options = {} if name == "ctc" else {"by": "decoder"}
    found = head.decode(tokens, **options)
    assert texts_of(found) == texts
    real = targets.ids >= 0
    middle = found.where[..., [0, 2]].mean(dim=2)[real]
    left, right = targets.spans[real].unbind(dim=1)
    assert ((left < middle) & (middle < right)).float().mean() > 0.9


@every_head
def test_spans_lower_the_alignment_loss_and_unknown_ones_do_not_count(name: str) -> None:
    texts = [[1, 2, 3], [4, 5], [6, 6, 7, 8]]
    head, tokens = head_of(name), tokens_showing(texts)
    unknown = head.loss(tokens, targets_of(texts, spans=False), align=1.0)
    without = head_of(name).loss(tokens, targets_of(texts, spans=False))
    assert unknown["align"] == 0
    if "permuted" not in name:  # which draws orders
        assert unknown["loss"] == without["loss"]
    before = head.loss(tokens, targets_of(texts), align=1.0)["align"].item()
    train(head, tokens, targets_of(texts), steps=120, align=1.0)
    assert head.loss(tokens, targets_of(texts), align=1.0)["align"].item() < 0.5 * before


@every_head
@pytest.mark.parametrize("align", [0.0, 0.5])
@pytest.mark.parametrize("spans", [True, False])
def test_one_step_reaches_every_parameter(name: str, align: float, spans: bool) -> None:
    """Data parallel training waits for the gradient of each."""
    head = shaken(name).train()
    texts = random_texts(6)
    head.loss(some_tokens(6), targets_of(texts, spans=spans), align=align, label_smoothing=0.1)["loss"].backward()
    silent = [path for path, p in head.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # The bias of a key shifts all scores alike, which a softmax does not feel.
    assert [path for path in silent if not path.endswith("key.bias")] == []
    assert [path for path, p in head.named_parameters() if p.grad is None] == []


@every_head
@pytest.mark.parametrize("texts", [[[]], [[], []], [[3]], [[3], []], [list(range(LONGEST))]])
def test_a_batch_of_extremes_has_a_finite_loss_and_gradient(name: str, texts: list[list[int]]) -> None:
    head = head_of(name)
    told = head.loss(some_tokens(len(texts)), targets_of(texts), align=1.0, label_smoothing=0.1)
    told["loss"].backward()
    assert all(torch.isfinite(value) for value in told.values())
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())


@every_head
def test_how_wide_the_targets_are_padded_changes_nothing(name: str) -> None:
    texts = random_texts(5, longest=5)
    head, tokens, losses = head_of(name), some_tokens(5), []
    for width in (5, LONGEST + 3):
        torch.manual_seed(1)
        losses.append(head.loss(tokens, targets_of(texts, width=width), align=0.5)["loss"])
    torch.testing.assert_close(*losses)


@every_head
def test_label_smoothing_makes_certainty_cost(name: str) -> None:
    texts = random_texts(12)
    head, tokens, targets = head_of(name), tokens_showing(texts), targets_of(texts)
    train(head, tokens, targets, steps=150)
    assert head.loss(tokens, targets, label_smoothing=0.1)["loss"] > head.loss(tokens, targets)["loss"] + 0.1


@every_head
def test_everything_runs_in_bfloat16(name: str) -> None:
    texts = random_texts(8)
    head = shaken(name).train()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        tokens = some_tokens(8).bfloat16().requires_grad_()
        told = head.loss(tokens, targets_of(texts), align=0.5, label_smoothing=0.1)
        found = head.decode(tokens)
        raw = head(tokens)
    told["loss"].backward()
    assert told["loss"].dtype == torch.float32
    assert tokens.grad is not None and torch.isfinite(tokens.grad).all() and torch.isfinite(raw).all()
    assert found.probs.dtype == found.confidence.dtype == found.where.dtype == torch.float32
    torch.manual_seed(1)
    exactly = head.loss(some_tokens(8), targets_of(texts), align=0.5, label_smoothing=0.1)
    for key, value in exactly.items():
        torch.testing.assert_close(told[key], value, atol=0.05, rtol=0.05)


# Reading


@every_head
def test_an_image_reads_the_same_alone_and_in_a_batch(name: str) -> None:
    for seed in range(3):
        head, tokens = half_taught(name), unclear_tokens(12, seed=seed)
        together = head.decode(tokens)
        assert len(set(together.lengths.tolist())) > 1
        for i in range(12):
            alone = head.decode(tokens[i : i + 1])
            n = int(alone.lengths[0])
            assert texts_of(alone)[0] == texts_of(together)[i]
            torch.testing.assert_close(alone.probs[0], together.probs[i, :n], atol=1e-4, rtol=0)
            torch.testing.assert_close(alone.confidence[0], together.confidence[i], atol=1e-4, rtol=0)
            torch.testing.assert_close(alone.where[0], together.where[i, :n])


@every_head
def test_what_is_read_is_well_formed(name: str) -> None:
    found = half_taught(name).decode(unclear_tokens(20))
    B, L = found.ids.shape
    real = torch.arange(L) < found.lengths[:, None]
    assert B == 20 and found.lengths.max() == L
    assert ((found.ids >= 0) == real).all() and found.ids.max() < SYMBOLS
    assert (found.probs[~real] == 1).all() and (found.where[~real] == 0).all()
    assert (found.probs > 0).all() and (found.probs <= 1).all()
    assert (found.confidence > 0).all() and (found.confidence <= 1).all()
    x0, y0, x1, y1 = found.where[real].unbind(dim=1)
    assert (x0 >= 0).all() and (x0 < x1).all() and (x1 <= 1).all()
    assert (y0 >= 0).all() and (y0 < y1).all() and (y1 <= 1).all()
    assert not any(value.requires_grad for value in found)


@pytest.mark.parametrize("name", ["ctc", *DECODERS])
def test_a_head_taught_with_smoothed_labels_is_sure_of_what_it_knows_by_heart(name: str) -> None:
    texts = random_texts(24)
    tokens, plain = tokens_showing(texts), head_of(name)
    train(plain, tokens, targets_of(texts), steps=250 if "permuted" in name else 150, label_smoothing=0.1)
    freed = head_of(name, smoothing=0.1).eval()
    freed.load_state_dict(plain.state_dict())
    one, other = plain.decode(tokens), freed.decode(tokens)
    assert texts_of(one) == texts_of(other) == texts
    long = one.lengths >= 6
    assert (other.confidence[long] > one.confidence[long]).all()
    if name not in ("ctc", "lstm"):  # which take longer to be sure
        assert (one.confidence[long] < 0.7).all() and (other.confidence[long] > 0.9).all()


def test_smoothing_is_undone_exactly_and_what_is_likelier_stays_so() -> None:
    random = torch.Generator().manual_seed(0)
    meant = (3 * torch.randn(50, SYMBOLS + 1, generator=random)).softmax(dim=1)
    taught = 0.9 * meant + 0.1 / (SYMBOLS + 1)  # what a head learns to say if that is what the images mean
    layer = SymbolLogits(SYMBOLS + 1, SYMBOLS, 0.1)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(SYMBOLS + 1))
        said = layer.eval()(taught.log()).softmax(dim=1)
        assert (said - meant).abs().max() < 1e-3
        assert (said.gather(1, taught.argsort(dim=1)).diff(dim=1) > -1e-6).all()
        assert (said.argmax(dim=1) == taught.argmax(dim=1)).all()
        # Below what smoothing alone gives there is an order still, for constraints to choose by.
        unlikely = torch.tensor([[0.97, 0.005, 0.004, 0.003, *[0.018 / 7] * 7]])
        rest = layer(unlikely.log()).softmax(dim=1)[0, 1:4]
        assert rest[0] > rest[1] > rest[2] > 0
        assert torch.equal(layer.train()(taught), taught)  # what training sees is smoothed


@every_decoder
def test_confidence_is_the_probability_that_teaching_gives_the_text(name: str) -> None:
    head, tokens = half_taught(name), unclear_tokens(10)
    options = {"refine": 0} if name == "permuted" else {}
    found = head.decode(tokens, **options)
    for i, text in enumerate(texts_of(found)):
        if name == "permuted":
            head.orders = 1  # left to right
        loss = head.loss(tokens[i : i + 1], targets_of([text]))["loss"]  # a mean over characters and the end
        torch.testing.assert_close(-loss * (len(text) + 1), found.confidence[i].log(), atol=1e-4, rtol=1e-4)


@every_decoder
def test_no_text_is_longer_than_the_head_was_made_for(name: str) -> None:
    head = shaken(name)
    with torch.no_grad():
        head.logits.bias[SYMBOLS] = -1e4  # never wants to end
    found = head.decode(some_tokens(3))
    assert found.lengths.tolist() == [LONGEST] * 3
    assert (found.confidence == 0).all()  # since the end after it was out of the question


@every_decoder
def test_a_text_longer_than_the_head_was_made_for_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"9 characters .*head\.max_length=8"):
        head_of(name).loss(some_tokens(1), targets_of([[1] * 9]))


@every_head
def test_the_tokens_before_the_grid_are_not_part_of_the_text(name: str) -> None:
    tokens = unclear_tokens(4)
    before = torch.randn(4, 2, DIM)
    plain, after = half_taught(name), half_taught(name, prefix=2)
    for a, b in zip(plain.decode(tokens), after.decode(torch.cat([before, tokens], dim=1)), strict=True):
        torch.testing.assert_close(a, b)


@every_head
def test_several_rows_of_tokens_are_one_image(name: str) -> None:
    head = half_taught(name, grid=(2, 12))
    found = head.decode(unclear_tokens(8))
    assert found.lengths.max() > 0
    assert found.where[..., [1, 3]].unique().tolist() in ([0, 1], [0, 0.5, 1])
    with pytest.raises(UserError, match="23 tokens do not make 2 rows"):
        head.decode(some_tokens(1, places=23))


@every_head
def test_a_wider_image_is_read_as_well(name: str) -> None:
    head = shaken(name)
    assert head.decode(some_tokens(2, places=2 * COLUMNS)).lengths.shape == (2,)


@every_head
def test_the_raw_output_is_what_reading_goes_by(name: str) -> None:
    head, tokens = half_taught(name), unclear_tokens(4)
    raw = head(tokens)
    if name == "ctc":
        assert raw.shape == (4, COLUMNS, SYMBOLS + 1)
        return
    assert raw.shape == (4, LONGEST + 1, SYMBOLS + 1)
    options = {"mode": "parallel", "refine": 0} if "permuted" in name else {}
    for logits, text in zip(raw, texts_of(head.decode(tokens, by="decoder", **options)), strict=True):
        said = [*logits.argmax(dim=1).tolist()[:LONGEST], SYMBOLS]
        assert said[: said.index(SYMBOLS)] == text


# Two readings of one image


def with_bold_ctc(name: str) -> Any:
    """CTC learns later than the decoder: it becomes as bold."""
    head = half_taught(name)
    with torch.no_grad():
        head.ctc.logits.weight *= 4
        head.ctc.logits.bias *= 4
    return head


@pytest.mark.parametrize("name", [name for name in HEADS if "with ctc" in name and name != "transformer with ctc"])
def test_the_surer_of_two_readings_is_believed(name: str) -> None:
    head, tokens = with_bold_ctc(name), unclear_tokens(30)
    decoder, ctc, surer = (head.decode(tokens, by=by) for by in ("decoder", "ctc", "surer"))
    expected = torch.maximum(decoder.confidence, ctc.confidence)
    assert 0 < (ctc.confidence > decoder.confidence).sum() < 30
    torch.testing.assert_close(surer.confidence, expected)
    for i, text in enumerate(texts_of(surer)):
        assert text == texts_of(ctc if ctc.confidence[i] > decoder.confidence[i] else decoder)[i]
    assert texts_of(head.decode(tokens)) == texts_of(surer)


def test_where_two_readings_differ_both_readers_are_asked_about_both() -> None:
    head, tokens = with_bold_ctc("transformer with ctc"), unclear_tokens(60)
    decoder, ctc, chosen = (head.decode(tokens, by=by) for by in ("decoder", "ctc", "surer"))
    taken = {"decoder": 0, "ctc": 0, "against the surer": 0}
    for i, (one, two, text) in enumerate(zip(*map(texts_of, (decoder, ctc, chosen)), strict=True)):
        sure = [float(found.confidence[i]) for found in (decoder, ctc)]
        if one == two or len(two) > LONGEST:  # which the decoder has no room for
            assert text == (two if sure[1] > sure[0] else one) and float(chosen.confidence[i]) == pytest.approx(
                max(sure)
            )
            continue
        both = [by_decoder(head, tokens[i], said) + CTC_COUNTS * by_ctc(head, tokens[i], said) for said in (one, two)]
        which = both[1] > both[0]
        assert text == (two if which else one)
        assert float(chosen.confidence[i]) == pytest.approx(sure[which], rel=1e-4)
        taken["ctc" if which else "decoder"] += 1
        taken["against the surer"] += which != (sure[1] > sure[0])
    assert all(taken.values()), taken
    assert texts_of(head.decode(tokens)) == texts_of(chosen)


@torch.no_grad()
def by_decoder(head: Any, tokens: Tensor, text: list[int]) -> float:
    """The log-probability of a text, step by step."""
    reader, total, given = head.reader(tokens[None]), 0.0, SYMBOLS
    for symbol in [*text, SYMBOLS]:
        logits, _ = reader.step(torch.tensor([given]))
        total += float(logits.log_softmax(dim=1)[0, symbol])
        given = symbol
    return total


@torch.no_grad()
def by_ctc(head: Any, tokens: Tensor, text: list[int]) -> float:
    """The same by CTC's own loss, which is a mean over the characters."""
    return -float(head.ctc.loss(tokens[None], targets_of([text], spans=False, width=LONGEST))["loss"]) * max(
        1, len(text)
    )


def test_a_text_that_ctc_has_no_room_for_is_left_to_the_decoder() -> None:
    head = half_taught("transformer with ctc")
    tokens = unclear_tokens(3)[:1]
    ids = torch.full((1, COLUMNS + 1), 3)
    assert head.ctc.log_probability(tokens, ids, torch.tensor([COLUMNS + 1])).item() == -torch.inf
    assert head.ctc.log_probability(tokens, ids[:, :2], torch.tensor([2])).isfinite()


def test_asking_for_a_reading_that_does_not_exist_says_so() -> None:
    with pytest.raises(UserError, match=r"head\.ctc > 0"):
        head_of("transformer").decode(some_tokens(1), by="ctc")
    with pytest.raises(UserError, match="Did you mean 'decoder'"):
        head_of("transformer with ctc").decode(some_tokens(1), by="decodr")
    with pytest.raises(UserError, match="choose ar or parallel"):
        head_of("permuted").decode(some_tokens(1), mode="sideways")


def test_the_joint_loss_is_the_weighted_sum_and_tells_its_parts() -> None:
    head = shaken("transformer with ctc")
    told = head.loss(some_tokens(5), targets_of(random_texts(5)))
    torch.testing.assert_close(told["loss"], told["decoder"] + 0.5 * told["ctc"])
    assert told["infeasible"] == 0


def test_choosing_between_readings_of_different_length_pads_both() -> None:
    one = Decoded(*(torch.tensor(x) for x in ([[5]], [1], [[0.5]], [0.4], [[[0.0, 0.0, 1.0, 1.0]]])))
    none = Decoded(
        torch.zeros(1, 0, dtype=torch.int64),
        torch.tensor([0]),
        torch.zeros(1, 0),
        torch.tensor([0.9]),
        torch.zeros(1, 0, 4),
    )
    assert choose(one, none, torch.tensor([True])).where.shape == (1, 0, 4)
    kept = choose(none, one, torch.tensor([True]))
    assert texts_of(kept) == [[5]] and kept.where.shape == (1, 1, 4)


# The pieces


def test_teacher_forcing_begins_with_the_begin_and_asks_for_the_end_once() -> None:
    given, expected = teacher_forcing(targets_of([[1, 2], [], [3]], width=5), end=SYMBOLS, max_length=LONGEST)
    assert given.tolist() == [[10, 1, 2], [10, 10, 10], [10, 3, 10]]
    assert expected.tolist() == [[1, 2, 10], [10, -1, -1], [3, 10, -1]]


def test_cover_is_the_part_of_each_column_under_a_character() -> None:
    spans = torch.tensor([[[0.0, 0.375], [0.4, 0.45], [torch.nan, torch.nan], [1.2, 1.4]]])
    cover = span_cover(spans, 4)[0]
    torch.testing.assert_close(cover[0], torch.tensor([1, 0.5, 0, 0]))
    torch.testing.assert_close(cover[1], torch.tensor([0, 0.2, 0, 0]))
    assert cover[2:].sum() == 0


def test_looking_loss_is_zero_inside_the_span_and_grows_with_what_falls_outside() -> None:
    targets = targets_of([[1, 2]])
    inside = torch.tensor([[[0.3, 0.7, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]])
    half = torch.tensor([[[0.5, 0.0, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5]]])
    assert look_loss(inside, targets, 1).item() == pytest.approx(0, abs=1e-6)
    assert look_loss(half, targets, 1).item() == pytest.approx(0.6931, abs=1e-3)
    rows = torch.tensor([[[0.5, 0.0, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5]]])  # the same numbers on two rows of two
    assert look_loss(rows, targets, 2).item() == pytest.approx(0, abs=1e-6)


def test_a_box_is_the_run_of_high_cells_around_the_peak() -> None:
    first, last = run_around_peak(torch.tensor([[0.5, 0.1, 0.4, 0.6, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(first, torch.tensor([0.4, 0.0]))
    torch.testing.assert_close(last, torch.tensor([0.8, 0.2]))
    weights = torch.zeros(1, 2, 2, 4)
    weights[0, 0, 1, 1:3] = 1.0
    found = boxes(weights.flatten(2), torch.tensor([1]), 2)
    assert found[0].tolist() == [[0.25, 0.5, 0.75, 1.0], [0, 0, 0, 0]]


def test_reading_at_once_stops_at_the_first_end_and_keeps_to_its_limit() -> None:
    logits = torch.zeros(2, 4, SYMBOLS + 1)
    for place, symbol in enumerate([3, 4, SYMBOLS, 5]):
        logits[:, place, symbol] = 5.0
    found = read_at_once(logits, torch.ones(2, 4, 6), torch.tensor([3, 1]), end=SYMBOLS, rows=1)
    assert texts_of(found) == [[3, 4], [3]]
    sure = logits[0, 0].softmax(dim=0)[3]
    torch.testing.assert_close(found.confidence[0], sure**3)
    torch.testing.assert_close(found.confidence[1], sure * logits[1, 1].softmax(dim=0)[SYMBOLS])


@pytest.mark.parametrize("file", ["ctc", "transformer", "permuted", "lstm"])
def test_every_head_of_the_configuration_is_built_with_its_backbone(file: str) -> None:
    conf = OmegaConf.to_container(OmegaConf.load(Path(__file__).parent.parent / "conf" / "head" / f"{file}.yaml"))
    assert isinstance(conf, dict)
    backbone = {"_target_": "vitocr.models.vit.ViT", "patch": [32, 4], "dim": 24, "depth": 1, "heads": 2}
    head = conf | {"symbols": 36, "max_length": 25}
    model = build_model({"image_size": [32, 128], "backbone": backbone, "head": head})
    told = model.loss(torch.randn(2, 3, 32, 128), targets_of([[1, 2], [3]]), label_smoothing=0.1, align=1.0)
    told["loss"].backward()
    assert all(p.grad is not None for p in model.parameters())
    read = model.head.decode(model.backbone(torch.randn(2, 3, 32, 128)))  # type: ignore[operator]
    assert read.lengths.shape == (2,)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("ctc", {"rows": "max"}, "head.rows=max"),
        ("ctc", {"max_length": 25}, "head.max_length=25 is more than the 24 columns"),
        ("transformer", {"positions": "none"}, "head.positions=none"),
        ("transformer", {"depth": 0}, "head.depth=0"),
        ("transformer", {"heads": 5}, "head.heads=5"),
        ("permuted", {"orders": 0}, "head.orders=0"),
        ("lstm", {"ctc": -1.0}, "head.ctc=-1"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(name: str, wrong: dict, message: str) -> None:
    cls, own = HEADS[name]
    with pytest.raises(ValueError, match=message):
        cls(**SMALL | own | wrong)
