"""LMDBs as the field's archives hold them, and packing ones that can be interrupted and are checked."""

import contextlib
import io
import multiprocessing
import os
import pickle
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from vitocr.data import lmdb_store
from vitocr.data.lmdb_store import LmdbSource, pack
from vitocr.data.text_rows import StoredRow, TextRow, decode_row, fingerprint
from vitocr.data.text_sources import open_source
from vitocr.errors import UserError


def jpeg(number: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (8, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG" if number % 2 else "PNG")
    return buffer.getvalue()


def foreign(path: Path, rows: list[tuple[bytes | None, bytes | None]], count: bytes | None = None) -> Path:
    """An LMDB as clovaai's script writes it."""
    path.mkdir(parents=True)
    with lmdb.open(str(path), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        for number, (image, label) in enumerate(rows, 1):
            if image is not None:
                transaction.put(b"image-%09d" % number, image)
            if label is not None:
                transaction.put(b"label-%09d" % number, label)
        transaction.put(b"num-samples", count or str(len(rows)).encode())
    return path


class Memory:
    """A source that can be made to fail. Its broken rows are those without an image."""

    name = "memory"

    def __init__(self, count: int, broken: tuple[int, ...] = (), stop_at: int | None = None) -> None:
        self.count, self.broken, self.stop_at = count, broken, stop_at
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def text(self, row: int) -> str:
        return f"word {row} 한글"

    def stored(self, row: int) -> StoredRow:
        self.asked.append(row)
        if self.stop_at == row:
            raise KeyboardInterrupt
        boxes = np.full((len(self.text(row)), 4), row, np.float32) if row % 3 == 0 else None
        return StoredRow(b"" if row in self.broken else jpeg(row), self.text(row), boxes)

    def read(self, row: int) -> TextRow:
        return decode_row(self.stored(row), f"row {row}")

    def fingerprint(self) -> str:
        return f"memory of {self.count}"


@pytest.fixture
def small_transactions(monkeypatch) -> None:
    monkeypatch.setattr(lmdb_store, "ROWS_A_TRANSACTION", 4)


def silent(_: object) -> None: ...


def equal(row: StoredRow, other: StoredRow) -> bool:
    boxes = (row.boxes is None) == (other.boxes is None) and (
        row.boxes is None or np.array_equal(row.boxes, other.boxes)
    )
    return row.image == other.image and row.text == other.text and boxes


def test_rows_are_counted_from_one_in_the_file_and_from_zero_here(tmp_path):
    source = open_source(foreign(tmp_path / "db", [(jpeg(0), b"first"), (jpeg(1), "둘째".encode())]))
    assert len(source) == 2 and source.name == "db"
    assert source.text(0) == "first" and source.read(1).text == "둘째" and source.stored(1).image == jpeg(1)
    assert source.read(0).boxes is None and source.read(0).image.shape == (8, 16, 3)


def test_nested_folders_of_lmdbs_are_one_source(tmp_path):
    for name, words in {"MJ/train": "ab", "MJ/test": "c", "ST": "de"}.items():
        foreign(tmp_path / "all" / name, [(jpeg(0), word.encode()) for word in words])
    source = open_source(tmp_path / "all")
    assert "".join(source.read(i).text for i in range(len(source))) == "cabde"
    assert "".join(str(source.text(i)) for i in range(5)) == "cabde"


def test_the_same_lmdb_opens_twice_and_by_two_names(tmp_path):
    path = foreign(tmp_path / "db", [(jpeg(0), b"word")])
    (tmp_path / "link").symlink_to(path)
    sources = [LmdbSource(path), LmdbSource(path), LmdbSource(tmp_path / "link")]
    assert [source.read(0).text for source in sources] == ["word"] * 3


def read_and_say_who_opened(source: LmdbSource) -> tuple[str, bool]:
    return source.read(0).text, lmdb_store._open[source.path][0] == os.getpid()


def test_a_source_opens_its_file_anew_in_every_process(tmp_path):
    source = LmdbSource(foreign(tmp_path / "db", [(jpeg(0), b"word")]))
    assert source.read(0).text == "word"  # so that the parent has it open
    assert pickle.loads(pickle.dumps(source)).read(0).text == "word"
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(read_and_say_who_opened, [source]) == [("word", True)]
    assert source.read(0).text == "word"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ((b"no image", b"word"), r"row 2: its image cannot be decoded"),
        ((jpeg(1)[:200], b"word"), r"row 2: its image cannot be decoded"),
        ((b"", b"word"), r"row 2: its image cannot be decoded: it is empty"),
        ((None, b"word"), r"row 2: there is no image-000000002"),
        ((jpeg(1), None), r"row 2: there is no label-000000002"),
        ((jpeg(1), b""), r"row 2: its label is empty"),
        ((jpeg(1), b"\xff"), r"row 2: its label is not in UTF-8: b'\\xff'"),
    ],
)
def test_a_broken_row_is_named_and_harms_no_other(tmp_path, row, complaint):
    source = LmdbSource(foreign(tmp_path / "db", [(jpeg(0), b"a"), row, (jpeg(2), b"c")]))
    with pytest.raises(UserError, match=complaint):
        source.read(1)
    assert source.read(0).text == "a" and source.read(2).text == "c"


def test_an_lmdb_without_a_text_data_set_is_refused(tmp_path):
    foreign(tmp_path / "db", [], count=b"many")
    with pytest.raises(UserError, match="num-samples=b'many', which is not a number"):
        open_source(tmp_path / "db")
    (tmp_path / "other").mkdir()
    lmdb.open(str(tmp_path / "other"), map_size=1 << 20).close()
    with pytest.raises(UserError, match="no key num-samples"):
        open_source(tmp_path / "other")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/data.mdb").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="cannot be opened"):
        open_source(tmp_path / "torn")


@pytest.mark.usefixtures("small_transactions")
def test_what_is_packed_comes_back_byte_for_byte_in_the_fields_own_layout(tmp_path):
    source = Memory(11)
    packed = pack(source, tmp_path / "out", say=silent)
    assert len(packed) == 11 and all(equal(packed.stored(i), source.stored(i)) for i in range(11))
    assert fingerprint(packed) == fingerprint(source)
    lmdb_store._close(packed.path)
    with lmdb.open(packed.path, readonly=True) as environment, environment.begin() as transaction:
        assert transaction.get(b"num-samples") == b"11"
        assert transaction.get(b"image-000000001") == jpeg(0)
        assert transaction.get(b"label-000000011") == "word 10 한글".encode()


@pytest.mark.usefixtures("small_transactions")
def test_broken_rows_are_named_and_left_out_and_the_others_close_up(tmp_path):
    said: list[str] = []
    packed = pack(Memory(40, broken=(1, 7)), tmp_path / "out", say=said.append)
    assert [packed.text(i).split()[1] for i in range(3)] == ["0", "2", "3"] and len(packed) == 38
    assert sum("Skipped" in line for line in said) == 2 and "row 2 of memory" in said[0]


def test_a_source_with_too_many_broken_rows_is_not_packed(tmp_path):
    with pytest.raises(UserError, match="3 of 40"):
        pack(Memory(40, broken=(1, 7, 8)), tmp_path / "out", say=silent)


@pytest.mark.usefixtures("small_transactions")
def test_an_interrupted_pack_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pack(Memory(20, broken=(2,), stop_at=10), tmp_path / "out", say=silent)
    with pytest.raises(UserError, match="was interrupted: run the same"):
        open_source(tmp_path / "out")
    source, said = Memory(20, broken=(2,)), []
    packed = pack(source, tmp_path / "out", say=said.append)
    assert source.asked == list(range(8, 20))  # whole transactions were kept
    assert "8 of 20 rows are there" in said[0]
    whole = pack(Memory(20, broken=(2,)), tmp_path / "whole", say=silent)
    assert len(packed) == 19 and all(equal(packed.stored(i), whole.stored(i)) for i in range(19))


@pytest.mark.usefixtures("small_transactions")
def test_packing_again_what_is_packed_only_checks_it(tmp_path):
    pack(Memory(9), tmp_path / "out", say=silent)
    again = Memory(9)
    assert len(pack(again, tmp_path / "out", say=silent)) == 9 and again.asked == []


@pytest.mark.usefixtures("small_transactions")
@pytest.mark.parametrize("stop_at", [None, 6])
def test_damage_to_what_was_packed_is_found(tmp_path, stop_at):
    with contextlib.suppress(KeyboardInterrupt):
        pack(Memory(9, stop_at=stop_at), tmp_path / "out", say=silent)
    lmdb_store._close(os.path.realpath(tmp_path / "out"))
    with (
        lmdb.open(str(tmp_path / "out"), map_size=1 << 26) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"label-000000002", b"other")
    with pytest.raises(UserError, match="its rows are not those packed"):
        pack(Memory(9), tmp_path / "out", say=silent)


def test_another_source_is_not_packed_on_top(tmp_path):
    pack(Memory(9), tmp_path / "out", say=silent)
    with pytest.raises(UserError, match="holds rows of another source"):
        pack(Memory(10), tmp_path / "out", say=silent)
    foreign(tmp_path / "theirs", [(jpeg(0), b"a")])
    with pytest.raises(UserError, match="not made by `pack`"):
        pack(Memory(9), tmp_path / "theirs", say=silent)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/thesis.txt").touch()
    with pytest.raises(UserError, match="Choose a new folder"):
        pack(Memory(9), tmp_path / "docs", say=silent)


def test_the_file_grows_with_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_store, "FIRST_MAP_BYTES", 1 << 15)
    packed = pack(Memory(60), tmp_path / "out", say=silent)
    assert len(packed) == 60 and os.path.getsize(tmp_path / "out/data.mdb") > 1 << 15


@pytest.mark.usefixtures("small_transactions")
def test_progress_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_store, "SAY_EVERY_SECONDS", 0.0)
    said: list[str] = []
    pack(Memory(9), tmp_path / "out", say=said.append)
    assert said[0].startswith("packed 4 of 9 rows (") and said[-1].endswith("9 rows, written and verified.")


@pytest.mark.skipif("VITOCR_STR_DATA" not in os.environ, reason="VITOCR_STR_DATA names no folder of real crops")
def test_real_crops_stay_what_they_are(tmp_path):
    source = open_source(Path(os.environ["VITOCR_STR_DATA"]) / "SVT_train")
    packed = pack(source, tmp_path / "out", say=silent)
    assert len(packed) == len(source) and packed.fingerprint() == source.fingerprint()
    assert all(equal(packed.stored(i), source.stored(i)) for i in range(len(source)))
