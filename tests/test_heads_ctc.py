"""CTC: against plain references of its collapse, its loss and its confidence."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from heads_kit import COLUMNS, SYMBOLS, head_of, random_texts, shaken, some_tokens, targets_of, texts_of
from torch import Tensor

from vitocr.heads.ctc import Ctc, columns_needed

BLANK = SYMBOLS


def collapse(path: list[int], blank: int) -> list[int]:
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank]


def saying(paths: list[list[int]], *, sure: float = 9.0, rows: int = 1) -> tuple[Ctc, Tensor]:
    """A CTC head and tokens on which the likeliest symbols of the columns are these."""
    head = Ctc(dim=SYMBOLS + 1, prefix=0, grid=(rows, len(paths[0])), symbols=SYMBOLS, max_length=1)
    with torch.no_grad():
        head.logits.weight.copy_(torch.eye(SYMBOLS + 1))
    return head, sure * F.one_hot(torch.tensor(paths), SYMBOLS + 1).float().repeat(1, rows, 1)


def test_repeats_are_merged_and_blanks_dropped_as_a_plain_loop_does_it() -> None:
    random = torch.Generator().manual_seed(0)
    for columns in (1, 2, 5, 17):
        paths = torch.randint(SYMBOLS - 2, SYMBOLS + 1, (40, columns), generator=random).tolist()
        head, tokens = saying(paths)
        assert texts_of(head.decode(tokens)) == [collapse(path, BLANK) for path in paths]


def test_nothing_but_blanks_is_the_empty_text() -> None:
    head, tokens = saying([[BLANK] * 6, [BLANK] * 6])
    found = head.decode(tokens)
    assert found.ids.shape == (2, 0) and found.where.shape == (2, 0, 4)
    assert found.lengths.tolist() == [0, 0]
    torch.testing.assert_close(found.confidence, head(tokens).softmax(dim=2)[..., BLANK].prod(dim=1))


def test_a_character_is_seen_in_its_columns_with_the_probability_of_the_surest() -> None:
    head, tokens = saying([[BLANK, 3, 3, BLANK, 3, 5, 5, BLANK]])
    tokens[0, 2] *= 2  # surer of the second column of the first 3
    found = head.decode(tokens)
    assert texts_of(found) == [[3, 3, 5]]
    assert found.where[0].tolist() == [[1 / 8, 0, 3 / 8, 1], [4 / 8, 0, 5 / 8, 1], [5 / 8, 0, 7 / 8, 1]]
    chances = head(tokens).softmax(dim=2)[0]
    torch.testing.assert_close(found.probs[0], torch.stack([chances[2, 3], chances[4, 3], chances[5, 5]]))


def test_exact_confidence_is_the_sum_over_all_paths_of_the_text() -> None:
    head = Ctc(dim=8, prefix=0, grid=(1, 4), symbols=2, max_length=4)
    torch.nn.init.normal_(head.logits.weight)
    tokens = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(0))
    found, chances = head.decode(tokens), head(tokens).softmax(dim=2)
    one_way = head.decode(tokens, exact=False)
    for i, text in enumerate(texts_of(found)):
        ways = [path for path in itertools.product(range(3), repeat=4) if collapse(list(path), 2) == text]
        probability = sum(torch.stack([chances[i, t, s] for t, s in enumerate(path)]).prod() for path in ways)
        torch.testing.assert_close(found.confidence[i], probability)
        torch.testing.assert_close(one_way.confidence[i], chances[i].amax(dim=1).prod())
    assert (one_way.confidence <= found.confidence).all()


def test_exact_confidence_is_the_loss_of_the_text_read() -> None:
    head, tokens = shaken("ctc"), some_tokens(12)
    found = head.decode(tokens)
    for i, text in enumerate(texts_of(found)):
        nats = head.loss(tokens[i : i + 1], targets_of([text]))["loss"] * max(1, len(text))
        torch.testing.assert_close(found.confidence[i].log(), -nats, atol=1e-4, rtol=1e-4)


def test_the_loss_is_torchs_on_the_same_logits_per_character_a_blank_being_one() -> None:
    for seed in range(5):
        head, texts = shaken("ctc", seed=seed), random_texts(12, seed=seed)
        tokens, targets = some_tokens(12, seed=seed), targets_of(texts)
        reference = F.ctc_loss(
            head(tokens).log_softmax(dim=2).transpose(0, 1),
            torch.tensor([symbol for text in texts for symbol in text]),  # one after another, the other layout
            torch.full((12,), COLUMNS),
            targets.lengths,
            blank=BLANK,
            reduction="sum",
        )
        torch.testing.assert_close(head.loss(tokens, targets)["loss"], reference / targets.lengths.clamp(min=1).sum())


def test_texts_that_do_not_fit_on_the_columns_are_told_and_teach_nothing() -> None:
    head = head_of("ctc", grid=(1, 4), max_length=4)
    tokens = some_tokens(4, places=4).requires_grad_()
    texts = [[1, 2], [1, 2, 3, 4, 5], [1, 1, 1], [1, 1, 2]]  # the third needs two blanks between
    told = head.loss(tokens, targets_of(texts))
    told["loss"].backward()
    assert told["infeasible"] == 0.5
    targets = targets_of(texts)
    assert columns_needed(targets.ids, targets.lengths).tolist() == [2, 5, 5, 4]
    assert tokens.grad is not None
    assert [bool(g.abs().sum() > 0) for g in tokens.grad] == [True, False, False, True]
    only = head.loss(tokens[[0, 3]], targets_of([texts[0], texts[3]]))["loss"]
    torch.testing.assert_close(told["loss"], only)


def test_a_batch_in_which_nothing_fits_still_has_a_finite_loss_and_gradients() -> None:
    head = head_of("ctc", grid=(1, 2), max_length=2)
    told = head.loss(some_tokens(2, places=2), targets_of([[1, 2, 3], [4, 4]]), align=1.0)
    told["loss"].backward()
    assert told["infeasible"] == 1 and torch.isfinite(told["loss"])
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in head.parameters())


def columns_of(text: list[int], spans: list[tuple[float, float]], columns: int) -> list[int]:
    targets = targets_of([text])._replace(spans=torch.tensor([spans]) / columns)
    return head_of("ctc").column_targets(targets, columns)[0].tolist()


def test_each_column_is_told_the_character_that_covers_it_and_blank_between() -> None:
    assert columns_of([3, 7], [(0.9, 2.6), (4.0, 6.4)], 8) == [BLANK, 3, 3, BLANK, 7, 7, BLANK, BLANK]


def test_a_character_narrower_than_a_column_has_the_one_it_is_in() -> None:
    assert columns_of([3, 1, 7], [(0, 1.8), (2.2, 2.5), (2.6, 5)], 6) == [3, 3, 1, 7, 7, BLANK]


def test_a_doubled_letter_begins_with_a_blank_where_there_is_room() -> None:
    assert columns_of([3, 3, 3], [(0, 2), (2, 4), (4, 5)], 6) == [3, 3, BLANK, 3, 3, BLANK]


def test_an_unknown_span_silences_its_text_alone() -> None:
    targets = targets_of([[1, 2], [3, 4], []])
    targets.spans[0, 1] = torch.nan
    columns = head_of("ctc").column_targets(targets, 4)
    assert columns.tolist() == [[-1] * 4, [3, 3, 4, 4], [BLANK] * 4]


def test_alignment_points_the_columns_at_the_spans_before_the_loss_could() -> None:
    """A single step along the gradient of the alignment moves each column towards its character."""
    head, texts = head_of("ctc"), [[1, 2, 3]]
    tokens = some_tokens(1).requires_grad_()
    told = head.loss(tokens, targets_of(texts), align=1.0)
    (gradient,) = torch.autograd.grad(told["align"], tokens)
    towards = head(tokens - 1e5 * gradient).argmax(dim=2)[0].tolist()
    assert towards == [1] * 8 + [2] * 8 + [3] * 8


def test_rows_can_be_pooled_by_what_they_show() -> None:
    """A learned pooling finds the row the text is on, begins as the mean, and tells the box's height."""
    torch.manual_seed(0)
    mean, learned = (
        Ctc(dim=4, prefix=0, grid=(3, 5), symbols=3, max_length=5, rows=rows) for rows in ("mean", "learned")
    )
    learned.load_state_dict(mean.state_dict(), strict=False)
    tokens = torch.randn(2, 15, 4)
    torch.testing.assert_close(mean(tokens), learned(tokens))
    assert learned.row_scores is not None
    with torch.no_grad():
        learned.row_scores.weight.copy_(torch.tensor([[20.0, 0, 0, 0]]))
        learned.logits.weight.copy_(torch.eye(4).roll(1, dims=1) * 5)
        learned.logits.weight[3] = 0
    tokens = torch.zeros(1, 3, 5, 4)
    tokens[0, 1, :, 0] = 1.0  # the middle row calls itself the one,
    tokens[0, 1, 2, 1] = 1.0  # and shows symbol 0 in its middle
    with torch.no_grad():
        learned.logits.bias.copy_(torch.tensor([0, 0, 0, 1.0]))
    found = learned.decode(tokens.flatten(1, 2))
    assert texts_of(found) == [[0]]
    torch.testing.assert_close(found.where[0, 0], torch.tensor([0.4, 1 / 3, 0.6, 2 / 3]))


def test_a_single_row_has_nothing_to_pool() -> None:
    assert head_of("ctc", rows="learned").row_scores is None


@pytest.mark.parametrize("columns", [1, 3])
def test_more_characters_than_columns_are_refused_up_front(columns: int) -> None:
    with pytest.raises(ValueError, match=f"more than the {columns} columns.*narrower patches"):
        head_of("ctc", grid=(1, columns))
