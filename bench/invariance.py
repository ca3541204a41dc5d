"""Whether an answer depends on what else is in its batch: every word read alone and in company, and compared.

    python bench/invariance.py runs/str/DATE_TIME --data words/IIIT5k_test --out docs/records/invariance

Fails, naming the words, if any is read otherwise, or with a confidence that differs by more than 1e-3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from common import save

import vitocr
from vitocr.data.text_sources import open_source
from vitocr.output import progress
from vitocr.predict import Predictor
from vitocr.results import Reading

ALLOWED = 1e-3  # difference of confidences


def compare(predictor: Predictor, images: Any, *, words: int, batch_size: int) -> dict[str, Any]:
    """`images()` gives the same images every time it is called."""
    alone = predictor.stream(progress(images(), words, what="reading alone and in batches"), batch_size=1)
    together = predictor.stream(images(), batch_size=batch_size)
    count, differing, largest = 0, [], 0.0
    for row, (one, other) in enumerate(zip_longest(alone, together)):
        assert isinstance(one, Reading) and isinstance(other, Reading)
        count += 1
        largest = max(largest, abs(one.confidence - other.confidence))
        if one.text != other.text:
            differing.append({"row": row + 1, "alone": one.text, "together": other.text})
    return {"words": count, "batch_size": batch_size, "differing": differing, "largest_difference": largest}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", required=True, help="a set of words, as for `vitocr eval`")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", type=Path, help="a folder for invariance.json and .md")
    told = parser.parse_args(argv)
    source = open_source(told.data)

    def images() -> Any:
        return (source.read(row).image for row in range(len(source)))

    found = compare(vitocr.load(told.model), images, words=len(source), batch_size=told.batch_size)
    line = (
        f"{found['words']:,} words of {source.name}, alone and in batches of {found['batch_size']}: "
        f"{len(found['differing'])} texts differ, confidences by at most {found['largest_difference']:.1e}.\n"
    )
    print(line, end="")
    if told.out:
        save(told.out, "invariance", found | {"data": source.name}, line)
    for case in found["differing"]:
        print(f"word {case['row']:,}: {case['alone']!r} alone, {case['together']!r} together", file=sys.stderr)
    if found["differing"] or found["largest_difference"] > ALLOWED:
        sys.exit(1)


if __name__ == "__main__":
    main()
