"""What the renderer promises: the same crop for the same (seed, index), true labels, and boxes around the ink."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import time
import unicodedata
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitocr.data.render import Crop, Effects, Renderer, RenderSpec, contact_sheet
from vitocr.data.render.fonts import find_fonts
from vitocr.data.render.words import WordSource
from vitocr.errors import UserError

PLAIN = Effects.none()


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(RenderSpec(seed=3))


def ink_of(crop: Crop) -> np.ndarray:
    """(H, W): how far each pixel is from the crop's most common colour, 0 to 1. For plain crops only."""
    pixels = crop.image.reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    distance = np.abs(crop.image.astype(int) - colours[counts.argmax()].astype(int)).sum(-1)
    return distance / distance.max()


def in_boxes(crop: Crop, *, slack: int = 1) -> np.ndarray:
    inside = np.zeros(crop.image.shape[:2], bool)
    for x0, y0, x1, y1 in crop.boxes:
        left, top = max(0, int(x0) - slack), max(0, int(y0) - slack)
        inside[top : int(np.ceil(y1)) + slack, left : int(np.ceil(x1)) + slack] = True
    return inside


def test_the_same_seed_and_index_give_the_same_crop_in_whatever_order(renderer: Renderer) -> None:
    forward = [renderer(index) for index in range(20)]
    for index in reversed(range(20)):
        again = renderer(index)
        assert again.text == forward[index].text
        np.testing.assert_array_equal(again.image, forward[index].image)
        np.testing.assert_array_equal(again.boxes, forward[index].boxes)


def test_another_process_renders_the_same_crop(renderer: Renderer) -> None:
    program = (
        "import zlib; from vitocr.data.render import Renderer, RenderSpec; r = Renderer(RenderSpec(seed=3))\n"
        "print([zlib.crc32(r(i).image.tobytes()) for i in (5, 2, 123456789)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([zlib.crc32(renderer(i).image.tobytes()) for i in (5, 2, 123456789)])


def test_crops_vary_and_seeds_differ(renderer: Renderer) -> None:
    crops = [renderer(index) for index in range(60)]
    assert len({crop.text for crop in crops}) > 50
    assert len({crop.image.tobytes() for crop in crops}) == 60
    other = Renderer(RenderSpec(seed=4))
    assert [other(index).text for index in range(20)] != [crop.text for crop in crops[:20]]


def test_a_stretched_crop_has_the_size_asked_for_and_a_natural_one_its_own_width() -> None:
    stretched = Renderer(RenderSpec(size=(24, 100)))
    natural = Renderer(RenderSpec(size=(24, 100), shape="natural"))
    assert {stretched(index).image.shape for index in range(10)} == {(24, 100, 3)}
    shapes = [natural(index).image.shape for index in range(20)]
    assert {shape[0] for shape in shapes} == {24}
    assert len({shape[1] for shape in shapes}) > 5
    words = sorted((natural(index) for index in range(60)), key=lambda crop: len(crop.text))
    assert words[0].image.shape[1] < words[-1].image.shape[1]


@pytest.mark.parametrize(
    "effects",
    [
        PLAIN,
        dataclasses.replace(PLAIN, rotate=1.0, perspective=1.0),
        dataclasses.replace(PLAIN, curve=1.0, strong_curve=0.0),
        dataclasses.replace(PLAIN, curve=1.0, strong_curve=1.0, rotate=1.0, perspective=1.0),
    ],
    ids=["plain", "turned", "curved", "strongly curved and turned"],
)
@pytest.mark.parametrize("shape", ["stretch", "natural"])
def test_boxes_hold_the_ink_of_their_characters(effects: Effects, shape: str) -> None:
    renderer = Renderer(RenderSpec(size=(48, 192), shape=shape, effects=effects))
    for index in range(40):
        crop = renderer(index)
        ink = ink_of(crop)
        assert ink[~in_boxes(crop)].sum() <= 0.02 * ink.sum(), f"{crop.text!r} has ink outside its boxes"
        for (x0, y0, x1, y1), character in zip(crop.boxes, crop.text, strict=True):
            inside = ink[int(y0) : int(np.ceil(y1)), int(x0) : int(np.ceil(x1))]
            assert inside.max() > 0.3, f"no ink in the box of {character!r} of {crop.text!r}"


def test_boxes_are_one_a_character_in_reading_order_and_within_the_image(renderer: Renderer) -> None:
    curved = Renderer(RenderSpec(seed=1, effects=Effects(curve=1.0, strong_curve=1.0)))
    for crop in [renderer(index) for index in range(150)] + [curved(index) for index in range(150)]:
        height, width = crop.image.shape[:2]
        assert crop.boxes.shape == (len(crop.text), 4)
        assert crop.boxes.dtype == np.float32
        x0, y0, x1, y1 = crop.boxes.T
        assert (x0 >= 0).all() and (y0 >= 0).all() and (x1 <= width).all() and (y1 <= height).all()
        assert (x1 >= x0).all() and (y1 >= y0).all()
        # Marks at the foot of the line may come to stand under the last letter of an arc.
        letters = np.array([character.isalnum() for character in crop.text])
        assert (np.diff(((x0 + x1) / 2)[letters]) > -1.0).all(), crop.text


def test_as_many_words_lean_steeply_as_are_asked_for() -> None:
    def degrees(steep: float) -> np.ndarray:
        """Of the line from the first letter to the last, in words so long that the height of these hardly matters."""
        renderer = Renderer(RenderSpec(shape="natural", effects=dataclasses.replace(PLAIN, rotate=1.0, steep=steep)))
        words = [crop for crop in map(renderer, range(150)) if len(crop.text) >= 6]
        lines = np.array([crop.boxes[-1] - crop.boxes[0] for crop in words]).reshape(-1, 2, 2).mean(axis=1)
        return np.abs(np.rad2deg(np.arctan2(lines[:, 1], lines[:, 0])))

    few, all_of_them = degrees(0.0), degrees(1.0)
    assert len(few) > 30 and len(all_of_them) > 30
    assert np.quantile(few, 0.9) < 12 and few.max() < 25
    assert 10 < np.median(all_of_them) < 20 and 25 < all_of_them.max() < 40


def test_effects_are_named_or_changed_one_by_one_and_what_there_is_not_is_said() -> None:
    assert Effects.named("all") == Effects() == Effects.named({})
    assert Effects.named("mild") == Effects.mild() and Effects.named("none") == PLAIN
    assert Effects.named({"steep": 0.3}) == dataclasses.replace(Effects(), steep=0.3)
    with pytest.raises(UserError, match="effects=wild: there are all, mild, none"):
        Effects.named("wild")
    with pytest.raises(UserError, match=r"no 'steap'.*'steep'"):
        Effects.named({"steap": 0.3})
    with pytest.raises(UserError, match=r"steep is how often.*not 30"):
        Effects.named({"steep": 30})


def test_without_effects_type_is_plain_on_a_plain_ground() -> None:
    renderer = Renderer(RenderSpec(effects=PLAIN))
    for index in range(10):
        crop = renderer(index)
        ground = crop.image[~in_boxes(crop, slack=2)]
        if len(ground):
            assert (ground == ground[0]).all()


def test_each_effect_can_be_forced_alone() -> None:
    for entry in dataclasses.fields(Effects):
        alone = Renderer(RenderSpec(effects=dataclasses.replace(PLAIN, **{entry.name: 1.0})))
        for index in range(3):
            assert alone(index).image.shape == (32, 128, 3), entry.name


def test_labels_hold_only_characters_of_the_charset() -> None:
    renderer = Renderer(RenderSpec(charset="abcdefghijklmnopqrstuvwxyz0123456789", max_length=9))
    for index in range(150):
        text = renderer(index).text
        assert 1 <= len(text) <= 9
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789")


def test_spaces_come_only_when_the_charset_has_one() -> None:
    without = Renderer(RenderSpec(effects=PLAIN))
    assert not any(" " in without(index).text for index in range(200))
    charset = "".join(map(chr, range(32, 127)))
    spaced = Renderer(RenderSpec(charset=charset, effects=PLAIN))
    crops = [spaced(index) for index in range(200)]
    assert any(" " in crop.text for crop in crops)
    assert all(len(crop.boxes) == len(crop.text) and crop.text == crop.text.strip() for crop in crops)


def test_photographs_stand_behind_the_words_from_a_folder_or_an_array(tmp_path: Path) -> None:
    meadow = np.full((40, 40, 3), (0, 200, 0), np.uint8)
    meadow[:, ::4] = (0, 100, 0)
    (tmp_path / "photos").mkdir()
    Image.fromarray(meadow).save(tmp_path / "photos" / "meadow.png")
    np.save(tmp_path / "photos.npy", np.stack([meadow] * 3))

    def green(*grounds: Path) -> list[float]:
        """By how much each crop is greener than red."""
        spec = RenderSpec(effects=dataclasses.replace(PLAIN, photo=1.0), grounds=tuple(map(str, grounds)))
        render = Renderer(spec)
        return [float((render(index).image @ np.array([-1.0, 1.0, 0.0])).mean()) for index in range(30)]

    plain, folder, array = green(), green(tmp_path / "photos"), green(tmp_path / "photos.npy")
    assert folder == array
    assert np.mean(array) > np.mean(plain) + 10


def test_photographs_that_are_not_there_or_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "labels.npy", np.arange(5))
    for name, why in (
        ("empty", "There are no photographs"),
        ("cifar10/train_images.npy", "task=cifar10 steps=1"),
        ("labels.npy", r"not photographs: uint8 \(N, height, width, 3\)"),
    ):
        with pytest.raises(UserError, match=why):
            Renderer(RenderSpec(grounds=(str(tmp_path / name),)))


def test_words_of_the_users_own_are_used(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Xylophon\nQuagga\n", encoding="utf-8")
    renderer = Renderer(RenderSpec(words=(str(tmp_path / "words.txt"),), own_words=1.0, effects=PLAIN))
    # In a font that has capitals alone, capitals is what the picture shows.
    assert {renderer(index).text.lower() for index in range(30)} == {"xylophon", "quagga"}
    with pytest.raises(UserError, match=r"absent\.txt"):
        Renderer(RenderSpec(words=(str(tmp_path / "absent.txt"),)))


def test_a_text_is_nfc_even_when_its_source_is_not(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(unicodedata.normalize("NFD", "café\nnaïve\n"), encoding="utf-8")
    renderer = Renderer(RenderSpec(words=(str(tmp_path / "words.txt"),), own_words=1.0, charset=None, effects=PLAIN))
    for index in range(10):
        assert renderer(index).text.lower() in {"café", "naïve"}


def test_a_share_of_the_crops_is_blank_when_asked_for_and_no_two_of_them_are_alike() -> None:
    renderer = Renderer(RenderSpec(blank=0.5, size=(24, 100)))
    crops = [renderer(index) for index in range(80)]
    blanks = [crop for crop in crops if not crop.text]
    assert 25 < len(blanks) < 55
    assert {(crop.image.shape, crop.boxes.shape) for crop in blanks} == {((24, 100, 3), (0, 4))}
    assert len({crop.image.tobytes() for crop in blanks}) == len(blanks)


def test_korean_text_is_rendered_when_a_font_has_it() -> None:
    spec = RenderSpec(korean=1.0, charset=None, effects=PLAIN)
    try:
        renderer = Renderer(spec)
    except UserError as error:
        assert "Hangul" in str(error)
        pytest.skip("no font with Hangul is installed")
    crops = [renderer(index) for index in range(40)]
    assert all(crop.text == unicodedata.normalize("NFC", crop.text) for crop in crops)
    assert any("가" <= character <= "힣" for crop in crops for character in crop.text)
    assert any(character.isascii() for crop in crops for character in crop.text)
    for crop in crops:
        for x0, y0, x1, y1 in crop.boxes:
            assert ink_of(crop)[int(y0) : int(np.ceil(y1)), int(x0) : int(np.ceil(x1))].max() > 0.3


def test_words_are_as_long_and_as_capital_as_on_signs() -> None:
    source = WordSource(charset="".join(map(chr, range(33, 127))), max_length=25)
    rng = random.Random(0)
    texts = [source.draw(rng) for _ in range(5000)]
    letters = [text for text in texts if text.isalpha()]
    assert 0.1 < sum(len(text) >= 11 for text in texts) / len(texts) < 0.25
    assert sum(text.isupper() for text in letters) > 0.35 * len(letters)
    assert sum(text.islower() for text in letters) > 0.15 * len(letters)
    assert sum(any(character.isdigit() for character in text) for text in texts) > 0.08 * len(texts)
    assert len(set(texts)) > 0.8 * len(texts)


def test_the_fingerprint_tells_renderers_apart_that_make_other_crops(renderer: Renderer, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Xylophon", encoding="utf-8")
    own = Renderer(RenderSpec(seed=3, words=(str(words),)))
    assert Renderer(RenderSpec(seed=3)).fingerprint == renderer.fingerprint
    assert len({renderer.fingerprint, own.fingerprint, Renderer(RenderSpec(seed=4)).fingerprint}) == 3


def test_a_spec_survives_plain_json() -> None:
    spec = RenderSpec(seed=7, fonts=("a",), charset=None, effects=Effects(blur=0.1))
    assert RenderSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_a_contact_sheet_shows_every_crop(renderer: Renderer, tmp_path: Path) -> None:
    contact_sheet([renderer(index) for index in range(5)], tmp_path / "sheet.png", columns=2, boxes=True, texts=True)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] > 2 * 256 and sheet.size[1] > 3 * 64


def test_rendering_is_not_slow(renderer: Renderer) -> None:
    for index in range(300):
        renderer(index)
    started = time.process_time()
    for index in range(300, 500):
        renderer(index)
    assert 200 / (time.process_time() - started) > 250, "the renderer makes far fewer crops a second than it should"


def test_fonts_come_with_the_packages_that_are_required_anyway() -> None:
    assert any(file.name.startswith("DejaVu") for file in find_fonts())
