"""What pretraining on pictures without labels is worth where labels are few. One command, one table:

    python bench/pretraining.py --pretrain 30m --budget 10m --out docs/records/pretraining

Pretrains on the 50,000 training images of CIFAR-10 without their labels, once a seed; then, on 10 % of the labels (500
images a class), trains from scratch and fine-tunes from that for the same wall clock, a seed each, and trains a
linear probe beside. All runs take the whole machine, one after the other, and a run that is there is not done again.
No image is held out to choose a checkpoint by: the last one is measured, on the 10,000 test images. Words after `--`
go to every run (`-- backbone=vit_tiny`).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ARMS = ("from scratch", "fine-tuned", "linear probe")


def train(name: str, args: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """The figures of the run `name`, which is started unless it has finished before."""
    folder = args.runs / name
    if not (folder / "metrics.json").exists():
        command = [sys.executable, str(ROOT / "train.py"), *words, "logger=none", f"run_dir={folder}"]
        if (folder / "last.ckpt").exists():
            command.append(f"resume={folder}")
        print(f"{time.strftime('%H:%M:%S')} {name}: {' '.join(command[1:])}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("ab") as log:
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode:
                sys.exit(f"{name} failed; see {folder / 'log.txt'}")
    figures: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return figures


def words_of(arm: str, seed: int, args: argparse.Namespace) -> list[str]:
    words = ["task=cifar10", f"data.fraction={args.fraction}", "data.val_size=0", f"seed={seed}"]
    start = f"init={args.runs / f'pretrained-{seed}'}"
    if arm == "linear probe":
        return [*words, start, "freeze=backbone", f"budget={args.probe}", *args.probe_words.split()]
    words.append(f"budget={args.budget}")
    return [*words, start, *args.tune_words.split()] if arm == "fine-tuned" else words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretrain", default="30m", help="budget of pretraining")
    parser.add_argument("--budget", default="10m", help="of training from scratch, and of fine-tuning")
    parser.add_argument("--probe", default="3m", help="budget of the linear probe")
    parser.add_argument("--fraction", type=float, default=0.1, help="of the labels")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tune-words", default="", help="for fine-tuning alone, such as 'optim.lr=5e-4'")
    parser.add_argument("--probe-words", default="optim.lr=1e-2 augment.cutmix=0", help="for the linear probe alone")
    parser.add_argument("--runs", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--out", type=Path, required=True)
    args, words = parser.parse_known_args()
    words = [word for word in words if word != "--"]

    pretrained, found = [], {arm: [] for arm in ARMS}  # type: ignore[var-annotated]
    for seed in range(args.seeds):
        own = ["task=pretrain", "data.val_size=0", f"seed={seed}", f"budget={args.pretrain}"]
        pretrained.append(train(f"pretrained-{seed}", args, [*own, *words])["train"])
        for arm in ARMS:
            name = f"{arm.replace(' ', '-')}-{seed}"
            found[arm].append(train(name, args, [*words_of(arm, seed, args), *words]))

    rows = [
        {
            "arm": arm,
            "accuracy": [figures["test"]["accuracy"] for figures in runs],
            "mean": statistics.mean(figures["test"]["accuracy"] for figures in runs),
            "seconds": [figures["train"]["seconds"] for figures in runs],
            "epochs": [figures["train"]["epochs"] for figures in runs],
            "words": words_of(arm, 0, args),
        }
        for arm, runs in found.items()
    ]
    gain = rows[1]["mean"] - rows[0]["mean"]  # type: ignore[operator]
    summary = {"pretrain": args.pretrain, "budget": args.budget, "fraction": args.fraction, "words": words,
               "pretraining": pretrained, "rows": rows, "gain": gain}  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "pretraining.json").write_text(json.dumps(summary, indent=1))
    lines = [
        f"Pretrained for {args.pretrain} on 50,000 images without labels ({pretrained[0]['epochs']:.0f} epochs); then "
        f"{100 * args.fraction:.0f} % of the labels. Accuracy on the 10,000 test images.",
        "",
        f"| {args.budget} on the labels | {' | '.join(f'seed {seed}' for seed in range(args.seeds))} | mean | epochs |",
        "|-" * (args.seeds + 3) + "|",
    ]
    for row in rows:
        shares = " | ".join(f"{100 * value:.2f} %" for value in row["accuracy"])
        label = f"{row['arm']} ({args.probe})" if row["arm"] == "linear probe" else row["arm"]
        lines.append(f"| {label} | {shares} | {100 * row['mean']:.2f} % | {row['epochs'][0]:.0f} |")
    lines += ["", f"Fine-tuned against from scratch: {100 * gain:+.2f} points."]
    (args.out / "pretraining.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
