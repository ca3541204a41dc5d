"""What the command line shows: results as lines, CSV or JSON, and how far a long job has come.

Results go to stdout one by one as they come, so that a pipe or a reader of the file sees them at once;
progress goes to stderr, a bar on a terminal and plain lines in a log.
"""

from __future__ import annotations

import csv
import glob
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from vitocr.errors import UserError
from vitocr.results import Failure, Label, Reading

T = TypeVar("T")
Result = Label | Reading | Failure
Writer = Callable[[Result], None]


def find_images(inputs: Iterable[str], suffixes: Iterable[str]) -> list[Path]:
    """The files meant by files, folders (all images below them) and quoted globs, each once.

    A name that matches nothing is kept: it becomes an error entry beside the answers of the others.
    """
    wanted = {suffix.lower() for suffix in suffixes}
    found: dict[Path, None] = {}
    for word in inputs:
        path = Path(word)
        if path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.suffix.lower() in wanted and p.is_file())
            if not below:
                raise UserError(f"There is no image in the folder {path} or below it.")
        else:
            below = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(word, recursive=True))]
        found.update(dict.fromkeys(below or [path]))
    return list(found)


def json_writer(file: TextIO) -> Writer:
    def write(result: Result) -> None:
        file.write(json.dumps(result.to_dict(), ensure_ascii=False) + "\n")
        file.flush()

    return write


def csv_writer(file: TextIO, *, top_k: int, text: bool) -> Writer:
    """A row an image: its class and the next likely ones, or, with `text`, what it reads."""
    rows = csv.writer(file, lineterminator="\n")
    ranks = [] if text else [heading for k in range(2, top_k + 1) for heading in (f"name{k}", f"confidence{k}")]
    answers = ["text" if text else "name", "confidence", *ranks]
    rows.writerow(["source", *answers, "error"])

    def write(result: Result) -> None:
        if isinstance(result, Failure):
            rows.writerow([result.source, *[""] * len(answers), result.message])
        elif isinstance(result, Reading):
            rows.writerow([result.source, result.text, f"{result.confidence:.6f}", ""])
        else:
            cells = [cell for name, share in result.top for cell in (name, f"{share:.6f}")]
            rows.writerow([result.source, *cells, ""])
        file.flush()

    return write


def human_writer(file: TextIO, sources: Sequence[Path]) -> Writer:
    """Aligned lines, coloured on a terminal. The inputs are known beforehand, so columns need no waiting."""
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, soft_wrap=True)
    width = min(max((cell_len(str(source)) for source in sources), default=0), 60)

    def write(result: Result) -> None:
        source = result.source or ""
        line = Text(set_cell_size(source, width) if cell_len(source) < width else source)
        if isinstance(result, Failure):
            line.append(f"  error: {result.message}", "red")
        else:
            colour = "green" if result.confidence >= 0.9 else "yellow" if result.confidence >= 0.5 else "red"
            line.append(f"  {result.confidence:6.1%}", colour)
            line.append(f"  {result.text if isinstance(result, Reading) else result.name}", "bold")
            top = () if isinstance(result, Reading) else result.top[1:]
            others = ", ".join(f"{name} {share:.1%}" for name, share in top if share >= 0.0005)
            if others:
                line.append(f"  ({others})", "dim")
        console.print(line)
        file.flush()

    return write


def table(file: TextIO, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns under headings. Never wrapped or cut: a path should survive being copied."""
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, soft_wrap=True)
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    for row in [headings, *rows]:
        line = "  ".join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True))
        console.print(Text(line.rstrip(), "bold" if row is headings else ""))


def progress(items: Iterable[T], total: int, *, what: str, quiet: bool = False) -> Iterator[T]:
    """`items`, with word on stderr of how far we are: nothing in the first two seconds."""
    if quiet:
        yield from items
        return
    if sys.stderr.isatty():
        yield from _bar(items, total, what)
        return
    started = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last > 5:
            last = now
            print(f"{what}: {done:,} of {total:,} ({done / (now - started):.0f}/s)", file=sys.stderr, flush=True)


def _bar(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(file=sys.stderr), transient=True)
    task = bar.add_task(what, total=total)
    started, shown = time.monotonic(), False
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not shown and time.monotonic() - started > 2:
                bar.start()
                shown = True
    finally:
        bar.stop()


def percent(share: Any) -> str:
    return f"{100 * float(share):.2f} %"
