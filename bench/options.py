"""Every option after equal minutes: accuracy, parameters, images a second, peak memory. One table, one command:

    python bench/options.py --budget 5m --seeds 3 --only positions,attention --jobs 2 --out docs/records/ideas

Each run is a train.py of its own, with one thread on a core of its own, `--jobs` of them at a time: enough cores should
be left for them. Runs are kept under `--runs`; one that has finished is not done again, one that was interrupted goes
on, and the table is written anew after each. Groups that share a run (the default is in most) share its figures.

CIFAR-10 is trained on all 50,000 images and measured on the 10,000 test images after the last step: no checkpoint is
chosen, and neither should a default be, by this table. Words are rendered beforehand, outside the budgets; without
`--test` they are measured on 2,000 rendered words that were held back. Peak memory is that of the process, the data
included. Words after `--` go to every run, those of `--cifar10` and `--str` to the runs of that task.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common import figures_of, peak_of, save, train, train_side_by_side
from ideas_tables import ENGLISH, options_table


class Group(NamedTuple):
    task: str
    rows: Mapping[str, str]  # label -> words of train.py


GROUPS = {
    "readers": Group(
        "str",
        {
            "CRNN + CTC": "backbone=crnn head=ctc",
            "CRNN + LSTM with attention": "backbone=crnn head=lstm",
            "ViT + CTC": "head=ctc",
            "ViT + LSTM with attention": "head=lstm",
            "ViT + Transformer": "",
            "ViT + permuted decoder": "head=permuted",
        },
    ),
    "smoothing": Group("str", {"label smoothing 0.1": "", "none": "label_smoothing=0"}),
    "positions": Group(
        "cifar10",
        {
            "learned, from sines": "",
            "learned, from noise": "backbone.positions_from=noise",
            "sinusoidal": "backbone.positions=sinusoidal",
            "rotary": "backbone.positions=rotary",
            "none": "backbone.positions=none",
        },
    ),
    "norm": Group("cifar10", {"pre": "", "post": "backbone.norm=post"}),
    # Patches of 2x2 make 256 tokens: with 64 there is little to leave out.
    "attention": Group(
        "cifar10",
        {
            "dense": "backbone.patch=2",
            "strided": "backbone.patch=2 backbone.attention=strided",
            "fixed": "backbone.patch=2 backbone.attention=fixed",
            "window": "backbone.patch=2 backbone.attention=window",
        },
    ),
    "recompute": Group("cifar10", {"kept": "", "recomputed": "trainer.recompute=true"}),
    "patches": Group(
        "cifar10",
        {
            "plain, half of the patches at first": "",
            "plain, all patches": "backbone.keep_patches=1",
            "hybrid": "backbone=hybrid",
        },
    ),
    "token": Group("cifar10", {"average": "", "class token": "backbone.class_token=true head.pool=cls"}),
}
LEAST_POINTS = 6.0  # that a panel of the picture spans
LAST_STEP = "val_every=1000000"  # validation would take minutes off the budget, and choose a checkpoint


def words_of(task: str, words: str, seed: int, args: argparse.Namespace) -> list[str]:
    """The command line of a run, less what common.py adds to it."""
    given = [f"task={task}", *words.split(), f"seed={seed}", LAST_STEP]
    if task == "str":
        given += [f"budget={args.words_budget or args.budget}", *rendering(args), *args.str.split()]
        given.append(f"data.test=[{','.join(args.test)}]")
    else:
        given += [f"budget={args.budget}", "data.val_size=0", *args.cifar10.split()]
    return [*given, *args.words]


def rendering(args: argparse.Namespace) -> list[str]:
    return ["charset=36", "data.val_size=2000", f"render.rows={args.render}", f"render.cache={args.runs / 'words'}"]


def folder_of(task: str, words: str, seed: int, args: argparse.Namespace) -> Path:
    named = "-".join(words.replace("=", "-").split()) or "default"  # Hydra would ask for quotes around an =
    return args.runs / f"{task}-{named}-{seed}"


def render_words(args: argparse.Namespace) -> None:
    """By a run of one step, so that the words are those that runs ask for."""
    tiny = ["steps=1", LAST_STEP, "head=ctc", "batch_size=8"]
    train(args.runs / "rendering", ["task=str", *rendering(args), *tiny, *args.str.split()])


def measured(task: str, folder: Path) -> dict[str, Any] | None:
    figures = figures_of(folder)
    if figures is None:
        return None
    if task == "str":
        sets = [summary for name, summary in figures.items() if isinstance(summary, dict) and "ned" in summary]
        accuracy = statistics.mean(summary["accuracy"]["36"] for summary in sets)
        used = statistics.mean(summary["words_per_second"] for summary in sets)
    else:
        accuracy, used = figures["test"]["accuracy"], figures["test"]["images"] / figures["test"]["seconds"]
    return {
        "accuracy": accuracy,
        "parameters": figures["parameters"],
        "trained_per_second": figures["train"]["images_per_second"],
        "used_per_second": used,
        "peak_bytes": peak_of(folder),
        "steps": figures["train"]["steps"],
        "seconds": figures["train"]["seconds"],
    }


def collect(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What is known of a group by now."""
    task, rows = GROUPS[name]
    found = []
    for label, words in rows.items():
        seeds = [measured(task, folder_of(task, words, seed, args)) for seed in range(args.seeds)]
        done = [one for one in seeds if one is not None]
        if done:
            found.append({"label": label, "words": words, "runs": done})
    budget = args.words_budget or args.budget if task == "str" else args.budget
    given = [*(args.str if task == "str" else args.cifar10).split(), *args.words]
    return {"task": task, "budget": budget, "given": given, "rows": found}


def write(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of the groups asked for; those of others stay what they were."""
    path = args.out / "options.json"
    known: dict[str, Any] = json.loads(path.read_text())["groups"] if path.exists() else {}
    known |= {name: group for name in args.only if (group := collect(name, args))["rows"]}
    groups = {name: known[name] for name in GROUPS if name in known}
    parts = [f"### {name}\n\n{options_table(group, ENGLISH)}" for name, group in groups.items()]
    save(args.out, "options", {"threads": 1, "groups": groups}, "\n".join(parts))
    return groups


def draw(groups: Mapping[str, Any], path: Path) -> None:
    """A dot a run, an option a line, a panel a group: what lies further apart than the dots of a line differs."""
    from matplotlib.figure import Figure

    heights = [len(group["rows"]) + 1.3 for group in groups.values()]
    figure = Figure(figsize=(8, 0.32 * sum(heights) + 0.3), dpi=110, facecolor="white", layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, group) in zip(panels, groups.items(), strict=True):
        for at, row in enumerate(group["rows"]):
            values = [100 * run["accuracy"] for run in row["runs"]]
            axes.plot(values, [at] * len(values), "o", color="#1f5fa8", alpha=0.6, markersize=5, markeredgewidth=0)
            axes.plot(statistics.mean(values), at, "|", color="#1f2933", markersize=13)
        low, high = axes.get_xlim()
        room = max(0.0, LEAST_POINTS - (high - low)) / 2
        axes.set_xlim(low - room, high + room)  # no panel makes mountains of tenths
        axes.set_yticks(range(len(group["rows"])), [row["label"] for row in group["rows"]])
        axes.set_ylim(len(group["rows"]) - 0.5, -0.5)
        what = "words read" if group["task"] == "str" else "CIFAR-10 test"
        axes.set_title(f"{name}: {what}, % after {group['budget']} on one core", loc="left", fontsize=9)
        axes.tick_params(labelsize=8, length=0)
        axes.grid(axis="x", color="#e4e7eb", linewidth=0.6)
        axes.spines[:].set_visible(False)
    figure.savefig(path, format="png")


def names(text: str) -> list[str]:
    found = text.split(",")
    unknown = [name for name in found if name not in GROUPS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(GROUPS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="5m", help="of each run")
    parser.add_argument(
        "--words-budget", help="of each run on words, which take longer to learn; the default is --budget"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=names, default=list(GROUPS), help=f"of {','.join(GROUPS)}")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time, a core each")
    parser.add_argument("--render", type=int, default=200_000, help="words to train on")
    parser.add_argument("--test", action="append", default=[], help="words to measure on; repeatable")
    parser.add_argument("--cifar10", default="", help="words for the runs on CIFAR-10 alone")
    parser.add_argument("--str", default="", help="words for the runs on words alone")
    parser.add_argument("--runs", type=Path, default=Path("runs/options"))
    parser.add_argument("--out", type=Path, required=True)
    args, words = parser.parse_known_args()
    args.words = [word for word in words if word != "--"]
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= args.jobs <= len(cores):
        parser.error(f"--jobs {args.jobs}: there are {len(cores)} cores")

    # Seed by seed, so that a bench that is stopped has something to say of every option.
    wanted = [
        (task, row, seed)
        for seed in range(args.seeds)
        for task, rows in (GROUPS[name] for name in args.only)
        for row in rows.values()
    ]
    runs = {folder_of(*one, args): words_of(*one, args) for one in wanted}  # one that two groups share is there once
    if any(task == "str" for task, _, _ in wanted):
        render_words(args)
    failed = train_side_by_side(runs, cores=cores[-args.jobs :], finished=lambda folder: write(args))
    groups = write(args)
    if groups:
        draw(groups, args.out / "options.png")
    print((args.out / "options.md").read_text(), end="")
    if failed:
        sys.exit(f"{len(failed)} of {len(runs)} runs failed: {', '.join(folder.name for folder in failed)}")


if __name__ == "__main__":
    main()
