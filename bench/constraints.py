"""What knowing the form of a text is worth: plates, dates and codes, drawn as on signs, read with and without.

    python bench/constraints.py MODEL --images 1000 --out docs/records/constraints

All ways to read see the same crops (`vitocr.data.render`, every effect on): as usual, with a beam of 8 alone, and with
the beam held to what is known. A gain is that of the constraint over reading as usual, with a 95 % interval over
paired crops: it counts where the interval leaves out 0. Words a second are end to end, decoded image to answer.
"""

import argparse
import random
import string
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import markdown, save
from numpy.typing import NDArray

import vitocr
from vitocr.data.render import Renderer, RenderSpec
from vitocr.metrics import bootstrap_interval
from vitocr.predict import Predictor
from vitocr.results import Reading

KNOWN = 5000  # codes in the list of those there are
Draw = Callable[[random.Random], str]


class Kind(NamedTuple):
    name: str
    draw: Draw
    known: dict[str, Any]  # what is told about the text; a `lexicon` of None stands for all texts drawn


def some(characters: str, count: int) -> Draw:
    return lambda rng: "".join(rng.choices(characters, k=count))


def plate(rng: random.Random) -> str:
    return some(string.ascii_uppercase, 2)(rng) + some(string.digits, 4)(rng)


def code(rng: random.Random) -> str:
    return some(string.ascii_uppercase + string.digits, 7)(rng)


def date(rng: random.Random) -> str:
    return f"{rng.randint(1, 31):02}.{rng.randint(1, 12):02}.{rng.randint(1990, 2030)}"


KINDS = (
    Kind("plates", plate, {"match": r"[A-Z]{2}\d{4}"}),
    Kind("dates", date, {"match": r"[0-3]\d\.[01]\d\.(19|20)\d\d"}),
    Kind("numbers", lambda rng: some(string.digits, rng.randint(4, 8))(rng), {"whitelist": string.digits}),
    Kind("numbers and capitals", code, {"whitelist": string.ascii_uppercase + string.digits}),
    Kind("known codes", code, {"lexicon": None}),
    Kind("known codes, preferred", code, {"lexicon": None, "lexicon_bonus": 5.0}),
)


def told(kind: Kind, texts: Sequence[str], *, one_case: bool) -> dict[str, Any]:
    """The options of the predictor that say what is known. one_case: the model's letters are all of one."""
    known = dict(kind.known)
    if "lexicon" in known:
        known["lexicon"] = texts
    if "match" in known and one_case:
        known["match"] = "(?i)" + known["match"]
    return known


def crops_of(texts: Sequence[str], count: int, seed: int) -> tuple[list[NDArray[np.uint8]], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.txt"
        words.write_text("\n".join(texts))
        renderer = Renderer(RenderSpec(shape="natural", words=(str(words),), own_words=1.0, seed=seed))
        crops = [renderer(index) for index in range(count)]
    return [crop.image for crop in crops], [crop.text for crop in crops]


def read(predictor: Predictor, images: Sequence[Any], options: dict[str, Any]) -> tuple[list[str], float]:
    """What the images read, and how many of them a second."""
    began = time.perf_counter()
    found = [reading for reading in predictor.stream(images, long_lines=False, **options)]
    rate = len(images) / (time.perf_counter() - began)
    return [reading.text if isinstance(reading, Reading) else "" for reading in found], rate


def measure(predictor: Predictor, kind: Kind, *, count: int, beam: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    texts = sorted({kind.draw(rng) for _ in range(KNOWN)})
    images, labels = crops_of(texts, count, seed)
    codec: Any = predictor.codec
    labels = [codec.decode(codec.encode(label)) for label in labels]  # as the model writes it
    cased = {character.isupper() for character in codec.characters if character.lower() != character.upper()}
    known = told(kind, texts, one_case=len(cased) == 1)
    row: dict[str, Any] = {"kind": kind.name, "told": {k: v for k, v in kind.known.items() if v is not None}}
    right = {}
    for way, options in (("usual", {}), ("beam", {"beam": beam}), ("constrained", {**known, "beam": beam})):
        readings, rate = read(predictor, images, options)
        right[way] = np.array([a == b for a, b in zip(readings, labels, strict=True)])
        row[way] = {
            "accuracy": float(right[way].mean()),
            "accuracy_95": list(bootstrap_interval(right[way])),
            "words_per_second": rate,
        }
    row["gain"], row["gain_95"] = paired_gain(right["constrained"], right["usual"])
    return row


def paired_gain(new: NDArray[np.bool_], old: NDArray[np.bool_]) -> tuple[float, list[float]]:
    """The difference of two accuracies on the same crops, and its 95 % bootstrap interval."""
    better, worse, n = int((new & ~old).sum()), int((old & ~new).sum()), len(new)
    shares = [better / n, worse / n, (n - better - worse) / n]
    drawn = np.random.default_rng(0).multinomial(n, shares, size=10_000)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / n, [0.025, 0.975])
    return (better - worse) / n, [float(low), float(high)]


def percent(figures: dict[str, Any]) -> str:
    low, high = figures["accuracy_95"]
    return f"{100 * figures['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="anything vitocr.load takes, ONNX files too")
    parser.add_argument("--images", type=int, default=1000, help="crops of each kind")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for the table and the figures")
    args = parser.parse_args()
    predictor = vitocr.load(args.model, device="cpu")
    rows = []
    for kind in KINDS:
        rows.append(measure(predictor, kind, count=args.images, beam=args.beam, seed=args.seed))
        print(f"{kind.name}: {percent(rows[-1]['usual'])} -> {percent(rows[-1]['constrained'])}", flush=True)
    table = markdown(
        ["", "as usual", f"beam {args.beam}", "constrained", "gain in points", "words/s usual", "constrained"],
        [
            [
                row["kind"],
                *(percent(row[way]) for way in ("usual", "beam", "constrained")),
                "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * gain for gain in (row["gain"], *row["gain_95"]))),
                *(f"{row[way]['words_per_second']:.0f}" for way in ("usual", "constrained")),
            ]
            for row in rows
        ],
    )
    if args.out is not None:
        save(args.out, "constraints", {"model": Path(args.model).name, "beam": args.beam, "rows": rows}, table)
    print(table, end="")


if __name__ == "__main__":
    main()
