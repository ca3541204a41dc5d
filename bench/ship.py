"""A finished run into a shipped model: the weights halved, the confidence calibrated, everything measured and told.

    python bench/ship.py runs/str/DATE_TIME --name str-tiny --command 'python train.py experiment=str_tiny budget=3h' \
        --data words/IIIT5k_test --data words/SVT_test

writes str-tiny.safetensors, its model card str-tiny.md and the plot in it, str-tiny.png, into vitocr/weights/.

- The command must be the one that made the run: it is composed, and compared with the run's own configuration.
- Calibration uses the words that the run itself held back from training, or those of `--calibrate DIR`. To tell crops
  without text, and for the threshold, it takes these, rendered words and crops without text of a seed of their own, and
  photographs of CIFAR-10's training part, cut as bench/blanks.py cuts those of the test part. Test sets choose nothing.
- The shipped file must answer as the run's own does; where it does not, that is said here and in the card.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import blanks
import numpy as np
from card import card, count_fonts

import vitocr
from vitocr.calibrate import calibrate_classes, learn_blanks, uncalibrated
from vitocr.calibrate import calibrate_text as calibrate_words
from vitocr.calibration import Calibration
from vitocr.catalog import SHIPPED, find_model
from vitocr.checkpoint import load_checkpoint, save_model
from vitocr.config import LENGTH, differences
from vitocr.cores import usable_cores
from vitocr.data.blanks import open_blanks
from vitocr.data.cifar10 import load_cifar10
from vitocr.data.rendered import open_rendered
from vitocr.data.text_rows import Concat, Subset, TextSource, hold_out
from vitocr.data.text_sources import open_source
from vitocr.description import shorten_paths, without_paths
from vitocr.drawing.reliability import draw_reliability
from vitocr.errors import UserError
from vitocr.evaluate import evaluate, measure_on, read_all, usual_protocol
from vitocr.metrics import log_softmax
from vitocr.text_metrics import right_words

LARGEST = 12_000_000  # bytes of a file that ships
BLANKS, BLANK_SEED = 2000, 987_654  # crops without text, to learn to tell them, and to set the threshold by
PHOTOS = {"photos": 2000, "skies": 500}  # as many more, of bench/blanks.py
RENDERED = 1000  # words, beside those held back
ANSWERS = 20_000  # most that the two files are compared on


def check_command(command: str, config: dict[str, Any]) -> None:
    """UserError unless `command` makes a run of this configuration."""
    from vitocr.bench import compose_config
    from vitocr.train import settle_length

    words = shlex.split(command)
    start = next((at + 1 for at, word in enumerate(words) if word in ("train.py", "train")), None)
    if start is None:
        raise UserError(f"--command {command!r}: write it as `python train.py ...` or `vitocr train ...`.")
    composed = compose_config(words[start:])
    settle_length(composed, words[start:])
    differ = differences(config, composed)
    for name in LENGTH:
        if config[name] != composed[name]:
            differ.append(f"{name}: {config[name]} there, {composed[name]} here")
    if differ:
        raise UserError("--command is not what made the run; it differs in\n  " + "\n  ".join(differ[:10]))


def held_back(config: dict[str, Any]) -> TextSource:
    """The words that the run validated on, which it did not learn from."""
    data = config["data"]
    if data["val"]:
        return Concat([open_source(path) for path in data["val"]], name="val")
    paths = [entry["path"] if isinstance(entry, dict) else entry for entry in data["train"]]
    path = next(path for path in reversed(paths) if path != "blanks")
    if path == "render":
        raise UserError("The run held back rendered words, which are no guide to photographs: give --calibrate DIR.")
    return hold_out(open_source(path), data["val_size"], seed=config["seed"])[1]


def by_kind(words: TextSource) -> list[TextSource]:
    """Words held back of several sets in one, apart again."""
    if not (isinstance(words, Subset) and isinstance(words.source, Concat)):
        return [words]
    which = np.array([words.source.locate(row)[0] for row in words.rows])
    return [Subset(words, np.flatnonzero(which == number)) for number in np.unique(which)]


def calibrate_text(
    file: Path, source: TextSource, config: dict[str, Any], *, blank_share: float, data_dir: Path
) -> dict[str, Any]:
    """What goes into the description under `calibration`. config: of the run."""
    predictor = vitocr.load(file)
    protocol = usual_protocol(predictor)
    options: Any = {"batch_size": 64, "watch": lambda items, _: items}
    # How many words of each kind were held back is an accident of how many there are to learn from.
    fitted = calibrate_words(predictor, by_kind(source), protocol=protocol, alike=True, **options)
    found = Calibration.from_dict(fitted.calibration)
    size = predictor.preprocess.size
    drawn = config["render"] | {"cache": None, "rows": RENDERED, "seed": BLANK_SEED}
    about: Any = {"charset": config["charset"], "max_length": config["max_length"], "size": size, "budget_s": None}
    nothing = open_blanks(size=size, seed=BLANK_SEED, rows=BLANKS)
    crops: list[Any] = [nothing.read(row).image for row in range(BLANKS)]
    if (data_dir / "cifar10" / "train_images.npy").is_file():
        for kind, count in PHOTOS.items():
            crops += blanks.make(kind, count=count, cifar10=data_dir / "cifar10", seed=BLANK_SEED, split="train")
    words = [source, open_rendered(drawn, **about)]
    found = learn_blanks(predictor, found, words, crops, share=blank_share, **options)
    return found.to_dict() | {"protocol": protocol}


def compare(ours: Path, theirs: Path, images: Sequence[Any]) -> dict[str, Any]:
    """How many of the images are answered otherwise, and by how much confidences differ."""
    models = [vitocr.load(path) for path in (ours, theirs)]
    for model in models:  # as the weights say it: a run has calibrated its own file, and here that is still to come
        model.calibration, model.threshold, model.temperature = None, 0.0, 1.0
    one, two = (model(list(images)) for model in models)
    said = [[getattr(answer, "text", None) or getattr(answer, "name", "") for answer in each] for each in (one, two)]
    apart = [abs(a.confidence - b.confidence) for a, b in zip(one, two, strict=True)]  # type: ignore[union-attr]
    different = sum(a != b for a, b in zip(*said, strict=True))
    return {"answers": len(images), "different": different, "confidence": max(apart, default=0.0)}


def measure_text(file: Path, data: Sequence[str], plot: Path) -> dict[str, Any]:
    """The figures of every set, as `vitocr eval` has them, and the plot of the confidence on all of them."""
    predictor = vitocr.load(file)
    protocol = usual_protocol(predictor)
    plain = uncalibrated(predictor)
    figures, sure, bare, good = {}, [], [], []
    for path in data:
        source = open_source(path)
        if source.name in figures:
            raise UserError(f"Two of the sets to measure it on are called {source.name}: rename one.")
        summary, (_, labels, readings) = read_all(predictor, source, protocol=protocol)
        figures[source.name] = summary
        sure += [reading.confidence for reading in readings]
        bare += [reading.confidence for reading in read_all(plain, source, protocol=protocol)[1][2]]
        good += right_words([reading.text for reading in readings], labels, protocol).tolist()
    judged = ~np.isnan(good)
    before, after = np.array(bare)[judged], np.array(sure)[judged]
    draw_reliability(plot, before, after, np.array(good)[judged], title=", ".join(figures))
    return figures


def measure_classes(file: Path, data_dir: Path, plot: Path) -> dict[str, Any]:
    predictor = vitocr.load(file)
    _, _, seen = measure_on(predictor, "cifar10", "test", data_dir, batch_size=64, watch=lambda items, _: items)
    logits = np.asarray(seen.logits, dtype=np.float64)
    before, after = (np.exp(log_softmax(logits / heat).max(axis=1)) for heat in (1.0, predictor.temperature))
    draw_reliability(plot, before, after, logits.argmax(axis=1) == seen.labels, title="CIFAR-10 test")
    return {"test": evaluate(predictor, "cifar10", split="test", data_dir=data_dir)}


def sample_images(kind: str, data: Sequence[str], data_dir: Path) -> list[Any]:
    if kind == "classify":
        return list(load_cifar10(data_dir).test.images[:ANSWERS])  # type: ignore[union-attr]
    rows = [source.read(row).image for path in data for source in [open_source(path)] for row in range(len(source))]
    return rows[:ANSWERS]


def sources_of(description: dict[str, Any]) -> list[str]:
    names = description["provenance"]["data"].get("train") or [description["provenance"]["data"]["name"]]
    return [str(name).removesuffix(" (held out)") for name in names]


def ship(args: argparse.Namespace) -> Path:
    """Made beside what is shipped already, which is replaced only when all is well."""
    run = find_model(args.run)
    state, described = load_checkpoint(run)
    check_command(args.command, described["provenance"]["config"])
    if described["provenance"]["config"].get("init") and not args.before:
        raise UserError("The run began from another model: tell by --before 'python train.py ...' what made that.")
    if described["kind"] == "text" and not args.data:
        raise UserError("Say on which words to measure it: --data DIR, repeatable.")
    described.pop("calibration", None)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out, prefix=".making-") as folder:
        draft = Path(folder) / f"{args.name}.safetensors"
        save_model(draft, state, without_paths(described), storage=args.storage)
        if draft.stat().st_size > LARGEST:
            raise UserError(f"{args.name} takes {draft.stat().st_size:,} bytes; at most {LARGEST:,} are shipped.")
        told = measure(draft, run, args)
        save_model(draft, state, told["description"], storage=args.storage)
        text = card(told | {"bytes": draft.stat().st_size})
        draft.with_suffix(".md").write_text(text, encoding="utf-8")
        for made in sorted(Path(folder).iterdir()):
            os.replace(made, args.out / made.name)
    target: Path = args.out / draft.name
    print(f"wrote {target} ({target.stat().st_size:,} bytes), and the card and the plot beside it")
    return target


def measure(draft: Path, run: Path, args: argparse.Namespace) -> dict[str, Any]:
    """All that the card tells. The draft is calibrated on the way."""
    state, description = load_checkpoint(draft)
    reads = description["kind"] == "text"
    config = load_checkpoint(run)[1]["provenance"]["config"]  # with its paths
    compared = compare(draft, run, sample_images(description["kind"], args.data, args.data_dir))
    print(f"{compared['different']:,} of {compared['answers']:,} answers differ from the run's own")
    if reads:
        source = open_source(args.calibrate) if args.calibrate else held_back(config)
        description["calibration"] = calibrate_text(
            draft, source, config, blank_share=args.blank_share, data_dir=args.data_dir
        )
    elif config["data"]["val_size"]:
        predictor = vitocr.load(draft)
        options: Any = {"split": "val", "data_dir": args.data_dir, "batch_size": 64, "watch": lambda items, _: items}
        description["calibration"] = calibrate_classes(predictor, ["cifar10"], **options).calibration
    save_model(draft, state, description, storage=args.storage)
    plot = draft.with_suffix(".png")
    figures = measure_text(draft, args.data, plot) if reads else measure_classes(draft, args.data_dir, plot)
    description["metrics"] = without_paths({"metrics": figures})["metrics"]
    run_figures = json.loads((run.parent / "metrics.json").read_text(encoding="utf-8"))
    fonts = [path for path in map(Path, config.get("render", {}).get("fonts", [])) if path.is_dir()]
    return {
        "name": args.name,
        "parameters": run_figures["parameters"],
        "train": run_figures["train"],
        "storage": args.storage,
        "command": shorten_paths(args.command),
        "before": [shorten_paths(command) for command in args.before],
        "cores": usable_cores(),
        "description": description,
        "figures": figures,
        "compared": compared,
        "blanks": blanks.measure(draft, cifar10=args.data_dir / "cifar10") if reads else None,
        "sources": sources_of(description),
        "notes": args.note,
        "fonts": count_fonts(fonts),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--name", required=True, help="what it will be called, e.g. str-tiny")
    parser.add_argument("--command", required=True, help="that made the run; checked")
    parser.add_argument("--before", action="append", default=[], help="what made the model it began from; repeatable")
    parser.add_argument("--data", action="append", default=[], help="words to measure it on; repeatable")
    parser.add_argument("--calibrate", help="held-back words; default: those the run validated on")
    parser.add_argument("--blank-share", type=float, default=0.005, help="of crops without text that may be read")
    parser.add_argument("--note", action="append", default=[], help="on the licence of other training data; repeatable")
    parser.add_argument("--storage", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where cifar10 is")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    try:
        ship(parser.parse_args(argv))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
