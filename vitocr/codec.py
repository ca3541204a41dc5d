"""Between what people write and what a model counts with: class names or characters, to ids and back.

Both are NFC-normalised on the way in, so that Hangul or accented letters mean the same whether a Mac (which
decomposes) or Linux wrote them. A codec knows no model and travels in the checkpoint. What a `Charset` cannot
hold is never lost in silence: a `TextReport` counts it and shows examples.
"""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vitocr.errors import UserError, did_you_mean

# The 2,350 syllables of KS X 1001, which are nearly all that is written today.
HANGUL = "".join(bytes((row, cell)).decode("euc_kr") for row in range(0xB0, 0xC9) for cell in range(0xA1, 0xFF))
PRESETS = {
    "36": string.digits + string.ascii_lowercase,
    "62": string.digits + string.ascii_letters,
    "94": string.digits + string.ascii_letters + string.punctuation,
    "94+space": string.digits + string.ascii_letters + string.punctuation + " ",
    "korean": string.digits + string.ascii_letters + string.punctuation + " " + HANGUL,
}


def nfc(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


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


@dataclass(frozen=True)
class Charset:
    """An ordered set of characters; a character's id is its position. A space is a character like any other.

    One character is one code point after NFC: a Hangul syllable or an accented letter is one, and a combining
    mark that has no composed form is one of its own. Blank, begin and end belong to the heads, not here.
    """

    characters: tuple[str, ...]

    def __post_init__(self) -> None:
        characters = tuple(nfc(character) for character in self.characters)
        object.__setattr__(self, "characters", characters)
        if not characters:
            raise UserError("There is no character to read: the character set is empty.")
        for character in characters:
            if len(character) != 1:
                raise UserError(f"{character!r} is {len(character)} characters (after Unicode NFC): list them singly.")
            if unicodedata.category(character) in ("Cc", "Cs"):
                raise UserError(f"The character set holds {character!r}, which cannot be seen: take it out.")
        twice = [character for character, count in Counter(characters).items() if count > 1]
        if twice:
            raise UserError(f"The characters of a set must differ (after NFC), but {twice[0]!r} stands there twice.")

    def __len__(self) -> int:
        return len(self.characters)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: index for index, character in enumerate(self.characters)}

    @cached_property
    def _one_case(self) -> str | None:
        """ "lower" or "upper" if the letters of the set are all of that case, so that the other means the same."""
        cases = {character.islower() for character in self.characters if character.lower() != character.upper()}
        return {frozenset({True}): "lower", frozenset({False}): "upper"}.get(frozenset(cases))

    def id_of(self, character: str) -> int:
        """Of one NFC character, its case folded if need be; -1 if the set does not have it."""
        index = self._ids.get(character)
        if index is None and self._one_case is not None:
            index = self._ids.get(character.lower() if self._one_case == "lower" else character.upper())
        return -1 if index is None else index

    def slots(self, text: str) -> list[int]:
        """The id of every character of `nfc(text)`, -1 for those outside the set: positions stay what they are."""
        ids = self._ids
        slots = [ids.get(character, -1) for character in nfc(text)]
        if -1 in slots:
            slots = [self.id_of(character) for character in nfc(text)]
        return slots

    def encode(self, text: str, report: TextReport | None = None) -> list[int]:
        """The ids of `text`. Characters outside the set are left out, and told to `report`."""
        if report is not None:
            report.add(text, self)
        return [index for index in self.slots(text) if index >= 0]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(map(self._character, ids))

    def _character(self, index: int) -> str:
        if not 0 <= index < len(self):  # a negative index would silently count from the end
            raise UserError(f"Character id {index} is outside 0..{len(self) - 1}.")
        return self.characters[index]

    def to_dict(self) -> dict[str, Any]:
        return {"type": "charset", "characters": "".join(self.characters)}


def open_charset(name: str | int | Path, *, labels: Iterable[str] = ()) -> Charset:
    """A preset ("36", "62", "94", "94+space", "korean"), "labels" (what `labels` are written with), or a UTF-8 file.

    A file holds one character a line, or many: whatever it holds counts, only line breaks do not.
    """
    if str(name) in PRESETS:  # a configuration may say 36 without quotes
        return Charset(tuple(PRESETS[str(name)]))
    if str(name) == "labels":
        found = {character for label in labels for character in nfc(label)}
        seen = sorted(c for c in found if unicodedata.category(c) not in ("Cc", "Cs"))
        if not seen:
            raise UserError("charset=labels: there are no training labels to take characters from.")
        return Charset(tuple(seen))
    path = Path(str(name))
    if not path.is_file():
        options = [*PRESETS, "labels"]
        raise UserError(
            f"charset={name} is neither a file nor one of {', '.join(options)}.{did_you_mean(str(name), options)}"
        )
    try:
        text = nfc(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"The character set {str(path)!r} is not in UTF-8: {error}") from error
    try:
        return Charset(tuple(text.replace("\n", "")))
    except UserError as error:
        raise UserError(f"{str(path)!r}: {error}") from error


@dataclass
class TextReport:
    """What became of texts on their way into a character set: counted, and said once with examples."""

    max_length: int | None = None  # in characters; None: any length
    texts: int = 0
    touched: Counter[str] = field(default_factory=Counter)  # texts: "dropped", "folded", "too long", "nothing left"
    dropped: Counter[str] = field(default_factory=Counter)  # characters outside the set
    folded: Counter[str] = field(default_factory=Counter)  # letters of the case the set lacks
    examples: dict[str, list[str]] = field(default_factory=dict)  # what happened -> a few texts

    def add(self, text: str, charset: Charset) -> str | None:
        """Count `text`; say why it cannot be learned from, if so: "too long" or "nothing left"."""
        self.texts += 1
        text = nfc(text)
        ids = charset.slots(text)
        kept = len(ids)
        if -1 in ids:
            outside = [character for character, index in zip(text, ids, strict=True) if index < 0]
            self.dropped.update(outside)
            self._touch("dropped", text)
            kept -= len(outside)
        if charset._one_case is not None:
            other = [c for c, index in zip(text, ids, strict=True) if index >= 0 and c not in charset._ids]
            if other:
                self.folded.update(other)
                self._touch("folded", text)
        why = "nothing left" if not kept else None
        if self.max_length is not None and kept > self.max_length:
            why = "too long"
        if why is not None:
            self._touch(why, text)
        return why

    def _touch(self, what: str, text: str) -> None:
        self.touched[what] += 1
        shown = self.examples.setdefault(what, [])
        if len(shown) < 5 and text not in shown:
            shown.append(text)

    def lines(self, *, then: str = "are left out") -> list[str]:
        """For people, one line for each kind of thing that happened; none if every text fits.

        then: what becomes of texts that are too long or of which nothing is left."""
        drop, fold = _most(self.dropped), _most(self.folded)
        sentences = {
            "dropped": f"hold characters outside the set, which were left out: {drop}",
            "folded": f"hold letters of the case the set lacks, which were folded: {fold}",
            "too long": f"are longer than {self.max_length} characters and {then}",
            "nothing left": f"have no character of the set and {then}",
        }
        return [
            f"{self.touched[what]:,} of {self.texts:,} labels {sentence} (as in {_quoted(self.examples[what])})"
            for what, sentence in sentences.items()
            if self.touched[what]
        ]


def _most(counts: Counter[str], limit: int = 20) -> str:
    shown = ", ".join(f"{character!r} {count:,}x" for character, count in counts.most_common(limit))
    return shown + (f" and {len(counts) - limit} others" if len(counts) > limit else "")


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(repr(text if len(text) <= 60 else text[:57] + "...") for text in texts)


def codec_from_dict(description: Mapping[str, Any]) -> Classes | Charset:
    """The codec a checkpoint describes."""
    if description.get("type") == "classes":
        return Classes(tuple(description["names"]))
    if description.get("type") == "charset":
        return Charset(tuple(description["characters"]))
    raise UserError(
        f"This vitocr knows no codec of type {description.get('type')!r}: "
        "the file was probably made by a newer version. Upgrade vitocr to read it."
    )
