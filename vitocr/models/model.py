"""One model class for every task: a backbone that makes tokens, a head that makes sense of them.

A model is built from a *spec*, a dict of plain JSON types that travels inside every checkpoint:

    {"image_size": [32, 32],
     "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 192, ...},
     "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 10}}

`_target_` is an import path. What the two parts must agree on (image size, width, tokens before the
grid) is passed from one to the other here, so that a spec cannot contradict itself.
"""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from vitocr.errors import UserError


class Model(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module, spec: dict[str, Any]) -> None:
        super().__init__()
        self.backbone, self.head, self.spec = backbone, head, spec
        self.frozen = False

    def freeze_backbone(self) -> None:
        """From here on only the head learns: the backbone computes as in evaluation, and no gradient goes into it."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Model":
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, images: Tensor, *, keep: float = 1.0, seen: dict[str, Tensor] | None = None) -> Tensor:
        """Images (B, 3, H, W) to whatever the head makes of their tokens (logits, for a class)."""
        return self.head(self.backbone(images, keep=keep, seen=seen))

    def decode(self, images: Tensor, **options: Any) -> Any:
        """What a text head reads (heads.text.Decoded)."""
        return self.head.decode(self.backbone(images), **options)  # type: ignore[operator]

    def loss(self, images: Tensor, targets: Any, *, keep: float = 1.0, **options: Any) -> dict[str, Tensor]:
        """What training minimises, under "loss", and what else the head has to tell."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens = self.backbone(images, keep=keep)
        return self.head.loss(tokens, targets, **options)  # type: ignore[operator]


def import_module_class(path: str) -> type[nn.Module]:
    """The class a spec names. Only nn.Modules: a checkpoint must not be able to call anything else."""
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"the model needs `{path}`, which cannot be imported here ({error}); "
            "install the package that defines it, or correct `_target_`"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UserError(f"`{path}` is not a torch.nn.Module class, so it cannot be part of a model")
    return found


def build_part(spec: dict[str, Any], role: str, **given: Any) -> nn.Module:
    kwargs = {key: value for key, value in spec.items() if key != "_target_"} | given
    try:
        return import_module_class(spec["_target_"])(**kwargs)
    except (ValueError, TypeError) as error:  # a value that does not fit, or an unknown argument
        raise UserError(f"{role}: {error}") from error


def build_model(spec: dict[str, Any]) -> Model:
    """The untrained model a spec describes."""
    backbone: Any = build_part(spec["backbone"], "backbone", image_size=spec["image_size"])
    head = build_part(spec["head"], "head", dim=backbone.dim, prefix=backbone.prefix, grid=backbone.grid)
    of_head: type[Model] = getattr(head, "model_class", Model)  # pretraining feeds its head otherwise
    return of_head(backbone, head, spec)
