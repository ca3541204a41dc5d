"""Where the milliseconds of a single word go, in models that onnxruntime reads, on one thread:

    python bench/one_word.py str-tiny.onnx str-tiny.int8.onnx --data words/IIIT5k_val

Every word is read alone, by every model in turn. `graphs` is onnxruntime's part, `numpy` what is made of its logits,
`around` what happens to a crop before and to an answer after: scaling, threads, words for characters.
"""

import argparse
import os
import statistics
import sys
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # which is how vitocr tells onnxruntime

import vitocr
from vitocr.errors import UserError
from vitocr.export.pictures import open_pictures
from vitocr.output import table

WARM_UP = 20


class Watched:
    """The graphs of a model, and how long each took since the last `take`."""

    def __init__(self, graphs: Any) -> None:
        self.encode, self.step = graphs.encode, graphs.step
        self.seconds = {"encode": 0.0, "step": 0.0, "steps": 0.0, "answers": 0.0}
        answers = graphs.answers
        graphs.encode = lambda feeds: self.timed("encode", self.encode, feeds)
        if graphs.step is not None:
            graphs.step = lambda feeds: self.timed("step", self.step, feeds)
        graphs.answers = lambda pixels, **asked: self.timed("answers", lambda p: list(answers(p, **asked)), pixels)

    def timed(self, name: str, work: Any, given: Any) -> Any:
        began = time.perf_counter()
        found = work(given)
        self.seconds[name] += time.perf_counter() - began
        self.seconds["steps"] += name == "step"
        return found

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="ONNX files")
    parser.add_argument("--data", action="append", required=True, help="images or words; repeatable")
    parser.add_argument("--count", type=int, default=300, help="words, evenly spaced (default: 300)")
    args = parser.parse_args()
    models = {name: vitocr.load(name) for name in args.models}
    first = next(iter(models.values()))
    images = [picture.image for picture in open_pictures(args.data, first).each(args.count)]
    watched = {name: Watched(model.runner) for name, model in models.items()}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for number, image in enumerate(images[:WARM_UP] + images):
        for name, model in models.items():
            began = time.perf_counter()
            model(image)
            whole = time.perf_counter() - began
            parts = watched[name].take() | {"whole": whole}
            if number >= WARM_UP:
                taken[name].append(parts)

    def median(name: str, count: Any) -> str:
        return f"{1000 * statistics.median(map(count, taken[name])):.2f}"

    head = ["", "ms a word", "encode", "steps", "all steps", "numpy", "around"]
    rows = [
        [
            name,
            median(name, lambda word: word["whole"]),
            median(name, lambda word: word["encode"]),
            f"{statistics.mean(word['steps'] for word in found):.1f}",
            median(name, lambda word: word["step"]),
            median(name, lambda word: word["answers"] - word["encode"] - word["step"]),
            median(name, lambda word: word["whole"] - word["answers"]),
        ]
        for name, found in taken.items()
    ]
    table(sys.stdout, head, rows)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"{error}")
