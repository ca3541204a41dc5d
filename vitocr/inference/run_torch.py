"""A model in torch, as `vitocr.predict` uses it: from a checkpoint to a device, from arrays to answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitocr.checkpoint import load_model
from vitocr.constraints.automaton import Ids
from vitocr.constraints.found import Floats
from vitocr.constraints.search import Asked, Encoded, asked, plainly, search
from vitocr.errors import UserError, did_you_mean
from vitocr.heads.ctc import Ctc
from vitocr.heads.joint import DecoderHead
from vitocr.heads.text import Reader

PRECISIONS = ("fp32", "bf16", "auto")


class TorchModel:
    def __init__(self, model: nn.Module, *, reads_text: bool, precision: str = "fp32") -> None:
        self.model, self.reads_text = model.eval(), reads_text
        self.device = next(model.parameters()).device
        self.bf16 = in_bf16(precision, self.device)

    @torch.inference_mode()
    def answers(self, pixels: NDArray[np.float32], **options: Any) -> Iterable[Any]:
        """Of every image its logits, or the fields of `heads.text.Decoded` and the mean of its tokens; all on the CPU.

        With any of `constraint`, `beam` and `n_best` these are followed by the texts that were found, best first
        (`constraints.search`). Other options are those of the head's own `decode`.
        """
        wish, options = asked(**options)
        if not self.reads_text and (wish is not None or options):
            raise UserError("This model tells classes apart: how to read text is nothing to ask of it.")
        images = torch.from_numpy(pixels).to(self.device)  # (B, 3, H, W)
        with torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            if not self.reads_text:
                logits: Tensor = self.model(images)  # (B, C)
                return logits.float().cpu()
            if wish is not None and not wish.is_plain:
                return self.search(images, wish, **options)
            network: Any = self.model
            tokens = network.backbone(images)
            decoded = network.head.decode(tokens, **options)
        rows = zip(*(field.cpu() for field in (*decoded, mean(tokens))), strict=True)
        return plainly(rows) if wish is not None else rows

    def search(self, images: Tensor, wish: Asked, *, by: str | None = None) -> Iterable[Any]:
        # Here and now: what is read later would be read outside of inference mode and of autocast.
        return [answer for part in images.split(wish.images) for answer in search(self.encoded(part), wish, by=by)]

    def encoded(self, images: Tensor) -> Encoded:
        network: Any = self.model
        head, tokens = network.head, network.backbone(images)
        ctc = head if isinstance(head, Ctc) else head.ctc
        logits, shares = None, None
        if ctc is not None:
            pooled, shares = ctc.pool(tokens)
            logits = ctc.logits(pooled)
        memory = head.memory(tokens) if isinstance(head, DecoderHead) else None
        return Encoded(
            images=len(images),
            rows=head.grid[0],
            logits=None if logits is None else as_array(logits),
            shares=None if shares is None else as_array(shares),
            start=None if memory is None else lambda: Reading(head.reader(memory), self.device),
            end=0 if memory is None else head.end,
            max_length=head.max_length,
            summary=as_array(mean(tokens)),
        )

    def stack(self, answers: Sequence[Tensor], classes: int) -> Tensor:
        return torch.stack(list(answers)) if answers else torch.empty(0, classes)


def in_bf16(precision: str, device: torch.device) -> bool:
    if precision not in PRECISIONS:
        near = did_you_mean(precision, PRECISIONS)
        raise UserError(f"precision={precision}: choose one of {', '.join(PRECISIONS)}.{near}")
    if precision != "auto":
        return precision == "bf16"
    from vitocr.machine import cpu_has_bf16

    return torch.cuda.is_bf16_supported() if device.type == "cuda" else device.type == "cpu" and cpu_has_bf16()


class Reading:
    """A decoder in the middle of reading some images, as a beam search drives it: arrays in, arrays out."""

    def __init__(self, reader: Reader, device: torch.device) -> None:
        self.reader, self.device = reader, device

    def step(self, previous: Ids) -> tuple[Floats, Floats]:
        logits, looked = self.reader.step(torch.from_numpy(previous).to(self.device))
        return as_array(logits), as_array(looked)

    def keep(self, rows: Ids, *, same_images: bool) -> None:
        self.reader.keep(torch.from_numpy(rows).to(self.device), same_images=same_images)


def mean(tokens: Tensor) -> Tensor:
    """(B, N, D) to (B, D)"""
    return tokens.float().mean(dim=1)


def as_array(tensor: Tensor) -> Floats:
    return tensor.float().cpu().numpy()


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
