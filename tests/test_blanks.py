"""Crops with nothing to read: always the same ones, quickly drawn, and heads that learn to say nothing of them."""

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from heads_kit import HEADS, LONGEST, head_of, random_texts, targets_of, texts_of, tokens_showing, train
from PIL import Image
from runs_kit import run

import vitocr
from vitocr.cli import main as vitocr_command
from vitocr.codec import open_charset
from vitocr.data.blanks import Blanks, open_blanks
from vitocr.data.render import Crop, Effects, Renderer, RenderSpec
from vitocr.data.text_loader import TextLoader
from vitocr.data.text_rows import Rendered
from vitocr.data.text_sources import Mixture
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

PREPROCESS = Preprocess(size=(32, 128), mean=(0.5,) * 3, std=(0.5,) * 3)


def test_a_row_is_the_same_crop_in_any_order_and_in_a_copy() -> None:
    blanks = Blanks(size=(32, 128), seed=2)
    forward = [blanks(index).image for index in range(12)]
    copy = pickle.loads(pickle.dumps(blanks))
    for index in reversed(range(12)):
        np.testing.assert_array_equal(copy(index).image, forward[index])
    assert not np.array_equal(Blanks(size=(32, 128), seed=3)(0).image, forward[0])


def test_blanks_say_nothing_have_the_size_asked_for_and_differ() -> None:
    source = open_blanks(size=(16, 48), rows=60, photos=Path("none.npy"))
    rows = [source.read(row) for row in range(len(source))]
    assert {(row.text, row.image.shape, row.image.dtype.name) for row in rows} == {("", (16, 48, 3), "uint8")}
    assert all(row.boxes is not None and row.boxes.shape == (0, 4) for row in rows)
    assert len({row.image.tobytes() for row in rows}) == 60
    contrast = np.array([row.image.astype(float).std() for row in rows])
    assert (contrast < 8).any() and (contrast > 30).any(), "plain walls and lively pictures"


def test_photographs_are_cut_from_where_there_are_some(tmp_path: Path) -> None:
    """Green images cannot come from anywhere else this often."""
    np.save(tmp_path / "photos.npy", np.broadcast_to(np.uint8([20, 200, 20]), (50, 32, 32, 3)))

    def green(photos: Path) -> int:
        source = open_blanks(size=(32, 128), photos=photos, rows=100)
        means = [source.read(row).image.mean((0, 1)) for row in range(100)]
        return sum(bool(g > 2 * r and g > 2 * b) for r, g, b in means)

    assert green(tmp_path / "photos.npy") > 20 > 5 > green(tmp_path / "none.npy")
    plain, with_photos = (open_blanks(size=(32, 128), photos=tmp_path / name) for name in ("none.npy", "photos.npy"))
    assert plain.fingerprint() != with_photos.fingerprint()


def test_all_photographs_serve_not_only_the_first_thousands(tmp_path: Path) -> None:
    np.save(tmp_path / "photos.npy", np.zeros((8_000, 8, 8, 3), np.uint8))
    blanks = Blanks(size=(32, 128), photos=tmp_path / "photos.npy")
    assert len(blanks._photos) == 8_000


def test_they_can_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        vitocr_command(["data", "look", "blanks", "--rows", "8", "--out", str(tmp_path / "look.png")])
    assert not left.value.code
    with Image.open(tmp_path / "look.png") as sheet:
        assert sheet.width > 8 * 200


def test_drawing_a_blank_takes_no_longer_than_drawing_a_word() -> None:
    def seconds(make: Blanks | Renderer) -> float:
        for index in range(100):
            make(index)  # glyphs, textures
        began = time.process_time()
        for index in range(100, 250):
            make(index)
        return time.process_time() - began

    assert seconds(Blanks(size=(32, 128))) < seconds(Renderer(RenderSpec()))


@pytest.mark.parametrize("name", list(HEADS))
def test_every_head_learns_words_and_blanks_side_by_side(name: str) -> None:
    """A third of the batch shows nothing, each with its own noise; others like it are answered with nothing too."""
    words = [text for text in random_texts(24, seed=3) if text]
    texts = words + [[]] * 8
    tokens, head = tokens_showing(texts), head_of(name)
    steps = 250 if name == "ctc" or "permuted" in name else 150
    train(head, tokens, targets_of(texts, width=LONGEST), steps=steps, align=0.5)
    read = texts_of(head.decode(tokens))
    assert read[len(words) :] == [[]] * 8
    assert sum(text == word for text, word in zip(read, words, strict=False)) >= 0.9 * len(words)
    others = head.decode(tokens_showing([[]] * 40, noise_seed=9))
    assert (others.lengths == 0).float().mean() > 0.9
    assert (others.confidence > 0.5).float().mean() > 0.9


@pytest.mark.parametrize("name", list(HEADS))
def test_a_batch_of_blanks_alone_teaches_to_say_nothing(name: str) -> None:
    head = head_of(name)
    tokens = tokens_showing([[]] * 8, noise=0.5)
    targets = targets_of([[]] * 8, width=1)  # as the loader pads: at least one wide
    before = head.loss(tokens, targets, align=0.5)["loss"].item()
    train(head, tokens, targets, steps=100, align=0.5)
    assert head.loss(tokens, targets, align=0.5)["loss"].item() < 0.8 * before
    assert texts_of(head.decode(tokens)) == [[]] * 8


def loader(source: object, *, charset: str = "36") -> TextLoader:
    return TextLoader(
        source, charset=open_charset(charset), max_length=10, preprocess=PREPROCESS, batch_size=8, say=lambda _: None
    )  # type: ignore[arg-type]


def test_the_loader_trains_on_blanks_among_words() -> None:
    words = Rendered(Renderer(RenderSpec(max_length=10)), 64)
    batches = list(loader(Mixture([words, open_blanks(size=(32, 128), rows=64)], [1.0, 1.0], seed=0)))
    lengths = torch.cat([batch.lengths for batch in batches])
    assert len(lengths) == 128 and (lengths == 0).sum() == 64
    for batch in batches:
        assert [not text for text in batch.texts] == (batch.lengths == 0).tolist()
        assert (batch.ids[batch.lengths == 0] == -1).all() and batch.spans[batch.lengths == 0].isnan().all()


def test_a_word_of_which_the_set_holds_nothing_is_no_blank() -> None:
    """There is something to read in its picture: to learn nothing from it would be to learn something wrong."""
    dashes = Rendered(lambda index: Crop(np.zeros((32, 128, 3), np.uint8), "--", np.zeros((2, 4), np.float32)), 64)
    with pytest.raises(UserError, match="has 0 characters of the set"):
        next(iter(loader(dashes)))


def test_a_run_with_blanks_among_its_words_learns_to_say_nothing_of_a_wall(tmp_path: Path) -> None:
    """The words are 40 plain ones, learned by heart; the blanks are others than those it is asked about."""
    render = Renderer(RenderSpec(size=(32, 64), max_length=4, charset="0123456789", effects=Effects.none()))
    folder = tmp_path / "words"
    folder.mkdir()
    crops = [render(index) for index in range(40)]
    for number, crop in enumerate(crops):
        Image.fromarray(crop.image).save(folder / f"{number}.png")
    lines = [f"{number}.png\t{crop.text}\n" for number, crop in enumerate(crops)]
    (folder / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    options = [
        "task=str", "logger=none", "trainer=cpu", "trainer.threads=1", "trainer.precision=32-true", "head=ctc",
        "preprocess.size=[32,64]", "backbone=vit_micro", "backbone.patch=[32,4]", "backbone.dim=64", "backbone.depth=2",
        "backbone.heads=2", "backbone.keep_patches=1", "batch_size=16", "charset=36", "max_length=8", "augment.ops=0",
        "augment.warp=0", "label_smoothing=0", "optim.lr=3e-3", "val_every=100", "steps=200", "data.val_size=2",
        "data.train=[{path:words,weight:1},{path:blanks,weight:1}]", "run_dir=run",
    ]  # fmt: skip
    assert "no photographs at data/cifar10/train_images.npy" in run(options, tmp_path)
    model = vitocr.load(tmp_path / "run")
    walls = open_blanks(size=(32, 64), seed=5, photos=tmp_path / "none.npy", rows=60)
    assert sum(not reading.text for reading in model([walls.read(row).image for row in range(60)])) > 50
    read = [reading.text for reading in model([crop.image for crop in crops])]
    assert sum(text == crop.text for text, crop in zip(read, crops, strict=True)) > 20, "and still reads"
