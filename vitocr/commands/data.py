"""`vitocr data`: look at word data, pack it into an LMDB, cut it into pieces, render it, fetch fonts for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vitocr.errors import UserError

app = typer.Typer(help="Word data: look at it, pack it, cut it, render it, fetch fonts.", no_args_is_help=True)

Sources = Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Folders, tables of labels or LMDBs.")]
Spec = Annotated[str, typer.Option("--spec", help="The renderer's options as JSON, e.g. '{\"korean\": 0.3}'.")]


@app.command()
def pack(sources: Sources, out: Annotated[Path, typer.Option(help="The LMDB to write.")]) -> None:
    """Put any sources into one LMDB, verified. Interrupted, the same command goes on."""
    from vitocr.data.commands import pack_data

    packed = pack_data(sources, out)
    print(f"{len(packed):,} words in {out}")


@app.command()
def look(
    source: Annotated[str, typer.Argument(help="A folder, table or LMDB, `render` or `blanks`.")],
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("look.png"),
    rows: Annotated[int, typer.Option(min=1, help="How many words to show.")] = 64,
    seed: Annotated[int | None, typer.Option(help="Draw them at random; without, the first ones.")] = None,
    boxes: Annotated[bool, typer.Option(help="Draw the boxes of the characters, where known.")] = False,
    spec: Spec = "{}",
) -> None:
    """Draw a contact sheet: the quickest way to find out what is wrong with a source of words."""
    from vitocr.data.blanks import BLANKS, open_blanks
    from vitocr.data.commands import look_at
    from vitocr.data.render.renderer import Renderer
    from vitocr.data.text_rows import Rendered

    words: Any = source
    if source == "render":
        words = Rendered(Renderer(parse_spec(spec)), 10**6)
    elif source == BLANKS:
        words = open_blanks(size=parse_spec(spec).size)
    look_at(words, out, rows=rows, seed=seed, boxes=boxes)
    print(f"wrote {out}")


@app.command()
def pieces(
    source: Annotated[str, typer.Argument(help="A folder, table or LMDB of photographed words.")],
    out: Annotated[Path, typer.Option(help="The LMDB to write; name it in data.train.")],
    model: Annotated[str, typer.Option(help="The model that tells where the characters stand.")] = "str-tiny",
    held_out: Annotated[int, typer.Option(min=0, help="Rows to leave out: those of data.val_size.")] = 500,
    seed: Annotated[int, typer.Option(help="That of the training, which holds back by it.")] = 0,
) -> None:
    """Cut words between their characters and put pieces side by side: many words to learn from, out of few."""
    from vitocr import load
    from vitocr.data.lmdb_store import pack as pack_rows
    from vitocr.data.text_rows import hold_out
    from vitocr.data.text_sources import open_source
    from vitocr.output import progress
    from vitocr.pieces import pieces_of

    words: Any = open_source(source)
    if held_out:
        words, _ = hold_out(words, held_out, seed=seed)
    made = pieces_of(words, load(model), seed=seed, watch=lambda items, total: progress(items, total, what="cutting"))
    pack_rows(made, out)
    print(f"{len(made.pieces):,} pieces and {len(made.pairs):,} pairs of {len(words):,} words in {out}")


@app.command()
def render(
    count: Annotated[int, typer.Argument(min=1, help="How many words.")],
    out: Annotated[Path, typer.Option(help="The folder to write: an LMDB, or with --cache the trainer's own arrays.")],
    cache: Annotated[bool, typer.Option(help="Write the cache that render.cache= names.")] = False,
    spec: Spec = "{}",
) -> None:
    """Render words with all cores. Interrupted, the same command goes on."""
    from vitocr.data.lmdb_store import pack as pack_rows
    from vitocr.data.render.cache import prerender
    from vitocr.data.rendered import CachedRows

    folder = out if cache else out.with_name(out.name + ".rendering")
    rows = CachedRows(prerender(folder, parse_spec(spec), count))
    if not cache:
        import shutil

        pack_rows(rows, out)
        shutil.rmtree(folder)
    print(f"{len(rows):,} words in {out}")


@app.command()
def fonts(
    families: Annotated[list[str] | None, typer.Argument(help="Families or groups (korean, script, ...).")] = None,
    out: Annotated[Path, typer.Option(help="Where they go; name it in render.fonts.")] = Path("data/fonts"),
) -> None:
    """Fetch a few hundred free font families through npm. Interrupted, the same command goes on."""
    from vitocr.data.render.fetch import fetch_fonts

    print(f"{len(fetch_fonts(out, families or None))} families in {out}")


def parse_spec(text: str) -> Any:
    from vitocr.data.render.spec import RenderSpec

    try:
        return RenderSpec.from_dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise UserError(f"--spec {text}: {error}") from error
