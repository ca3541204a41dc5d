"""Naming a class: pool the tokens into one vector, map it to one logit a class."""

import torch.nn.functional as F
from torch import Tensor, nn


class Classify(nn.Module):
    """`pool="avg"` averages the patch tokens; `pool="cls"` reads the class token (backbone.class_token=true)."""

    def __init__(self, *, dim: int, prefix: int, classes: int, pool: str = "avg") -> None:
        super().__init__()
        if pool not in ("avg", "cls"):
            raise ValueError(f"head.pool={pool}: choose avg or cls")
        if pool == "cls" and prefix == 0:
            raise ValueError(
                "head.pool=cls reads a class token, which this backbone lacks: add backbone.class_token=true"
            )
        self.pool, self.prefix = pool, prefix
        self.logits = nn.Linear(dim, classes)
        nn.init.zeros_(self.logits.weight)  # starts by predicting every class alike
        nn.init.zeros_(self.logits.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        pooled = tokens[:, 0] if self.pool == "cls" else tokens[:, self.prefix :].mean(dim=1)  # (B, D)
        return self.logits(pooled)  # (B, classes)

    def loss(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        mixed: Tensor | None = None,
        share: Tensor | float = 1.0,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Cross-entropy; where an image was mixed, `share` of it is `targets` and the rest is `mixed`."""
        logits = logits.float()
        loss = F.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="none")
        if mixed is not None:
            other = F.cross_entropy(logits, mixed, label_smoothing=label_smoothing, reduction="none")
            loss = share * loss + (1 - share) * other
        return loss.mean()
