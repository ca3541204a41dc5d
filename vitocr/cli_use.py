"""`vitocr eval` and `vitocr predict`: a model measured, and a model at work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import vitocr
from vitocr.errors import UserError

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .safetensors, .ckpt or .onnx file, a run's folder, or a name that `vitocr models` lists.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images that go through the model at once.")]


def evaluate(
    model: ModelName,
    data: Annotated[list[str] | None, typer.Option(help="`cifar10` or a folder of images; repeatable.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="train, val or test. Default: test, else val, else all."),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where cifar10 is, or goes.")] = Path("data"),
    batch_size: BatchSize = 64,
    as_json: AsJson = False,
) -> None:
    """Measure a model: accuracy with its 95 % interval, per class, calibration, speed."""
    from vitocr.evaluate import evaluate as measure
    from vitocr.output import percent, progress, table

    predictor = vitocr.load(model)
    if predictor.reads_text:
        evaluate_text(predictor, data or [], batch_size=batch_size, as_json=as_json)
        return
    if not data and predictor.description["task"] != "cifar10":
        raise UserError("Say on which data: --data FOLDER (a sub-folder a class, or a CSV), or --data cifar10.")
    for name in data or ["cifar10"]:
        figures = measure(
            predictor,
            name,
            split=split,
            data_dir=data_dir,
            batch_size=batch_size,
            watch=lambda items, total: progress(items, total, what="evaluating"),
        )
        if as_json:
            print(json.dumps(figures, ensure_ascii=False), flush=True)
            continue
        low, high = map(percent, figures["accuracy_95"])
        top5 = f", top-5 {percent(figures['top5_accuracy'])}" if "top5_accuracy" in figures else ""
        print(f"{figures['data']}, {figures['split']}: {figures['images']:,} images")
        print(f"accuracy {percent(figures['accuracy'])} (95 % interval: {low} to {high}){top5}")
        print(f"calibration error {figures['ece']:.4f}, negative log likelihood {figures['nll']:.4f} nats")
        print(f"{figures['images_per_second']:,.0f} images/s, decoding included")
        for failure in figures["skipped"]:
            print(f"skipped: {failure['error']}", file=sys.stderr)
        table(
            sys.stdout,
            ["class", "accuracy"],
            [[name, percent(s)] for name, s in figures["per_class"].items()],
        )


def evaluate_text(predictor: Any, data: Sequence[str], *, batch_size: int, as_json: bool) -> None:
    from vitocr.data.text_sources import open_source
    from vitocr.evaluate import read_all
    from vitocr.output import percent, progress, table
    from vitocr.text_metrics import PROTOCOLS, protocol_for, summarise_sets

    if not data:
        raise UserError("Say on which words: --data DIR (a table of labels, an LMDB, or folders of these).")
    protocol = protocol_for(predictor.codec.characters)
    sets: dict[str, Any] = {}
    for path in data:
        source = open_source(path)
        name, number = source.name, 1
        while name in sets:
            number += 1
            name = f"{source.name}-{number}"
        sets[name], _ = read_all(
            predictor,
            source,
            protocol=protocol,
            batch_size=batch_size,
            watch=lambda items, total: progress(items, total, what="reading"),
        )
    figures = summarise_sets(sets)
    if as_json:
        print(json.dumps(figures, ensure_ascii=False), flush=True)
        return

    def cells(name: str, summary: Any) -> list[str]:
        shares = [summary["accuracy"][each] for each in PROTOCOLS]
        shown = [percent(share) if share is not None else "-" for share in shares]
        rest = [f"{summary[key]:.4f}" if summary.get(key) is not None else "-" for key in ("ned", "cer", "ece")]
        rate = f"{summary['words_per_second']:.0f}" if "words_per_second" in summary else ""
        return [name, f"{summary['n']:,}" if "n" in summary else "", *shown, *rest, rate]

    rows = [cells(name, summary) for name, summary in sets.items()]
    if len(sets) > 1:
        rows += [cells(name, figures[name]) for name in ("mean", "weighted")]
    table(sys.stdout, ["set", "words", *PROTOCOLS, "ned", "cer", "ece", "words/s"], rows)
    for name, summary in sets.items():
        low, high = summary["accuracy_95"][protocol]
        print(f"{name}: 95 % interval under protocol {protocol} {percent(low)} to {percent(high)}")
        worst = ", ".join(f"{c['label'] or '·'} as {c['read'] or '·'} {c['count']}" for c in summary["confusions"][:10])
        print(f"{name}: most often misread: {worst}")
        for why in summary["broken"]:
            print(f"skipped: {why}", file=sys.stderr)


def predict(
    model: ModelName,
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, folders or quoted globs.")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with a heading.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write there instead, line by line as answers come.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 3,
    batch_size: BatchSize = 64,
) -> None:
    """Name or read what is in images. A file that cannot be read gets an error entry; the others are answered."""
    from vitocr.data.folder import EXTENSIONS
    from vitocr.output import csv_writer, find_images, human_writer, json_writer, progress

    if as_json and as_csv:
        raise UserError("Choose one of --json and --csv.")
    predictor = vitocr.load(model)
    paths = find_images(inputs, EXTENSIONS)
    top_k = 1 if predictor.reads_text else min(top_k, len(predictor.classes))
    failed = 0
    with ExitStack() as stack:
        file = stack.enter_context(_open(out)) if out else sys.stdout
        if as_csv:
            write = csv_writer(file, top_k=top_k, text=predictor.reads_text)
        else:
            write = json_writer(file) if as_json else human_writer(file, paths)
        results = predictor.stream(paths, batch_size=batch_size, top_k=top_k)
        # On a terminal the answers themselves show how far we are.
        for result in progress(results, len(paths), what="predicting", quiet=file.isatty()):
            write(result)
            failed += not result
    if failed:
        print(f"{failed:,} of {len(paths):,} inputs could not be read.", file=sys.stderr)
        raise typer.Exit(1)


def _open(path: Path) -> Any:
    try:
        return open(path, "w", encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"Cannot write to {path}: {error.strerror}.") from error
