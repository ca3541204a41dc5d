"""Folders of files answered into one output, which a kill at any moment leaves fit to go on with."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vitocr import output
from vitocr.commands.predict_files import Form, predict_files
from vitocr.commands.unfinished import Tally, key
from vitocr.errors import UserError
from vitocr.results import Failure, Label, Reading

NAMES = ["a.png", 'quoted "b", c.png', "two\nlines.png", "고양이.png", "torn.png", "odd\udcff.png", "d.png", "e.png"]
WITH = {"model": "0123", "precision": "fp32"}


class Echo:
    """Reads out of every file the name of it."""

    reads_text = True
    threshold = 0.0
    classes: tuple[str, ...] = ()

    def __init__(self, *, dies_after: int | None = None) -> None:
        self.dies_after = dies_after
        self.asked: list[str] = []

    def stream(self, names: Iterable[str], **options: Any) -> Iterator[Reading | Failure]:
        for number, name in enumerate(names):
            if number == self.dies_after:
                raise KeyboardInterrupt
            self.asked.append(name)
            torn = name.startswith("torn")
            yield Failure(name, f"{name!r} is torn") if torn else Reading(name[:1].upper(), 0.75, (), name)


class EchoOfClasses(Echo):
    reads_text = False
    classes = ("cat", "dog", "cow")

    def stream(self, names: Iterable[str], **options: Any) -> Iterator[Label]:  # type: ignore[override]
        for name in names:
            yield Label("cat", 0.7, (("cat", 0.7), ("dog", 0.2), ("cow", 0.1))[: options["top_k"]], 0, name)


def answer(
    out: Path, form: Form = "csv", *, echo: Echo | None = None, names: list[str] = NAMES, **options: Any
) -> Tally:
    return predict_files(echo or Echo(), names, form=form, out=out, **{"made_with": WITH, **options})  # type: ignore[arg-type]


def note_of(out: Path) -> Path:
    return out.with_name(out.name + ".unfinished")


def sources_in(out: Path, form: Form) -> list[str]:
    text = out.read_bytes().decode()
    if form == "csv":
        return [row["source"] for row in csv.DictReader(io.StringIO(text, newline=""))]
    return [key(json.loads(line)["source"]) for line in text.splitlines()]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_killed_at_any_byte_it_goes_on_to_the_same_file(form: Form, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    answer(whole, form)
    content = whole.read_bytes()
    assert sources_in(whole, form) == [key(name) for name in NAMES]
    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path / "killed", form, echo=Echo(dies_after=3))
    note = note_of(tmp_path / "killed").read_text()

    out = tmp_path / "out"
    for cut in range(len(content) + 1):
        out.write_bytes(content[:cut])
        note_of(out).write_text(note)
        echo = Echo()
        tally = answer(out, form, echo=echo)
        assert out.read_bytes() == content, cut
        assert (tally.answered, tally.failed, len(tally.named)) == (len(NAMES), 1, 1)
        assert len(echo.asked) <= len(NAMES) - max(content[:cut].count(b".png\n"), 0)
        assert not note_of(out).exists()


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        answer(out, echo=Echo(dies_after=5))
    echo = Echo()
    answer(out, echo=echo)
    assert echo.asked == NAMES[5:]


def test_a_finished_file_is_not_overwritten_unless_one_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    answer(out, names=NAMES[:3])
    before = out.read_bytes()
    with pytest.raises(UserError, match=r"out\.csv is there already\. --overwrite .* --resume adds what it lacks"):
        answer(out)
    assert out.read_bytes() == before
    echo = Echo()
    answer(out, echo=echo, resume=True)
    assert echo.asked == NAMES[3:] and sources_in(out, "csv") == [key(name) for name in NAMES]
    answer(out, names=NAMES[:1], overwrite=True)
    assert sources_in(out, "csv") == NAMES[:1]


def test_an_empty_file_may_be_filled(tmp_path: Path) -> None:
    out = tmp_path / "made by mktemp"
    out.touch()
    assert answer(out).answered == len(NAMES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"made_with": {"model": "4567", "precision": "fp32"}}, "model was '0123', now '4567'"),
        ({"any_rotation": True}, "any_rotation was None, now True"),
        ({"form": "json"}, "form was 'csv', now 'json'"),
        ({"threshold": 0.5}, "threshold was None, now 0.5"),
    ],
)
def test_answers_of_another_kind_are_not_added_to_a_file(changes: Any, message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        answer(out, echo=Echo(dies_after=3))
    before = out.read_bytes()
    with pytest.raises(UserError, match=message):
        answer(out, **changes)
    assert out.read_bytes() == before
    assert answer(out).answered == len(NAMES)  # the command as it was


@pytest.mark.parametrize(
    ("content", "form", "message"),
    [
        ("dear diary", "csv", "entry 1 has no end"),
        ("dear diary\n", "csv", r"entry 1 \(the heading\) is not source,text,confidence,error"),
        ("dear diary\n", "json", "entry 1 is no JSON object with a source"),
        ("source,text,confidence,error\na.png,A\n", "csv", "entry 2 has 2 of 4 columns"),
        ('{"source": "a.png", "name": "cat"}\n', "json", "entry 1 has no text"),
    ],
)
def test_what_somebody_else_wrote_stays_as_it_is(content: str, form: Form, message: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text(content)
    with pytest.raises(UserError, match=message):
        answer(out, form, resume=True)
    assert out.read_text() == content


def test_lines_for_people_are_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with pytest.raises(UserError, match="--resume goes on with what a program can read again"):
        answer(out, "lines", resume=True)
    answer(out, "lines", names=["a.png"])
    assert "A" in out.read_text()
    with pytest.raises(UserError, match="--overwrite writes it anew"):
        answer(out, "lines")


def test_failures_are_counted_and_a_few_are_kept_to_be_named(tmp_path: Path) -> None:
    names = [f"torn{n}.png" for n in range(20)] + ["a.png"]
    tally = answer(tmp_path / "out.json", "json", names=names)
    assert (tally.answered, tally.failed) == (21, 20)
    assert tally.named == [f"'torn{n}.png' is torn" for n in range(5)]


# --- what is written ------------------------------------------------------------------------------------


def test_a_csv_has_the_columns_of_what_was_asked(tmp_path: Path) -> None:
    def heading(**options: Any) -> str:
        answer(tmp_path / "out.csv", names=["a.png"], overwrite=True, **options)
        return (tmp_path / "out.csv").read_text().splitlines()[0]

    assert heading() == "source,text,confidence,error"
    assert heading(any_rotation=True) == "source,text,confidence,rotation,error"
    assert heading(threshold=0.5) == "source,text,confidence,guess,error"
    assert heading(n_best=2, match="A+") == "source,text,confidence,text2,confidence2,matched,error"
    assert heading(echo=EchoOfClasses(), top_k=2) == "source,name,confidence,name2,confidence2,error"


def test_every_form_says_what_became_of_a_picture() -> None:
    told = [
        Reading("word", 0.9, (), "a.png", rotation=90, alternatives=(("word", 0.9), ("ward", 0.08))),
        Reading("", 0.2, (), "b.png", guess="wrod"),
        Reading("", 0.0, (), "c.png", unmatched=True),
        Reading("", 0.97, (), "d.png"),
    ]
    people, table, lines = io.StringIO(), io.StringIO(), io.StringIO()
    columns = output.reading_columns(n_best=2, rotation=True, guess=True, matched=True)
    for write in (
        output.human_writer(people, ["a.png"]),
        output.csv_writer(table, columns),
        output.json_writer(lines),
    ):
        for reading in told:
            write(reading)
    said = people.getvalue().splitlines()
    assert "word  (turned by 90°)  (ward 8.0%)" in said[0]
    assert "(nothing to read; perhaps 'wrod')" in said[1] and "(nothing to read)" in said[3]
    assert "(nothing that satisfies the constraint)" in said[2]
    rows = list(csv.DictReader(io.StringIO(table.getvalue())))
    assert [(row["text"], row["guess"], row["matched"]) for row in rows] == [
        ("word", "", "yes"), ("", "wrod", "yes"), ("", "", "no"), ("", "", "yes"),
    ]  # fmt: skip
    assert (rows[0]["rotation"], rows[0]["text2"], rows[0]["confidence2"]) == ("90", "ward", "0.080000")
    entries = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert entries[0]["rotation"] == 90 and entries[0]["alternatives"][1] == {"text": "ward", "confidence": 0.08}
    assert entries[1]["guess"] == "wrod" and entries[2]["unmatched"] and not entries[3]["unmatched"]


# --- finding the files ----------------------------------------------------------------------------------


def test_folders_are_listed_by_name_whatever_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.PNG", "b/1.jpg", "b/notes.txt", "b.png", "a/x/deep.png", "c/.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("b/folder.png").mkdir()
    assert output.image_names(["."], {".png", ".jpg"}) == ["a/x/deep.png", "b/1.jpg", "b/2.PNG", "b.png"]
    assert output.image_names(["b/"], {".png", ".jpg"}) == ["b/1.jpg", "b/2.PNG"]
    assert output.image_names(["./b.png", "b.png", "absent.png"], {".png"}) == ["b.png", "absent.png"]


def test_listing_asks_no_file_of_a_large_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(50):
        (tmp_path / f"{n:02}.png").touch()
    asked = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: asked.append(path) or real(path, **more))
    assert len(output.image_names([str(tmp_path)], {".png"})) == 50
    assert len(asked) < 10
