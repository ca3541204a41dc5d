"""What a prediction gives back: a `Label` or a `Reading`, or a `Failure` where an input could not be read.

Frozen plain data without torch, so results can be pickled, compared and sent anywhere. A `Failure` is
falsy: `[r for r in results if r]` keeps the answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Label:
    """The class an image was given. `confidence` and those in `top` are probabilities from 0 to 1."""

    name: str
    confidence: float
    top: tuple[tuple[str, float], ...]  # the k most likely (name, probability), best first
    index: int  # the class id, a position in `Predictor.classes`
    source: str | None = None  # the file it was read from; None for an image given in memory

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "name": self.name,
            "confidence": self.confidence,
            "index": self.index,
            "top": [{"name": name, "confidence": confidence} for name, confidence in self.top],
        }


@dataclass(frozen=True)
class Character:
    text: str
    confidence: float  # its probability, 0 to 1
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels of the image, where it was seen

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "confidence": self.confidence, "box": list(self.box)}


@dataclass(frozen=True)
class Reading:
    """The text an image was read as. `confidence` is the probability of the whole of it, 0 to 1.

    An empty text is an answer: the model saw nothing to read. Two more things make it so. Below a threshold of
    confidence the text is withheld, and `guess` is what it would have been (`confidence` is still that of the guess).
    And where a text had to satisfy a constraint and none did, `unmatched` is true.
    """

    text: str
    confidence: float
    characters: tuple[Character, ...]  # of `text`; their confidences are the model's own, not calibrated
    source: str | None = None  # the file it was read from; None for an image given in memory
    rotation: int = 0  # degrees clockwise by which the image has to be turned for the text to stand upright
    alternatives: tuple[tuple[str, float], ...] = ()  # where asked for: the likeliest (text, confidence), best first
    guess: str | None = None
    unmatched: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "text": self.text,
            "confidence": self.confidence,
            "rotation": self.rotation,
            "guess": self.guess,
            "unmatched": self.unmatched,
            "alternatives": [{"text": text, "confidence": confidence} for text, confidence in self.alternatives],
            "characters": [character.to_dict() for character in self.characters],
        }


@dataclass(frozen=True)
class Failure:
    """Stands in the results where an input could not be read."""

    source: str
    message: str

    def __bool__(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "error": self.message}
