"""A record once more, by its one command, with another seed; both results side by side.

    python bench/rerun.py cifar10-10m --seed 1

The command is taken from the table in docs/records/README.md. Results are added to docs/records/reruns.json and listed
in reruns.md; a run that was interrupted goes on, one that has finished is not done again.

    python bench/rerun.py str-10m --seed 1 --as-many-steps render.rows=174080

trains for as many steps as the record, however long they take, instead of as many minutes: on a machine of another
speed the same minutes come to something else. What depends on the minutes is to be named, as the number of words here.
"""

from __future__ import annotations

import argparse
import csv
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


def steps_of(record: str) -> int:
    with (RECORDS / record / "metrics.csv").open(encoding="utf-8") as file:
        return max(int(row["step"]) for row in csv.DictReader(file))


def figures_of_record(record: str) -> dict[str, Any]:
    """What its run measured, and in eval.json what its model was measured on afterwards, where it was."""
    files = (RECORDS / record / name for name in ("metrics.json", "eval.json"))
    found: dict[str, Any] = {}
    for file in files:
        if file.exists():
            found |= json.loads(file.read_text(encoding="utf-8"))
    return found


def in_steps(words: Sequence[str], steps: int) -> list[str]:
    """The words of a command, with a number of steps in the place of its budget."""
    return [word for word in words if not word.startswith("budget=")] + [f"steps={steps}"]


def shares(figures: dict[str, Any]) -> dict[str, float]:
    """The accuracy on each set that a run was measured on: test sets, or the validation set if there were none."""
    known = {
        name: one_accuracy(each) for name, each in figures.items() if isinstance(each, dict) and "accuracy" in each
    }
    found = {name: share for name, share in known.items() if share is not None}
    return {name: share for name, share in found.items() if name != "val"} or found


def rows_of(
    record: str, seed: int, first: dict[str, Any], again: dict[str, Any], *, steps: int | None = None
) -> list[dict[str, Any]]:
    one, two = shares(first), shares(again)
    both = [name for name in one if name in two]
    if not both:
        sys.exit(f"{record}: the record was measured on {', '.join(one)}, the second run on {', '.join(two)}.")
    return [
        {"record": record, "set": name, "first": one[name], "seed": seed, "again": two[name],
         "apart": 100 * abs(one[name] - two[name]), "steps": steps}
        for name in both
    ]  # fmt: skip


def for_as_long(steps: int | None) -> str:
    return "" if steps is None else f", for its {steps:,} steps"


def table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            f"`{row['record']}`",
            row["set"],
            f"{100 * row['first']:.2f} %",
            f"{100 * row['again']:.2f} % (seed {row['seed']}{for_as_long(row.get('steps'))})",
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
    parser.add_argument("--as-many-steps", action="store_true", help="as the record, in whatever time they take")
    parser.add_argument("--runs", type=Path, default=Path("runs/rerun"))
    args, more = parser.parse_known_args()
    known = commands((RECORDS / "README.md").read_text(encoding="utf-8"))
    if args.record not in known:
        parser.error(f"there is no record {args.record}; there are {', '.join(known)}")
    steps = steps_of(args.record) if args.as_many_steps else None
    words = known[args.record] if steps is None else in_steps(known[args.record], steps)
    words = [*words, *more, f"seed={args.seed}"]
    again = train(args.runs / f"{args.record}-seed{args.seed}", words)
    first = figures_of_record(args.record)
    listed = RECORDS / "reruns.json"
    before = json.loads(listed.read_text(encoding="utf-8"))["rows"] if listed.exists() else []
    kept = [row for row in before if (row["record"], row["seed"]) != (args.record, args.seed)]
    rows = sorted(
        [*kept, *rows_of(args.record, args.seed, first, again, steps=steps)],
        key=lambda row: (row["record"], row["set"], row["seed"]),
    )
    save(RECORDS, "reruns", {"rows": rows}, "# Records run twice\n\n" + table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
