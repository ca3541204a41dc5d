"""Who looks at whom: the sparse patterns of attention, as the sets of Sparse Transformer (Child et al. 2019).

With l the span, token i looks at

- `strided`, for images: the l tokens to either side, and every l-th token from itself. Where l is the number
  of columns of the grid, that is a row of patches each way and the whole column.
- `fixed`, for text: the tokens of its own block of l, and the summary, the last c tokens, of every block.
- `window`: the l tokens to either side.

The paper gives each of the two sets to a head of its own or merges them; here every head sees the merged
set, their union. With l about sqrt(n) that is about sqrt(n) tokens, and any token reaches any other in two
layers (not with `window`, which reaches l further with every layer). Causal attention is the same sets
without the tokens that come later.

`Pattern.sees` is the definition. What computes it fast (sparse.py, flex.py) is tested against it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = ("strided", "fixed", "window")


@dataclass(frozen=True)
class Pattern:
    kind: str
    span: int  # tokens: l above
    summary: int = 4  # tokens a block: c above; of `fixed` alone
    prefix: int = 0  # so many tokens before the others, a class token say, see all and are seen by all

    def sees(self, i: Tensor, j: Tensor, tokens: int, *, causal: bool = False) -> Tensor:
        """Whether token i looks at token j: indices that broadcast, among `tokens`, the prefix included."""
        a, b = i - self.prefix, j - self.prefix
        found = (i < self.prefix) | (j < self.prefix)
        if self.kind == "fixed":
            found = found | (a // self.span == b // self.span) | self.sums_up(b, tokens - self.prefix)
        else:
            found = found | ((a - b).abs() <= self.span)
        if self.kind == "strided":
            found = found | ((a - b) % self.span == 0)
        return found & (j <= i) if causal else found

    def sums_up(self, b: Tensor, tokens: int) -> Tensor:
        """Whether b is one of the last tokens of its block; the last block may be a short one."""
        end = (b // self.span * self.span + self.span).clamp(max=tokens)
        return b >= end - self.summary

    def mask(self, tokens: int, *, causal: bool = False, device: torch.device | None = None) -> Tensor:
        """(tokens, tokens) bool, True where the row's token looks at the column's."""
        at = torch.arange(tokens, device=device)
        return self.sees(at[:, None], at, tokens, causal=causal)


def span_for(kind: str, tokens: int, *, columns: int | None = None, summary: int = 4) -> int:
    """The span of least work, about sqrt(n); for strided and window the nearest that divides the grid's columns.

    `columns` is None where tokens are not a whole grid."""
    if kind == "fixed":  # l in one's own block and c * n / l in the summaries
        return max(round(math.sqrt(summary * tokens)), summary + 1)
    best = math.sqrt(tokens)
    dividing = [span for span in range(1, (columns or 0) + 1) if (columns or 0) % span == 0]
    near = [span for span in dividing if best / 2 <= span <= best * 2]
    return min(near, key=lambda span: abs(math.log(span / best)), default=max(1, round(best)))


def check_attention(attention: str, span: int | str, summary: int) -> None:
    """What a backbone's configuration says of its attention."""
    known = ("dense", *KINDS)
    if attention not in known:
        raise ValueError(f"backbone.attention={attention}: choose one of {', '.join(known)}")
    if span != "auto" and (not isinstance(span, int) or span < 1):
        raise ValueError(f"backbone.attention_span={span} is a number of tokens, at least 1, or auto")
    if summary < 1:
        raise ValueError(f"backbone.attention_summary={summary} is a number of tokens: at least 1")
    if attention == "fixed" and isinstance(span, int) and summary >= span:
        raise ValueError(
            f"backbone.attention_summary={summary} of the attention_span={span} tokens of a block leaves nothing "
            "out: make the summary smaller or the span larger"
        )
