"""`vitocr eval` and `vitocr predict`: a model measured, and a model at work."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
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
Precision = Annotated[
    str, typer.Option(help="What torch computes in: fp32, bf16, or auto for bf16 where the machine has it natively.")
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="What of a text counts: 36, 62, 94 or exact. Default: what the model was trained to be judged by."
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images that go through the model at once.")]


def evaluate(
    model: ModelName,
    data: Annotated[list[str] | None, typer.Option(help="`cifar10` or a folder of images; repeatable.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="train, val or test. Default: test, else val, else all."),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where cifar10 is, or goes.")] = Path("data"),
    protocol: Protocol = None,
    batch_size: BatchSize = 64,
    precision: Precision = "fp32",
    as_json: AsJson = False,
) -> None:
    """Measure a model: accuracy with its 95 % interval, per class, calibration, thresholds, speed."""
    from vitocr.evaluate import evaluate as measure
    from vitocr.output import percent, progress, table

    predictor = vitocr.load(model, precision=precision)
    if predictor.reads_text:
        evaluate_text(predictor, data or [], protocol=protocol, batch_size=batch_size, as_json=as_json)
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
        print_thresholds({figures["data"]: figures}, what="images")
        for failure in figures["skipped"]:
            print(f"skipped: {failure['error']}", file=sys.stderr)
        table(
            sys.stdout,
            ["class", "accuracy"],
            [[name, percent(s)] for name, s in figures["per_class"].items()],
        )


def evaluate_text(predictor: Any, data: Sequence[str], *, protocol: str | None, batch_size: int, as_json: bool) -> None:
    from vitocr.data.text_sources import open_source
    from vitocr.evaluate import read_all, usual_protocol
    from vitocr.output import percent, progress, table
    from vitocr.text_metrics import PROTOCOLS, summarise_sets

    if not data:
        raise UserError("Say on which words: --data DIR (a table of labels, an LMDB, or folders of these).")
    protocol = protocol or usual_protocol(predictor)
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
    print_thresholds(sets, what="words")


def print_thresholds(sets: Mapping[str, Any], *, what: str) -> None:
    """Which confidence to ask for where at most so many of the answers may be wrong."""
    from vitocr.output import percent, table

    rows = []
    for name, summary in sets.items():
        for point in summary.get("thresholds", ()):
            reached = point["threshold"] is not None
            found = f"{point['threshold']:.4f}" if reached else "none does that"
            error = percent(point["error"]) if reached else ""
            rows.append([name, percent(point["wanted"]), found, percent(point["kept"]), error])
    if rows:
        table(sys.stdout, ["set", "wrong at most", "threshold", f"{what} kept", "of these wrong"], rows)


def predict(
    model: ModelName,
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, folders or quoted globs.")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A table with a heading.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write there instead, line by line as answers come. With --json or --csv, the same command goes on "
            "with a file that an earlier run was killed over; a file that is complete is refused."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Add to --out what it lacks, complete or not.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin --out anew, whatever it holds.")] = False,
    top_k: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 3,
    n_best: Annotated[int, typer.Option(min=1, help="How many readings to name.")] = 1,
    batch_size: BatchSize = 64,
    precision: Precision = "fp32",
    any_rotation: Annotated[
        bool, typer.Option("--any-rotation", help="Look for text in all four orientations; says how it was turned.")
    ] = False,
    tall_crops: Annotated[
        bool, typer.Option(help="Look at crops much higher than wide on both their sides too; says how it was turned.")
    ] = True,
    long_lines: Annotated[
        bool, typer.Option(help="Read what is much longer than a word in overlapping windows.")
    ] = True,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Confidence below which there is nothing to read. Default: the model's own."),
    ] = None,
    match: Annotated[
        str | None, typer.Option(help="A regular expression that the whole text satisfies: '[A-Z]{2}[0-9]{4}'.")
    ] = None,
    whitelist: Annotated[str | None, typer.Option(help="The only characters there may be.")] = None,
    lexicon: Annotated[Path | None, typer.Option(help="A file with the words there may be, one a line.")] = None,
    lexicon_bonus: Annotated[
        float | None, typer.Option(help="Allow other texts too, but prefer the lexicon's words by so much (in nats).")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="How many texts to follow at a time.")] = None,
) -> None:
    """Name or read what is in images. A file that cannot be read gets an error entry; the others are answered."""
    from vitocr.catalog import find_model
    from vitocr.commands.predict_files import predict_files
    from vitocr.commands.unfinished import checksum
    from vitocr.data.folder import EXTENSIONS
    from vitocr.output import image_names

    if as_json and as_csv:
        raise UserError("Choose one of --json and --csv.")
    if out is None and (resume or overwrite):
        raise UserError("--resume and --overwrite are about the file of --out, which was not given.")
    # What was left out of a rule is said as a note: where in the code that was noticed is nobody's concern.
    warnings.showwarning = lambda message, *rest, **more: print(f"note: {message}", file=sys.stderr)
    predictor = vitocr.load(model, precision=precision)
    names = image_names(inputs, EXTENSIONS)
    done = predict_files(
        predictor,
        names,
        form="csv" if as_csv else "json" if as_json else "lines",
        out=out,
        resume=resume,
        overwrite=overwrite,
        made_with={"model": checksum(find_model(model)), "precision": precision} if out else None,
        batch_size=batch_size,
        top_k=top_k,
        # None is the usual way, which a model that tells classes apart has too.
        n_best=n_best if n_best > 1 else None,
        any_rotation=any_rotation or None,
        tall_crops=None if tall_crops else False,
        long_lines=None if long_lines else False,
        threshold=threshold,
        match=match,
        whitelist=whitelist,
        lexicon=None if lexicon is None else str(lexicon),
        lexicon_bonus=lexicon_bonus,
        beam=beam,
    )
    if done.failed:
        print(f"{done.failed:,} of {done.answered:,} inputs could not be read.", file=sys.stderr)
        for message in done.named:
            print(f"  {message}", file=sys.stderr)
        if done.failed > len(done.named):
            print(f"  ... all of them in {out}" if out else "  ... as said beside each", file=sys.stderr)
        raise typer.Exit(1)
