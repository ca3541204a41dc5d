"""The classic that the transformer replaced: an LSTM that looks at the image through additive attention.

(Bahdanau et al. 2015; in text recognition Shi et al. 2016, clovaai 2019.) At every step the state of the
LSTM scores each token, the tokens' weighted mean and the last character go in, the next character comes out.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitocr.heads.joint import DecoderHead
from vitocr.heads.text import SymbolLogits, TextTargets, look_loss, symbol_loss, teacher_forcing


class State(NamedTuple):
    hidden: Tensor  # (B, hidden)
    cell: Tensor  # (B, hidden)


class Lstm(DecoderHead):
    """hidden: width of the LSTM and of the attention. ctc: weight of a joint CTC head; 0 makes none."""

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        grid: tuple[int, int],
        symbols: int,
        max_length: int,
        hidden: int = 256,
        ctc: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            dim=dim, prefix=prefix, grid=grid, symbols=symbols, max_length=max_length, ctc=ctc, smoothing=smoothing
        )
        self.hidden = hidden
        self.embed = nn.Embedding(symbols + 1, dim)
        self.of_token, self.of_state = nn.Linear(dim, hidden), nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.cell = nn.LSTMCell(2 * dim, hidden)
        self.logits = SymbolLogits(hidden, symbols, smoothing)

    def begin(self, memory: Tensor) -> State:
        zeros = memory.new_zeros(len(memory), self.hidden)
        return State(zeros, zeros)

    def look(self, state: State, memory: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean of the tokens (B, D), and the weights (B, N); keys are `of_token(memory)`."""
        scores = self.score(torch.tanh(keys + self.of_state(state.hidden)[:, None]))[..., 0]  # (B, N)
        weights = scores.softmax(dim=1)
        return torch.bmm(weights[:, None], memory)[:, 0], weights

    def advance(self, previous: Tensor, state: State, memory: Tensor, keys: Tensor) -> tuple[State, Tensor]:
        """The state after the symbol after `previous` (B,), from which its logits come; where it looked (B, N)."""
        context, weights = self.look(state, memory, keys)
        given = torch.cat([context, self.embed(previous).to(context.dtype)], dim=1)  # (B, 2D)
        return State(*self.cell(given, tuple(state))), weights

    def decoder_loss(
        self, memory: Tensor, targets: TextTargets, *, label_smoothing: float, align: float
    ) -> dict[str, Tensor]:
        given, expected = teacher_forcing(targets, end=self.end, max_length=self.max_length)
        state, keys = self.begin(memory), self.of_token(memory)
        hiddens, looked = [], []
        for previous in given.unbind(dim=1):
            state, weights = self.advance(previous, state, memory, keys)
            hiddens.append(state.hidden)
            looked.append(weights)
        asked = expected >= 0
        x = torch.stack(hiddens, dim=1)[asked]
        told = symbol_loss(self.logits(x), expected[asked], label_smoothing)
        if align:
            told["align"] = look_loss(torch.stack(looked, dim=1), targets, self.grid[0])
            told["loss"] = told["loss"] + align * told["align"]
        return told

    def reader(self, memory: Tensor) -> "Reading":
        return Reading(self, memory)


class Reading:
    """A text being read: the state of the LSTM, and the tokens it looks at."""

    def __init__(self, head: Lstm, memory: Tensor) -> None:
        self.head, self.memory, self.keys = head, memory, head.of_token(memory)
        self.state = head.begin(memory)

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor]:
        self.state, weights = self.head.advance(previous, self.state, self.memory, self.keys)
        return self.head.logits(self.state.hidden), weights

    def keep(self, rows: Tensor, *, same_images: bool = False) -> None:
        if not same_images:
            self.memory, self.keys = self.memory[rows], self.keys[rows]
        self.state = State(self.state.hidden[rows], self.state.cell[rows])
