"""What the crops say.

A mixture: English words (SCOWL, common ones more often), names, words of signs, brands and places, and text that is
in no dictionary (invented.py). Lengths follow the labels of real training crops, with more of the long words, which
recognisers get wrong first; capitals are about as frequent as small letters. Nothing here comes from a test set.
"""

from __future__ import annotations

import gzip
import random
import unicodedata
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from itertools import accumulate
from pathlib import Path

from vitocr.data.render import invented
from vitocr.errors import UserError

# Words of 1, 2, 3 ... letters, in per cent.
LENGTHS = (0.6, 6, 16, 19, 16, 13, 10.5, 8, 6, 4.5, 3.2, 2.6, 1.8, 1.2, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1)
TIERS = {"10": 40.0, "20": 14.0, "35": 3.0, "40": 2.0, "50": 1.2, "55": 1.0, "60": 0.8, "70": 0.6}  # weight of a word
SUFFIXES = (
    ".",
    ".",
    ".",
    ",",
    ",",
    "!",
    "!",
    "?",
    ":",
    ";",
    "'s",
    "'s",
    "'S",
    ")",
    '"',
    "'",
    "...",
    "-",
    "/",
    "!!",
    "*",
)
PREFIXES = ("(", '"', "'", "-", "&", "*", "#", "@", "$", "[", "~", "+", ".")
LONG = 11  # letters and more


class WordSource:
    """Draws texts. charset: None, or the only characters a text may have; anything else is drawn again."""

    def __init__(
        self,
        *,
        charset: str | None,
        max_length: int,
        korean: float = 0.0,
        own: Iterable[str | Path] = (),
        own_share: float = 0.3,
    ) -> None:
        self._allowed = None if charset is None else frozenset(charset)
        self._max_length = max_length
        self._korean = korean
        self._own = _read_own(own)
        self._own_share = own_share if self._own else 0.0
        self._several = charset is None or " " in charset
        signs = _signs()
        lexicon = [(word, weight) for tier, weight in TIERS.items() for word in _english()[tier]]
        self._by_length = _by_length(lexicon)
        # The curated lists are short: their words come often enough to be learnt by heart, so not too often.
        self._kinds: tuple[tuple[float, Callable[[random.Random], str]], ...] = (
            (0.460, self._word),
            (0.050, self._long_word),
            (0.075, lambda rng: rng.choice(signs["signs"])),
            (0.035, lambda rng: rng.choice(signs["brands"])),
            (0.035, lambda rng: rng.choice(signs["places"])),
            (0.010, lambda rng: rng.choice(signs["streets"])),
            (0.080, lambda rng: rng.choice(_english()["names"])),
            (0.050, invented.made_up_name),
            (0.055, invented.number),
            (0.025, invented.price),
            (0.015, invented.time_or_date),
            (0.010, invented.telephone),
            (0.025, invented.plate),
            (0.020, lambda rng: invented.address(rng, lambda: self._word(rng))),
            (0.045, invented.nonsense),
        )
        self._cumulative = list(accumulate(share for share, _ in self._kinds))
        self.fingerprint = zlib.crc32("\n".join(self._own).encode())

    def draw(self, rng: random.Random) -> str:
        """A text, NFC, of at least one character."""
        for _ in range(100):
            text = self._draw(rng)
            if self._allowed is not None and not self._allowed.issuperset(text):
                text = "".join(character for character in text if character in self._allowed)
            if text.strip() and len(text) <= self._max_length:
                return unicodedata.normalize("NFC", text.strip())
        raise UserError("The renderer finds no text its character set allows: add words=[file] with some that it does.")

    def _draw(self, rng: random.Random) -> str:
        chance = rng.random()
        if chance < self._korean:
            return self._korean_text(rng)
        if rng.random() < self._own_share:
            return rng.choice(self._own)
        text = self._latin(rng)
        if self._several and rng.random() < 0.04:
            text += " " + self._latin(rng)
        return text

    def _latin(self, rng: random.Random) -> str:
        kind = bisect_left(self._cumulative, rng.random() * self._cumulative[-1])
        text = self._kinds[kind][1](rng)
        if text.isalpha():
            text = _in_case(rng, text)
            if rng.random() < 0.09:
                text = _with_marks(rng, text, lambda: _in_case(rng, self._word(rng)))
        elif rng.random() < 0.3:
            text = text.upper()
        return text

    def _word(self, rng: random.Random) -> str:
        return self._of_length(rng, rng.choices(range(1, len(LENGTHS) + 1), LENGTHS)[0])

    def _long_word(self, rng: random.Random) -> str:
        """Long words, and two short ones in one: too few long words are in any dictionary to learn from."""
        if rng.random() < 0.6:
            return self._of_length(rng, min(LONG + int(rng.expovariate(0.6)), 18))
        return self._of_length(rng, rng.randint(4, 8)) + self._of_length(rng, rng.randint(5, 8))

    def _of_length(self, rng: random.Random, length: int) -> str:
        words, cumulative = self._by_length.get(length) or self._by_length[5]
        return words[bisect_left(cumulative, rng.random() * cumulative[-1])]

    def _korean_text(self, rng: random.Random) -> str:
        chance = rng.random()
        if chance < 0.45:
            return rng.choice(_signs()["korean"])
        if chance < 0.8:
            return invented.syllables(rng)
        korean = rng.choice((rng.choice(_signs()["korean"]), invented.syllables(rng)))
        latin = rng.choice((invented.number(rng), _in_case(rng, self._word(rng))))
        return rng.choice((korean + latin, latin + korean))


def _in_case(rng: random.Random, word: str) -> str:
    chance = rng.random()
    if chance < 0.44:
        return word.upper()
    if chance < 0.69:
        return word[:1].upper() + word[1:].lower()
    if chance < 0.955:
        return word.lower()
    if chance < 0.98:  # McDonald, PlayStation
        cut = rng.randint(2, len(word) - 2) if len(word) > 4 else 0
        return word[:cut].capitalize() + word[cut:].capitalize()
    if chance < 0.985:
        return word[:1].lower() + word[1:].upper()
    return "".join(letter.upper() if rng.random() < 0.5 else letter.lower() for letter in word)


def _with_marks(rng: random.Random, word: str, another: Callable[[], str]) -> str:
    chance = rng.random()
    if chance < 0.55:
        return word + rng.choice(SUFFIXES)
    if chance < 0.68:
        return rng.choice(PREFIXES) + word
    if chance < 0.76:
        left, right = rng.choice(('""', "()", "''", "[]", "<>", "**", "{}", "--"))
        return left + word + right
    if chance < 0.95:
        return word + rng.choice(("-", "-", "-", "/", "&", ".", "'", "_", "+", ":")) + another()
    return ".".join(word[:3].upper()) + "."


def _by_length(words: Iterable[tuple[str, float]]) -> dict[int, tuple[list[str], list[float]]]:
    """Length -> the words of that length and their running weights."""
    grouped: dict[int, list[tuple[str, float]]] = {}
    for word, weight in words:
        grouped.setdefault(len(word), []).append((word, weight))
    return {
        length: ([word for word, _ in group], list(accumulate(weight for _, weight in group)))
        for length, group in grouped.items()
    }


@cache
def _english() -> dict[str, list[str]]:
    packed = resources.files(__package__).joinpath("assets/words.txt.gz").read_bytes()
    return _sections(gzip.decompress(packed).decode())


@cache
def _signs() -> dict[str, list[str]]:
    return _sections(resources.files(__package__).joinpath("assets/signs.txt").read_text(encoding="utf-8"))


def _sections(text: str) -> dict[str, list[str]]:
    """Words by the [name] of the section they stand in; lines that start with # are comments."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("# "):
            current.extend(unicodedata.normalize("NFC", line).split())
    return sections


def _read_own(files: Iterable[str | Path]) -> list[str]:
    words: list[str] = []
    for file in files:
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"The list of words {file} cannot be read ({error}). It should be UTF-8, a word a line."
            ) from error
        words += [unicodedata.normalize("NFC", line.strip()) for line in lines if line.strip()]
    return words
