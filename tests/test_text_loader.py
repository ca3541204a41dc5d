"""Batches of text: the same rows whatever they are kept in, whoever reads them, wherever reading is taken up."""

import io
import json
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from vitocr.codec import open_charset
from vitocr.data.commands import pack_data
from vitocr.data.text_loader import TextBatch, TextLoader, fit_row, spans_of
from vitocr.data.text_rows import Kept, Rendered, StoredRow, TextRow, TextSource, decode_row
from vitocr.data.text_sources import Mixture, open_source
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

PREPROCESS = Preprocess(size=(8, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
CHARSET = open_charset("36")


class Words:
    """Every image is of one grey, the number of its row; every word says the same number."""

    def __init__(self, count: int, *, first: int = 0, name: str = "words", texts=None, broken: tuple[int, ...] = ()):
        self.name, self.first, self.broken = name, first, broken
        self.texts = texts or [f"w{first + row}" for row in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def text(self, row: int) -> str:
        if not self.texts[row]:
            raise UserError(f"{self.name} row {row}: its label is empty")
        return self.texts[row]

    def stored(self, row: int) -> StoredRow:
        buffer = io.BytesIO()
        Image.new("RGB", (20, 10), (self.first + row,) * 3).save(buffer, "PNG")
        return StoredRow(b"junk" if row in self.broken else buffer.getvalue(), self.text(row), None)

    def read(self, row: int) -> TextRow:
        return decode_row(self.stored(row), f"{self.name} row {row}")

    def fingerprint(self) -> str:
        return self.name


def loader(data=None, **kwargs) -> TextLoader:
    given = {"charset": CHARSET, "max_length": 10, "preprocess": PREPROCESS, "batch_size": 4, "seed": 1}
    return TextLoader(Words(22) if data is None else data, **given | {"say": lambda _: None} | kwargs)


def same(left: list[TextBatch], right: list[TextBatch]) -> bool:
    return len(left) == len(right) and all(
        a.texts == b.texts
        and a.position == b.position
        and all(torch.equal(x.nan_to_num(-9), y.nan_to_num(-9)) for x, y in zip(a[:4], b[:4], strict=True))
        for a, b in zip(left, right, strict=True)
    )


def words(batches: list[TextBatch]) -> list[str]:
    return [text for batch in batches for text in batch.texts]


def test_a_batch_holds_images_ids_lengths_and_texts_of_the_same_rows():
    (batch,) = loader(Words(0, texts=["a", "bc1", "héé-llo"]), batch_size=3, shuffle=False)
    assert batch.images.dtype == torch.uint8 and batch.images.shape == (3, 8, 16, 3)
    assert (batch.images == torch.arange(3).view(3, 1, 1, 1)).all()
    assert batch.texts == ("a", "bc1", "héé-llo") and batch.lengths.tolist() == [1, 3, 4]
    assert batch.ids.tolist() == [[10, -1, -1, -1], [11, 12, 1, -1], [17, 21, 21, 24]]
    assert batch.spans.shape == (3, 4, 2) and batch.spans.isnan().all()


def test_an_epoch_shows_every_row_once_in_an_order_of_its_own():
    batches = loader(batch_size=11)
    first, second = words(list(batches)), words(list(batches))
    assert sorted(first) == sorted(second) == sorted(f"w{row}" for row in range(22)) and first != second


@pytest.mark.parametrize("position", [0, 3, 5, 12])
def test_from_any_position_come_the_batches_of_an_uninterrupted_run(position):
    data = Mixture([Words(15), Words(7, first=50)], [1, 1], seed=3)
    whole, resumed = loader(data), loader(data)
    expected = [batch for _ in range(3) for batch in whole]
    resumed.load_state_dict({"position": position})
    assert [batch.position for batch in expected] == list(range(15))
    assert same([batch for _ in range(3 - position // 5) for batch in resumed], expected[position:])


def test_the_state_holds_the_position_behind_the_last_batch_given_out():
    batches = loader()
    seen = list(islice(batches, 3))
    assert batches.state_dict() == {"position": 3} and len(seen) == 3 and len(batches) == 5


@pytest.mark.parametrize("broken", [(), (4,)])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_read_what_one_process_reads(world, broken):
    data = Words(22, broken=broken)
    ranks = [list(loader(data, rank=rank, world=world)) for rank in range(world)]
    together = [[text for part in parts for text in part.texts] for parts in zip(*ranks, strict=True)]
    assert together == [list(batch.texts) for batch in loader(data)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_the_number_of_workers_changes_nothing(tmp_path):
    pack_data_of(Words(22), tmp_path)  # an LMDB, which each worker must open for itself
    alone, helped = loader(open_source(tmp_path)), loader(open_source(tmp_path), workers=2)
    for _ in range(2):  # workers live on into the next epoch
        assert same(list(alone), list(helped))


def pack_data_of(source, out):
    from vitocr.data.lmdb_store import pack

    return pack(source, out, say=lambda _: None)


def test_folder_csv_jsonl_and_lmdb_of_the_same_data_give_identical_batches(tmp_path):
    source = Words(12)
    for kind in ("tsv", "csv", "jsonl"):
        (tmp_path / kind).mkdir()
        lines = []
        for row in range(len(source)):
            (tmp_path / kind / f"{row}.png").write_bytes(source.stored(row).image)
            cells = [f"{row}.png", source.text(row)]
            lines.append(
                json.dumps({"image": cells[0], "text": cells[1]})
                if kind == "jsonl"
                else {"tsv": "\t", "csv": ","}[kind].join(cells)
            )
        (tmp_path / kind / f"labels.{kind}").write_text("\n".join(lines))
    pack_data([tmp_path / "csv"], tmp_path / "lmdb", say=lambda _: None)
    batches = {kind: list(loader(Mixture([open_source(tmp_path / kind)]))) for kind in ("tsv", "csv", "jsonl", "lmdb")}
    assert len(batches["tsv"]) == 3
    assert all(same(batches["tsv"], other) for other in batches.values())


def test_evaluation_sees_every_row_once_in_order_and_across_ranks():
    assert words(list(loader(shuffle=False, drop_last=False))) == [f"w{row}" for row in range(22)]
    ranks = [loader(shuffle=False, drop_last=False, rank=rank, world=4) for rank in range(4)]
    assert sorted(words([batch for rank in ranks for batch in rank])) == sorted(f"w{row}" for row in range(22))
    assert words(list(ranks[0])) == words(list(ranks[0]))  # every pass starts anew


def test_a_broken_image_is_replaced_from_its_batch_in_training_and_left_out_in_evaluation():
    said: list[str] = []
    training = loader(Words(20, broken=(7,)), say=said.append)
    seen = [words(list(training)) for _ in range(2)]
    assert all(len(epoch) == 20 and "w7" not in epoch for epoch in seen)
    assert len(said) == 1 and "words row 7" in said[0] and list(training.bad[0].why) == [7]
    evaluation = loader(Words(20, broken=(7,)), shuffle=False, drop_last=False)
    assert words(list(evaluation)) == [f"w{row}" for row in range(20) if row != 7]


def test_a_row_whose_label_cannot_be_read_is_known_before_the_first_batch():
    said: list[str] = []
    batches = loader(Words(0, texts=["a", "", "b", "c", "d"]), say=said.append)
    assert len(said) == 1 and "row 1: its label is empty" in said[0]
    assert sorted(words(list(batches))) == ["a", "b", "c", "d"]


def test_too_many_broken_rows_of_one_source_are_an_error_however_many_good_ones_others_have():
    data = Mixture([Words(200, name="good"), Words(20, first=200, name="bad", broken=(3, 4))])
    with pytest.raises(UserError, match=r"2 of 20 images cannot be read"):
        list(loader(data, batch_size=20))


def test_bad_rows_are_named_by_their_place_in_the_source_even_if_others_were_left_out_before():
    texts = ["far too long a text for it", *(f"w{row}" for row in range(1, 20))]
    batches = loader(Words(0, texts=texts, broken=(7,)), batch_size=19)
    list(batches)
    assert list(batches.bad[0].why) == [7]


def test_long_texts_are_left_out_of_training_and_whole_in_evaluation_and_said_in_both():
    texts = ["short", "abcdefghijkl", "word"]
    said: list[str] = []
    training = loader(Words(0, texts=texts), batch_size=2, say=said.append)
    assert sorted(words(list(training))) == ["short", "word"]
    assert said == ["words: 1 of 3 labels are longer than 10 characters and are not trained on (as in 'abcdefghijkl')"]
    (batch,) = loader(Words(0, texts=texts), batch_size=3, shuffle=False, say=said.append)
    assert batch.texts == tuple(texts) and batch.lengths.tolist() == [5, 12, 4] and batch.ids.shape == (3, 12)
    assert "will count as misread" in said[1]


def test_labels_the_charset_cannot_hold_are_reported_once_and_those_without_a_rest_not_trained_on():
    said: list[str] = []
    batches = loader(Words(0, texts=["it's", "Ok", "한글", "fine"]), batch_size=3, say=said.append)
    for _ in range(2):
        assert sorted(words(list(batches))) == ["Ok", "fine", "it's"]
    assert len(said) == 3 and batches.reports["words"].touched == {"dropped": 2, "folded": 1, "nothing left": 1}


def test_a_source_of_which_nothing_can_be_learned_is_refused():
    with pytest.raises(UserError, match="none of its 2 rows can be trained on"):
        loader(Words(0, texts=["한글", "글"]), batch_size=1)


def test_a_mixture_keeps_its_weights_when_rows_are_left_out():
    texts = [f"w{row}" for row in range(50)] + ["far too long a text for it"] * 50
    batches = loader(Mixture([Words(0, texts=texts), Words(50, first=100)], [1, 4], seed=1), batch_size=100)
    (batch,) = batches
    assert sum(int(text[1:]) < 100 for text in batch.texts) == 20


def rendered(text: str = "a-bc") -> Rendered:
    boxes = np.array([[2, 1, 6, 9], [6, 4, 8, 5], [8, 1, 14, 9], [15, 1, 20, 9]], np.float32)
    image = np.zeros((10, 20, 3), np.uint8)
    return Rendered(
        lambda index: SimpleNamespace(image=image, text=text if index != 3 else "-", boxes=boxes[-len(text) :]), 40
    )


def test_boxes_become_spans_of_the_characters_that_are_kept():
    batch = next(iter(loader(rendered(), batch_size=2)))
    assert batch.ids[0].tolist() == [10, 11, 12]
    assert torch.allclose(batch.spans[0], torch.tensor([[0.1, 0.3], [0.4, 0.7], [0.75, 1.0]]))


def test_rows_that_are_only_known_once_rendered_are_checked_then():
    batches = loader(rendered("a"), batch_size=40, say=(said := []).append)
    (batch,) = batches
    assert set(batch.texts) == {"a"} and len(batch.texts) == 40
    assert len(said) == 1 and "row 4: '-' has 0 characters" in said[0]


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("size", [(40, 100), (40, 50), (30, 120)])
def test_spans_lie_where_the_preprocessing_puts_the_character(resize, size):
    """A white bar stands for the character: its edges are looked for in the resized image."""
    image = np.zeros((*size, 3), np.uint8)
    left, right = round(0.4 * size[1]), round(0.6 * size[1])
    image[:, left:right] = 255
    preprocess = Preprocess(size=(64, 256), mean=(0.0,) * 3, std=(0.5,) * 3, resize=resize)
    bright = np.flatnonzero(preprocess.fit(image)[32, :, 0] > 127)
    span = spans_of(np.array([[left, 0, right, size[0]]], np.float32), size=size, preprocess=preprocess)
    assert span.shape == (1, 2) and span.dtype == np.float32
    assert np.abs(span[0] * 256 - [bright[0], bright[-1] + 1]).max() <= 1.5


def test_spans_stay_inside_the_image():
    span = spans_of(np.array([[-3, 0, 30, 9]], np.float32), size=(10, 20), preprocess=PREPROCESS)
    assert span.tolist() == [[0.0, 1.0]]


def test_real_types_of_paths_open_as_a_mixture(tmp_path: Path):
    pack_data_of(Words(6), tmp_path / "a")
    pack_data_of(Words(6, first=6), tmp_path / "b")
    data = Mixture([open_source(tmp_path / name) for name in "ab"], [0.5, 0.5], seed=1)
    assert sorted(words(list(loader(data)))) == sorted(f"w{row}" for row in range(12))


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_kept_rows_are_read_once_and_make_the_same_batches(resize):
    preprocess = Preprocess((16, 64), (0.5,) * 3, (0.25,) * 3, resize=resize)
    reads: list[int] = []

    def render(index: int) -> SimpleNamespace:
        reads.append(index)
        image = np.random.default_rng(index).integers(0, 255, (20, 50 + index, 3), dtype=np.uint8)
        return SimpleNamespace(image=image, text="ab", boxes=np.array([[5, 2, 20, 18], [22, 2, 45, 18]], np.float32))

    def batches(source: TextSource) -> list[TextBatch]:
        charset = open_charset("36")
        loader = TextLoader(source, charset=charset, max_length=5, preprocess=preprocess, batch_size=4)
        return list(islice(loader, 2)) + list(islice(loader, 2))

    plain = batches(Rendered(render, 8))
    assert len(reads) > 8
    reads.clear()
    kept = batches(Kept(Rendered(render, 8), partial(fit_row, preprocess=preprocess)))
    assert sorted(reads) == list(range(8))
    for one, other in zip(plain, kept, strict=True):
        assert torch.equal(one.images, other.images) and torch.allclose(one.spans, other.spans, atol=1e-5)
    reads.clear()
    small = Kept(Rendered(render, 8), partial(fit_row, preprocess=preprocess), most_bytes=3 * 16 * 64 * 3)
    for _ in range(2):
        for row in range(8):
            small.read(row)
    assert len(reads) == 8 + 5  # three had room


def test_rows_read_ahead_are_there_and_broken_ones_wait_until_they_are_drawn() -> None:
    def render(index: int) -> SimpleNamespace:
        reads.append(index)
        if index == 2:
            raise UserError("row 2: broken")
        return SimpleNamespace(image=np.zeros((16, 64, 3), np.uint8), text="ab", boxes=None)

    reads: list[int] = []
    kept = Kept(Rendered(render, 4), lambda row: row)
    kept.read_ahead(range(4))
    assert reads == [0, 1, 2, 3]
    kept.read(1)
    assert reads == [0, 1, 2, 3]
    with pytest.raises(UserError, match="row 2: broken"):
        kept.read(2)
