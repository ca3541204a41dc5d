"""Every head after equal minutes: accuracy, parameters, words a second. One table, one command:

    python bench/heads.py --budget 8m --test crops/IIIT5k_test --test crops/SVT_test --out docs/records/heads

Each run trains on rendered words (and on `--train` sources) with one thread on a core of its own, as many at a time
as there are cores; then each is read with, alone, one after the other. Words after `--` go to train.py.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common import markdown, save, train_side_by_side

HEADS = ("ctc", "transformer", "permuted", "lstm")


def words_for(head: str, args: argparse.Namespace, words: Sequence[str]) -> list[str]:
    sources = [f"data.train=[{','.join(['render', *args.train])}]", f"data.test=[{','.join(args.test)}]"]
    return ["task=str", f"head={head}", f"budget={args.budget}", *sources, *words]


def read_with(head: str, args: argparse.Namespace) -> dict[str, object]:
    """Figures of a trained head, read anew so that no two share the machine."""
    run = args.runs / head
    command = [sys.executable, "-c", "from vitocr.cli import main; main()", "eval", str(run), "--json"]
    for path in args.test:
        command += ["--data", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path.cwd())
    measured = json.loads(done.stdout)
    trained = json.loads((run / "metrics.json").read_text())
    sets = measured.get("sets") or {Path(args.test[0]).name: measured}
    return {
        "head": head,
        "parameters": trained["parameters"],
        "trained_words_per_second": trained["train"]["images_per_second"],
        "accuracy": {name: summary["accuracy"]["36"] for name, summary in sets.items()},
        "words_per_second": min(summary["words_per_second"] for summary in sets.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="8m")
    parser.add_argument("--train", action="append", default=[], help="a source beside the rendered words; repeatable")
    parser.add_argument("--test", action="append", required=True, help="a source to measure on; repeatable")
    parser.add_argument("--runs", type=Path, default=Path("runs/heads"))
    parser.add_argument("--out", type=Path, required=True)
    args, words = parser.parse_known_args()
    words = [word for word in words if word != "--"]
    runs = {args.runs / head: words_for(head, args, words) for head in HEADS}
    if train_side_by_side(runs, cores=sorted(os.sched_getaffinity(0))):
        sys.exit(1)
    rows = [read_with(head, args) for head in HEADS]
    names = list(rows[0]["accuracy"])  # type: ignore[call-overload]
    table = markdown(
        ["head", "parameters", *names, "words/s read", "words/s trained"],
        [
            [
                str(row["head"]),
                f"{row['parameters'] / 1e6:.2f} M",  # type: ignore[operator]
                *(f"{100 * row['accuracy'][name]:.1f} %" for name in names),  # type: ignore[index]
                f"{row['words_per_second']:.0f}",
                f"{row['trained_words_per_second']:.0f}",
            ]
            for row in rows
        ],
    )
    save(args.out, "heads", {"budget": args.budget, "rows": rows}, table)
    print(table, end="")


if __name__ == "__main__":
    main()
