"""`teacher=PATH`: a model learns, beside the labels, what another one answers to the very same altered images.

Distillation (Hinton et al., 2015), as Beyer et al. (2022) found it to work best: teacher and pupil see the same crop,
mixed and all, so that every image is a question with a rich answer, and a long training never runs out of them. A
plain ViT, which has to find out from few images that neighbouring pixels belong together, hears it so from one with
convolutions (Touvron et al., 2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitocr.catalog import backbone_name, find_model
from vitocr.checkpoint import load_model
from vitocr.codec import Classes
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess


class Teacher:
    def __init__(self, path: str, *, codec: Classes, preprocess: Preprocess) -> None:
        file = find_model(path)
        model, description = load_model(file)
        where = f"teacher={path}"
        if description["kind"] != "classify":
            raise UserError(f"{where} is a model of kind {description['kind']}: a teacher tells classes apart.")
        known = description["codec"]["names"]
        if missing := [name for name in codec.names if name not in known]:
            raise UserError(f"{where} knows no {', '.join(missing[:5])}: it must know every class of the task.")
        theirs = Preprocess.from_dict(description["preprocess"])
        for name in ("size", "mean", "std"):
            if getattr(theirs, name) != getattr(preprocess, name):
                raise UserError(
                    f"{where} sees the same images as its pupil, but its preprocess.{name} is "
                    f"{list(getattr(theirs, name))}, and this run's {list(getattr(preprocess, name))}."
                )
        self.model = model.eval().requires_grad_(False)
        self.columns = torch.tensor([known.index(name) for name in codec.names])
        self.name = f"{file} ({description['task']}, {backbone_name(description)})"

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Its probabilities (B, C) of the classes of the task, in their order, for normalised images (B, 3, H, W)."""
        if self.columns.device != images.device:
            self.model, self.columns = self.model.to(images.device), self.columns.to(images.device)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.dtype == torch.bfloat16):
            logits: Tensor = self.model(images)
        return logits.float()[:, self.columns].softmax(dim=1)


def teacher_of(config: dict[str, Any], *, codec: Classes, preprocess: Preprocess) -> Teacher | None:
    if config["teacher"] is None:
        return None
    if not 0 < config["teacher_weight"] <= 1:
        raise UserError(
            f"teacher_weight={config['teacher_weight']} is the teacher's part of the loss, beside the labels': "
            "more than 0, and at most 1, which is the teacher alone."
        )
    return Teacher(config["teacher"], codec=codec, preprocess=preprocess)
