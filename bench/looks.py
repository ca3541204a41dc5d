"""Does the decoder look at the character that it writes? Measured on rendered words, whose characters' boxes are known:

    python bench/looks.py runs/str/DATE_TIME --words 500 --out docs/records/ideas

The decoder is given the word as it is, character by character, so that character i of the text is what it is about to
write, whatever it would have read by itself. Where it looks is what `vitocr explain` shows: the attention of its last
layer to the image, a mean over heads. The peak is one cell of the grid of tokens; it counts

- as inside, if that cell and the box of the character overlap;
- as next to it, if a cell beside it (up, down, across or askew) does.

By chance: the share of all cells that would count, which is what a peak anywhere would reach on average. Words are
drawn as for training, from another seed; those of which the model's character set has nothing are passed over.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common import save
from ideas_tables import ENGLISH, looks_table

SEED = 20_000  # of the renderer: words that no run trains on, unless it asks for them


class Word(NamedTuple):
    pixels: Any  # (h, w, 3) uint8
    ids: list[int]
    boxes: Any  # (n, 4) x0, y0, x1, y1 in shares of the image


def words_for(description: dict[str, Any], count: int) -> Iterator[Word]:
    from vitocr.codec import PRESETS, Charset, codec_from_dict
    from vitocr.data.render import Effects, Renderer, RenderSpec

    codec = codec_from_dict(description["codec"])
    assert isinstance(codec, Charset)
    height, width = description["preprocess"]["size"]
    longest = int(description["model"]["head"]["max_length"])
    spec = RenderSpec(
        size=(height, width), seed=SEED, max_length=longest, charset=PRESETS["94"], effects=Effects.mild()
    )
    renderer, index = Renderer(spec), 0
    while count:
        crop, index = renderer(index), index + 1
        slots = codec.slots(crop.text)
        known = [at for at, slot in enumerate(slots) if slot >= 0]
        if known:
            boxes = crop.boxes[known] / (width, height, width, height)
            yield Word(crop.image, [slots[at] for at in known], boxes)
            count -= 1


def cells_of(box: Sequence[float], grid: tuple[int, int]) -> tuple[range, range]:
    """Rows and columns of the cells that a box (in shares of the image) overlaps; the nearest if it lies outside."""
    rows, columns = grid
    x0, y0, x1, y1 = box

    def span(low: float, high: float, cells: int) -> range:
        first = min(max(int(low * cells), 0), cells - 1)
        last = min(max(math.ceil(high * cells) - 1, first), cells - 1)  # an edge that is touched is not overlapped
        return range(first, last + 1)

    return span(y0, y1, rows), span(x0, x1, columns)


def grown(cells: range, limit: int) -> range:
    return range(max(0, cells.start - 1), min(limit, cells.stop + 1))


class Verdict(NamedTuple):
    inside: bool
    beside: bool  # inside or next to it
    chance: float  # of the latter, for a peak anywhere


def judge(weights: Any, box: Sequence[float]) -> Verdict:
    """weights: (rows, columns) of one character."""
    grid: tuple[int, int] = tuple(weights.shape)
    row, column = divmod(int(weights.argmax()), grid[1])
    rows, columns = cells_of(box, grid)
    near_rows, near_columns = grown(rows, grid[0]), grown(columns, grid[1])
    return Verdict(
        row in rows and column in columns,
        row in near_rows and column in near_columns,
        len(near_rows) * len(near_columns) / (grid[0] * grid[1]),
    )


def attention_for(head: Any, memory: Any, ids: Sequence[int]) -> Any:
    """(n, rows, columns): where the decoder looks for each of the characters `ids` of one image, given those before."""
    import torch

    from vitocr.explain.looks import cross_attention
    from vitocr.heads.text import Decoded

    n = len(ids)
    # As if it had been read.
    truth = Decoded(torch.tensor([ids]), torch.tensor([n]), torch.ones(1, n), torch.ones(1), torch.zeros(1, n, 4))
    return cross_attention(head, memory, truth)[:n].float().unflatten(1, (head.grid[0], -1))


def measure(model: Any, description: dict[str, Any], count: int) -> dict[str, Any]:
    import torch

    from vitocr.heads.joint import DecoderHead
    from vitocr.preprocess import Preprocess

    head = model.head
    if not isinstance(head, DecoderHead):
        sys.exit(f"a {type(head).__name__} head has no decoder that looks at the image: name a model that has one")
    preprocess = Preprocess.from_dict(description["preprocess"])
    verdicts: list[tuple[bool, Verdict]] = []  # whether the word is read right, and a character of it
    with torch.inference_mode():
        for number, word in enumerate(words_for(description, count), 1):
            memory = head.memory(model.backbone(torch.from_numpy(preprocess(word.pixels))[None]))
            weights = attention_for(head, memory, word.ids)
            right = head.read(memory).ids[0].tolist() == word.ids
            verdicts += [(right, judge(*one)) for one in zip(weights, word.boxes.tolist(), strict=True)]
            if sys.stderr.isatty():
                print(f"\r{number} of {count} words", end="", file=sys.stderr)
    of_right = [verdict for right, verdict in verdicts if right]
    every = [verdict for _, verdict in verdicts]
    return {
        "words": count,
        "head": type(head).__name__.lower(),
        "grid": list(head.grid),
        "all": shares(every),
        "of words read right": shares(of_right) if of_right else None,
        "chance": sum(verdict.chance for verdict in every) / len(every),
    }


def shares(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    n = len(verdicts)
    return {
        "characters": n,
        "inside": sum(verdict.inside for verdict in verdicts) / n,
        "inside or next to": sum(verdict.beside for verdict in verdicts) / n,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run's folder, a checkpoint, or a name that `vitocr models` lists")
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--out", type=Path, help="folder for looks.json and looks.md")
    args = parser.parse_args()

    from vitocr.catalog import find_model
    from vitocr.checkpoint import load_model

    model, description = load_model(find_model(args.model))
    if description["kind"] != "text":
        sys.exit(f"{args.model} names classes: this is about models that read")
    told = measure(model.eval(), description, args.words)
    table = looks_table(told, ENGLISH)
    print(table, end="")
    if args.out:
        save(args.out, "looks", told, table)


if __name__ == "__main__":
    main()
