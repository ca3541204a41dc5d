"""A record once more, by its one command, with another seed; both results side by side.

    python bench/rerun.py cifar10-10m --seed 1

The command is taken from the table in docs/records/README.md. Results are added to docs/records/reruns.json and listed
in reruns.md; a run that was interrupted goes on, one that has finished is not done again.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import ROOT, markdown, save, train

from vitocr.catalog import one_accuracy

RECORDS = ROOT / "docs" / "records"
CLOSE = 1.5  # points that two runs of one record may lie apart
ROW = re.compile(r"^\| `([\w-]+)` \| `python train\.py ([^`]+)` \|", re.MULTILINE)


def commands(readme: str) -> dict[str, list[str]]:
    """Record -> the words after `python train.py`."""
    return {name: shlex.split(words) for name, words in ROW.findall(readme)}


def shares(figures: dict[str, Any]) -> dict[str, float]:
    """The accuracy on each set that a run was measured on: test sets, or the validation set if there were none."""
    known = {
        name: one_accuracy(each) for name, each in figures.items() if isinstance(each, dict) and "accuracy" in each
    }
    found = {name: share for name, share in known.items() if share is not None}
    return {name: share for name, share in found.items() if name != "val"} or found


def rows_of(record: str, seed: int, first: dict[str, Any], again: dict[str, Any]) -> list[dict[str, Any]]:
    one, two = shares(first), shares(again)
    both = [name for name in one if name in two]
    if not both:
        sys.exit(f"{record}: the record was measured on {', '.join(one)}, the second run on {', '.join(two)}.")
    return [
        {"record": record, "set": name, "first": one[name], "seed": seed, "again": two[name],
         "apart": 100 * abs(one[name] - two[name])}
        for name in both
    ]  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            f"`{row['record']}`",
            row["set"],
            f"{100 * row['first']:.2f} %",
            f"{100 * row['again']:.2f} % (seed {row['seed']})",
            f"{row['apart']:.2f}",
            "yes" if row["apart"] <= CLOSE else "no",
        ]
        for row in rows
    ]
    return markdown(["record", "set", "first", "again", "points apart", f"within {CLOSE}"], cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", help="a row of docs/records/README.md")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/rerun"))
    args, more = parser.parse_known_args()
    known = commands((RECORDS / "README.md").read_text(encoding="utf-8"))
    if args.record not in known:
        parser.error(f"there is no record {args.record}; there are {', '.join(known)}")
    words = [*known[args.record], *more, f"seed={args.seed}"]
    again = train(args.runs / f"{args.record}-seed{args.seed}", words)
    first = json.loads((RECORDS / args.record / "metrics.json").read_text(encoding="utf-8"))
    listed = RECORDS / "reruns.json"
    before = json.loads(listed.read_text(encoding="utf-8"))["rows"] if listed.exists() else []
    kept = [row for row in before if (row["record"], row["seed"]) != (args.record, args.seed)]
    rows = sorted(
        [*kept, *rows_of(args.record, args.seed, first, again)],
        key=lambda row: (row["record"], row["set"], row["seed"]),
    )
    save(RECORDS, "reruns", {"rows": rows}, "# Records run twice\n\n" + table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
