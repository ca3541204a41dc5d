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
from vitocr import cli_data, cli_explain, cli_use
from vitocr.cli_use import AsJson, BatchSize, ModelName
from vitocr.errors import UserError

app = typer.Typer(
    help="Vision Transformers that turn pixels into a label: train, measure, use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a bug should show a plain traceback
)
PASSED_ON: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
}

app.add_typer(cli_data.app, name="data")
app.command("eval")(cli_use.evaluate)
app.command()(cli_use.predict)
app.command()(cli_explain.explain)


@app.callback(invoke_without_command=True)
def front(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"vitocr {vitocr.__version__}")
        raise typer.Exit()


@app.command(**PASSED_ON)
def train(words: typer.Context) -> None:
    """Train a model: vitocr train task=cifar10 budget=30m (its words are Hydra's; --help lists them)."""
    from vitocr.train import main as train_main

    train_main(list(words.args))


@app.command(**PASSED_ON)
def bench(
    words: typer.Context,
    task: Annotated[str, typer.Option(help="What is trained: cifar10 or str.")] = "cifar10",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repeats of every contender.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each is timed in a round.")] = 4.0,
    epoch: Annotated[bool, typer.Option(help="Also time a whole epoch of the real command.")] = True,
    as_json: AsJson = False,
) -> None:
    """Measure training speed here, next to timm's ViT and the machine's peak: vitocr bench [backbone=vit_small ...]."""
    from vitocr.bench import main as bench_main

    figures = bench_main([f"task={task}", *words.args], rounds=rounds, seconds=seconds, epoch=epoch, table=not as_json)
    if as_json:
        print(json.dumps(figures))


@app.command()
def export(
    model: ModelName,
    to: Annotated[str, typer.Option(help="onnx, torchscript, safetensors or openvino.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="Default: beside the model's own file.")] = None,
    verify: Annotated[
        list[str] | None,
        typer.Option(help="Images, or a set of words, that both must answer alike; repeatable. Default: drawn ones."),
    ] = None,
    batch_size: BatchSize = 64,
    as_json: AsJson = False,
) -> None:
    """Write a model in another form, checked against the original. ONNX is read without torch."""
    from vitocr.export import export as write
    from vitocr.export.check import TOLERANCE

    done = write(model, to, out=out, verify=verify or [], batch_size=batch_size)
    found = done.agreement
    if as_json:
        print(json.dumps({"path": str(done.path), "column": done.column, **found._asdict()}, ensure_ascii=False))
        return
    print(f"wrote {done.path}")
    print(
        f"the same answers on {found.images:,} images, confidences within {found.difference:.1g} ({TOLERANCE} allowed)"
    )
    if found.unreadable:
        print(f"{found.unreadable:,} images could not be read.", file=sys.stderr)


@app.command()
def models(
    runs: Annotated[Path, typer.Option(help="The folder of your runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the models at hand: those that came with vitocr, then your runs, newest first."""
    from vitocr.output import percent, table

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
        split = next((name for name in ("test", "val") if "accuracy" in entry["metrics"].get(name, {})), None)
        metric = f"{percent(entry['metrics'][split]['accuracy'])} {split}" if split else "-"
        rows.append([entry["task"], entry["backbone"], metric, entry["name"] if entry["shipped"] else entry["path"]])
    if rows:
        table(sys.stdout, ["task", "backbone", "accuracy", "model"], rows)


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
