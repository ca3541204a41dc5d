"""Where a head that reads looked for each character it wrote: cross-attention, or the columns of CTC."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitocr.heads.ctc import Ctc
from vitocr.heads.joint import DecoderHead
from vitocr.heads.permuted import Permuted
from vitocr.heads.text import Decoded


@dataclass(frozen=True)
class Looks:
    """One reading of one image; n characters on a grid of rows x columns."""

    who: str  # "decoder" or "CTC"
    ids: list[int]
    probs: list[float]
    confidence: float
    weights: Tensor  # (n, rows, columns)
    boxes: Tensor  # (n, 4): x0, y0, x1, y1 in shares of the image


def looks_of(head: nn.Module, tokens: Tensor) -> list[Looks]:
    """What each reader of the head made of one image's tokens (1, N, D). A head with a joint CTC head has two."""
    if isinstance(head, Ctc):
        return [ctc_looks(head, tokens)]
    if not isinstance(head, DecoderHead):
        return []
    memory = head.memory(tokens)
    decoded = head.decode(tokens, by="decoder")
    found = [as_looks("decoder", decoded, cross_attention(head, memory, decoded), head.grid[0])]
    return found + ([ctc_looks(head.ctc, tokens)] if head.ctc is not None else [])


def as_looks(who: str, decoded: Decoded, weights: Tensor, rows: int) -> Looks:
    n = int(decoded.lengths[0])
    return Looks(
        who=who,
        ids=decoded.ids[0, :n].tolist(),
        probs=decoded.probs[0, :n].tolist(),
        confidence=float(decoded.confidence[0]),
        weights=weights[:n].float().unflatten(1, (rows, -1)).cpu(),
        boxes=decoded.where[0, :n].cpu(),
    )


def cross_attention(head: DecoderHead, memory: Tensor, decoded: Decoded) -> Tensor:
    """(n, N): the mean over heads of the last layer's attention to the image, when each character was written.

    What was read is given to the decoder again, as it was: a decoding keeps the boxes only.
    """
    if isinstance(head, Permuted):  # what it answers comes from a pass over all places, given the others
        return head.all_places(memory, decoded)[1][0]
    reader = head.reader(memory)
    given = [head.end, *decoded.ids[0].tolist()]
    looked = [reader.step(torch.tensor([previous], device=memory.device))[1][0] for previous in given]
    return torch.stack(looked)


def ctc_looks(head: Ctc, tokens: Tensor) -> Looks:
    """A character was read from the columns in its box, from each as surely as the column says it."""
    decoded = head.decode(tokens)
    pooled, row_shares = head.pool(tokens)  # (1, columns, D), (1, rows, columns)
    chances = head.logits(pooled)[0].float().softmax(dim=-1)  # (columns, S + 1)
    ids = decoded.ids[0, : int(decoded.lengths[0])]
    middles = (torch.arange(len(chances), device=ids.device) + 0.5) / len(chances)
    left, right = decoded.where[0, : len(ids), 0::2, None].unbind(dim=1)  # (n, 1) each
    read_from = (middles > left) & (middles < right)  # (n, columns)
    weights = (chances[:, ids].T * read_from)[:, None] * row_shares  # (n, rows, columns)
    return as_looks("CTC", decoded, weights.flatten(1), head.grid[0])
