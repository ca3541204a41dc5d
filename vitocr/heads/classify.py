"""Naming a class: pool the tokens into one vector, map it to one logit a class."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ClassTargets(NamedTuple):
    """Where an image was mixed with another, `share` of it shows `ids` and the rest `mixed`."""

    ids: Tensor  # (B,) int64
    mixed: Tensor | None = None  # (B,) int64
    share: Tensor | float = 1.0  # (B,)
    taught: Tensor | None = None  # (B, classes) probabilities that a teacher gives


class Classify(nn.Module):
    """`pool="avg"` averages the patch tokens; `pool="cls"` reads the class token (backbone.class_token=true)."""

    def __init__(self, *, dim: int, prefix: int, grid: tuple[int, int], classes: int, pool: str = "avg") -> None:
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
        self, tokens: Tensor, targets: ClassTargets, *, label_smoothing: float = 0.0, teacher_weight: float = 0.0
    ) -> dict[str, Tensor]:
        """Cross-entropy, and the accuracy on images that show one thing only. teacher_weight: of the cross-entropy with
        what a teacher says, the labels having the rest."""
        logits = self(tokens).float()
        loss = F.cross_entropy(logits, targets.ids, label_smoothing=label_smoothing, reduction="none")
        told = {}
        if targets.mixed is not None:
            other = F.cross_entropy(logits, targets.mixed, label_smoothing=label_smoothing, reduction="none")
            loss = targets.share * loss + (1 - targets.share) * other
        else:
            told["accuracy"] = (logits.detach().argmax(dim=1) == targets.ids).float().mean()
        told["loss"] = loss.mean()
        if targets.taught is not None:
            told["teacher"] = F.cross_entropy(logits, targets.taught)
            told["loss"] = torch.lerp(told["loss"], told["teacher"], teacher_weight)
        return told
