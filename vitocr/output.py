"""What the command line shows: results as lines, CSV or JSON, and how far a long job has come.

Results go to stdout one by one as they come, so that a pipe or a reader of the file sees them at once;
progress goes to stderr, a bar on a terminal and plain lines in a log.
"""

from __future__ import annotations

import csv
import glob
import json
import os
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
    return [Path(name) for name in image_names(inputs, suffixes)]


def image_names(inputs: Iterable[str], suffixes: Iterable[str]) -> list[str]:
    """The files meant by files, folders (all images below them) and quoted globs, each once.

    A name that matches nothing is kept: it becomes an error entry beside the answers of the others. Names are strings,
    as there may be very many: a Path takes several times the memory, and more once it is used.
    """
    wanted = frozenset(suffix.lower() for suffix in suffixes)
    found: dict[str, None] = {}
    for word in inputs:
        path = Path(word)
        if path.is_dir():
            names = list(below("" if path == Path() else str(path), wanted))
            if not names:
                raise UserError(f"There is no image in the folder {path} or below it.")
        else:
            names = [] if path.exists() else [str(Path(name)) for name in sorted(glob.glob(word, recursive=True))]
        found.update(dict.fromkeys(names or [str(path)]))
    return list(found)


def below(folder: str, suffixes: frozenset[str]) -> Iterator[str]:
    """The images in a folder and its sub-folders, by name. The listing itself says what is a folder: no file is asked,
    which is what takes the time where there are many."""
    try:
        with os.scandir(folder or ".") as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"The folder {folder or '.'} cannot be listed: {error.strerror}.") from error
    for entry in entries:
        name = os.path.join(folder, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from below(name, suffixes)
        elif os.path.splitext(entry.name)[1].lower() in suffixes and entry.is_file():
            yield name


def json_writer(file: TextIO) -> Writer:
    def write(result: Result) -> None:
        file.write(json.dumps(result.to_dict(), ensure_ascii=False) + "\n")
        file.flush()

    return write


def label_columns(top_k: int) -> list[str]:
    ranks = [heading for k in range(2, top_k + 1) for heading in (f"name{k}", f"confidence{k}")]
    return ["source", "name", "confidence", *ranks, "error"]


def reading_columns(
    *, n_best: int = 1, rotation: bool = False, guess: bool = False, matched: bool = False
) -> list[str]:
    """rotation, guess, matched: whether anything was asked that makes these say something."""
    ranks = [heading for k in range(2, n_best + 1) for heading in (f"text{k}", f"confidence{k}")]
    asked = {"rotation": rotation, "guess": guess, "matched": matched}
    return ["source", "text", "confidence", *ranks, *(name for name, wanted in asked.items() if wanted), "error"]


def csv_writer(file: TextIO, columns: Sequence[str], *, heading: bool = True) -> Writer:
    """A row an image: its class and the next likely ones, or what it reads."""
    rows = csv.writer(file, lineterminator="\n")
    if heading:
        rows.writerow(columns)

    def write(result: Result) -> None:
        cells = cells_of(result)
        rows.writerow([cells.get(column, "") for column in columns])
        file.flush()

    return write


def cells_of(result: Result) -> dict[str, Any]:
    if isinstance(result, Failure):
        return {"source": result.source, "error": result.message}
    cells: dict[str, Any] = {"source": result.source, "confidence": f"{result.confidence:.6f}"}
    if isinstance(result, Label):
        what, ranks = "name", result.top
        cells["name"] = result.name
    else:
        what, ranks = "text", result.alternatives
        matched = "no" if result.unmatched else "yes"
        cells |= {"text": result.text, "rotation": result.rotation, "guess": result.guess, "matched": matched}
    for k, (said, share) in enumerate(ranks[1:], 2):
        cells |= {f"{what}{k}": said, f"confidence{k}": f"{share:.6f}"}
    return cells


def human_writer(file: TextIO, sources: Iterable[str | Path]) -> Writer:
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
            said, style = in_words(result)
            line.append(f"  {said}", style)
            if isinstance(result, Reading) and result.rotation:
                line.append(f"  (turned by {result.rotation}°)", "dim")
            ranks = result.top if isinstance(result, Label) else result.alternatives
            others = ", ".join(f"{name} {share:.1%}" for name, share in ranks[1:] if share >= 0.0005)
            if others:
                line.append(f"  ({others})", "dim")
        console.print(line)
        file.flush()

    return write


def in_words(result: Label | Reading) -> tuple[str, str]:
    """What was found, and the style to print it in: texts can be told from what is said about them."""
    if isinstance(result, Label):
        return result.name, "bold"
    if result.unmatched:
        return "(nothing that satisfies the constraint)", "dim"
    if not result.text:
        return f"(nothing to read{f'; perhaps {result.guess!r}' if result.guess else ''})", "dim"
    return result.text, "bold"


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


def progress(items: Iterable[T], total: int, *, what: str, done: int = 0, quiet: bool = False) -> Iterator[T]:
    """`items`, with word on stderr of how far we are: nothing in the first two seconds.

    done: how many of the total were there before.
    """
    if quiet:
        yield from items
        return
    if sys.stderr.isatty():
        yield from _bar(items, total, what, done)
        return
    started = last = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last > 5:
            last = now
            rate = count / (now - started)
            print(f"{what}: {done + count:,} of {total:,} ({rate:.0f}/s)", file=sys.stderr, flush=True)


def _bar(items: Iterable[T], total: int, what: str, done: int) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(file=sys.stderr), transient=True)
    task = bar.add_task(what, total=total, completed=done)
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
