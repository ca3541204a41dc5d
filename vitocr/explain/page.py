"""The figures as PNG files, and as one page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from string import Template

from vitocr.catalog import backbone_name
from vitocr.checkpoint import atomic_write
from vitocr.errors import UserError
from vitocr.explain.collect import Explanation
from vitocr.explain.draw import Panel, Picture, sheet
from vitocr.explain.figures import Section, Shown, sections_of

TEMPLATE = Path(__file__).with_name("page.html")


def write(
    found: Explanation,
    out: Path,
    *,
    model: str,
    watch: Callable[[Iterable[Section]], Iterable[Section]] = iter,
) -> list[Path]:
    """Draw everything into the folder `out`; the page is the first of the files written. `model` is its name."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder to write to.")
    written = [out / "index.html"]
    titles: list[str] = []
    lines: list[str] = []
    for number, section in enumerate(watch(sections_of(found))):
        titles.append(section.title)
        lines += section_lines(section, number)
        for figure in section.figures:
            if figure.rows:
                title = ", ".join(filter(None, [figure.title, figure.of]))
                picture = sheet(title, figure.text, figure.rows, columns=figure.columns)
                written.append(out / f"{figure.name}.png")
                atomic_write(written[-1], partial(picture.save, format="png"))
    text = page(found, titles, lines, model).encode("utf-8", "replace")  # a file's name may be no text at all
    atomic_write(written[0], lambda path: path.write_bytes(text))
    return written


def page(found: Explanation, titles: Sequence[str], lines: Sequence[str], model: str) -> str:
    description = found.description
    head = description["model"]["head"]["_target_"].rpartition(".")[2]
    parameters = sum(parameter.numel() for parameter in found.model.parameters())
    height, width = found.preprocess.size
    facts = (
        f"{backbone_name(description)}, {head} head, {parameters:,} parameters, images of {width} x {height} pixels; "
        f"task {description['task']}"
    )
    said = [f"Not shown: {sentence}" for sentence in found.missing]
    said += [f"Left out: {failure.message}" for failure in found.failures]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"What {model} sees"),
        facts=escape(facts),
        contents="\n".join(f'<li><a href="#part{n}">{escape(title)}</a></li>' for n, title in enumerate(titles)),
        notes="\n".join(f'<p class="note">{escape(sentence)}</p>' for sentence in said),
        sections="\n".join(lines),
    )


def section_lines(section: Section, number: int) -> Iterator[str]:
    yield f'<section id="part{number}"><h2>{escape(section.title)}</h2>'
    yield f'<p class="answer">{escape(section.text)}</p>'
    for figure in section.figures:
        yield from figure_lines(figure)
    yield "</section>"


def figure_lines(figure: Shown) -> Iterator[str]:
    yield f'<article class="{figure.kind}">'
    yield f"<h3>{escape(figure.title)}</h3><p>{escape(figure.text)}</p>"
    yield '<div class="rows">'
    for row in figure.rows:
        yield "<div>"
        if row.title:
            yield f"<h4>{escape(row.title)}</h4>"
        yield f'<div class="panels" style="--n: {len(row.panels)}">'
        for panel in row.panels:
            yield f"<figure>{picture_tag(panel)}<figcaption>{escape(panel.caption)}</figcaption></figure>"
        yield "</div></div>"
    yield "</div></article>"


def picture_tag(panel: Panel) -> str:
    width, height = panel.picture.size
    alt = escape(panel.alt)
    shown = f'<img src="{data_uri(panel.picture)}" alt="{alt}" width="{width}" height="{height}">'
    if panel.on_dark is None:
        return shown
    dark = f'<source srcset="{data_uri(panel.on_dark)}" media="(prefers-color-scheme: dark)">'
    return f"<picture>{dark}{shown}</picture>"


def data_uri(picture: Picture) -> str:
    """Photographs as JPEG, a tenth of the size; what has transparent parts, lines or few colours as PNG."""
    buffer = io.BytesIO()
    kind = "png" if picture.mode == "RGBA" or picture.width * picture.height < 10_000 else "jpeg"
    picture.save(buffer, format=kind, **({"quality": 88, "subsampling": 0} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
