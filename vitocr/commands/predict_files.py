"""Many files answered into one output: `vitocr predict`. Written as answers come, and gone on with after a kill.

Nothing grows with the number of files but the list of their names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TextIO

from vitocr.commands.unfinished import Output, Tally, new_file, unanswered
from vitocr.errors import UserError
from vitocr.output import (
    Writer,
    csv_writer,
    human_writer,
    json_writer,
    label_columns,
    progress,
    reading_columns,
)
from vitocr.predict import Predictor
from vitocr.results import Failure

Form = Literal["lines", "csv", "json"]


def predict_files(
    predictor: Predictor,
    names: Sequence[str],
    *,
    form: Form = "lines",
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    made_with: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    top_k: int = 3,
    **options: Any,
) -> Tally:
    """Answer files on stdout, or in `out`; `resume` says what these words mean. How many were answered and how many of
    them, before or now, could not be read.

    made_with: what says which model answers, for the file that is gone on with; the options are added here.
    """
    top_k = min(top_k, 1 if predictor.reads_text else len(predictor.classes))
    asked = predictor_options(predictor, top_k, options)
    columns = columns_for(predictor, asked, top_k)
    with ExitStack() as stack:
        tally, file, fresh, job = Tally(), sys.stdout, True, None
        if out is None:
            if hasattr(sys.stdout, "reconfigure"):
                sys.stdout.reconfigure(errors="backslashreplace")  # a name that is not UTF-8 must not end the job
        elif form == "lines":
            if resume:
                raise UserError("--resume goes on with what a program can read again: add --json or --csv.")
            file = stack.enter_context(new_file(out, overwrite=overwrite))
        else:
            how = {**(made_with or {}), "form": form, **asked}
            job = Output(out, columns if form == "csv" else None, "text" if predictor.reads_text else "name", how)
            file, tally, sources, fresh = job.open(resume=resume, overwrite=overwrite)
            stack.enter_context(file)
            names = unanswered(names, sources) if sources else names
            if sources:
                del sources
                print(f"{out} holds {tally.answered:,} answers already, {len(names):,} are to come.", file=sys.stderr)
        write = writer_for(form, file, columns, names, heading=fresh)
        results = predictor.stream(names, batch_size=batch_size, **asked)
        total = tally.answered + len(names)
        # On a terminal the answers themselves show how far we are.
        watched = progress(results, total, what="predicting", done=tally.answered, quiet=file.isatty())
        for result in watched:
            write(result)
            tally.add(result.message if isinstance(result, Failure) else None)
        file.flush()
        if job is not None:
            job.finish()
    return tally


def predictor_options(predictor: Predictor, top_k: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What is not as usual, so that the note beside an unfinished file tells that and no more."""
    told = {name: value for name, value in options.items() if value is not None}
    return told if predictor.reads_text else {"top_k": top_k, **told}


def columns_for(predictor: Predictor, asked: Mapping[str, Any], top_k: int) -> list[str]:
    if not predictor.reads_text:
        return label_columns(top_k)
    return reading_columns(
        n_best=asked.get("n_best", 1),
        rotation=bool(asked.get("any_rotation")),
        guess=asked.get("threshold", predictor.threshold) > 0,
        matched=bool({"match", "whitelist", "lexicon"} & asked.keys()),
    )


def writer_for(form: Form, file: TextIO, columns: Sequence[str], names: Sequence[str], *, heading: bool) -> Writer:
    if form == "csv":
        return csv_writer(file, columns, heading=heading)
    return json_writer(file) if form == "json" else human_writer(file, names)
