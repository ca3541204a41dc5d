"""`vitocr calibrate`: a model's confidence made to mean something."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import vitocr
from vitocr.commands.use import AsJson, BatchSize, ModelName, Protocol, print_thresholds
from vitocr.errors import UserError


def calibrate(
    model: ModelName,
    data: Annotated[list[str], typer.Option(help="What it was not trained on, with labels; repeatable.")],
    blank: Annotated[
        list[str] | None,
        typer.Option(help="Images that show no text: the model learns to tell them, and what confidence is too low."),
    ] = None,
    blank_share: Annotated[
        float, typer.Option(min=0, max=1, help="How many of them may be answered all the same.")
    ] = 0.01,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="The same, given: `vitocr eval` lists thresholds.")
    ] = None,
    protocol: Protocol = None,
    split: Annotated[str | None, typer.Option(help="Of classes: train, val or test.")] = None,
    data_dir: Annotated[Path, typer.Option(help="Where cifar10 is, or goes.")] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="Default: the model's own file, replaced in one step.")] = None,
    batch_size: BatchSize = 64,
    as_json: AsJson = False,
) -> None:
    """Make a model's confidence the share of right answers, and store that in its file, with a reliability plot."""
    from vitocr import calibrate as engine
    from vitocr.calibration import Calibration, operating_points
    from vitocr.catalog import find_model
    from vitocr.data.folder import EXTENSIONS
    from vitocr.data.text_sources import open_source
    from vitocr.drawing.reliability import draw_reliability
    from vitocr.evaluate import usual_protocol
    from vitocr.metrics import expected_calibration_error
    from vitocr.output import image_names, progress

    path = find_model(model)
    out = out or path
    engine.check_form(path, out)
    predictor = vitocr.load(path)
    if not predictor.reads_text and (blank or threshold is not None or protocol):
        raise UserError("--blank, --threshold and --protocol are for models that read text.")
    if blank and threshold is not None:
        raise UserError("Choose one of --blank and --threshold.")

    def watch(items: Any, total: int) -> Any:
        return progress(items, total, what="calibrating")

    if predictor.reads_text:
        judged = protocol or usual_protocol(predictor)
        words = [open_source(name) for name in data]
        found = engine.calibrate_text(predictor, words, protocol=judged, batch_size=batch_size, watch=watch)
        calibration = replace(Calibration.from_dict(found.calibration), threshold=threshold or 0.0)
        if blank:
            calibration = engine.learn_blanks(
                predictor, calibration, words, image_names(blank, EXTENSIONS), share=blank_share,
                batch_size=batch_size, watch=watch,
            )  # fmt: skip
        stored = calibration.to_dict() | {"protocol": judged}
    else:
        found = engine.calibrate_classes(
            predictor, data, split=split, data_dir=data_dir, batch_size=batch_size, watch=watch
        )
        stored = found.calibration
    engine.store(path, out, stored)
    plot = out.with_suffix(".calibration.png")
    draw_reliability(plot, found.before, found.after, found.right, title=", ".join(Path(name).name for name in data))
    before, after = (expected_calibration_error(sure[:, None], ~found.right) for sure in (found.before, found.after))
    figures = {"path": str(out), "plot": str(plot), "calibration": stored, "ece_before": before, "ece": after}
    figures["thresholds"] = operating_points(found.after, found.right)
    if as_json:
        print(json.dumps(figures, ensure_ascii=False))
        return
    count = len(found.right)
    print(f"calibration error {before:.4f} before, {after:.4f} after, on the {count:,} answers it was fitted to")
    print_thresholds({"calibrated": figures}, what="answers")
    print(f"wrote {out} and {plot}")
