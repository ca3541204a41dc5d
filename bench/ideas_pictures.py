"""The pictures of docs/ideas.md, drawn by the code that they explain:

    python bench/ideas_pictures.py --classifier runs/plain --reader runs/reader

--classifier, a model of CIFAR-10, gives the learned positions and how far heads look; --reader where a decoder looks.
Without them, only the pictures that need no trained model are drawn. The pictures of measured figures are drawn by the
benches that measure them.
"""

import argparse
from itertools import count
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import torch
from looks import SEED, attention_for
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from vitocr.catalog import find_model
from vitocr.checkpoint import load_model
from vitocr.codec import Charset, codec_from_dict
from vitocr.data.render import Effects, Renderer, RenderSpec
from vitocr.explain.collect import position_embeddings, run
from vitocr.explain.draw import Panel, Row, boxed, distance_plot, heat, sheet
from vitocr.explain.measures import attention_distance, even_distance, similarity
from vitocr.heads.permuted import draw_orders, order_mask
from vitocr.models.attention import Attention
from vitocr.models.patterns import Pattern
from vitocr.models.positions import angles, coordinates, sinusoidal
from vitocr.preprocess import Preprocess

INK, FAINT = "#1f2933", "#7b8794"
SEEN = "Blues"
GRID, AT = (8, 8), (3, 3)  # of the pictures of positions: the patch that others are compared with
IMAGES = 16  # of CIFAR-10, over which distances are a mean


def panels(count: int, *, wide: float, high: float, rows: int = 1) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(wide, high), dpi=110, facecolor="white", layout="constrained")
    return figure, list(figure.subplots(rows, -(-count // rows), squeeze=False).flat)


def bare(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, color=INK)
    axes.set_xticks([]), axes.set_yticks([])
    axes.spines[:].set_visible(False)


# --- without a trained model ----------------------------------------------------------------------------


def forgetting(path: Path, *, steps: int = 64, dim: int = 64) -> None:
    """How large the gradient of the last output by the input k steps back is, at the start of a training."""
    torch.manual_seed(0)
    open_gates = nn.LSTM(dim, dim, batch_first=True)
    with torch.no_grad():
        open_gates.bias_ih_l0[dim : 2 * dim] = 3.0  # of the forget gate, the second of four
    layers: dict[str, nn.Module] = {
        "RNN": nn.RNN(dim, dim, batch_first=True),
        "LSTM": nn.LSTM(dim, dim, batch_first=True),
        "LSTM, forget gates open": open_gates,
        "attention": Attention(dim, 2, bias=False),
    }
    figure, (axes,) = panels(1, wide=5.6, high=2.9)
    for (name, layer), colour in zip(layers.items(), ("#c8322d", "#b7791f", "#1a7f4b", "#1f5fa8"), strict=True):
        x = torch.randn(32, steps, dim).requires_grad_()
        (layer(x)[0][:, -1] * torch.randn(dim)).sum().backward()
        assert x.grad is not None
        size = x.grad.norm(dim=2).mean(dim=0).flip(0)  # (steps,) from the last one back
        axes.semilogy((size / size.max()).clamp(min=1e-12).numpy(), color=colour, linewidth=1.6, label=name)
    axes.set_ylim(1e-10, 3)
    axes.set_xlabel("steps back", fontsize=9, color=FAINT)
    axes.set_title("gradient, relative to the largest", loc="left", fontsize=9, color=INK)
    axes.tick_params(colors=FAINT, labelsize=8, length=0)
    axes.grid(color="#e4e7eb", linewidth=0.6)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def positions(path: Path, learned: Tensor | None) -> None:
    """How alike patch AT is to all others by its position alone. `learned`: embeddings (gh, gw, D)."""
    where = coordinates(GRID, GRID, torch.device("cpu"))
    turned = angles(where, 16, 100.0)  # (N, 32), as a head of 64 channels has them
    at = AT[0] * GRID[1] + AT[1]
    shown = {
        "sinusoidal": similarity(sinusoidal(where, 192).view(*GRID, -1))[AT],
        "rotary": (turned - turned[at]).cos().mean(dim=1).view(GRID),  # of a query and a key that are alike
    }
    if learned is not None:
        shown["learned"] = similarity(learned)[AT]
    figure, axes = panels(len(shown), wide=2.1 * len(shown), high=2.3)
    for one, (name, values) in zip(axes, shown.items(), strict=True):
        drawn = one.imshow(values, cmap="viridis")
        bare(one, name)
        figure.colorbar(drawn, ax=one, shrink=0.75).ax.tick_params(labelsize=7, length=0)
    figure.savefig(path)


def orders(path: Path, word: str = "words") -> None:
    """Rows are the letters (and the end) that are asked for, columns the begin and the letters that may be seen."""
    torch.manual_seed(3)
    turns = draw_orders(4, len(word) + 1, torch.device("cpu"))
    figure, axes = panels(4, wide=8, high=2.4)
    for one, turn, mask in zip(axes, turns, order_mask(turns), strict=True):
        one.imshow(mask, cmap=SEEN, vmin=0, vmax=1.4)
        bare(one, "order " + " ".join((*word, "▪")[place] for place in turn.argsort().tolist()))
        one.set_xticks(range(len(word) + 1), ("▪", *word), fontsize=8)
        one.set_yticks(range(len(word) + 1), (*word, "▪"), fontsize=8)
        one.tick_params(length=0)
    figure.savefig(path)


def patterns(path: Path, tokens: int = 64, span: int = 8) -> None:
    whole = torch.ones(tokens, tokens, dtype=torch.bool)
    kinds = ("strided", "fixed", "window")
    both = {"dense": whole} | {kind: Pattern(kind, span, 2).mask(tokens) for kind in kinds}
    causal = {"dense": whole.tril()} | {kind: Pattern(kind, span, 2).mask(tokens, causal=True) for kind in kinds}
    figure, axes = panels(8, wide=8, high=4.3, rows=2)
    for one, (name, mask) in zip(axes, [*both.items(), *causal.items()], strict=True):
        one.imshow(mask, cmap=SEEN, vmin=0, vmax=1.4, interpolation="nearest")
        bare(one, f"{name}, {100 * float(mask.float().mean()):.0f} %")
    axes[0].set_ylabel("both directions", fontsize=9, color=FAINT)
    axes[4].set_ylabel("causal", fontsize=9, color=FAINT)
    figure.savefig(path)


# --- of a trained model ---------------------------------------------------------------------------------


def distance(path: Path, model: Any, description: dict[str, Any], images: NDArray[np.uint8]) -> None:
    """How far each head looks, as `vitocr explain` draws it."""
    preprocess = Preprocess.from_dict(description["preprocess"])
    grid = model.backbone.grid
    cell = (preprocess.size[0] / grid[0], preprocess.size[1] / grid[1])
    found = []
    with torch.inference_mode():
        for image in images:
            _, attention = run(model.backbone, torch.from_numpy(preprocess(image))[None], [])
            assert attention is not None
            found.append(attention_distance(attention, prefix=model.backbone.prefix, grid=grid, cell=cell))
    picture = distance_plot(torch.stack(found).mean(dim=0).numpy(), even_distance(grid, cell))
    picture.resize((picture.width // 2, picture.height // 2)).convert("RGB").save(path)


def looks(path: Path, model: Any, description: dict[str, Any], *, letters: int = 8) -> None:
    """Where the decoder looks for each letter of the first rendered word of so many letters."""
    preprocess, charset = Preprocess.from_dict(description["preprocess"]), codec_from_dict(description["codec"])
    assert isinstance(charset, Charset)
    renderer = Renderer(RenderSpec(size=preprocess.size, seed=SEED, charset=ascii_letters, effects=Effects.mild()))
    crop = next(crop for crop in map(renderer, count()) if len(crop.text) == letters)
    with torch.inference_mode():
        memory = model.head.memory(model.backbone(torch.from_numpy(preprocess(crop.image))[None]))
        weights = attention_for(model.head, memory, charset.encode(crop.text))
    height, width = crop.image.shape[:2]
    tiles = []
    for character, share, box in zip(crop.text, weights.numpy(), crop.boxes, strict=True):
        frame = (box / (width, height, width, height)).clip(0, 1)
        tiles.append(Panel(boxed(heat(crop.image, share), frame), f"“{character}”", ""))
    text = "Colour is the attention of the decoder about to write the letter, the frame where the renderer has put it."
    sheet(crop.text, text, [Row("", tiles)], columns=4).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifier", help="a run on CIFAR-10, a checkpoint or a name")
    parser.add_argument("--reader", help="a run on words whose head has a decoder")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where CIFAR-10 is")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/ideas"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    forgetting(args.out / "forgetting.png")
    orders(args.out / "orders.png")
    patterns(args.out / "patterns.png")
    learned = None
    if args.classifier:
        model, description = load_model(find_model(args.classifier))
        learned = position_embeddings(model.backbone)
        images = np.load(args.data / "cifar10" / "test_images.npy", mmap_mode="r")[:IMAGES]
        distance(args.out / "distance.png", model.eval(), description, images)
    positions(args.out / "positions.png", None if learned is None else learned.detach())
    if args.reader:
        model, description = load_model(find_model(args.reader))
        looks(args.out / "looks.png", model.eval(), description)
    print(f"drew the pictures of {args.out}")


if __name__ == "__main__":
    main()
