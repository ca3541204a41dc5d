"""What to render: one frozen description, plain data from end to end.

`RenderSpec` goes into configurations, caches and fingerprints; with an index it determines a crop completely
(given the same font and photograph files). `Effects` holds the probability of each effect, so that an ablation
turns one number and `Effects.none()` gives plain type on a plain ground.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitocr.errors import UserError, did_you_mean

PRINTABLE = "".join(chr(code) for code in range(33, 127))  # the 94 characters of the usual benchmarks
VERSION = 2  # raised whenever the same (spec, index) gives another crop: old caches are then not mistaken for new


@dataclass(frozen=True)
class Effects:
    """How often each effect is used: probabilities, all between 0 and 1."""

    outline: float = 0.09
    shadow: float = 0.16  # dropped, glowing or extruded
    emboss: float = 0.08
    uneven_fill: float = 0.25  # ink that is not of one colour
    weight: float = 0.25  # strokes thinned or thickened
    spacing: float = 0.4  # letters set wider or tighter
    jitter: float = 0.06  # letters that leave the base line, as painted by hand
    rule: float = 0.05  # underlines and frames
    rotate: float = 0.75
    steep: float = 0.12  # of the rotated ones: by up to 30 degrees, where most are within a few
    perspective: float = 0.45
    curve: float = 0.22  # arcs and waves
    strong_curve: float = 0.4  # of the curved ones: arcs that bend by more than 50 degrees
    neighbours: float = 0.35  # other words on the same sign
    loose: float = 0.20  # crops that keep a wide margin
    tight: float = 0.12  # crops that cut into the word
    texture: float = 0.45  # procedural grounds
    photo: float = 0.22  # photographs as grounds, where there are any
    edge: float = 0.14  # the border of the sign runs through the crop
    light: float = 0.55  # uneven light
    occlude: float = 0.05
    bloom: float = 0.05  # bright parts shine over their edges, as lit signs at night
    blur: float = 0.85
    motion: float = 0.06
    noise: float = 0.6
    low_resolution: float = 0.9  # sizes drawn as those of real crops; without, everything is sharp
    jpeg: float = 0.4
    sharpen: float = 0.12

    @classmethod
    def mild(cls) -> Effects:
        """Fewer hard crops: a model that is trained for minutes only gets further on these."""
        return cls(blur=0.5, low_resolution=0.7, noise=0.4, neighbours=0.25, photo=0.15, curve=0.15)

    @classmethod
    def none(cls) -> Effects:
        return cls(**{entry.name: 0.0 for entry in dataclasses.fields(cls)})

    @classmethod
    def named(cls, wanted: str | Mapping[str, float]) -> Effects:
        """`all`, `mild` or `none` of them; or all, with those that are named as often as is said there."""
        sets: dict[str, Callable[[], Effects]] = {"all": cls, "mild": cls.mild, "none": cls.none}
        if isinstance(wanted, str):
            if wanted not in sets:
                raise UserError(f"render.effects={wanted}: there are {', '.join(sets)}, or {{blur: 0.5, ...}}.")
            return sets[wanted]()
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name, share in wanted.items():
            if name not in known:
                raise UserError(f"render.effects: there is no {name!r}.{did_you_mean(name, known)}")
            if not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise UserError(f"render.effects: {name} is how often it is used, from 0 to 1, not {share!r}.")
        return cls(**wanted)


@dataclass(frozen=True)
class RenderSpec:
    """size: (height, width) in pixels. shape "stretch" gives exactly that; "natural" gives that height and
    whatever width the crop's own proportions ask for (at most four times `width`).

    fonts: folders of more font files. grounds: folders of photographs, or arrays of them as .npy. words: text files, a
    word a line, that `own_words` of all crops take their text from. charset: crops show these characters alone (a model
    that ignores case should still see both cases: leave that to its codec); with a space in it, some crops hold several
    words. korean: the share of Korean text (needs a font that has it). blank: the share of crops with nothing to read,
    whose text is empty (see blank.py).
    """

    size: tuple[int, int] = (32, 128)
    shape: Literal["stretch", "natural"] = "stretch"
    seed: int = 0
    fonts: tuple[str, ...] = ()
    system_fonts: bool = True  # also the fonts that came as Python packages
    grounds: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    own_words: float = 0.3
    charset: str | None = PRINTABLE  # None: no limit
    max_length: int = 25
    korean: float = 0.0
    blank: float = 0.0
    effects: Effects = field(default_factory=Effects)

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        values = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RenderSpec:
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        return cls(**{**values, "effects": Effects(**values.get("effects", {}))})


@dataclass(frozen=True)
class Crop:
    """One word as a photograph would show it."""

    image: NDArray[np.uint8]  # (H, W, 3), RGB
    text: str  # NFC; empty for a blank crop
    boxes: NDArray[np.float32]  # (len(text), 4): x0, y0, x1, y1 in pixels of `image`, each around one character
