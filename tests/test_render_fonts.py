"""A font is used for the characters it has and no others; fetching keeps what is complete."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import matplotlib
import pytest

from vitocr.data.render.fetch import families_by_look, fetch_fonts, unpack_family
from vitocr.data.render.fonts import CAPITAL_HEIGHT, Font, FontBook, FontFile, find_fonts
from vitocr.errors import UserError

DEJAVU = Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def font(name: str, **options: str) -> Font:
    return Font(FontFile(name, options.get("family", "dejavu"), DEJAVU / name))


def test_a_font_knows_which_characters_it_lacks() -> None:
    sans = font("DejaVuSans.ttf")
    assert sans.has("Hello, World! 123")
    assert sans.has("é€")
    assert not sans.has("가")
    assert not sans.has("A\U0001f9ff")
    assert not font("DejaVuSansDisplay.ttf").has("A")  # a font of a few symbols


def test_a_text_never_gets_a_font_that_lacks_a_character_of_it() -> None:
    book = FontBook([FontFile(name, name, DEJAVU / name) for name in ("DejaVuSans.ttf", "DejaVuSansDisplay.ttf")])
    rng = random.Random(0)
    assert {found.file.name for _ in range(50) if (found := book.choose(rng, "word"))} == {"DejaVuSans.ttf"}
    assert book.choose(rng, "한글") is None


def test_capitals_of_all_fonts_are_about_as_high() -> None:
    for name in ("DejaVuSans.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSansMono.ttf"):
        glyph = font(name).glyph("H")
        assert glyph is not None and abs(glyph.mask.shape[0] - CAPITAL_HEIGHT) <= 2


def test_a_font_whose_small_letters_are_capitals_is_recognised() -> None:
    assert not font("DejaVuSans.ttf").capitals_only
    assert not font("DejaVuSerif-Italic.ttf").capitals_only
    assert font("DejaVuSans.ttf", family="amatic-sc").capitals_only  # known by name
    drawn = font("DejaVuSans.ttf")
    for letter in "aegrbdqt":  # a font that maps small letters to the capitals' outlines
        drawn._glyphs[letter] = drawn.glyph(letter.upper())
    assert drawn.capitals_only


def test_fonts_are_found_in_folders_and_symbol_fonts_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "some-family").mkdir()
    for name in ("DejaVuSans.ttf", "STIXGeneral.ttf"):
        (tmp_path / "some-family" / name).write_bytes((DEJAVU / name).read_bytes())
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    files = find_fonts([tmp_path], packages=False)
    assert [(file.name, file.family) for file in files] == [("DejaVuSans.ttf", "some-family"), ("broken.ttf", "broken")]
    rng = random.Random(0)
    assert {found.file.name for _ in range(30) if (found := FontBook(files).choose(rng, "ab"))} == {"DejaVuSans.ttf"}


def test_a_folder_without_fonts_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vitocr data fonts"):
        find_fonts([tmp_path])
    with pytest.raises(UserError, match="does not exist"):
        find_fonts([tmp_path / "absent"])
    with pytest.raises(UserError, match="no fonts"):
        FontBook([])


def package(path: Path, family: str, faces: list[str], *, weights: list[int], styles: list[str]) -> Path:
    about = json.dumps({"weights": weights, "styles": styles}).encode()
    files = {"package/metadata.json": about, "package/LICENSE": b"OFL"}
    files |= {f"package/files/{family}-{face}.woff2": face.encode() for face in faces}
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_of_a_family_regular_bold_heaviest_and_an_italic_are_kept(tmp_path: Path) -> None:
    faces = [f"{part}-{weight}-{style}" for part in ("latin", "cyrillic") for weight in (100, 400, 700, 900)
             for style in ("normal", "italic")]  # fmt: skip
    archive = package(tmp_path / "a.tgz", "test", faces, weights=[100, 400, 700, 900], styles=["normal", "italic"])
    unpack_family(archive, "test", tmp_path)
    assert sorted(path.name for path in (tmp_path / "test").iterdir()) == [
        "LICENSE",
        "test-latin-400-italic.woff2",
        "test-latin-400-normal.woff2",
        "test-latin-700-normal.woff2",
        "test-latin-900-normal.woff2",
    ]


def test_a_family_without_a_usable_face_leaves_nothing_behind(tmp_path: Path) -> None:
    archive = package(tmp_path / "a.tgz", "test", ["greek-400-normal"], weights=[400], styles=["normal"])
    with pytest.raises(ValueError, match="no latin face"):
        unpack_family(archive, "test", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tgz"]


def test_families_already_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/no/npm/at/all")
    (tmp_path / "lato").mkdir()
    said: list[str] = []
    assert fetch_fonts(tmp_path, ["lato"], say=said.append) == [tmp_path / "lato"]
    assert "1 of 1" in said[0]


def test_fetching_without_npm_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"Node\.js"):
        fetch_fonts(tmp_path, ["lato"])


def test_the_list_of_families_is_long_and_names_no_family_twice() -> None:
    looks = families_by_look()
    names = [name for look, families in looks.items() if look != "korean" for name in families]
    assert len(names) > 250
    assert len(names) == len(set(names))
    assert "nanum-gothic" in looks["korean"]
