"""Heads that read one character after another: what they remember between the steps changes nothing."""

import pytest
import torch
from heads_kit import (
    COLUMNS,
    DECODERS,
    LONGEST,
    SYMBOLS,
    half_taught,
    head_of,
    random_texts,
    shaken,
    some_tokens,
    targets_of,
    texts_of,
    unclear_tokens,
)
from torch import Tensor

from vitocr.heads.guess import read_by_guess
from vitocr.heads.lstm import Lstm
from vitocr.heads.text import Decoded, read_stepwise
from vitocr.heads.transformer import Transformer

TRANSFORMERS = [name for name in DECODERS if name.startswith("transformer")]


def read_without_memory(head: Transformer, memory: Tensor) -> tuple[list[int], Tensor]:
    """Greedy reading of one image that computes everything anew for every character."""
    text: list[int] = []
    confidence = torch.ones(())
    while True:
        x, _ = head.stream(torch.tensor([[SYMBOLS, *text]]), memory)
        chances = head.logits(x)[-1].softmax(dim=0)
        best = SYMBOLS if len(text) == LONGEST else int(chances.argmax())
        confidence = confidence * chances[best]
        if best == SYMBOLS:
            return text, confidence
        text.append(best)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_reading_with_remembered_keys_equals_reading_without(name: str) -> None:
    for seed in range(4):
        head, tokens = half_taught(name), unclear_tokens(8, seed=seed)
        found = head.decode(tokens)
        with torch.no_grad():
            for i in range(8):
                text, confidence = read_without_memory(head, tokens[i : i + 1])
                assert texts_of(found)[i] == text
                torch.testing.assert_close(found.confidence[i], confidence, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_step_gives_the_logits_and_looks_of_the_whole_text_at_once(name: str) -> None:
    head, memory = shaken(name), some_tokens(5)
    given = torch.randint(0, SYMBOLS, (5, LONGEST + 1), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x, looked = head.stream(given, memory, want_weights=True)
        assert looked is not None
        x = x.unflatten(0, (5, LONGEST + 1))
        reader = head.reader(memory)
        for at in range(LONGEST + 1):
            logits, weights = reader.step(given[:, at])
            torch.testing.assert_close(logits, head.logits(x[:, at]), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(weights, looked[:, at], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_no_character_sees_those_after_it(name: str) -> None:
    head, memory = shaken(name), some_tokens(1)
    given = torch.tensor([[SYMBOLS, 1, 2, 3, 4]])
    with torch.no_grad():
        before, _ = head.stream(given, memory)
        after, _ = head.stream(torch.tensor([[SYMBOLS, 1, 2, 9, 9]]), memory)
    same = (before - after).abs().amax(dim=1) < 1e-6
    assert same.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_padding_is_not_computed_and_changes_nothing(name: str) -> None:
    head, memory = shaken(name), some_tokens(3)
    given = torch.randint(0, SYMBOLS, (3, 5), generator=torch.Generator().manual_seed(0))
    real = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    with torch.no_grad():
        whole, looked = head.stream(given, memory, want_weights=True)
        some, looked_some = head.stream(given, memory, real=real, want_weights=True)
    assert looked is not None and looked_some is not None
    assert len(some) == 8
    torch.testing.assert_close(some, whole[real.flatten()], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(looked_some[real], looked[real], atol=1e-5, rtol=1e-5)


def guess_of(texts: list[list[int]]) -> Decoded:
    ids, lengths, _ = targets_of(texts)
    B, L = ids.shape
    return Decoded(ids, lengths, torch.ones(B, L), torch.ones(B), torch.zeros(B, L, 4))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_reading_with_any_guess_of_the_text_gives_what_reading_step_by_step_gives(name: str) -> None:
    head, tokens = half_taught(name), unclear_tokens(24)
    with torch.no_grad():
        expected = head.read(tokens)
        read = texts_of(expected)
        assert len({len(text) for text in read}) > 4
        guesses = {
            "right": read,
            "none": [[] for _ in read],
            "of other images": read[1:] + read[:1],
            "too long": [[*text, 1, 2, 3] for text in read],
            "cut short": [text[:-1] for text in read],
            "one wrong": [[(text[0] + 1) % SYMBOLS, *text[1:]] if text else [] for text in read],
            "nonsense": random_texts(24, seed=9),
        }
        for what, texts in guesses.items():
            found, _ = head.read_guessed(tokens, guess_of(texts))
            assert texts_of(found) == read, what
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_right_guess_is_one_look_and_only_what_was_wrong_is_looked_at_again() -> None:
    head, tokens = half_taught("transformer"), unclear_tokens(16)
    sizes: list[int] = []

    def look(given: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(given))
        return head.step(given, *head.begin(tokens[images]), tokens.dtype)[:2]

    def looks(texts: list[list[int]]) -> list[int]:
        sizes.clear()
        found, _ = read_by_guess(look, guess_of(texts), end=SYMBOLS, max_length=LONGEST, rows=1)
        assert texts_of(found) == read
        return list(sizes)

    with torch.no_grad():
        read = texts_of(head.read(tokens))
        assert looks(read) == [16]
        wrong = [*read]
        wrong[3] = [*wrong[3], 0] if len(wrong[3]) < LONGEST else wrong[3][:-1]
        assert looks(wrong) == [16, 1]
        assert len(looks([[] for _ in read])) <= LONGEST + 1


@pytest.mark.parametrize("name", DECODERS)
def test_a_word_that_has_ended_costs_nothing_more(name: str) -> None:
    """Steps work on as many images as are still being read, and stop with the longest."""
    head, tokens = half_taught(name), unclear_tokens(16)
    reader, sizes = head.reader(tokens), []

    class Counting:
        def step(self, previous: Tensor) -> tuple[Tensor, Tensor]:
            sizes.append(len(previous))
            return reader.step(previous)

        def keep(self, rows: Tensor) -> None:
            reader.keep(rows)

    with torch.no_grad():
        found = read_stepwise(Counting(), images=16, end=SYMBOLS, max_length=LONGEST, rows=1, like=tokens)
    lengths = found.lengths
    assert sizes == [int((lengths >= at).sum()) for at in range(int(lengths.max()) + 1)]


@pytest.mark.parametrize("name", DECODERS)
def test_attention_on_the_image_sums_to_one(name: str) -> None:
    head, memory = shaken(name), some_tokens(4)
    reader = head.reader(memory)
    previous = torch.full((4,), SYMBOLS)
    with torch.no_grad():
        for _ in range(5):
            logits, weights = reader.step(previous)
            assert weights.shape == (4, COLUMNS) and (weights >= 0).all()
            torch.testing.assert_close(weights.sum(dim=1), torch.ones(4))
            previous = logits.argmax(dim=1)


def test_the_lstm_attends_as_bahdanau_wrote() -> None:
    head, memory = shaken("lstm"), some_tokens(2)
    assert isinstance(head, Lstm)
    hidden = torch.randn(2, head.hidden)
    with torch.no_grad():
        state = head.begin(memory)._replace(hidden=hidden)
        context, weights = head.look(state, memory, head.of_token(memory))
        for b in range(2):
            scores = torch.stack(
                [head.score(torch.tanh(head.of_token(token) + head.of_state(hidden[b])))[0] for token in memory[b]]
            )
            torch.testing.assert_close(weights[b], scores.softmax(dim=0), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(context[b], scores.softmax(dim=0) @ memory[b], atol=1e-5, rtol=1e-5)


def test_a_decoder_with_joint_ctc_learns_texts_that_ctc_has_no_room_for() -> None:
    head = head_of("transformer with ctc", grid=(1, 4))
    told = head.loss(some_tokens(2, places=4), targets_of([[1, 2, 3, 4, 5, 6], [1, 2]]))
    assert told["infeasible"] == 0.5 and torch.isfinite(told["loss"])


def test_sine_positions_are_no_parameters_and_not_saved() -> None:
    head = head_of("transformer, two layers")
    assert not any("positions" in name for name in head.state_dict())
    assert "positions" in dict(head_of("transformer").named_parameters())
