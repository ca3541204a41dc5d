"""Between what people write and what a model counts with: class names to ids and back.

Names are NFC-normalised on the way in, so that a Hangul or accented folder name means the same class
whether a Mac (which decomposes) or Linux wrote it. A codec knows no model and travels in the checkpoint.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vitocr.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Classes:
    """An ordered list of class names; a class's id is its position."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        names = tuple(unicodedata.normalize("NFC", name) for name in self.names)
        object.__setattr__(self, "names", names)
        if not names:
            raise UserError("There is no class to tell apart: the list of class names is empty.")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise UserError(f"Class names must differ (after Unicode NFC), but {twice[0]!r} stands there twice.")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def encode(self, name: str) -> int:
        index = self._ids.get(unicodedata.normalize("NFC", name))
        if index is None:
            shown = ", ".join(self.names[:20]) + (", ..." if len(self) > 20 else "")
            hint = did_you_mean(name, self.names)
            raise UserError(f"{name!r} is none of the {len(self)} classes.{hint} They are: {shown}.")
        return index

    def decode(self, index: int) -> str:
        if not 0 <= index < len(self):  # a negative index would silently count from the end
            raise UserError(f"Class id {index} is outside 0..{len(self) - 1}.")
        return self.names[index]

    def to_dict(self) -> dict[str, Any]:
        return {"type": "classes", "names": list(self.names)}


def codec_from_dict(description: Mapping[str, Any]) -> Classes:
    """The codec a checkpoint describes."""
    if description.get("type") != "classes":
        raise UserError(
            f"This vitocr knows no codec of type {description.get('type')!r}: "
            "the file was probably made by a newer version. Upgrade vitocr to read it."
        )
    return Classes(tuple(description["names"]))
