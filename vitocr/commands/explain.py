"""`vitocr explain`: pictures of where a model looks, and of what it has learned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vitocr.errors import UserError

MOST_IMAGES = 24  # more would make a page that no phone opens


def explain(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A .safetensors or .ckpt file, a run's folder, or a name that `vitocr models` lists."
        ),
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Files, folders or quoted globs.")],
    out: Annotated[Path, typer.Option(help="The folder to write to: index.html and the pictures in it as PNG.")],
) -> None:
    """Show what a model sees: attention over images, rollout, each character's place, filters, positions, distances."""
    from vitocr.catalog import find_model
    from vitocr.checkpoint import load_model
    from vitocr.data.folder import EXTENSIONS
    from vitocr.explain.collect import explain as collect
    from vitocr.explain.page import write
    from vitocr.output import find_images, progress

    paths = find_images(images, EXTENSIONS)
    if len(paths) > MOST_IMAGES:
        raise UserError(f"{len(paths):,} images are more than a page can show: name {MOST_IMAGES} at most.")
    file = find_model(model)
    if file.suffix == ".onnx":
        raise UserError(f"{file} keeps its attention to itself: name the checkpoint that it was exported from.")
    network, description = load_model(file)
    found = collect(network, description, paths, watch=lambda all: progress(all, len(paths), what="looking"))
    written = write(
        found,
        out,
        model=short_name(model),
        watch=lambda all: progress(all, len(found.images) + 1, what="drawing"),
    )
    for failure in found.failures:
        print(f"skipped: {failure.message}", file=sys.stderr)
    print(f"wrote {written[0]} and {len(written) - 1} pictures beside it")
    if found.failures:
        print(f"{len(found.failures)} of {len(paths)} images could not be read.", file=sys.stderr)
        raise typer.Exit(1)


def short_name(model: str) -> str:
    """A run by its folder, whichever of its files was named."""
    path = Path(model)
    name = path.resolve().parent.name if path.stem in ("model", "best", "last") else path.name
    return name.removesuffix(".safetensors").removesuffix(".ckpt")
