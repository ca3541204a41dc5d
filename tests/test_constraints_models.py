"""Every head reads under a constraint, in torch and in exported graphs, and both say the same.

The graphs are run by torch here, which takes a second where an export takes half a minute; that onnxruntime runs them
alike is what test_export.py is about. One head goes all the way.
"""

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from constraints_kit import any_pattern
from export_kit import CHARACTERS, batch, graphs_of, save_small, small_model
from heads_kit import head_of, shaken, some_tokens, unclear_tokens

from vitocr.checkpoint import load_model
from vitocr.constraints import Constraint, build
from vitocr.constraints.search import Answer, Asked, Encoded, search
from vitocr.errors import UserError
from vitocr.export import export
from vitocr.inference.run_onnx import Graphs, open_onnx
from vitocr.inference.run_torch import Reading, TorchModel

HEADS = ["ctc", "transformer", "permuted", "lstm"]  # the second and third with a CTC head beside the decoder
Runners = tuple[TorchModel, Graphs]
pytestmark = pytest.mark.filterwarnings("ignore:match=")  # patterns at random may ask for what no character is


@pytest.fixture(scope="module")
def runners() -> Any:
    """name -> the same model in torch and in graphs, each made once."""

    @cache
    def make(name: str) -> Runners:
        model = small_model(name, steps=70)
        return TorchModel(model, reads_text=True), graphs_of(model)

    return make


def answers(runner: TorchModel | Graphs, pixels: np.ndarray, **options: Any) -> list[Answer]:
    return [Answer(*each) for each in runner.answers(pixels, **options)]


def constraint(**asked: Any) -> Constraint:
    found = build(tuple(CHARACTERS), **asked)
    assert found is not None
    return found


def read(ids: Any) -> str:
    return "".join(CHARACTERS[int(index)] for index in ids)


def some_constraints() -> list[tuple[Constraint, Any]]:
    """With what Python has to say about a text."""
    made: list[tuple[Constraint, Any]] = []
    for seed in range(16):
        pattern = any_pattern(random.Random(seed), CHARACTERS, depth=4)
        if any(re.fullmatch(pattern, text) for text in ("1", "44", "203", "8888", "98765")):
            made.append((constraint(match=pattern), re.compile(pattern).fullmatch))
    words = {str(number**2) for number in range(3, 400, 7)}
    made.append((constraint(lexicon=words), words.__contains__))
    made.append((constraint(whitelist="1357"), re.compile("[1357]*").fullmatch))
    made.append((constraint(whitelist="1357", match=r"\d{3}|\d{6}"), re.compile(r"[1357]{3}|[1357]{6}").fullmatch))
    return made


@pytest.mark.parametrize("name", HEADS)
def test_no_text_ever_violates_and_onnx_says_what_torch_says(runners: Any, name: str) -> None:
    original, exported = runners(name)
    pixels = batch(6)
    for number, (rule, holds) in enumerate(some_constraints()):
        beam, n_best = ((2, 1), (6, 4))[number % 2]
        expected = answers(original, pixels, constraint=rule, beam=beam, n_best=n_best)
        found = answers(exported, pixels, constraint=rule, beam=beam, n_best=n_best)
        for a, b in zip(expected, found, strict=True):
            assert a.texts and len(a.texts) <= n_best
            assert all(holds(read(ids)) for ids, _ in a.texts)
            assert [ids for ids, _ in a.texts] == [ids for ids, _ in b.texts]
            assert [share for _, share in a.texts] == pytest.approx([share for _, share in b.texts], abs=1e-4)
            assert a.ids.tolist() == a.texts[0][0] == b.ids.tolist()
            np.testing.assert_allclose(a.probs, b.probs, atol=1e-4)
            np.testing.assert_allclose(a.where, b.where, atol=1e-5)
            shares = [share for _, share in a.texts]
            assert shares == sorted(shares, reverse=True) and sum(shares) <= 1 + 1e-6
            assert a.where.shape == (a.length, 4) and (a.where >= 0).all() and (a.where <= 1).all()


def test_a_file_read_by_onnxruntime_says_the_same(runners: Any, tmp_path: Path) -> None:
    original, _ = runners("permuted")
    path = save_small(tmp_path / "model.safetensors", "permuted", original.model)
    export(path, "onnx")
    exported, rule = open_onnx(path.with_suffix(".onnx")), constraint(match=r"\d{2}|[1-5]*[67]")
    expected, found = (answers(runner, batch(8), constraint=rule, n_best=4) for runner in (original, exported))
    for a, b in zip(expected, found, strict=True):
        assert [ids for ids, _ in a.texts] == [ids for ids, _ in b.texts]
        assert [share for _, share in a.texts] == pytest.approx([share for _, share in b.texts], abs=1e-4)
        np.testing.assert_allclose(a.where, b.where, atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_where_nothing_satisfies_the_answer_says_so(runners: Any, name: str) -> None:
    for runner in runners(name):
        for found in answers(runner, batch(3), constraint=constraint(match=r"\d{17}")):  # 16 columns, 8 characters
            assert found.texts == [] and found.length == 0 and found.confidence == 0.0
            assert (len(found.ids), len(found.probs), found.where.shape) == (0, 0, (0, 4))


@pytest.mark.parametrize("name", HEADS)
def test_an_image_is_answered_as_it_is_when_alone(runners: Any, name: str) -> None:
    for runner in runners(name):
        pixels, rule = batch(5), constraint(match=r"\d*[02468]")
        for row, expected in enumerate(answers(runner, pixels, constraint=rule, n_best=3)):
            (alone,) = answers(runner, pixels[row : row + 1], constraint=rule, n_best=3)
            assert [ids for ids, _ in alone.texts] == [ids for ids, _ in expected.texts]
            shares = [share for _, share in expected.texts]
            assert [share for _, share in alone.texts] == pytest.approx(shares, abs=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_ordinary_reading_is_as_it_was_and_a_beam_finds_nothing_worse(runners: Any, name: str) -> None:
    original, exported = runners(name)
    pixels = batch(16)
    by = {} if name == "ctc" else {"by": "decoder"}
    options: dict[str, Any] = by | ({"refine": 0} if name == "permuted" else {})
    for runner in (original, exported):
        plain = list(runner.answers(pixels))
        assert all(len(fields) == 6 for fields in plain)
        for fields, listed in zip(plain, runner.answers(pixels, beam=1, n_best=1), strict=True):
            assert len(listed) == 7
            assert all(np.array_equal(a, b) for a, b in zip(fields, listed[:6], strict=True))
            assert listed[6] == [(fields[0][: int(fields[1])].tolist(), pytest.approx(float(fields[3])))]
        greedy = list(runner.answers(pixels, **options))
        wide = answers(runner, pixels, beam=8, **by)
        alike = 0
        for (ids, length, probs, confidence, where, summary), best in zip(greedy, wide, strict=True):
            assert best.confidence >= float(confidence) - 1e-5
            np.testing.assert_allclose(best.summary, summary, atol=1e-4)
            if best.ids.tolist() == ids[: int(length)].tolist():
                alike += 1
                np.testing.assert_allclose(best.probs, probs[: int(length)], atol=1e-4)
                np.testing.assert_allclose(best.where, where[: int(length)], atol=1e-5)
                assert best.confidence == pytest.approx(float(confidence), abs=1e-4)
        assert alike >= 8 or name in ("ctc", "lstm")  # these two are unsure of everything after so few steps


@pytest.mark.parametrize("name", HEADS)
def test_a_text_is_seen_where_ordinary_reading_sees_it(runners: Any, name: str) -> None:
    by = {} if name == "ctc" else {"by": "decoder"}
    options: dict[str, Any] = by | ({"refine": 0} if name == "permuted" else {})
    for runner in runners(name):
        pixels, seen = batch(10), 0
        for row, (ids, length, _, _, where, _) in enumerate(runner.answers(pixels, **options)):
            if length:
                rule = constraint(lexicon=[read(ids[: int(length)])])
                (found,) = answers(runner, pixels[row : row + 1], constraint=rule, **by)
                assert found.confidence == pytest.approx(1.0)
                np.testing.assert_allclose(found.where, where[: int(length)], atol=1e-5)
                seen += 1
        assert seen >= 5


@pytest.mark.parametrize("name", ["transformer", "permuted", "lstm"])
def test_of_a_list_of_words_the_likeliest_is_found_as_if_each_had_been_spelled_out(name: str) -> None:
    """The states that the search keeps, copies and drops are those of the texts they belong to."""
    head = shaken(name, strength=0.5)
    tokens = unclear_tokens(4)
    words = sorted({"".join(random.Random(seed).choices(CHARACTERS, k=seed % 6 + 1)) for seed in range(30)})
    with torch.no_grad():
        chances = np.array([[spelled(head, tokens[row : row + 1], word) for word in words] for row in range(4)])
        made = Encoded(4, 1, None, None, lambda: Reading(head.reader(tokens), torch.device("cpu")), 10, 8)
        for row, found in enumerate(search(made, Asked(constraint(lexicon=words), 40, len(words)))):
            best = np.argsort(-chances[row])
            assert [read(ids) for ids, _ in found.texts] == [words[n] for n in best]
            shares = chances[row] / chances[row].sum()
            assert [share for _, share in found.texts] == pytest.approx(shares[best].tolist(), rel=1e-3)


def spelled(head: Any, tokens: torch.Tensor, word: str) -> float:
    reader, total = head.reader(tokens), 1.0
    symbols = [CHARACTERS.index(character) for character in word]
    for previous, symbol in zip([10, *symbols], [*symbols, 10], strict=True):
        total *= float(reader.step(torch.tensor([previous]))[0].softmax(dim=-1)[0, symbol])
    return total


@pytest.mark.parametrize("name", ["transformer", "transformer, two layers", "permuted", "lstm"])
def test_a_decoder_goes_on_with_rows_in_any_order_and_several_times(name: str) -> None:
    head, tokens = shaken(name), some_tokens(3)
    rows = torch.tensor([2, 0, 0, 2])
    with torch.no_grad():
        one, other = head.reader(tokens), head.reader(tokens[rows])
        begin, second = torch.full((3,), 10), torch.tensor([4, 5, 6])
        one.step(begin), other.step(begin[rows])
        one.step(second), other.step(second[rows])
        one.keep(rows)
        third = torch.tensor([7, 8, 9, 1])
        assert torch.allclose(one.step(third)[0], other.step(third)[0], atol=1e-5)
        one.keep(torch.tensor([0, 2, 1, 3]), same_images=True)  # the texts of the second image change places
        other.keep(torch.tensor([0, 2, 1, 3]))
        assert torch.allclose(one.step(third)[0], other.step(third)[0], atol=1e-5)


def test_the_head_that_is_asked_reads_and_the_surer_of_two_is_the_more_probable(runners: Any) -> None:
    original, exported = runners("transformer")
    rule, pixels = constraint(match=r"\d{2,4}"), batch(12)
    for runner in (original, exported):
        by = {way: answers(runner, pixels, constraint=rule, by=way) for way in ("decoder", "ctc", "surer")}
        usual = answers(runner, pixels, constraint=rule)
        for decoder, ctc, surer, unasked in zip(by["decoder"], by["ctc"], by["surer"], usual, strict=True):
            assert surer.texts in (decoder.texts, ctc.texts) and unasked.texts == surer.texts


@pytest.mark.parametrize("name", HEADS)
def test_a_bonus_lets_a_word_win_that_is_nearly_as_likely(runners: Any, name: str) -> None:
    original, exported = runners(name)
    pixels = batch(8)
    free = answers(original, pixels, n_best=3)
    second = {read(found.texts[1][0]) for found in free if found.texts[1][0]}
    for runner in (original, exported):
        hardly = answers(runner, pixels, constraint=constraint(lexicon=second, bonus=0.0))
        surely = answers(runner, pixels, constraint=constraint(lexicon=second, bonus=50.0))
        assert [found.ids.tolist() for found in hardly] == [found.ids.tolist() for found in free]
        assert all(read(found.ids) in second for found in surely)


def test_what_cannot_be_asked_is_refused_and_says_why(runners: Any, tmp_path: Path) -> None:
    for runner in runners("permuted"):
        for options in ({"mode": "parallel"}, {"refine": 2}):
            with pytest.raises(UserError, match="searched left to right"):
                runner.answers(batch(1), constraint=constraint(whitelist="12"), **options)
        for options in ({"beam": 0}, {"n_best": -1}):
            with pytest.raises(UserError, match=r"(beam=0|n_best=-1): a search keeps at least one text"):
                runner.answers(batch(1), **options)
    path = save_small(tmp_path / "model.safetensors", "classify", small_model("classify", steps=0))
    with pytest.raises(UserError, match="tells classes apart"):
        TorchModel(load_model(path)[0], reads_text=False).answers(batch(1), beam=4)


def test_a_head_untrained_or_certain_of_nonsense_still_keeps_to_the_constraint() -> None:
    """What a constraint asks for may be all but impossible to the model: no sum may run out of digits."""
    rule = constraint(match="(01234567|76543210)")
    for strength in (0.0, 30.0):
        head = shaken("lstm", strength=strength) if strength else head_of("lstm").eval()
        tokens = some_tokens(3)
        with torch.no_grad():
            made = Encoded(3, 1, None, None, lambda h=head, t=tokens: Reading(h.reader(t), torch.device("cpu")), 10, 8)
            logits = head.logits.weight.new_full((3, 24, 11), -1.0)
            logits[..., 5] = 400.0
            columns = Encoded(3, 1, logits.numpy(), None, None, 10, 8)
            for found in (*search(made, Asked(rule, 4, 2)), *search(columns, Asked(rule, 4, 2))):
                assert read(found.ids) in ("01234567", "76543210") and 0 < found.confidence <= 1
