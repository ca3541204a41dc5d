"""The renderer: an index in, a word crop out.

word -> font -> flat line of type -> outline, shadow -> one warp -> colours, light -> camera -> crop

Everything about crop `index` follows from (spec.seed, index) through one random.Random, which is far cheaper to seed
and to ask for single numbers than numpy's generators; arrays of random numbers come from pools made beforehand.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib

import cv2
import numpy as np

from vitocr.data.render import grounds
from vitocr.data.render.blank import draw_blank
from vitocr.data.render.colours import draw_colours
from vitocr.data.render.degrade import degrade
from vitocr.data.render.draw import dress, set_line
from vitocr.data.render.fonts import Font, FontBook, find_fonts
from vitocr.data.render.paint import paint
from vitocr.data.render.spec import VERSION, Crop, RenderSpec
from vitocr.data.render.warp import boxes_in, look_at, sample
from vitocr.data.render.words import WordSource
from vitocr.errors import UserError

HANGUL = "가힣한글"


class Renderer:
    """Renderer(spec)(index) -> Crop. Fonts open and glyphs are drawn when first needed, so the first thousand crops
    are slower than the rest; pickling or forking a fresh renderer is cheap.
    """

    def __init__(self, spec: RenderSpec | None = None) -> None:
        self.spec = spec = spec or RenderSpec()
        files = find_fonts(spec.fonts, packages=spec.system_fonts)
        self._book = FontBook(files)
        self._korean_book: FontBook | None = None
        if spec.korean > 0:
            self._korean_book = self._book.with_characters(HANGUL)
            if self._korean_book is None:
                raise UserError(
                    "Korean text needs a font with Hangul, and none was found: pip install koreanize-matplotlib, "
                    "or vitocr data fonts korean, or render.fonts=[folder]."
                )
        self._words = WordSource(
            charset=spec.charset,
            max_length=spec.max_length,
            korean=spec.korean,
            own=spec.words,
            own_share=spec.own_words,
        )
        self._photos = grounds.load_photos(spec.grounds) if spec.effects.photo else []
        self.fingerprint = self._fingerprint([file.name for file in files])

    def __call__(self, index: int) -> Crop:
        spec, effects = self.spec, self.spec.effects
        rng = random.Random((spec.seed << 64) ^ index)
        if spec.blank and rng.random() < spec.blank:
            image = draw_blank(rng, self._photos, effects, size=spec.size, stretch=spec.shape == "stretch")
            return Crop(image, "", np.empty((0, 4), np.float32))
        text, font = self._text_and_font(rng)
        shown = text
        if font.capitals_only and text != text.upper() and len(text.upper()) == len(text):
            text = text.upper()
            if spec.charset is not None and not set(text) <= set(spec.charset):
                text = shown
        line = set_line(rng, font, shown, effects, self._neighbours(rng))
        dressed = dress(rng, line.mask, effects)
        view = look_at(rng, line, effects, size=spec.size, stretch=spec.shape == "stretch")
        layers = sample(view, dressed.layers)
        boxes = boxes_in(view, line.boxes)
        picture = paint(rng, layers, dressed.behind, draw_colours(rng), self._photos, effects)
        image = degrade(rng, picture, effects, final=view.final)
        return Crop(np.ascontiguousarray(image), text, boxes)

    def _text_and_font(self, rng: random.Random) -> tuple[str, Font]:
        for _ in range(200):
            text = self._words.draw(rng)
            book = self._book if text.isascii() else self._korean_book or self._book
            font = book.choose(rng, text)
            if font is not None:
                return text, font
        raise UserError(
            f"None of the fonts has the characters of the words (the last one tried was {text!r}). Add fonts that do "
            "with render.fonts=[folder], or leave those characters out of the character set."
        )

    def _fingerprint(self, fonts: list[str]) -> str:
        """Equal for renderers that make the same crops, wherever their files lie."""
        photos = zlib.crc32(b"".join(photo[::16, ::16].tobytes() for photo in self._photos))
        contents = {"fonts": fonts, "grounds": photos, "words": self._words.fingerprint}
        about = json.dumps([VERSION, self.spec.to_dict() | contents], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()[:16]

    def _neighbours(self, rng: random.Random) -> list[str]:
        """Left, right, above, below; mostly nothing."""
        others = ["", "", "", ""]
        if rng.random() < self.spec.effects.neighbours:
            for side in rng.choice(((0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3), (1, 3))):
                others[side] = self._words.draw(rng)
        return others


def set_threads() -> None:
    """One thread an image: on crops this small OpenCV's own threads cost more than they give."""
    cv2.setNumThreads(0)
