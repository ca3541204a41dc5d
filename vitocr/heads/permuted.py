"""A decoder trained to read in any order (XLNet; PARSeq, Bautista and Atienza 2022).

Every place of the text has a query, its position; what it may look at, besides the image, is the begin and
the characters that come before it in some order. Trained on several orders at once, the same weights read
left to right ("ar"), all places at once ("parallel"), and again with all other characters known (`refine`).

Design choices:
- One layer: the characters are then looked at as they are embedded, so their keys and values serve
  all orders, and all orders go through the decoder as one long row of queries.
- The end is a place like any other: it takes part in the orders, so parallel reading knows it too.
- Orders come in mirrored pairs; left to right and its mirror are always among them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.errors import UserError
from vitocr.heads.joint import DecoderHead
from vitocr.heads.text import (
    Decoded,
    SymbolLogits,
    TextTargets,
    look_loss,
    read_at_once,
    symbol_loss,
    teacher_forcing,
    within,
)
from vitocr.models.decoder import DecoderBlock, KeysValues, Packed, packed_where, reset


def draw_orders(count: int, places: int, device: torch.device) -> Tensor:
    """(count, places): the turn of each place; row 0 is left to right, each odd row mirrors the one before."""
    pairs = [torch.arange(places)] + [torch.randperm(places) for _ in range(1, (count + 1) // 2)]
    return torch.stack([turn for pair in pairs for turn in (pair, places - 1 - pair)])[:count].to(device)


def order_mask(turns: Tensor) -> Tensor:
    """Turns (K, P) to (K, P, P), True where query p may look at content c: 0 is the begin, c the character c - 1."""
    earlier = turns[:, None, :-1] < turns[:, :, None]  # (K, P, P - 1)
    return F.pad(earlier, (1, 0), value=True)


def cloze_mask(places: int, device: torch.device) -> Tensor:
    """(P, P): every character but one's own."""
    own = torch.eye(places, dtype=torch.bool, device=device)
    return ~F.pad(own[:, :-1], (1, 0))


class Permuted(DecoderHead):
    """orders: how many a step trains on. ctc: weight of a joint CTC head; 0 makes none."""

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        grid: tuple[int, int],
        symbols: int,
        max_length: int,
        orders: int = 6,
        heads: int = 6,
        mlp_ratio: float = 4.0,
        activation: str = "relu",
        ctc: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            dim=dim, prefix=prefix, grid=grid, symbols=symbols, max_length=max_length, ctc=ctc, smoothing=smoothing
        )
        if orders < 1:
            raise ValueError(f"head.orders={orders}: train on at least one")
        self.orders = orders
        self.embed = nn.Embedding(symbols + 1, dim)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, max_length + 1, dim), std=0.02))
        self.norm_content = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList([DecoderBlock(dim, heads, mlp_ratio=mlp_ratio, activation=activation)])
        self.norm = nn.LayerNorm(dim)
        self.logits = SymbolLogits(dim, symbols, smoothing)
        reset(self.embed)
        reset(self.blocks)

    @property
    def block(self) -> DecoderBlock:
        block = self.blocks[0]  # in a list, as those of every transformer here: the optimiser goes by the name
        assert isinstance(block, DecoderBlock)
        return block

    def content(self, given: Tensor, first: int, dtype: torch.dtype) -> KeysValues:
        """Keys and values of given symbols (B, n), the first at place `first`; place 0 is the begin."""
        x = self.embed(given)
        # The character at content place c stands at position c - 1 of the text; the begin stands nowhere.
        where = F.pad(self.positions[:, :-1], (0, 0, 1, 0))[:, first : first + given.shape[1]]
        return self.block.text.remember(self.norm_content((x + where).to(dtype)))

    def answers(
        self,
        queries: Tensor,
        content: KeysValues,
        image: KeysValues,
        *,
        mask: Tensor | None,
        want_weights: bool,
        packed: Packed | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        x, weights = self.block(queries, content, image, mask=mask, want_weights=want_weights, packed=packed)
        return self.norm(x), weights

    def queries(self, memory: Tensor, first: int, places: int) -> Tensor:
        return self.positions[:, first : first + places].to(memory.dtype).expand(len(memory), -1, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, max_length + 1, symbols + 1) of one parallel pass: what is exported."""
        return self.all_places(self.memory(tokens))[0]

    def decoder_loss(
        self, memory: Tensor, targets: TextTargets, *, label_smoothing: float, align: float
    ) -> dict[str, Tensor]:
        given, expected = teacher_forcing(targets, end=self.end, max_length=self.max_length)
        B, P = given.shape
        K = self.orders
        mask = order_mask(draw_orders(K, P, given.device))  # (K, P, P)
        written = within(targets.lengths + 1, P)  # (B, P): the begin and the characters, no padding
        mask = (mask & written[:, None, None]).view(B, 1, K * P, P)
        expected = expected.repeat(1, K)  # (B, K * P)
        asked = expected >= 0
        packed = packed_where(asked)
        x, weights = self.answers(
            self.positions[0, packed.at % P].to(memory.dtype),  # (T, D)
            self.content(given, 0, memory.dtype),
            self.block.image.remember(memory),
            mask=mask,
            want_weights=align > 0,
            packed=packed,
        )
        told = symbol_loss(self.logits(x), expected[asked], label_smoothing)
        if weights is not None:
            told["align"] = look_loss(weights.view(B, K, P, -1).mean(dim=1), targets, self.grid[0])
            told["loss"] = told["loss"] + align * told["align"]
        return told

    def all_places(self, memory: Tensor, guess: Decoded | None = None) -> tuple[Tensor, Tensor]:
        """One pass over all places: logits (B, P, S + 1) and where each looked (B, P, N), given nothing or a guess."""
        P = self.max_length + 1
        given = torch.full((len(memory), 1), self.end, device=memory.device)
        mask = None
        if guess is not None:
            P = min(P, guess.ids.shape[1] + 2)  # no text grows by more than one character
            ids = guess.ids.where(guess.ids >= 0, self.end)
            given = F.pad(ids, (1, P - 1 - ids.shape[1]), value=self.end)  # (B, P)
            written = within(guess.lengths + 1, P)
            mask = (cloze_mask(P, memory.device) & written[:, None])[:, None]  # (B, 1, P, P)
        content, image = self.content(given, 0, memory.dtype), self.block.image.remember(memory)
        x, weights = self.answers(self.queries(memory, 0, P), content, image, mask=mask, want_weights=True)
        assert weights is not None
        return self.logits(x), weights

    def look(
        self, given: Tensor, places: Tensor, written: Tensor, image: KeysValues, past: KeysValues
    ) -> tuple[Tensor, Tensor, KeysValues]:
        """Any kind of reading in one: what is exported.

        Logits (B, P, S + 1) of the `places` (P,), where each looked (B, P, N), and the past with `given` (B, n)
        in it. A place sees the first `written` (B,) of the begin and the characters, but never its own.
        """
        seen = past.grown(self.content(given, past.keys.shape[2], past.keys.dtype))
        at = torch.arange(seen.keys.shape[2], device=given.device)
        mask = (at != places[:, None] + 1) & (at < written[:, None, None])  # (B, P, M)
        queries = self.positions[0][places].to(past.keys.dtype).expand(given.shape[0], -1, -1)
        x, weights = self.answers(queries, seen, image, mask=mask[:, None], want_weights=True)
        assert weights is not None
        return self.logits(x), weights, seen

    def reader(self, memory: Tensor) -> "Reading":
        return Reading(self, memory, self.block.image.remember(memory))

    def read(self, memory: Tensor, *, mode: str = "ar", refine: int = 1) -> Decoded:
        """mode: "ar", one character after another, or "parallel". refine: passes over all places afterwards.

        A refining pass answers every place given all other characters as they were, and the probabilities are
        those of its answers. It may lengthen a text by one character.
        """
        if mode not in ("ar", "parallel"):
            raise UserError(f"mode={mode}: choose ar or parallel")
        found = super().read(memory) if mode == "ar" else self.read_places(memory)
        for _ in range(refine):
            found = self.read_places(memory, found)
        return found

    def read_guessed(
        self, memory: Tensor, guess: Decoded, *, mode: str = "ar", refine: int = 1
    ) -> tuple[Decoded, Tensor | None]:
        return self.read(memory, mode=mode, refine=refine), None

    def read_places(self, memory: Tensor, guess: Decoded | None = None) -> Decoded:
        if guess is None:
            longest = torch.full((len(memory),), self.max_length, device=memory.device)
        else:
            longest = (guess.lengths + 1).clamp(max=self.max_length)
        logits, weights = self.all_places(memory, guess)
        return read_at_once(logits, weights, longest, end=self.end, rows=self.grid[0])


class Reading:
    """A text being read left to right, with the keys and values of the image and of what was read."""

    def __init__(self, head: Permuted, memory: Tensor, image: KeysValues) -> None:
        self.head, self.memory, self.image = head, memory, image
        self.past = KeysValues(image.keys[:, :, :0], image.values[:, :, :0])

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor]:
        head, at = self.head, self.past.keys.shape[2]
        self.past = self.past.grown(head.content(previous[:, None], at, self.memory.dtype))
        query = head.queries(self.memory, at, 1)
        x, weights = head.answers(query, self.past, self.image, mask=None, want_weights=True)
        assert weights is not None
        return head.logits(x)[:, 0], weights[:, 0]

    def keep(self, rows: Tensor, *, same_images: bool = False) -> None:
        self.past = self.past.kept(rows)
        if not same_images:
            self.memory, self.image = self.memory[rows], self.image.kept(rows)
