"""Long lines in windows, and words in any orientation: what the two are worth, on real words with their labels.

    python bench/lines_and_turns.py RUN --words words/IIIT5k_b --words words/SVT_b --limit 300

The words should be some that the model was not trained on, and not those of a test set: whoever looks at this table
might choose by it. Two questions, each a row of percentages under the protocol of the model:

- lines: 1 to 6 words side by side, at the same height with a gap between them, read squeezed and in windows. A line is
  right if all of it is; `cer` is the share of its characters that are not.
- turns: every word in each of four orientations, read as it stands and with `any_rotation`; how often the orientation
  was found; and the price, how many more upright words are misread when one does not know that they are.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import vitocr
from vitocr.data.text_sources import open_source
from vitocr.errors import UserError
from vitocr.evaluate import usual_protocol
from vitocr.inference.orient import TURNS, turned
from vitocr.results import Reading
from vitocr.text_metrics import edit_distance, normalise

HEIGHT = 48  # pixels that the words of a line are brought to
GAP = 0.4  # of the height, between two words

Word = tuple[NDArray[np.uint8], str]


def words_of(paths: list[str], limit: int) -> list[Word]:
    found: list[Word] = []
    for path in paths:
        source = open_source(path)
        for row in np.linspace(0, len(source) - 1, min(limit, len(source))).astype(int).tolist():
            try:
                read = source.read(row)
            except UserError:
                continue
            found.append((read.image, read.text))
    return found


def line_of(words: list[Word]) -> Word:
    """Words side by side. The gap goes over from the edge of one to the edge of the next, as a wall or a sign would."""
    parts: list[NDArray[np.uint8]] = []
    for image, _ in words:
        width = max(1, round(image.shape[1] * HEIGHT / image.shape[0]))
        part = np.asarray(Image.fromarray(image).resize((width, HEIGHT), Image.Resampling.BICUBIC))
        if parts:
            columns = round(GAP * HEIGHT)
            edges = (parts[-1][:, -1].mean(axis=0), part[:, 0].mean(axis=0))
            ramp = np.linspace(*edges, columns)[None].repeat(HEIGHT, axis=0)
            parts.append(ramp.round().astype(np.uint8))
        parts.append(part)
    return np.concatenate(parts, axis=1), "".join(text for _, text in words)


def judge(readings: list[Any], texts: list[str], protocol: str) -> dict[str, float]:
    pairs = [
        (normalise(reading.text if isinstance(reading, Reading) else "", protocol), normalise(text, protocol))
        for reading, text in zip(readings, texts, strict=True)
    ]
    wrong = sum(edit_distance(read, text) for read, text in pairs)
    return {
        "accuracy": round(float(np.mean([read == text for read, text in pairs])), 4),
        "cer": round(wrong / max(1, sum(len(text) for _, text in pairs)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--words", action="append", required=True, help="a set of words; repeatable")
    parser.add_argument("--limit", type=int, default=300, help="words of each set, evenly spaced")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    predictor = vitocr.load(args.model)
    protocol = usual_protocol(predictor)
    words = words_of(args.words, args.limit)
    rng = np.random.default_rng(0)
    figures: dict[str, Any] = {"model": args.model, "words": len(words), "protocol": protocol, "lines": {}, "turns": {}}
    for count in range(1, 7):
        lines = [line_of([words[n] for n in rng.integers(len(words), size=count)]) for _ in range(len(words) // 2)]
        images, texts = [image for image, _ in lines], [text for _, text in lines]
        figures["lines"][count] = {
            "aspect": round(float(np.median([image.shape[1] / image.shape[0] for image in images])), 1),
            "squeezed": judge(predictor(images, long_lines=False, threshold=0), texts, protocol),
            "windows": judge(predictor(images, threshold=0), texts, protocol),
        }
        print(count, json.dumps(figures["lines"][count]), flush=True)
    texts = [text for _, text in words]
    for lying in TURNS:
        images = [turned(image, lying) for image, _ in words]
        found = predictor(images, any_rotation=True, threshold=0)
        figures["turns"][lying] = {
            "as it stands": judge(predictor(images, tall_crops=False, threshold=0), texts, protocol),
            "any rotation": judge(found, texts, protocol),
            "orientation": round(
                float(np.mean([isinstance(r, Reading) and (r.rotation + lying) % 360 == 0 for r in found])), 4
            ),
        }
        print(lying, json.dumps(figures["turns"][lying]), flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
