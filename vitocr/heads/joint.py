"""What the heads with a decoder share: a CTC head on the same tokens, and which of the two to believe.

CTC finds the alignment and is quick to learn; the decoder knows which characters follow one another.
Trained together the encoder learns faster, and the two read better than either. Where they read differently, both are
asked what they think of both texts (as in speech: Watanabe et al. 2017), if the decoder can tell that in passing; else
the surer one is believed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.errors import UserError, did_you_mean
from vitocr.heads.ctc import Ctc
from vitocr.heads.text import (
    Decoded,
    Reader,
    TextTargets,
    choose,
    full_length_logits,
    patch_tokens,
    read_stepwise,
)

WAYS = ("decoder", "ctc", "surer")
# What CTC thinks of a text counts so much beside what the decoder thinks; inference/numpy_decode.py has it too. On 500
# words held back and 1,500 rendered ones str-tiny reads 13 that the surer reader got wrong, and loses 1; 0.2 is alike.
CTC_COUNTS = 0.3


class DecoderHead(nn.Module):
    """A head has a `decoder_loss` on patch tokens (B, N, D) and a `reader` of them; the rest is here.

    ctc: weight of the joint CTC head's loss; 0 makes none.
    """

    def __init__(
        self,
        *,
        dim: int,
        prefix: int,
        grid: tuple[int, int],
        symbols: int,
        max_length: int,
        ctc: float,
        smoothing: float,
    ) -> None:
        super().__init__()
        if ctc < 0:
            raise ValueError(f"head.ctc={ctc} is the weight of a loss: at least 0")
        self.prefix, self.grid, self.end, self.max_length = prefix, grid, symbols, max_length
        self.ctc_weight = ctc
        # The decoder also learns texts that CTC has no room for; their share is told as "infeasible".
        of_ctc: Any = {"dim": dim, "prefix": prefix, "grid": grid, "symbols": symbols, "smoothing": smoothing}
        self.ctc = Ctc(**of_ctc, max_length=min(max_length, grid[1])) if ctc else None

    def decoder_loss(
        self, memory: Tensor, targets: TextTargets, *, label_smoothing: float, align: float
    ) -> dict[str, Tensor]:
        raise NotImplementedError

    def reader(self, memory: Tensor) -> Reader:
        raise NotImplementedError

    def read(self, memory: Tensor) -> Decoded:
        """What the decoder alone reads."""
        return read_stepwise(
            self.reader(memory),
            images=len(memory),
            end=self.end,
            max_length=self.max_length,
            rows=self.grid[0],
            like=memory,
        )

    def read_guessed(self, memory: Tensor, guess: Decoded) -> tuple[Decoded, Tensor | None]:
        """As `read`, and the logarithm (B,) of the probability that the decoder gives a guess; None if that would take
        reading it as well. A decoder that looks at a whole text at once saves time by the guess (`heads.guess`)."""
        return self.read(memory), None

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, max_length + 1, symbols + 1) of the decoder reading to the full length."""
        return full_length_logits(
            self.reader(self.memory(tokens)),
            images=len(tokens),
            end=self.end,
            max_length=self.max_length,
            device=tokens.device,
        )

    def memory(self, tokens: Tensor) -> Tensor:
        return patch_tokens(tokens, self.prefix, self.grid)

    def loss(
        self, tokens: Tensor, targets: TextTargets, *, label_smoothing: float = 0.0, align: float = 0.0
    ) -> dict[str, Tensor]:
        """Nats a symbol, plus `ctc` times CTC's. align: weight of the supervision by the characters' spans."""
        told = self.decoder_loss(self.memory(tokens), targets, label_smoothing=label_smoothing, align=align)
        if self.ctc is None:
            return told
        beside = self.ctc.loss(tokens, targets, label_smoothing=label_smoothing, align=align)
        both = told["loss"] + self.ctc_weight * beside["loss"]
        return told | {
            "loss": both,
            "decoder": told["loss"],
            "ctc": beside["loss"],
            "infeasible": beside["infeasible"],
        }

    @torch.no_grad()
    def decode(self, tokens: Tensor, *, by: str | None = None, **options: Any) -> Decoded:
        """by: "decoder", "ctc", or "surer", the likelier of their two texts (the default if there are two)."""
        by = by or ("surer" if self.ctc is not None else "decoder")
        if by not in WAYS:
            raise UserError(f"by={by}: choose one of {', '.join(WAYS)}.{did_you_mean(by, WAYS)}")
        if by != "decoder" and self.ctc is None:
            raise UserError(f"by={by} needs a model trained with a CTC head (head.ctc > 0), which this one lacks")
        if self.ctc is None or by == "decoder":
            return self.read(self.memory(tokens), **options)
        aligned = self.ctc.decode(tokens)
        if by == "ctc":
            return aligned
        decoded, of_aligned = self.read_guessed(self.memory(tokens), aligned, **options)
        take_ctc = aligned.confidence > decoded.confidence
        if of_aligned is not None:
            differ = (texts_differ(decoded, aligned) & ~of_aligned.isnan()).nonzero()[:, 0]
            of_decoded = self.ctc.log_probability(tokens[differ], decoded.ids[differ], decoded.lengths[differ])
            take_ctc[differ] = (
                of_aligned[differ] + CTC_COUNTS * aligned.confidence[differ].log()
                > decoded.confidence[differ].log() + CTC_COUNTS * of_decoded
            )
        return choose(decoded, aligned, take_ctc)


def texts_differ(a: Decoded, b: Decoded) -> Tensor:
    """(B,)"""
    longest = max(a.ids.shape[1], b.ids.shape[1])
    one, two = (F.pad(each.ids, (0, longest - each.ids.shape[1]), value=-1) for each in (a, b))
    return (one != two).any(dim=1)
