"""Pieces of photographed words: cut between the characters, saying what they show, and two of them side by side."""

from pathlib import Path

import numpy as np
import pytest

import vitocr
from vitocr.cli import main as vitocr_command
from vitocr.data.lmdb_store import pack
from vitocr.data.render import Effects, Renderer, RenderSpec
from vitocr.data.text_rows import Rendered, TextSource, hold_out
from vitocr.data.text_sources import open_source
from vitocr.errors import UserError
from vitocr.pieces import JOINED, Piece, Pieces, between, frames_of, pairs_of, pieces_of, side_by_side
from vitocr.predict import Predictor
from vitocr.text_metrics import normalise

BLANK = 3


@pytest.fixture(scope="module")
def reader() -> Predictor:
    return vitocr.load("str-tiny")


@pytest.fixture(scope="module")
def words() -> TextSource:
    """Plain type on a plain ground, whose characters stand where the renderer says."""
    return Rendered(Renderer(RenderSpec(effects=Effects.none(), seed=5)), 60)


@pytest.fixture(scope="module")
def pieces(words: TextSource, reader: Predictor) -> Pieces:
    return pieces_of(words, reader)


def columns_saying(said: list[int]) -> np.ndarray:
    return np.log(np.where(np.arange(BLANK + 1) == np.array(said)[:, None], 0.97, 0.01))[None]


def test_characters_stand_on_the_columns_that_say_them() -> None:
    (frames,) = frames_of(columns_saying([3, 0, 0, 3, 1, 3, 3, 2]), [[0, 1, 2]])
    assert frames is not None
    np.testing.assert_allclose(frames * 8, [[1.5, 2.5], [4.5, 4.5], [7.5, 7.5]])


def test_a_doubled_character_has_a_blank_in_between() -> None:
    (frames,) = frames_of(columns_saying([0, 0, 3, 0]), [[0, 0]])
    assert frames is not None
    np.testing.assert_allclose(frames * 4, [[0.5, 1.5], [3.5, 3.5]])


def test_a_label_that_the_columns_do_not_say_or_have_no_room_for_is_not_laid_on_them() -> None:
    assert frames_of(columns_saying([0, 3, 1, 3]), [[2, 2]]) == [None]
    assert frames_of(columns_saying([0, 0]), [[0, 0]]) == [None]


def test_the_cut_goes_where_there_are_no_strokes() -> None:
    image = np.zeros((16, 60, 3), np.uint8)
    image[::2, 4:20] = image[::2, 24:56] = 255
    assert between(image, np.array([[0.1, 0.25], [0.5, 0.9]]))[0::2] == [0, 60]
    assert 20 < between(image, np.array([[0.1, 0.25], [0.5, 0.9]]))[1] < 24


def test_pieces_are_runs_of_their_words_cut_where_the_renderer_parted_the_characters(
    words: TextSource, pieces: Pieces
) -> None:
    assert len(pieces.pieces) > 60
    missed, cuts = 0, 0
    for piece in pieces.pieces:
        row = words.read(piece.row)
        assert piece.text in row.text
        assert 2 <= len(piece.text) < len(row.text)
        assert row.boxes is not None
        starts = [start for start in range(len(row.text)) if row.text.startswith(piece.text, start)]
        gaps = [
            (abs(piece.left - row.boxes[a, 0]), abs(piece.right - row.boxes[a + len(piece.text) - 1, 2]))
            for a in starts
        ]
        cuts += 1
        missed += min(map(max, gaps)) > 16  # pixels of 128: half of a character in a word of four
    assert missed < 0.05 * cuts


def test_what_is_kept_is_read_as_it_should_be(pieces: Pieces, reader: Predictor) -> None:
    some = [pieces.read(row) for row in range(0, len(pieces.pieces), 5)]
    read = [reader(row.image, tall_crops=False, threshold=0.0).text for row in some]
    assert [normalise(text, "36") for text in read] == [normalise(row.text, "36") for row in some]


def test_a_pair_says_both_shows_both_and_comes_of_two_photographs(pieces: Pieces) -> None:
    assert len(pieces) == len(pieces.pieces) + len(pieces.pairs) > len(pieces.pieces)
    for number, (left, right) in enumerate(pieces.pairs[:40]):
        row = pieces.read(len(pieces.pieces) + number)
        assert row.text == left.text + right.text == pieces.text(len(pieces.pieces) + number)
        assert len(row.text) <= JOINED
        assert left.row != right.row
        alone = side_by_side(pieces.cut(left), pieces.cut(left))
        assert np.abs(row.image[:, :4].astype(int) - alone[:, :4]).max() < 8


def test_the_same_seed_cuts_the_same_pieces_and_another_seed_others(words: TextSource, reader: Predictor) -> None:
    few, _ = hold_out(words, 40, seed=0)
    once, again, other = (pieces_of(few, reader, seed=seed) for seed in (1, 1, 2))
    assert (once.pieces, once.pairs) == (again.pieces, again.pairs)
    assert once.pieces != other.pieces


def test_a_single_photograph_makes_no_pair() -> None:
    import random

    assert pairs_of([Piece(0, 0, 9, "ab")], [], count=3, rng=random.Random(0)) == []


def test_models_that_cannot_tell_where_characters_stand_are_refused(words: TextSource) -> None:
    with pytest.raises(UserError, match="a model that reads text"):
        pieces_of(words, vitocr.load("cifar10-tiny"))


def test_words_of_which_nothing_can_be_cut_are_an_error(reader: Predictor) -> None:
    spec = RenderSpec(effects=Effects.none(), charset="ab", max_length=2)
    with pytest.raises(UserError, match="cuts no piece that it can read"):
        pieces_of(Rendered(Renderer(spec), 5), reader)


def test_the_command_leaves_out_what_training_holds_back(
    words: TextSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(words, tmp_path / "words")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        vitocr_command(
            ["data", "pieces", str(tmp_path / "words"), "--out", str(tmp_path / "pieces"), "--held-out", "45"]
        )
    assert ended.value.code == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert "of 15 words" in said
    kept, _ = hold_out(open_source(tmp_path / "words"), 45, seed=0)
    made, texts = open_source(tmp_path / "pieces"), [kept.read(row).text for row in range(len(kept))]
    pieces = int(said.split()[0])  # the pairs come after them
    assert all(any(made.read(row).text in text for text in texts) for row in range(pieces))
