"""The renderer as a run's configuration describes it: what `render` stands for among the sources of a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitocr.data.rendered import open_rendered
from vitocr.data.text_rows import TextSource
from vitocr.training.clock import parse_seconds

RENDER = "render"


def rendered_words(config: dict[str, Any], *, size: tuple[int, int], say: Callable[[str], object]) -> TextSource:
    """size: height and width of the crops, in pixels."""
    budget = config["budget"]
    return open_rendered(
        config["render"],
        charset=config["charset"],
        size=size,
        max_length=config["max_length"],
        budget_s=None if budget is None else parse_seconds(budget),
        say=say,
    )
