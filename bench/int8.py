"""Ways to quantise a model, side by side: what each costs in accuracy, and what it gains in speed on one thread.

    python bench/int8.py str-tiny --calibrate words/IIIT5k_train --data words/IIIT5k_val

Choose by the validation words; the test words are for telling what came of it. Each recipe reads all of --data once,
in batches; then, in interleaved rounds, all are timed on the same prepared words: the model alone, without scaling
and without putting answers into words. What `vitocr export --int8` uses is the recipe "static".
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # which is how vitocr tells onnxruntime

import numpy as np

from vitocr.catalog import find_model
from vitocr.checkpoint import load_model
from vitocr.errors import UserError, did_you_mean
from vitocr.export import to_onnx
from vitocr.export.int8 import IMAGES, Recipe, calibrate, quantise
from vitocr.export.loss import weigh
from vitocr.export.parts import cut
from vitocr.export.pictures import open_pictures
from vitocr.output import table
from vitocr.predict import Predictor

RECIPES = {
    "static": Recipe(),
    "static, middle 99.99 %": Recipe(ranges="middle"),
    "static, logits too": Recipe(exclude=()),
    "static, not the stem": Recipe(convolutions=False),
    "static, not the first convolution": Recipe(exclude=(*Recipe().exclude, "backbone.stem.layers.0")),
    "static, not the decoder": Recipe(exclude=("head",)),
    "static, 7 bits": Recipe(bits=7),
    "static stem, dynamic products": Recipe(products="dynamic"),
    "dynamic products alone": Recipe(convolutions=False, products="dynamic"),
}
FLOAT32 = "float32"
WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--calibrate", action="append", required=True, help="images such as will be read; repeatable")
    parser.add_argument("--data", action="append", required=True, help="labelled words; repeatable")
    parser.add_argument("--only", default="", help=f"with semicolons between: {'; '.join(RECIPES)}")
    parser.add_argument("--images", type=int, default=IMAGES, help=f"to calibrate on (default: {IMAGES})")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved repeats of the timing (default: 7)")
    parser.add_argument("--timed", type=int, default=128, help="words that are timed in a round (default: 128)")
    parser.add_argument("--batch", default="1,64", help="words read at once (default: 1,64)")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    names = [name.strip() for name in args.only.split(";") if name.strip()] or list(RECIPES)
    for name in names:
        if name not in RECIPES:
            raise UserError(f"There is no recipe {name!r}.{did_you_mean(name, RECIPES)}")

    network, description = load_model(find_model(args.model))
    parts = cut(network)
    graphs = to_onnx.graphs(parts)
    with tempfile.TemporaryDirectory() as folder:

        def opened(made: dict[str, Any]) -> tuple[Any, int]:
            path = Path(folder) / "model.onnx"
            to_onnx.save(path, made, parts.reading, description)
            return to_onnx.read(path), path.stat().st_size

        runners = {FLOAT32: opened(graphs)}
        exact = Predictor(runners[FLOAT32][0], description)
        seen = calibrate(runners[FLOAT32][0], open_pictures(args.calibrate, exact), images=args.images)
        for name in names:
            print(f"quantising: {name}", file=sys.stderr, flush=True)
            try:
                runners[name] = opened(quantise(graphs, seen, RECIPES[name]))
            except UserError as error:  # a model without a stem, for instance
                print(f"left out: {error}", file=sys.stderr)

    pictures = open_pictures(args.data, exact)
    figures: dict[str, dict[str, Any]] = {}
    for name, (runner, size) in runners.items():
        loss = weigh(exact, Predictor(runner, description), pictures, what=name)
        figures[name] = {"bytes": size, **loss._asdict(), "points": loss.points, "ms": {}}
    pixels = prepared(exact, pictures, args.timed)
    for batch in [int(word) for word in args.batch.split(",")]:
        for name, milliseconds in timed({name: runner for name, (runner, _) in runners.items()}, pixels, batch, args):
            figures[name]["ms"][str(batch)] = milliseconds
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    show(figures)


def prepared(predictor: Predictor, pictures: Any, count: int) -> np.ndarray:
    """(count, 3, h, w), as the model gets them."""
    found: list[np.ndarray] = []

    class Noting:
        def answers(self, pixels: np.ndarray, **asked: Any) -> Any:
            found.append(pixels)
            return predictor.runner.answers(pixels, **asked)

        def stack(self, answers: Any, classes: int) -> Any:
            return predictor.runner.stack(answers, classes)

    list(Predictor(Noting(), predictor.description).stream(picture.image for picture in pictures.each(count)))
    return np.concatenate(found)[:count]


def timed(runners: dict[str, Any], pixels: np.ndarray, batch: int, args: Any) -> Any:
    """Milliseconds a word of every runner, one number a round."""
    batches = [np.ascontiguousarray(pixels[start : start + batch]) for start in range(0, len(pixels), batch)]
    found: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(args.rounds):
        order = list(runners)
        turn = number % len(order)
        for name in order[turn:] + order[:turn]:
            for some in batches[:WARM_UP]:
                list(runners[name].answers(some))
            began = time.perf_counter()
            for some in batches:
                list(runners[name].answers(some))
            found[name].append(1000 * (time.perf_counter() - began) / len(pixels))
    return found.items()


def show(figures: dict[str, dict[str, Any]]) -> None:
    batches = list(figures[FLOAT32]["ms"])
    head = ["", "right, %", "points lost", "same answers, %", "MB"]
    head += [word for batch in batches for word in (f"ms a word, {batch} at once", "times float32")]
    rows = []
    for name, entry in figures.items():
        row = [name, f"{100 * entry['after']:.2f}", f"{entry['points']:.2f}", f"{100 * entry['alike']:.2f}"]
        row.append(f"{entry['bytes'] / 1e6:.1f}")
        for batch in batches:
            before, after = figures[FLOAT32]["ms"][batch], entry["ms"][batch]
            ratios = [a / b for a, b in zip(before, after, strict=True)]
            row.append(f"{statistics.median(after):.2f}")
            row.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        rows.append(row)
    table(sys.stdout, head, rows)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"{error}")
