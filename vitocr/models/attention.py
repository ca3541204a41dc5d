"""Multi-head attention, with the implementation that is fastest where it runs.

- On a GPU: `scaled_dot_product_attention` (fused, flash kernels).
- On a CPU while training: batched matmul, softmax, batched matmul. The fused kernel's backward
  pass is several times slower there than the three plain steps.
- On a CPU without gradients: the three steps in bfloat16, where their matmuls are two to three times as fast as the
  fused kernel, and for a few tokens; the fused kernel else, which keeps the N x N scores in cache.
- Whenever the attention weights themselves are asked for: the plain steps, since fused kernels never
  form them.
- With a sparse pattern: sparse.py, which computes what the pattern shows and nothing else.

Shapes: B images, N tokens, D model width, H heads, d = D / H.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.models.patterns import Pattern
from vitocr.models.positions import Turn, rotate
from vitocr.models.sparse import attend_masked, attend_sparse


def attend_plain(q_BHNd: Tensor, k_BHMd: Tensor, v_BHMd: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of scaled queries; returns the mixed values and the weights that mixed them."""
    B, H, N, d = q_BHNd.shape
    M = k_BHMd.shape[2]
    # bmm on (B*H, ...) skips the shape bookkeeping that matmul does for 4-D operands.
    q, k = q_BHNd.reshape(B * H, N, d), k_BHMd.reshape(B * H, M, d)
    weights = torch.bmm(q, k.transpose(1, 2)).softmax(dim=-1)  # (B*H, N, M)
    mixed = torch.bmm(weights, v_BHMd.reshape(B * H, M, d))  # (B*H, N, d)
    return mixed.view(B, H, N, d), weights.view(B, H, N, M)


def attend(q_BHNd: Tensor, k_BHMd: Tensor, v_BHMd: Tensor) -> Tensor:
    """Attention of scaled queries by whichever implementation is fastest for this device and mode."""
    if q_BHNd.device.type == "cpu" and (torch.is_grad_enabled() or is_quick_in_steps(q_BHNd, k_BHMd)):
        return attend_plain(q_BHNd, k_BHMd, v_BHMd)[0]
    return F.scaled_dot_product_attention(q_BHNd, k_BHMd, v_BHMd, scale=1.0)


def is_quick_in_steps(q_BHNd: Tensor, k_BHMd: Tensor) -> bool:
    """On a CPU, forward. Fused against three steps, ms for 64 images on two cores: fp32 1.0 and 0.6 at 32 tokens, 2.2
    and 5.0 at 64; bf16 2.3 and 0.7 at 64, 9.9 and 3.4 at 128, 29 and 21 at 196. Beyond, the scores take the room."""
    scores = q_BHNd.shape[2] * k_BHMd.shape[2]
    return scores <= (640**2 if q_BHNd.dtype == torch.bfloat16 else 40**2)


class Attention(nn.Module):
    """Self-attention over tokens (B, N, D).

    Queries, keys and values are separate matrices rather than one fused (D, 3D): Muon
    orthogonalises each on its own, and on a CPU three matmuls cost the same as one.
    """

    def __init__(self, dim: int, heads: int, bias: bool) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} does not divide into heads={heads}; choose heads that divide dim")
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def split_heads(self, x_BND: Tensor) -> Tensor:
        B, N, D = x_BND.shape
        return x_BND.view(B, N, self.heads, D // self.heads).transpose(1, 2)  # (B, H, N, d)

    def forward(
        self,
        x_BND: Tensor,
        *,
        want_weights: bool = False,
        turn: Turn | None = None,
        pattern: Pattern | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`turn`: rotary positions of the tokens. `pattern`: who looks at whom; None is everyone at everyone."""
        # The scale 1/sqrt(d) goes on the small query matrix: on the queries it would be one more pass over
        # B x N x D numbers, forward and backward.
        scale = (x_BND.shape[2] // self.heads) ** -0.5
        bias = None if self.query.bias is None else self.query.bias * scale
        q = self.split_heads(F.linear(x_BND, self.query.weight * scale, bias))
        k, v = self.split_heads(self.key(x_BND)), self.split_heads(self.value(x_BND))
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        weights = None
        if want_weights and pattern is not None:
            mixed_BHNd, weights = attend_masked(q, k, v, pattern.mask(x_BND.shape[1], device=x_BND.device))
        elif want_weights:
            mixed_BHNd, weights = attend_plain(q, k, v)
        elif pattern is not None:
            mixed_BHNd = attend_sparse(q, k, v, pattern)
        else:
            mixed_BHNd = attend(q, k, v)
        return self.out(mixed_BHNd.transpose(1, 2).flatten(2)), weights  # (B, N, D), (B, H, N, N)
