"""Pieces of photographed words, and two pieces side by side: many words to learn from, out of few.

A training sees the same few thousand photographs a hundred times and comes to know them by heart. A model that reads
tells where the characters of a known text stand; cut between them, a word of n characters holds n (n - 1) / 2 - 1
shorter ones of two and more, and any two pieces make a word that nobody has seen.

- The columns of each character are those of the likeliest way of the text over the columns of the model's CTC.
- The cut between two characters is where the fewest strokes cross it, not far from the middle between their columns.
- A piece is kept if the model reads it as what it should say: letters that touch or lean do not come apart.

    vitocr data pieces data/words --out data/pieces
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitocr.constraints.ctc_beam import align
from vitocr.data.text_rows import StoredRow, TextRow, TextSource, encode_row, fingerprint
from vitocr.errors import UserError
from vitocr.metrics import log_softmax
from vitocr.text_metrics import normalise

if TYPE_CHECKING:
    from vitocr.predict import Predictor

BATCH = 64
LONGEST = 16  # characters of a word that is cut: beyond, a character has hardly two columns to stand on
LEAST_SURE = -0.7  # nats a character: below, the label is not what the columns say
NARROWEST = 6  # pixels of a piece
MARGIN = (-0.01, 0.04)  # of the height: how far beyond a cut a piece goes on, as crops do
JOINED = 14  # characters of two pieces together, at most
HEIGHTS = (16, 64)  # pixels of two pieces side by side
WHOLE = 0.35  # how often one of the two is a whole word
SHORT = 8  # characters of a whole word that may stand beside another

Watch = Callable[[Iterable[Any], int], Iterable[Any]]


class Piece(NamedTuple):
    row: int  # of the source
    left: int  # in pixels of its image
    right: int
    text: str


class Pieces:
    """The rows made of `source`: pieces, then pairs of pieces or whole words side by side."""

    def __init__(self, source: TextSource, pieces: list[Piece], pairs: list[tuple[Piece, Piece]]) -> None:
        self.source, self.pieces, self.pairs, self.name = source, pieces, pairs, f"pieces of {source.name}"

    def __len__(self) -> int:
        return len(self.pieces) + len(self.pairs)

    def cut(self, piece: Piece) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.source.read(piece.row).image[:, piece.left : piece.right])

    def read(self, row: int) -> TextRow:
        if row < len(self.pieces):
            return TextRow(self.cut(self.pieces[row]), self.pieces[row].text, None)
        left, right = self.pairs[row - len(self.pieces)]
        return TextRow(side_by_side(self.cut(left), self.cut(right)), left.text + right.text, None)

    def stored(self, row: int) -> StoredRow:
        return encode_row(self.read(row))

    def text(self, row: int) -> str | None:
        if row < len(self.pieces):
            return self.pieces[row].text
        return "".join(piece.text for piece in self.pairs[row - len(self.pieces)])

    def fingerprint(self) -> str:
        return fingerprint(self)


def pieces_of(
    source: TextSource, predictor: Predictor, *, seed: int = 0, watch: Watch = lambda items, total: items
) -> Pieces:
    """What the words of `source` can be cut into, and two thirds as many pairs.

    predictor: a model in torch that reads with CTC, alone or beside a decoder. watch: wraps the (iterable, length) of
    what takes time, for a progress bar.
    """
    rng = random.Random(f"pieces {seed}")
    cut: list[Piece] = []
    whole: list[Piece] = []
    for row, ((image, text, _), frames) in enumerate(watch(_aligned(source, predictor), len(source))):
        height, width = image.shape[:2]
        if len(text) <= SHORT and width > 0.8 * height:
            whole.append(Piece(row, 0, width, text))
        if frames is not None:
            cut += some_pieces(row, text, between(image, frames), height=height, rng=rng)
    every = Pieces(source, cut, [])
    images = (every.cut(piece) for piece in cut)
    readings = predictor.stream(images, batch_size=BATCH, tall_crops=False, threshold=0.0)
    good = [piece for piece, reading in zip(cut, watch(readings, len(cut)), strict=True) if _says(reading, piece.text)]
    if not good:
        raise UserError(
            f"Of {source.name} the model cuts no piece that it can read: its {len(source):,} words want at least three "
            "characters each, and a model that reads them."
        )
    return Pieces(source, good, pairs_of(good, whole, count=len(good) * 2 // 3, rng=rng))


def _says(reading: Any, text: str) -> bool:
    wanted = normalise(text, "36")
    return bool(wanted) and normalise(reading.text, "36") == wanted


def _aligned(source: TextSource, predictor: Predictor) -> Iterator[tuple[TextRow, NDArray[np.float64] | None]]:
    """Every row, and where its characters stand, in shares of the width (L, 2); None if it is not to be cut."""
    import torch

    from vitocr.inference.run_torch import TorchModel

    runner = predictor.runner
    if not isinstance(runner, TorchModel) or not predictor.reads_text:
        raise UserError("Words are cut by a model that reads text, in torch: give a checkpoint, as str-tiny is one.")
    codec: Any = predictor.codec
    for start in range(0, len(source), BATCH):
        rows = [source.read(row) for row in range(start, min(start + BATCH, len(source)))]
        texts = {number: codec.encode(row.text) for number, row in enumerate(rows)}
        texts = {number: ids for number, ids in texts.items() if _can_be_cut(rows[number], ids)}
        found: dict[int, NDArray[np.float64] | None] = {}
        if texts:
            images = np.stack([predictor.preprocess(rows[number].image) for number in texts])
            with torch.inference_mode():
                logits = runner.encoded(torch.from_numpy(images).to(runner.device)).logits
            if logits is None:
                raise UserError(
                    "Words are cut by the columns of CTC, and this model has none: give one with head.ctc above 0."
                )
            found = dict(zip(texts, frames_of(log_softmax(logits), list(texts.values())), strict=True))
        yield from ((row, found.get(number)) for number, row in enumerate(rows))


def _can_be_cut(row: TextRow, ids: list[int]) -> bool:
    return row.image.shape[1] > row.image.shape[0] and 3 <= len(ids) == len(row.text) <= LONGEST


def frames_of(log_probs: NDArray[Any], texts: list[list[int]]) -> list[NDArray[np.float64] | None]:
    """Of each text on the columns of its image (B, T, S + 1) the first and last column of every character, (L, 2) in
    shares of the width, on its likeliest way; None if that is unlikely all the same."""
    columns = log_probs.shape[1]
    found: list[NDArray[np.float64] | None] = []
    covers = align(log_probs, np.arange(len(texts)), [tuple(ids) for ids in texts])
    for row, ids, cover in zip(log_probs, texts, covers, strict=True):  # cover: (L, T)
        said = np.where(cover.any(axis=0), np.array(ids)[cover.argmax(axis=0)], row.shape[1] - 1)
        if not cover.any(axis=1).all() or row[np.arange(columns), said].sum() < LEAST_SURE * len(ids):
            found.append(None)
            continue
        last = columns - 1 - cover[:, ::-1].argmax(axis=1)
        found.append((np.stack([cover.argmax(axis=1), last], axis=1) + 0.5) / columns)
    return found


def between(image: NDArray[np.uint8], frames: NDArray[np.float64]) -> list[int]:
    """Where to cut: 0, the columns of pixels between the characters, the width."""
    W = image.shape[1]
    strokes = np.abs(np.diff(image.mean(axis=2, dtype=np.float32), axis=0)).sum(axis=0)  # (W,)
    strokes = np.convolve(strokes, np.full(3, 1 / 3), "same")
    cuts = [0]
    for (_, last), (first, _) in zip(frames[:-1] * W, frames[1:] * W, strict=True):
        middle, reach = (last + first) / 2, 0.3 * (first - last) + 0.5
        near = np.arange(max(0, int(middle - reach)), min(W - 1, int(middle + reach)) + 1)
        cuts.append(int(near[np.argmin(strokes[near] + 0.02 * strokes.mean() * np.abs(near - middle))]))
    return [*cuts, W]


def some_pieces(row: int, text: str, cuts: list[int], *, height: int, rng: random.Random) -> list[Piece]:
    """Of all runs of two characters and more, some: 3 of a short word, 11 of a long one. height: of the image."""
    n = len(text)
    runs = [(a, b) for a in range(n) for b in range(a + 2, n + 1) if b - a < n]
    found = []
    for a, b in rng.sample(runs, min(len(runs), 3 + n // 2)):
        left = max(0, cuts[a] - round(rng.uniform(*MARGIN) * height)) if a else 0
        right = min(cuts[-1], cuts[b] + round(rng.uniform(*MARGIN) * height)) if b < n else cuts[-1]
        if right - left >= NARROWEST:
            found.append(Piece(row, left, right, text[a:b]))
    return found


def pairs_of(pieces: list[Piece], whole: list[Piece], *, count: int, rng: random.Random) -> list[tuple[Piece, Piece]]:
    """Two of different photographs each, not too long together."""
    pairs: list[tuple[Piece, Piece]] = []
    for _ in range(20 * count):  # of a single photograph there is no pair
        left, right = (rng.choice(whole if whole and rng.random() < WHOLE else pieces) for _ in range(2))
        if left.row != right.row and len(left.text) + len(right.text) <= JOINED:
            pairs.append((left, right))
        if len(pairs) == count:
            break
    return pairs


def side_by_side(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Both brought to one height, between their own."""
    height = int(np.clip(round((left.shape[0] * right.shape[0]) ** 0.5), *HEIGHTS))
    parts = []
    for part in (left, right):
        width = max(4, round(part.shape[1] * height / part.shape[0]))
        parts.append(np.asarray(Image.fromarray(part).resize((width, height), Image.Resampling.BICUBIC)))
    return np.concatenate(parts, axis=1)
