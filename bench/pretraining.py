"""What pretraining on pictures without labels is worth where labels are few. One command, one table:

    python bench/pretraining.py --pretrain 30m --budget 10m --out docs/records/ideas

Pretrains on the 50,000 training images of CIFAR-10 without their labels, once a seed; then, on 10 % of the labels (500
images a class), trains from scratch and fine-tunes from that for the same wall clock, a seed each, and trains a
linear probe beside. Each run has one thread on a core of its own, `--jobs` of them at a time, so that all have the same
of the machine; a run that is there is not done again. No image is held out to choose a checkpoint by: the last one is
measured, on the 10,000 test images. Words after `--` go to every run (`-- backbone=vit_tiny`).
"""

import argparse
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import figures_of, markdown, save, train_side_by_side

ARMS = ("from scratch", "fine-tuned", "linear probe")


def words_of(arm: str, seed: int, args: argparse.Namespace) -> list[str]:
    words = ["task=cifar10", f"data.fraction={args.fraction}", "data.val_size=0", f"seed={seed}"]
    start = f"init={args.runs / f'pretrained-{seed}'}"
    if arm == "linear probe":
        return [*words, start, "freeze=backbone", f"budget={args.probe}", *args.probe_words.split()]
    words.append(f"budget={args.budget}")
    return [*words, start, *args.tune_words.split()] if arm == "fine-tuned" else words


def train_all(runs: Mapping[Path, Sequence[str]], cores: Sequence[int]) -> list[dict[str, Any]]:
    """The figures of the runs, in their order."""
    if failed := train_side_by_side(runs, cores=cores):
        sys.exit(f"{len(failed)} of {len(runs)} runs failed: {', '.join(folder.name for folder in failed)}")
    return [figures for folder in runs if (figures := figures_of(folder)) is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrain", default="30m", help="budget of pretraining")
    parser.add_argument("--budget", default="10m", help="of training from scratch, and of fine-tuning")
    parser.add_argument("--probe", default="3m", help="budget of the linear probe")
    parser.add_argument("--fraction", type=float, default=0.1, help="of the labels")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tune-words", default="", help="for fine-tuning alone, such as 'optim.lr=5e-4'")
    parser.add_argument("--probe-words", default="optim.lr=1e-2 augment.cutmix=0", help="for the linear probe alone")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time, a core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--out", type=Path, required=True)
    args, words = parser.parse_known_args()
    words = [word for word in words if word != "--"]
    cores, seeds = sorted(os.sched_getaffinity(0))[-args.jobs :], range(args.seeds)

    own = ["task=pretrain", "data.val_size=0", f"budget={args.pretrain}"]
    pretrained = train_all({args.runs / f"pretrained-{seed}": [*own, f"seed={seed}", *words] for seed in seeds}, cores)
    runs = {
        (arm, seed): (args.runs / f"{arm.replace(' ', '-')}-{seed}", [*words_of(arm, seed, args), *words])
        for arm in ARMS
        for seed in seeds
    }
    measured = dict(zip(runs, train_all(dict(runs.values()), cores), strict=True))
    found = {arm: [measured[arm, seed] for seed in seeds] for arm in ARMS}

    rows = [
        {
            "arm": arm,
            "accuracy": [figures["test"]["accuracy"] for figures in ended],
            "mean": statistics.mean(figures["test"]["accuracy"] for figures in ended),
            "seconds": [figures["train"]["seconds"] for figures in ended],
            "epochs": [figures["train"]["epochs"] for figures in ended],
            "words": words_of(arm, 0, args),
        }
        for arm, ended in found.items()
    ]
    gain = rows[1]["mean"] - rows[0]["mean"]  # type: ignore[operator]
    epochs = pretrained[0]["train"]["epochs"]
    summary = {
        "pretrain": args.pretrain,
        "budget": args.budget,
        "fraction": args.fraction,
        "words": words,
        "tuned": args.tune_words.split(),
        "pretraining": [figures["train"] for figures in pretrained],
        "rows": rows,
        "gain": gain,
    }
    labels = [f"{arm} ({args.probe})" if arm == "linear probe" else arm for arm in ARMS]
    table = markdown(
        [f"{args.budget} on the labels", *(f"seed {seed}" for seed in range(args.seeds)), "mean", "epochs"],
        [
            [label, *(f"{100 * value:.2f} %" for value in [*row["accuracy"], row["mean"]]), f"{row['epochs'][0]:.0f}"]  # type: ignore
            for label, row in zip(labels, rows, strict=True)
        ],
    )
    table = (
        f"Pretrained for {args.pretrain} on 50,000 images without labels ({epochs:.0f} epochs); then "
        f"{100 * args.fraction:.0f} % of the labels. Accuracy on the 10,000 test images.\n\n{table}\n"
        f"Fine-tuned against from scratch: {100 * gain:+.2f} points.\n"
        + (f"All with `{' '.join(words)}`.\n" if words else "")
        + (f"Fine-tuning alone with `{args.tune_words}`.\n" if args.tune_words else "")
    )
    save(args.out, "pretraining", summary, table)
    shutil.copyfile(args.runs / "pretrained-0" / "samples.png", args.out / "pretraining.png")
    print(table, end="")


if __name__ == "__main__":
    main()
