"""A model cut into the graphs that reading it takes, each a module that maps tensors to a tuple of tensors.

`encode` maps images to all that is ever asked of them: logits, or what a decoder looks at (its keys and values); of one
that reads also the mean of the tokens, `summary`, by which `presence.py` tells whether there is anything to read.
`step`, for heads with a decoder, maps the last symbols and the state of the reading to the logits of the next, so
that whoever runs it may stop when the texts end, drop those that have, or steer what may come next.

How the graphs fit together is told in plain types (`Cut.reading`), which travel with them:

    {"head": "classify"}
    {"head": "ctc", "rows", "blank", "shares": bool}
    {"head": "stepwise" or "permuted", "rows", "end", "max_length", "ctc": bool,
     "many": whether a step takes several symbols at once,
     "image": [names of what `encode` gives and `step` takes],
     "state": [{"in", "out", "shape"}]}        it begins as zeros of (B, *shape)

    step: given (B, 1) int64, *image, *state -> logits (B, S + 1), weights (B, N), *state
    step of "many": given (B, C) int64, *image, *state -> logits (B, C, S + 1), weights (B, C, N), *state
    step of "permuted": given (B, C), places (P,), written (B,) ... -> logits (B, P, S + 1), weights (B, P, N), *state
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitocr.errors import UserError
from vitocr.heads.classify import Classify
from vitocr.heads.ctc import Ctc
from vitocr.heads.joint import DecoderHead
from vitocr.heads.lstm import Lstm, State
from vitocr.heads.permuted import Permuted
from vitocr.heads.transformer import Transformer
from vitocr.models import attention, decoder
from vitocr.models.decoder import KeysValues
from vitocr.models.model import Model
from vitocr.models.vit import ViT

BATCH, PAST, GIVEN, PLACES = 2, 3, 4, 5  # of the examples that are traced: all different, so that none is mistaken


class Part(NamedTuple):
    module: nn.Module
    inputs: dict[str, Tensor]  # examples, in the order of the module's arguments
    dynamic: dict[str, dict[int, str]]  # of an input the axes that may have any length, each with its name
    outputs: tuple[str, ...]


class Cut(NamedTuple):
    encode: Part
    step: Part | None
    reading: dict[str, Any]


def cut(model: Model) -> Cut:
    """The parts of `model`, which is left as it is. Whatever they are given and give is float32 or int64."""
    model = copy.deepcopy(model).eval()
    backbone: Any = model.backbone
    height, width = backbone.image_size
    images = torch.zeros(BATCH, 3, height, width)
    axes = {0: "batch"}
    column = None
    if isinstance(backbone, ViT) and backbone.positions is not None and backbone.attention == "dense":
        axes[3] = "width"
        column = backbone.patch[1] * backbone.stride[1]
        learned: Tensor = backbone.positions
        backbone.positions_for = lambda grid: stretched(learned, grid[1])  # type: ignore[method-assign]
    head = model.head
    encode = Encode(model)
    with torch.no_grad():
        tokens = backbone(images)
        made = encode.of_tokens(tokens)
    reading: dict[str, Any] = {"size": [height, width], "column": column}
    step = None
    if isinstance(head, Classify):
        reading |= {"head": "classify"}
    elif isinstance(head, Ctc):
        reading |= {"head": "ctc", "rows": head.grid[0], "blank": head.blank, "shares": "ctc_shares" in made}
    else:
        assert isinstance(head, DecoderHead)
        image = {name: tensor for name, tensor in made.items() if name not in ("ctc_logits", "summary")}
        step, state = step_of(head, image, any_width=column is not None)
        reading |= {
            "head": "permuted" if isinstance(head, Permuted) else "stepwise",
            "rows": head.grid[0],
            "end": head.end,
            "max_length": head.max_length,
            "ctc": head.ctc is not None,
            "many": isinstance(head, Transformer),
            "image": list(image),
            "state": state,
        }
    return Cut(Part(encode, {"images": images}, {"images": axes}, tuple(made)), step, reading)


class Encode(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.of_tokens(self.backbone(images)).values())

    def of_tokens(self, tokens: Tensor) -> dict[str, Tensor]:
        head = self.head
        if isinstance(head, Classify):
            return {"logits": head(tokens)}
        summary = {"summary": tokens.mean(dim=1)}
        if isinstance(head, Ctc):
            pooled, shares = head.pool(tokens)
            return {"ctc_logits": head.logits(pooled)} | ({"ctc_shares": shares} if head.row_scores else {}) | summary
        if not isinstance(head, Transformer | Permuted | Lstm):
            raise UserError(f"A head of type {type(head).__name__} cannot be exported: vitocr does not know its parts.")
        memory = head.memory(tokens)
        found: dict[str, Tensor] = {}
        if isinstance(head, Lstm):
            found |= {"memory": memory, "keys": head.of_token(memory)}
        else:
            for i, block in enumerate(head.layers() if isinstance(head, Transformer) else [head.block]):
                image = block.image.remember(memory)
                found |= {f"image{i}.keys": image.keys, f"image{i}.values": image.values}
        return found | ({"ctc_logits": head.ctc(tokens)} if head.ctc is not None else {}) | summary


def step_of(head: DecoderHead, image: dict[str, Tensor], *, any_width: bool) -> tuple[Part, list[dict[str, Any]]]:
    """The step of a head, and how its state begins."""
    tokens = {"tokens": 1 if isinstance(head, Lstm) else 2} if any_width else {}  # which axis of the image they are
    dynamic = {name: {0: "batch"} | {axis: axis_name for axis_name, axis in tokens.items()} for name in image}
    inputs = {"given": torch.zeros(BATCH, 1, dtype=torch.int64)}
    past: dict[str, Tensor] = {}
    state: list[dict[str, Any]]
    module: nn.Module
    if isinstance(head, Lstm):
        module = LstmStep(head)
        state = [{"in": name, "out": f"next_{name}", "shape": [head.hidden]} for name in ("hidden", "cell")]
        past = {entry["in"]: torch.zeros(BATCH, head.hidden) for entry in state}
        dynamic |= {"given": {0: "batch"}} | {name: {0: "batch"} for name in past}
    else:
        state = []
        for name, tensor in image.items():
            _, heads, _, width = tensor.shape
            own = name.replace("image", "past")
            past[own] = torch.zeros(BATCH, heads, PAST, width)
            state.append({"in": own, "out": name.replace("image", "grown"), "shape": [heads, 0, width]})
            dynamic[own] = {0: "batch", 2: "past"}
        inputs = {"given": torch.zeros(BATCH, GIVEN, dtype=torch.int64)}
        dynamic["given"] = {0: "batch", 1: "given"}
        if isinstance(head, Permuted):
            module = PermutedStep(head)
            inputs |= {"places": torch.arange(PLACES), "written": torch.full((BATCH,), 2)}
            dynamic |= {"places": {0: "places"}, "written": {0: "batch"}}
        else:
            assert isinstance(head, Transformer)
            module = TransformerStep(head)
    outputs = ("logits", "weights", *(entry["out"] for entry in state))
    return Part(module, inputs | image | past, dynamic, outputs), state


class TransformerStep(nn.Module):
    def __init__(self, head: Transformer) -> None:
        super().__init__()
        self.head = head

    def forward(self, given: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        images, pasts = two_halves(rest)
        logits, weights, grown = self.head.step(given, images, pasts, images[0].keys.dtype)
        return logits, weights, *(tensor for pair in grown for tensor in pair)


class PermutedStep(nn.Module):
    def __init__(self, head: Permuted) -> None:
        super().__init__()
        self.head = head

    def forward(self, given: Tensor, places: Tensor, written: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        (image,), (past,) = two_halves(rest)
        logits, weights, seen = self.head.look(given, places, written, image, past)
        return logits, weights, *seen


class LstmStep(nn.Module):
    def __init__(self, head: Lstm) -> None:
        super().__init__()
        self.head = head

    def forward(self, given: Tensor, memory: Tensor, keys: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        state, weights = self.head.advance(given[:, 0], State(hidden, cell), memory, keys)
        return self.head.logits(state.hidden), weights, *state


def two_halves(tensors: tuple[Tensor, ...]) -> tuple[list[KeysValues], list[KeysValues]]:
    """Those of the image and those of the past: keys, values, keys, values, ... of each layer."""
    pairs = [KeysValues(tensors[i], tensors[i + 1]) for i in range(0, len(tensors), 2)]
    return pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]


def stretched(positions: Tensor, columns: int) -> Tensor:
    """Position embeddings (1, rows, n, D) for any number of columns, (1, rows * columns, D).

    What `ViT.positions_for` does in one call that ONNX lacks: antialiased cubic interpolation (a = -1/2) along a
    row is a matrix, and the matrix is the identity where nothing is to be stretched.
    """
    n = positions.shape[2]
    at = torch.arange(columns, dtype=torch.float32) + 0.5
    scale = n / (at[-1] + 0.5)  # columns of the model to one of the image
    away = ((torch.arange(n, dtype=torch.float32) + 0.5 - at[:, None] * scale) / scale.clamp(min=1)).abs()
    near = (1.5 * away - 2.5) * away * away + 1
    far = ((-0.5 * away + 2.5) * away - 4) * away + 2
    weights = near.where(away < 1, far.where(away < 2, torch.zeros_like(away)))  # (columns, n)
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(positions.dtype)
    # Of equal rank, or OpenVINO cannot multiply them.
    return torch.matmul(weights[None], positions[0]).flatten(0, 1)[None]  # (rows, columns, D), (1, rows * columns, D)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as runtimes know it, on (B, H, N, d) as it comes, for as long as a graph is made of a model.

    Of the fused kernel the exporter makes a dozen nodes that juggle shapes, and of the products of (B * H, N, d) that
    are the fastest to train it makes as many.
    """
    fused, of_images, quick = F.scaled_dot_product_attention, decoder.attend_plain, attention.is_quick_in_steps

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **more: Any,
    ) -> Tensor:
        if is_causal or more or (attn_mask is not None and attn_mask.dtype != torch.bool):
            return fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        query = query if scale == 1 else query * scale
        return attend_in_steps(query, KeysValues(key, value), attn_mask)[0]

    F.scaled_dot_product_attention = attend  # type: ignore[assignment]
    decoder.attend_plain = attend_in_steps
    attention.is_quick_in_steps = lambda *_: False  # all goes through the fused kernel, which is none any more
    try:
        yield
    finally:
        F.scaled_dot_product_attention = fused
        decoder.attend_plain = of_images
        attention.is_quick_in_steps = quick


def attend_in_steps(q_BHNd: Tensor, past: KeysValues, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `models.decoder.attend_plain`."""
    scores = torch.matmul(q_BHNd, past.keys.transpose(2, 3))  # (B, H, N, M)
    if mask is not None:
        scores = scores.where(mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, past.values), weights
