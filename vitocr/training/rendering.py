"""What is drawn rather than read, as a run's configuration describes it: `render` and `blanks` among its sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitocr import machine
from vitocr.data.blanks import BLANKS, PHOTOS, open_blanks
from vitocr.data.rendered import open_rendered
from vitocr.data.text_rows import TextSource
from vitocr.training.clock import parse_seconds

RENDER = "render"
DRAWN = (RENDER, BLANKS)


def drawn_rows(
    which: str, config: dict[str, Any], *, size: tuple[int, int], say: Callable[[str], object]
) -> TextSource:
    """which: one of DRAWN. size: height and width of the crops, in pixels."""
    if which == BLANKS:
        if not PHOTOS.is_file():
            say(
                f"{BLANKS}: all of them drawn, for there are no photographs at {PHOTOS}. A model that has learned from "
                "some reads less into walls and trees: python train.py task=cifar10 steps=1 brings them."
            )
        return open_blanks(size=size, seed=config["render"]["seed"])
    return rendered_words(config, size=size, say=say)


def rendered_words(config: dict[str, Any], *, size: tuple[int, int], say: Callable[[str], object]) -> TextSource:
    """size: height and width of the crops, in pixels."""
    budget = config["budget"]
    return open_rendered(
        config["render"],
        charset=config["charset"],
        size=size,
        max_length=config["max_length"],
        budget_s=None if budget is None else parse_seconds(budget),
        trains_slowly=machine.trains_slowly(),  # in ten minutes 80,000 words, not 220,000
        say=say,
    )
