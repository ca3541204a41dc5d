"""A transformer decoder that reads one character after another, looking at the image and at what it has read.

Trained on the whole text at once, each character given those before it; read step by step with the keys
and values of the image and of the past kept, so that a step costs one character, however long the text.
"""

import torch
from torch import Tensor, nn

from vitocr.heads.guess import read_by_guess
from vitocr.heads.joint import DecoderHead
from vitocr.heads.text import Decoded, SymbolLogits, TextTargets, look_loss, symbol_loss, teacher_forcing
from vitocr.models.decoder import DecoderBlock, KeysValues, causal_mask, packed_where, reset, sine_positions


class Transformer(DecoderHead):
    """positions: "learned" or "sine". ctc: weight of a joint CTC head; 0 makes none."""

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        grid: tuple[int, int],
        symbols: int,
        max_length: int,
        depth: int = 1,
        heads: int = 6,
        mlp_ratio: float = 4.0,
        activation: str = "relu",
        positions: str = "learned",
        ctc: float = 0.0,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            dim=dim, prefix=prefix, grid=grid, symbols=symbols, max_length=max_length, ctc=ctc, smoothing=smoothing
        )
        if positions not in ("learned", "sine"):
            raise ValueError(f"head.positions={positions}: choose learned or sine")
        if depth < 1:
            raise ValueError(f"head.depth={depth}: a decoder has at least one layer")
        self.embed = nn.Embedding(symbols + 1, dim)
        sines = sine_positions(max_length + 1, dim)
        if positions == "learned":
            self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty_like(sines), std=0.02))
        else:
            self.register_buffer("positions", 0.02 * sines, persistent=False)  # of the size of the embeddings
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, heads, mlp_ratio=mlp_ratio, activation=activation) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.logits = SymbolLogits(dim, symbols, smoothing)
        reset(self.embed)
        reset(self.blocks)

    def layers(self) -> list[DecoderBlock]:
        return [block for block in self.blocks if isinstance(block, DecoderBlock)]

    def stream(
        self, given: Tensor, memory: Tensor, *, real: Tensor | None = None, want_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """What the real places of the given symbols (B, L) come to (T, D), and where each looked (B, L, N).

        real: (B, L) bool, the places before the padding; by default all."""
        packed = packed_where(torch.ones_like(given, dtype=torch.bool) if real is None else real)
        at, L = packed.at, given.shape[1]
        x = (self.embed(given.flatten()[at]) + self.positions[0, at % L]).to(memory.dtype)  # (T, D)
        mask = causal_mask(L, given.device)  # padding is behind the text, so no real place sees it
        weights = None
        for block in self.layers():
            looks = want_weights and block is self.blocks[-1]
            seen, image = block.remember(x, packed), block.image.remember(memory)
            x, weights = block(x, seen, image, mask=mask, want_weights=looks, packed=packed)
        return self.norm(x), weights

    def decoder_loss(
        self, memory: Tensor, targets: TextTargets, *, label_smoothing: float, align: float
    ) -> dict[str, Tensor]:
        given, expected = teacher_forcing(targets, end=self.end, max_length=self.max_length)
        asked = expected >= 0
        x, weights = self.stream(given, memory, real=asked, want_weights=align > 0)
        told = symbol_loss(self.logits(x), expected[asked], label_smoothing)
        if weights is not None:
            told["align"] = look_loss(weights, targets, self.grid[0])
            told["loss"] = told["loss"] + align * told["align"]
        return told

    def begin(self, memory: Tensor) -> tuple[list[KeysValues], list[KeysValues]]:
        """Of every layer the keys and values of the image, and those of a text of which nothing is read yet."""
        images = [block.image.remember(memory) for block in self.layers()]
        return images, [KeysValues(image.keys[:, :, :0], image.values[:, :, :0]) for image in images]

    def step(
        self, given: Tensor, images: list[KeysValues], pasts: list[KeysValues], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, list[KeysValues]]:
        """Logits (B, C, S + 1) of what follows each of the symbols (B, C), where each looked (B, C, N), and the past
        with them."""
        at, C = pasts[0].keys.shape[2], given.shape[1]
        x = (self.embed(given) + self.positions[:, at : at + C]).to(dtype)  # (B, C, D)
        mask = None  # the last of them may look at all that was given
        if C != 1:
            places = torch.arange(at + C, device=given.device)
            mask = places <= places[at:, None]  # (C, at + C)
        weights, grown = None, []
        for block, image, past in zip(self.layers(), images, pasts, strict=True):
            grown.append(past.grown(block.remember(x)))
            x, weights = block(x, grown[-1], image, mask=mask, want_weights=block is self.blocks[-1])
        assert weights is not None
        return self.logits(self.norm(x)), weights, grown

    def read_guessed(self, memory: Tensor, guess: Decoded) -> tuple[Decoded, Tensor]:
        known, nothing = self.begin(memory)

        def look(given: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
            if len(images) == len(memory):
                return self.step(given, known, nothing, memory.dtype)[:2]
            some = [each.kept(images) for each in known]
            return self.step(given, some, [each.kept(images) for each in nothing], memory.dtype)[:2]

        return read_by_guess(look, guess, end=self.end, max_length=self.max_length, rows=self.grid[0])

    def reader(self, memory: Tensor) -> "Reading":
        return Reading(self, memory)


class Reading:
    """A text being read, with the keys and values of the image and of the past, one pair a layer."""

    def __init__(self, head: Transformer, memory: Tensor) -> None:
        self.head, self.dtype = head, memory.dtype
        self.images, self.pasts = head.begin(memory)

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor]:
        logits, weights, self.pasts = self.head.step(previous[:, None], self.images, self.pasts, self.dtype)
        return logits[:, 0], weights[:, 0]

    def keep(self, rows: Tensor, *, same_images: bool = False) -> None:
        if not same_images:
            self.images = [image.kept(rows) for image in self.images]
        self.pasts = [past.kept(rows) for past in self.pasts]
