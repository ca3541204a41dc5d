"""`vitocr average`: several models' weights made one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def average(
    models: Annotated[list[str], typer.Argument(metavar="MODEL[=SHARE]...", help="Two or more of one build.")],
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
) -> None:
    """The mean of models trained on from one another: often better than any of them, and as fast as one."""
    from vitocr import average as engine

    parts = [engine.parse_part(word) for word in models]
    description = engine.average(parts, out)
    told = ", ".join(f"{100 * part['share']:.0f} % {part['name']}" for part in description["provenance"]["mean_of"])
    print(f"wrote {out}: {told}. It is not calibrated: vitocr calibrate {out} --data DIR")
