"""Fonts: where they are found, which characters they have, and their glyphs as small masks.

Three choices:
- Glyphs are drawn once, at a size that gives every font about the same height of capitals, and kept; words are put
  together by pasting masks. The warp scales them anyway, and Pillow is the slowest part of a renderer.
- Whether a font has a character is asked of its glyphs, not of its tables: one that looks like the font's own box for
  missing characters, or shows nothing, is missing. That needs no library beyond Pillow, and also catches fonts that
  map a character to an empty outline.
- Some fonts draw small letters as capitals. A label must say what is seen, so those fonts are recognised by shape
  (`Font.capitals_only`).
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, metadata, util
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitocr.data.render.fetch import families_by_look, fetch_fonts
from vitocr.errors import UserError

__all__ = ["Font", "FontBook", "FontFile", "Glyph", "fetch_fonts", "find_fonts"]

SUFFIXES = (".ttf", ".otf", ".woff2", ".ttc")
CAPITAL_HEIGHT = 34  # pixels, of every font's H (or 한): a little more than a crop of 32 rows can show
SIZES = (30, 110)  # pixels an em, whatever the font claims
NEVER_A_CHARACTER = "\U0010fffe"
KEPT_GLYPHS = 3000  # of one font; Hangul has 11,172 syllables
LOOK_WEIGHTS = {"sans": 2.0, "condensed": 1.3, "serif": 1.3, "mono": 0.7, "display": 0.7, "script": 0.6}
NOT_FOR_TEXT = ("symbol", "music", "math", "awesome", "icon", "emoji", "barcode", "stix", "cmex", "cmsy", "cmmi", "cmr",
                "cmb", "cmss", "cmtt")  # fmt: skip
# Their small letters are other drawings of the capitals, which no comparison of shapes can tell.
DRAWN_AS_CAPITALS = ("amatic-sc", "amaticsc", "creepster", "eater", "faster-one", "frijole", "monoton", "rock-salt",
                     "walter-turncoat", "sancreek", "cinzel-decorative")  # fmt: skip
PACKAGES_WITH_FILES = ("matplotlib", "koreanize_matplotlib")  # fonts somewhere below the package, no entry point


class Glyph(NamedTuple):
    mask: NDArray[np.uint8]  # (h, w), the ink alone; (0, 0) for a space
    left: int  # from the pen to the mask's first column
    top: int  # from the base line to the mask's first row: negative is up
    advance: float


@dataclass(frozen=True)
class FontFile:
    name: str  # decides the order of fonts, and so what an index renders: no folder of this machine in it
    family: str
    source: Path | Callable[[], bytes]  # FreeType maps a file itself; bytes it would keep in memory
    weight: float = 1.0  # how often the family is chosen
    latin: Path | None = None  # where the Latin letters are, if in another file of the same face


class Font:
    def __init__(self, file: FontFile) -> None:
        self.file = file
        self._glyphs: dict[str, Glyph | None] = {}

    @cached_property
    def _face(self) -> ImageFont.FreeTypeFont:
        return _open(self.file.source)

    @cached_property
    def _latin_face(self) -> ImageFont.FreeTypeFont | None:
        return _open(self.file.latin) if self.file.latin else None

    @cached_property
    def usable(self) -> bool:
        """It opens, and its characters differ (a last-resort font shows the same box for all)."""
        try:
            one, other = self.glyph("H"), self.glyph("o")
        except (OSError, ValueError):
            return False
        return one is None or other is None or not _same(one, other)

    @cached_property
    def _missing(self) -> Glyph:
        return self._draw(NEVER_A_CHARACTER)

    @cached_property
    def line_height(self) -> float:
        """From base line to base line, as the font would have it."""
        ascent, descent = self._face.getmetrics()
        return float(min(max(ascent + descent, 1.15 * CAPITAL_HEIGHT), 2.2 * CAPITAL_HEIGHT))

    @cached_property
    def capitals_only(self) -> bool:
        """Small letters look like capitals (of whatever size)."""
        if self.file.family in DRAWN_AS_CAPITALS:
            return True
        pairs = [(self.glyph(low), self.glyph(low.upper())) for low in "aegrbdqt"]
        seen = [(low.mask, high.mask) for low, high in pairs if low and high]
        return len(seen) >= 4 and sum(_alike(low, high) for low, high in seen) >= 0.5 * len(seen)

    def has(self, text: str) -> bool:
        return all(self.glyph(character) is not None for character in text)

    def glyph(self, character: str) -> Glyph | None:
        """None when the font lacks the character."""
        try:
            return self._glyphs[character]
        except KeyError:
            if len(self._glyphs) >= KEPT_GLYPHS:
                self._glyphs.clear()
            glyph: Glyph | None = self._draw(character, character.isascii())
            if character.isspace():
                glyph = glyph if glyph and glyph.advance >= 1 else None
            elif glyph is not None and (not glyph.mask.size or _same(glyph, self._missing)):
                glyph = None
            self._glyphs[character] = glyph
            return glyph

    def _draw(self, character: str, latin: bool = False) -> Glyph:
        face = (self._latin_face if latin else None) or self._face
        left, top, right, bottom = (round(edge) for edge in face.getbbox(character, anchor="ls"))
        pad = 3
        # A glyph as large as four capitals is an ornament, or a mistake in the font.
        if not (0 < right - left <= 6 * CAPITAL_HEIGHT and 0 < bottom - top <= 4 * CAPITAL_HEIGHT):
            return Glyph(np.zeros((0, 0), np.uint8), 0, 0, face.getlength(character))
        canvas = Image.new("L", (right - left + 2 * pad, bottom - top + 2 * pad))
        ImageDraw.Draw(canvas).text((pad - left, pad - top), character, fill=255, font=face, anchor="ls")
        ink = canvas.getbbox()
        if ink is None:
            return Glyph(np.zeros((0, 0), np.uint8), 0, 0, face.getlength(character))
        mask = np.asarray(canvas.crop(ink)).copy()
        return Glyph(mask, left - pad + ink[0], top - pad + ink[1], face.getlength(character))


def _open(source: Path | Callable[[], bytes]) -> ImageFont.FreeTypeFont:
    """At the size that makes its capitals CAPITAL_HEIGHT high."""
    content = None if isinstance(source, Path) else source()

    def face_of(size: int) -> ImageFont.FreeTypeFont:
        file = str(source) if content is None else io.BytesIO(content)
        return ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)

    face = face_of(48)
    for example in "H한0":
        _, top, _, bottom = face.getbbox(example, anchor="ls")
        if bottom - top > 4 and face.getmask(example).getbbox() is not None:
            size = round(48 * CAPITAL_HEIGHT / (bottom - top))
            return face_of(min(max(size, SIZES[0]), SIZES[1]))
    return face


def _same(one: Glyph, other: Glyph) -> bool:
    return one.mask.shape == other.mask.shape and one.left == other.left and bool(np.array_equal(one.mask, other.mask))


def _alike(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """The same shape, whatever the size."""
    a, b = (cv2.resize(mask, (16, 16), interpolation=cv2.INTER_AREA).astype(np.float32) for mask in (one, other))
    proportions = (one.shape[0] * other.shape[1]) / max(1, one.shape[1] * other.shape[0])
    return 0.75 < proportions < 1.33 and float(np.abs(a - b).mean()) < 30


class FontBook:
    """All fonts, and which of them a text can be set in."""

    def __init__(self, files: Iterable[FontFile]) -> None:
        families: dict[str, list[Font]] = {}
        weights: dict[str, float] = {}
        for file in sorted(files, key=lambda file: file.name):
            families.setdefault(file.family, []).append(Font(file))
            weights[file.family] = file.weight
        self.fonts = [font for family in families.values() for font in family]
        self._families = list(families.values())
        self._cumulative = np.cumsum([weights[name] for name in families]).tolist()
        if not self.fonts:
            raise UserError("There are no fonts to render with. Run `vitocr data fonts`, or set render.fonts=[folder].")

    def choose(self, rng: random.Random, text: str, *, tries: int = 12) -> Font | None:
        """A font that has every character of the text; None when none was found in so many tries."""
        for _ in range(tries):
            (family,) = rng.choices(self._families, cum_weights=self._cumulative)
            font = family[int(rng.random() * len(family))]
            if font.usable and font.has(text):
                return font
        return None

    def with_characters(self, text: str) -> FontBook | None:
        """Only the fonts that have all of these characters, as a book of their own; looks at every font."""
        able = [font for font in self.fonts if font.usable and font.has(text)]
        if not able:
            return None
        return FontBook(font.file for font in able)


def find_fonts(folders: Iterable[str | Path] = (), *, packages: bool = True) -> list[FontFile]:
    """The font files below `folders`, and those that came with Python packages. Sorted by name, each name once."""
    found: dict[str, FontFile] = {}
    for folder in folders:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise UserError(f"The folder of fonts {root} does not exist. `vitocr data fonts` fills one.")
        files = [file for path in sorted(root.rglob("*")) if (file := _from_path(path, root))]
        if not files:
            raise UserError(f"There is no font ({', '.join(SUFFIXES)}) in {root}. `vitocr data fonts` fetches some.")
        found |= {file.name: file for file in files}
    if packages:
        for file in _from_packages():
            found.setdefault(file.name, file)
    return [found[name] for name in sorted(found)]


def _from_path(path: Path, root: Path | None = None) -> FontFile | None:
    if path.suffix.lower() not in SUFFIXES or any(word in path.stem.lower() for word in NOT_FOR_TEXT):
        return None
    # A folder of its own is a family, as fetch_fonts makes them; else the file's name up to its style.
    in_folder = root is not None and path.parent != root
    family = path.parent.name if in_folder else path.stem.split("-")[0].rstrip("0123456789")
    sibling = path.with_name(path.name.replace("-korean-", "-latin-"))
    latin = sibling if sibling != path and sibling.is_file() else None
    return FontFile(path.name, family.lower(), path, _family_weight(family), latin)


def _family_weight(family: str) -> float:
    for look, families in families_by_look().items():
        if family in families:
            return LOOK_WEIGHTS.get(look, 1.0)
    return 1.0


def _from_packages() -> Iterator[FontFile]:
    """The font-* packages say where their files are through entry points; others are looked through."""
    folders: set[Path] = set()
    for group in ("fonts_ttf", "fonts_otf"):
        for entry in metadata.entry_points(group=group):
            folders.add(_package_folder(entry.module) or Path())
    folders |= {folder for name in PACKAGES_WITH_FILES if (folder := _package_folder(name))}
    for folder in sorted(folders - {Path()}):
        stems: set[str] = set()
        for path in sorted(folder.rglob("*"), key=lambda path: (path.stem, path.suffix != ".ttf")):
            file = _from_path(path)
            if file and path.stem not in stems and "Variable" not in path.stem:  # many come as .otf and as .ttf
                stems.add(path.stem)
                yield file
    if util.find_spec("pymupdf_fonts"):  # its fonts are Python modules that decode to font files
        pymupdf_fonts = import_module("pymupdf_fonts")
        for key, about in pymupdf_fonts.fontdescriptors.items():
            name = str(about["name"])
            if not any(word in name.lower() for word in NOT_FOR_TEXT):
                family = " ".join(word for word in name.split() if word not in ("Regular", "Bold", "Italic")).lower()
                yield FontFile(f"{name}.ttf", family, pymupdf_fonts.fontbuffers[key])


def _package_folder(name: str) -> Path | None:
    spec = util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
