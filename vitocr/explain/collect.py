"""Runs a model on images and gathers what it saw; what a model does not have is named, not skipped in silence.

A backbone is asked through what every one of ours offers: `seen`, which its forward pass fills, `grid` and `prefix`.
timm's blocks never tell their attention, so theirs is caught on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitocr.data.folder import decode_image
from vitocr.errors import UserError
from vitocr.explain.looks import Looks, looks_of
from vitocr.explain.measures import attention_distance, even_distance, principal_components, rollout, similarity
from vitocr.inference.options import Options
from vitocr.models.model import Model
from vitocr.predict import Predictor
from vitocr.preprocess import Preprocess
from vitocr.results import Failure, Label, Reading

MOST_BYTES = 1.5e9  # of attention an image; beyond that it is left out
COMPONENTS = 28  # as many as the figure of the ViT paper


@dataclass(frozen=True)
class ImageSeen:
    source: str
    pixels: NDArray[np.uint8]  # (h, w, 3), as the model was given it
    answer: Label | Reading | None  # None of a pretrained backbone, which has no answers
    heads: Tensor | None  # (L, H, gh, gw): share of attention each patch gets from the class token, or on average
    chosen: tuple[int, int]  # row and column of the patch that counts most by rollout
    from_chosen: Tensor | None  # (L, H, gh, gw): where that patch looks
    rolled: Tensor | None  # (gh, gw)
    looks: list[Looks]
    distance: Tensor | None  # (L, H) in pixels


@dataclass
class Explanation:
    model: Model
    description: dict[str, Any]
    images: list[ImageSeen] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    components: Tensor | None = None  # (k, channels, height, width) of the first filters
    component_shares: Tensor | None = None  # (k,) of the variance
    component_count: int = 0  # of all, shown or not
    first_layer: str = ""  # what these are filters of
    positions: Tensor | None = None  # (gh, gw, gh, gw) cosines
    distance: Tensor | None = None  # (L, H) in pixels, a mean over the images
    even_distance: float = 0.0  # of a head that looks everywhere alike
    missing: list[str] = field(default_factory=list)  # sentences

    @property
    def reads_class_token(self) -> bool:
        return getattr(self.model.head, "pool", "") == "cls"

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = self.model.backbone.grid  # type: ignore[misc]
        return int(rows), int(columns)

    @property
    def preprocess(self) -> Preprocess:
        return Preprocess.from_dict(self.description["preprocess"])

    @property
    def cell(self) -> tuple[float, float]:
        """Height and width of what one token stands for, in pixels."""
        (height, width), (rows, columns) = self.preprocess.size, self.grid
        return height / rows, width / columns


def explain(
    model: Model,
    description: dict[str, Any],
    paths: Iterable[Path],
    *,
    watch: Callable[[Iterable[Path]], Iterable[Path]] = iter,
) -> Explanation:
    """Everything about a model, on the CPU, and some images of which at least one can be read."""
    found = Explanation(model.eval(), description)
    explain_weights(found)
    answers = Predictor(model, description) if description["kind"] in ("classify", "text") else None
    for path in watch(paths):
        try:
            pixels = decode_image(path)
        except UserError as error:
            found.failures.append(Failure(str(path), str(error)))
            continue
        # As the networks below see it: whole, and whether it is sure of it or not.
        whole: Options = {"top_k": 3, "tall_crops": False, "long_lines": False, "threshold": 0}
        answer = None if answers is None else answers(pixels, **whole)
        found.images.append(explain_image(found, str(path), pixels, answer))
    if not found.images:
        raise UserError("\n".join(failure.message for failure in found.failures) or "There is no image to explain.")
    distances = [seen.distance for seen in found.images if seen.distance is not None]
    if distances:
        found.distance = torch.stack(distances).mean(dim=0)
        found.even_distance = even_distance(found.grid, found.cell)
    found.missing = list(dict.fromkeys(found.missing))
    return found


@torch.inference_mode()
def explain_image(
    found: Explanation, source: str, image: NDArray[np.uint8], answer: Label | Reading | None
) -> ImageSeen:
    backbone: Any = found.model.backbone
    fitted = found.preprocess.fit(image)
    images = torch.from_numpy(found.preprocess(image))[None]  # (1, 3, h, w)
    tokens, attention = run(backbone, images, found.missing)
    grid, prefix = found.grid, int(backbone.prefix)
    heads = from_chosen = rolled = distance = None
    chosen = (0, 0)
    if attention is not None:
        asking = slice(0, 1) if found.reads_class_token else slice(prefix, None)
        flow = rollout(attention)[asking, prefix:].mean(dim=0)  # (gh x gw)
        most = int(flow.argmax())
        heads = attention[..., asking, prefix:].mean(dim=2).unflatten(2, grid)
        from_chosen = attention[..., prefix + most, prefix:].unflatten(2, grid).clone()  # lets the rest go
        rolled, chosen = flow.view(grid), divmod(most, grid[1])
        distance = attention_distance(attention, prefix=prefix, grid=grid, cell=found.cell)
    looks: list[Looks] = []
    if isinstance(answer, Reading):
        looks = looks_of(found.model.head, tokens)
        if not looks:
            found.missing.append("Characters: this head does not tell where it looked for them.")
    return ImageSeen(source, fitted, answer, heads, chosen, from_chosen, rolled, looks, distance)


def run(backbone: nn.Module, images: Tensor, missing: list[str]) -> tuple[Tensor, Tensor | None]:
    """Tokens (1, N, D), and the attention of all layers (L, H, N, N) on the CPU if it can be had."""
    N = int(backbone.prefix) + int(np.prod(backbone.grid))  # type: ignore[arg-type]
    attentions = [part for part in backbone.modules() if "Attention" in type(part).__name__]
    heads = sum(int(getattr(part, "heads", getattr(part, "num_heads", 0))) for part in attentions)
    bytes_needed = 4 * heads * N**2
    if bytes_needed > MOST_BYTES:
        size = f"{bytes_needed / 1e9:.1f} GB"
        missing.append(f"Attention, rollout and distances: {heads} heads over {N:,} tokens would take {size} an image.")
        return backbone(images), None
    seen: dict[str, Tensor] = {}
    with timm_attention(backbone, seen):
        tokens = backbone(images, seen=seen)
    names = sorted((name for name in seen if name.endswith(".attention")), key=lambda name: int(name[5:-10]))
    layers = [seen[name][0].float().cpu() for name in names]
    if not layers or any(layer.shape != (*layers[0].shape[:1], N, N) for layer in layers):
        missing.append(f"Attention, rollout and distances: {type(backbone).__name__} does not tell its attention.")
        return tokens, None
    return tokens, torch.stack(layers)


@contextmanager
def timm_attention(backbone: nn.Module, seen: dict[str, Tensor]) -> Iterator[None]:
    """Put the attention of timm's blocks into `seen`: not fused, it goes through a module of its own, `attn_drop`."""
    caught: list[tuple[Any, bool, Any]] = []
    for number, block in enumerate(getattr(getattr(backbone, "vit", None), "blocks", ())):
        attention: Any = getattr(block, "attn", None)
        if hasattr(attention, "fused_attn") and hasattr(attention, "attn_drop"):

            def keep(module: nn.Module, inputs: Any, output: Tensor, name: str = f"block{number}.attention") -> None:
                seen[name] = output

            caught.append((attention, attention.fused_attn, attention.attn_drop.register_forward_hook(keep)))
            attention.fused_attn = False
    try:
        yield
    finally:
        for attention, fused, hook in caught:
            attention.fused_attn = fused
            hook.remove()


@torch.inference_mode()
def explain_weights(found: Explanation) -> None:
    """What can be seen in the weights alone: the first filters, and the position embeddings."""
    backbone: Any = found.model.backbone
    first = first_filters(backbone)
    if first is None:
        found.missing.append("Filters: the first layer is neither a convolution nor a linear map of patches.")
    else:
        filters, found.first_layer = first
        found.components, found.component_shares = principal_components(filters.cpu(), COMPONENTS)
        found.component_count = min(len(filters) - 1, filters[0].numel())
    positions = position_embeddings(backbone)
    if positions is None:
        found.missing.append("Similarity of positions: this backbone learns no position embeddings.")
    else:
        found.positions = similarity(positions.cpu())


def first_filters(backbone: nn.Module) -> tuple[Tensor, str] | None:
    """(D, channels, height, width) of the layer that sees the pixels, and what it is called."""
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Conv2d):
            kind = "the patch embedding" if "patch_embed.proj" in name else "the first convolution"
            return module.weight, f"{kind}, {module.out_channels} filters"
        if isinstance(module, nn.Linear):
            height, width = getattr(backbone, "patch", (0, 0))
            if not name.endswith("embed") or height * width == 0 or module.in_features % (height * width):
                return None
            weight = module.weight.unflatten(1, (-1, height, width))  # (D, C, ph, pw), as ViT.cut lays them out
            return weight, f"the patch embedding, {module.out_features} filters"
    return None


def position_embeddings(backbone: nn.Module) -> Tensor | None:
    """(gh, gw, D): those of the grid, of our backbones or timm's; None where positions are told in another way."""
    rows, columns = backbone.grid  # type: ignore[misc]
    own = getattr(backbone, "positions", None)
    if not isinstance(own, Tensor):
        own = getattr(getattr(backbone, "vit", None), "pos_embed", None)
    if not isinstance(own, Tensor) or own.numel() == 0:
        return None
    flat = own.reshape(-1, own.shape[-1])  # timm's may begin with one for the class token
    return flat[-rows * columns :].view(rows, columns, -1) if len(flat) >= rows * columns else None
