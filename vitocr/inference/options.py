"""How a predictor may be asked: the options, and what of them the model's runner has to know."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypedDict

from vitocr.codec import Charset
from vitocr.errors import UserError


class Options(TypedDict, total=False):
    """All but the first two are for models that read."""

    batch_size: int  # images that go through the model at once; a picture in four orientations counts four times
    top_k: int  # classes that a Label names
    any_rotation: bool  # look in all four orientations; `Reading.rotation` says in which the text was
    tall_crops: Literal["auto", False]  # False: read even what is much higher than wide as it stands, not on its sides
    long_lines: Literal["auto", False]  # False: squeeze even the longest line into the model's frame
    threshold: float  # of confidence, below which there is nothing to read; by default the model's own, 0 for none
    match: str  # a regular expression that the whole text has to satisfy
    whitelist: str  # the only characters there may be
    lexicon: str | Path | Iterable[str]  # words, or a file with one a line
    lexicon_bonus: float  # other texts than the lexicon's are allowed, but its words are preferred by so much
    beam: int  # texts that are followed at a time where the best is sought
    n_best: int  # texts that a Reading lists as `alternatives`, if more than 1


def asking(
    codec: Charset,
    *,
    match: str | None = None,
    whitelist: str | None = None,
    lexicon: str | Path | Iterable[str] | None = None,
    lexicon_bonus: float | None = None,
    beam: int | None = None,
    n_best: int = 1,
) -> dict[str, Any]:
    """What a runner is asked for beside the likeliest text. Empty if nothing, so that it takes its usual way."""
    asked: dict[str, Any] = {}
    if not (match is None and whitelist is None and lexicon is None):
        from vitocr.constraints import build

        rules: dict[str, Any] = {"match": match, "whitelist": whitelist, "lexicon": lexicon, "bonus": lexicon_bonus}
        asked["constraint"] = build(
            codec.characters, **{name: rule for name, rule in rules.items() if rule is not None}
        )
    elif lexicon_bonus is not None:
        raise UserError(f"lexicon_bonus={lexicon_bonus}: there is no lexicon whose words could be preferred.")
    for name, value, usual in (("beam", beam, None), ("n_best", n_best, 1)):
        if value is not None and value < 1:
            raise UserError(f"{name}={value}: give a number from 1 up.")
        if value != usual:
            asked[name] = value
    return asked
