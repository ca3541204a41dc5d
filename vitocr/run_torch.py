"""A model in torch, as `vitocr.predict` uses it: from a checkpoint to a device, from arrays to answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitocr.checkpoint import load_model
from vitocr.errors import UserError


class TorchModel:
    def __init__(self, model: nn.Module, *, reads_text: bool) -> None:
        self.model, self.reads_text = model.eval(), reads_text
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def answers(self, pixels: NDArray[np.float32]) -> Iterable[Any]:
        """Of every image its logits, or the fields of `heads.text.Decoded`; all on the CPU."""
        images = torch.from_numpy(pixels).to(self.device)  # (B, 3, H, W)
        if self.reads_text:
            return zip(*(field.cpu() for field in self.model.decode(images)), strict=True)  # type: ignore[operator]
        logits: Tensor = self.model(images)  # (B, C)
        return logits.float().cpu()

    def stack(self, answers: Sequence[Tensor], classes: int) -> Tensor:
        return torch.stack(list(answers)) if answers else torch.empty(0, classes)


def load_on(path: Path, device: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a checkpoint and its description. device: None for the GPU if there is one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    network, description = load_model(path)
    try:
        network.to(device)
    except (RuntimeError, AssertionError) as error:  # the latter from a torch built without CUDA
        raise UserError(f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error
    return network, description
