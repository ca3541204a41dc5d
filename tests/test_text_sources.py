"""Text data from tables, arrays and folders of them: the same rows whatever they are kept in, and clear complaints."""

import json
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitocr.data.commands import look_at, pack_data
from vitocr.data.text_rows import Concat, Rendered, Subset, TextRow, hold_out
from vitocr.data.text_sources import Mixture, open_source, parse_entries
from vitocr.errors import UserError

WORDS = ("Hello", "한글", 'say "hi"', "1,000", "  a b", "'", "#tag")


def image(number: int, size: tuple[int, int] = (20, 9)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(number).integers(0, 255, (*size[::-1], 3), dtype=np.uint8))


def crops(root: Path, words=WORDS, kind: str = "tsv", heading: bool = False) -> Path:
    """A folder of crops with their labels in the format `kind`; the second crop is a JPEG."""
    (root / "images").mkdir(parents=True)
    rows = []
    for number, word in enumerate(words):
        path = f"images/{number}.{'jpg' if number == 1 else 'png'}"
        image(number).save(root / path)
        rows.append((path, word))
    table(root, rows, kind, heading)
    return root


def table(root: Path, rows, kind: str, heading: bool = False) -> Path:
    quoted = {
        "tsv": lambda cells: "\t".join(cells),
        "csv": lambda cells: ",".join('"' + cell.replace('"', '""') + '"' for cell in cells),
        "jsonl": lambda cells: json.dumps(dict(zip(("image", "text"), cells, strict=True)), ensure_ascii=False),
    }[kind]
    lines = [quoted(row) for row in ([("image", "label")] if heading else []) + list(rows)]
    file = root / f"labels.{kind}"
    file.write_bytes(("\n".join(lines) + "\n").encode())
    return file


def same(left, right) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a.image, b.image)
        and a.text == b.text
        and (a.boxes is b.boxes is None or np.array_equal(a.boxes, b.boxes))
        for a, b in ((left.read(i), right.read(i)) for i in range(len(left)))
    )


@pytest.mark.parametrize("heading", [False, True])
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_labels_are_read_as_written_from_every_format(tmp_path, kind, heading):
    source = open_source(crops(tmp_path / "words", kind=kind, heading=heading and kind != "jsonl"))
    assert tuple(source.text(i) for i in range(len(source))) == WORDS
    assert [source.read(i).text for i in range(len(source))] == list(WORDS)
    assert source.name == "words" and source.read(0).boxes is None
    assert np.array_equal(source.read(0).image, np.asarray(image(0)))


def test_every_format_gives_the_same_rows_and_the_same_fingerprint(tmp_path):
    sources = [open_source(crops(tmp_path / kind, kind=kind)) for kind in ("tsv", "csv", "jsonl")]
    sources.append(pack_data([tmp_path / "csv"], tmp_path / "lmdb", say=lambda _: None))
    sources.append(open_source(tmp_path / "lmdb"))
    assert all(same(sources[0], other) for other in sources[1:])
    assert len({source.fingerprint() for source in sources}) == 1


def test_the_fingerprint_notices_another_label_and_another_image(tmp_path):
    before = open_source(crops(tmp_path)).fingerprint()
    image(99).save(tmp_path / "images/3.png")
    other_image = open_source(tmp_path).fingerprint()
    (tmp_path / "labels.tsv").write_text((tmp_path / "labels.tsv").read_text().replace("Hello", "Hallo"))
    assert len({before, other_image, open_source(tmp_path).fingerprint()}) == 3


def test_the_names_of_a_heading_decide_which_column_is_which(tmp_path):
    crops(tmp_path)
    (tmp_path / "labels.tsv").write_text("id\tText\tPath\n7\tword\timages/0.png\n")
    source = open_source(tmp_path)
    assert len(source) == 1 and source.text(0) == "word" and source.read(0).image.shape == (9, 20, 3)


def test_a_byte_order_mark_windows_line_ends_and_empty_lines_do_no_harm(tmp_path):
    crops(tmp_path)
    (tmp_path / "labels.tsv").write_bytes("\ufeffimages/0.png\tA\r\n\r\nimages/1.jpg\tB\r\n".encode())
    source = open_source(tmp_path)
    assert [source.text(i) for i in range(len(source))] == ["A", "B"]
    assert source.read(0).image.shape == (9, 20, 3)


def test_labels_are_nfc_whoever_wrote_them(tmp_path):
    source = open_source(crops(tmp_path, [unicodedata.normalize("NFD", "한글café")]))
    assert source.text(0) == source.read(0).text == "한글café"


def test_line_separators_inside_a_label_do_not_divide_it(tmp_path):
    assert open_source(crops(tmp_path, ["a\u2028b\x85c"])).text(0) == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("kind", "line", "complaint"),
    [
        ("tsv", b"images/1.jpg", r"labels\.tsv', line 2: expected 2 columns separated by a tab, not 1"),
        ("tsv", b"images/1.jpg\t", r"line 2: its label is empty"),
        ("tsv", b"\tword", r"line 2: the path of its image is empty"),
        ("tsv", b"images/1.jpg\t\xff\xfe", r"line 2: its label is not in UTF-8: b'\\xff\\xfe'"),
        ("csv", b"images/1.jpg,1,000", r"labels\.csv', line 2: expected 2 columns.*not 3.*quotation marks"),
        ("jsonl", b"{image: 1}", r"labels\.jsonl', line 2: not JSON"),
        ("jsonl", b"[1, 2]", r"line 2: expected an object"),
        ("jsonl", b'{"image": "images/1.jpg"}', r"line 2: has no 'text', only image"),
        ("jsonl", b'{"image": "images/1.jpg", "text": 5}', r"line 2: its label is not a text but 5"),
        ("jsonl", b'{"image": "images/1.jpg", "text": "ab", "boxes": [[1,2,3,4]]}', r"1 boxes for the 2 characters"),
        ("tsv", b"images/lost.png\tword", r"'images/lost\.png': there is no such image"),
        ("tsv", b"images\tword", r"'images': its image cannot be read"),
        ("tsv", b"labels.tsv\tword", r"image 'labels\.tsv': its image cannot be decoded"),
    ],
)
def test_a_broken_row_says_what_is_wrong_where_and_harms_no_other(tmp_path, kind, line, complaint):
    crops(tmp_path, WORDS[:3], kind)
    file = tmp_path / f"labels.{kind}"
    lines = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([lines[0], line, lines[2]]))
    source = open_source(tmp_path)
    assert len(source) == 3 and source.read(0).text == WORDS[0] and source.read(2).text == WORDS[2]
    with pytest.raises(UserError, match=complaint):
        source.read(1)


def test_a_truncated_image_is_named(tmp_path):
    crops(tmp_path)
    file = tmp_path / "images/1.jpg"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=r"labels\.tsv', image 'images/1\.jpg': its image cannot be decoded"):
        open_source(tmp_path).read(1)


def test_boxes_come_from_jsonl(tmp_path):
    crops(tmp_path, ["ab"], "jsonl")
    boxes = [[1, 2, 3, 4], [5, 6, 7, 8.5]]
    (tmp_path / "labels.jsonl").write_text(json.dumps({"image": "images/0.png", "text": "ab", "boxes": boxes}))
    assert open_source(tmp_path).read(0).boxes.tolist() == boxes
    packed = pack_data([tmp_path], tmp_path / "lmdb", say=lambda _: None)
    assert same(open_source(tmp_path / "labels.jsonl"), packed)


@pytest.mark.parametrize(
    ("make", "name", "complaint"),
    [
        (lambda root: crops(root / "words"), "wrods", r"no text data at .*Did you mean 'words'\?"),
        (lambda root: (root / "empty").mkdir(), "empty", r"expected labels\.tsv"),
        (lambda root: (root / "x.tar").touch(), "x.tar", "unpack it first"),
        (lambda root: (root / "x.xml").touch(), "x.xml", "not a table of labels"),
        (lambda root: (root / "labels.tsv").touch(), "labels.tsv", "has no rows"),
        (lambda root: (root / "labels.tsv").write_bytes("a\tb".encode("utf-16")), "labels.tsv", "in UTF-16"),
        (lambda root: table(crops(root / "two"), [("a", "b")], "csv"), "two", r"labels\.tsv and labels\.csv"),
        (lambda root: table(root, [("lost/1.png", "b")], "csv"), "labels.csv", r"None of the first 1 images.*lost/1"),
        (lambda root: (root / "labels.csv").write_text('a,"' + "x" * 200_000), "labels.csv", "line 1: not a CSV"),
    ],
)
def test_what_cannot_be_a_source_is_refused_with_a_hint(tmp_path, make, name, complaint):
    make(tmp_path)
    with pytest.raises(UserError, match=complaint):
        open_source(tmp_path / name)


def rows(count: int, start: int = 0) -> list[TextRow]:
    boxes = np.arange(8, dtype=np.float32).reshape(2, 4)
    return [
        TextRow(np.full((4, 6, 3), n % 256, np.uint8), f"{n:02}", boxes + n if n % 2 else None)
        for n in range(start, start + count)
    ]


def test_folders_of_sources_are_one_source_in_the_order_of_their_names(tmp_path):
    crops(tmp_path / "b", ["10", "11"])
    crops(tmp_path / "a/deep", ["00", "01", "02"])
    crops(tmp_path / "c", ["word"])
    pack_data([tmp_path / "c"], tmp_path / "d", say=lambda _: None)
    source = open_source(tmp_path)
    assert [source.read(i).text for i in range(7)] == ["00", "01", "02", "10", "11", "word", "word"]


def test_a_held_out_part_is_the_same_every_time_and_shares_nothing_with_the_rest(tmp_path):
    crops(tmp_path, [f"{n:02}" for n in range(20)])
    source = open_source(tmp_path)
    kept, held = hold_out(source, 5, seed=1)
    texts = [[part.text(i) for i in range(len(part))] for part in (kept, held)]
    assert len(held) == 5 and sorted(texts[0] + texts[1]) == [f"{n:02}" for n in range(20)]
    assert hold_out(source, 5, seed=1)[1].rows.tolist() == held.rows.tolist()
    assert hold_out(source, 5, seed=2)[1].rows.tolist() != held.rows.tolist()
    with pytest.raises(UserError, match="Cannot hold out 20 of the 20 rows"):
        hold_out(source, 20, seed=1)


def rendered(count: int, name: str = "render") -> Rendered:
    def render(index: int) -> SimpleNamespace:
        (row,) = rows(1, index)
        return SimpleNamespace(**row._asdict())

    return Rendered(render, count, name=name)


def test_rendered_rows_are_a_source_like_any_other(tmp_path):
    source = rendered(4)
    assert source.text(0) is None and source.read(3).text == "03"
    assert same(pack_data_of(source, tmp_path / "lmdb"), source)


def pack_data_of(source, out):
    from vitocr.data.lmdb_store import pack

    return pack(source, out, say=lambda _: None)


def test_a_mixture_gives_each_source_its_share_of_every_epoch():
    mixture = Mixture(
        *parse_entries([{"path": rendered(90, "a"), "weight": 3}, {"path": rendered(10, "b"), "weight": 1}]), seed=5
    )
    assert len(mixture) == 100
    for epoch in range(3):
        order = mixture.order(epoch)
        assert (order >= 90).sum() == 25 and order.max() < 100
        thirds = [(part >= 90).mean() for part in np.array_split(order, 3)]
        assert min(thirds) > 0.1  # mixed all through the epoch


def test_a_mixture_shows_every_row_of_a_source_once_before_any_twice():
    order = np.concatenate([Mixture([rendered(90), rendered(10)], [3, 1], seed=5).order(e) for e in range(4)])
    for low, high in ((0, 90), (90, 100)):
        mine = order[(order >= low) & (order < high)]
        for start in range(0, len(mine) - (high - low) + 1, high - low):
            assert sorted(mine[start : start + high - low]) == list(range(low, high))


def test_without_weights_every_row_comes_once_an_epoch():
    mixture = Mixture(*parse_entries([rendered(7), rendered(4)]))
    first, second = mixture.order(0), mixture.order(1)
    assert sorted(first) == sorted(second) == list(range(11)) and first.tolist() != second.tolist()


def test_the_order_of_a_mixture_depends_on_seed_and_epoch_alone():
    def order(seed: int, epoch: int) -> list[int]:
        return Mixture([rendered(30), rendered(20)], [1, 1], seed=seed).order(epoch).tolist()

    mixture = Mixture([rendered(30), rendered(20)], [1, 1], seed=1)
    assert mixture.order(3).tolist() == order(1, 3) and mixture.order(2).tolist() == order(1, 2)
    assert order(1, 3) != order(2, 3)


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([], "data.train is empty"),
        ([{"path": rendered(3), "weight": 1}, rendered(3)], "1 of 2 sources have a weight"),
        ([{"path": rendered(3), "weight": 0}], "positive"),
        ([{"path": rendered(3), "weight": "much"}], "'much', which is not a number"),
        ([{"path": rendered(3), "wieght": 1}], "wieght"),
        ([{"path": rendered(0), "weight": 1}], "no rows"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(entries, complaint):
    with pytest.raises(UserError, match=complaint):
        Mixture(*parse_entries(entries))


def test_concat_and_subset_read_the_rows_they_stand_for():
    both = Concat([rendered(3), rendered(2)], name="both")
    assert [both.read(i).text for i in range(5)] == ["00", "01", "02", "00", "01"]
    assert [Subset(both, np.array([4, 0])).read(i).text for i in range(2)] == ["01", "00"]


def test_looking_at_a_source_draws_a_sheet_of_readable_rows(tmp_path):
    pytest.importorskip("cv2")
    crops(tmp_path / "words")
    (tmp_path / "words/images/2.png").write_bytes(b"broken")
    said: list[str] = []
    shown = look_at(tmp_path / "words", tmp_path / "sheet.png", rows=4, columns=2, cell=(20, 40), say=said.append)
    assert [row.text for row in shown] == [WORDS[0], WORDS[1], WORDS[3], WORDS[4]]
    assert "images/2.png" in said[0]
    assert Image.open(tmp_path / "sheet.png").width > 80
