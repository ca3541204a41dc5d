"""Draws docs/pictures/demo.png, which the README has read with `vitocr predict str-tiny`: nobody's photograph.

python bench/demo_picture.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import ROOT
from PIL import Image

from vitocr.data.render import Crop, Effects, Renderer, RenderSpec

WORD = "Welcome"
INDEX = 5  # chosen by eye among the first few dozen, as one that looks like most signs do
LEFT_OUT = (
    "low_resolution", "jpeg", "occlude", "neighbours", "tight", "curve", "motion", "weight", "jitter", "rule", "bloom",
    "sharpen",
)  # fmt: skip
EFFECTS = Effects(blur=0.3, noise=0.5, loose=1, **dict.fromkeys(LEFT_OUT, 0.0))


def draw(index: int) -> Crop:
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.txt"
        words.write_text(WORD, encoding="utf-8")
        spec = RenderSpec(size=(96, 480), shape="natural", words=(str(words),), own_words=1.0, effects=EFFECTS)
        return Renderer(spec)(index)


def main() -> None:
    target = ROOT / "docs" / "pictures" / "demo.png"
    Image.fromarray(draw(INDEX).image).save(target, optimize=True)
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
