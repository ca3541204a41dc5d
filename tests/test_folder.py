"""Any folder of images: what is found, how files are read, and what is said when something is wrong."""

from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from vitocr.data.folder import decode_image, scan_folder
from vitocr.data.memory import load_arrays
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

SMALL = Preprocess(size=(8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)


def picture(path: Path, colour: str = "red", size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def pets(root: Path, each: int = 10) -> Path:
    for name, colour in (("cats", "red"), ("dogs", "blue")):
        for i in range(each):
            picture(root / name / f"{i:02}.png", colour)
    return root


def labelled(splits, rows) -> dict[str, str]:
    return {path: splits.classes[label] for path, label in zip(rows.paths, rows.labels, strict=True)}


def test_one_sub_folder_is_one_class(tmp_path):
    splits = scan_folder(pets(tmp_path / "pets", each=3), val_fraction=0)
    assert splits.classes == ("cats", "dogs") and splits.name == "pets" and splits.val is splits.test is None
    assert splits.train.paths == tuple(f"{name}/{i:02}.png" for name in ("cats", "dogs") for i in range(3))
    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert splits.train.path(4) == tmp_path / "pets" / "dogs" / "01.png"


def test_images_are_found_at_any_depth_by_any_case_of_extension_and_nothing_else_is(tmp_path):
    pets(tmp_path, each=1)
    for name in ("cats/deep/er/A.JPG", "cats/b.JPEG", "dogs/c.WebP", "cats/.hidden.png", ".git/x.png"):
        picture(tmp_path / name)
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "loose.png")
    splits = scan_folder(tmp_path, val_fraction=0)
    assert set(splits.train.paths) == {
        "cats/00.png", "cats/deep/er/A.JPG", "cats/b.JPEG", "dogs/00.png", "dogs/c.WebP",
    }  # fmt: skip
    assert any("'empty'" in note for note in splits.notes) and any("1 images" in note for note in splits.notes)


def test_links_are_followed_but_not_round_in_circles(tmp_path):
    pets(tmp_path / "real", each=2)
    (tmp_path / "data").mkdir()
    for name in ("cats", "dogs"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "real" / name)
    (tmp_path / "real" / "cats" / "again").symlink_to(tmp_path / "real" / "cats")
    assert len(scan_folder(tmp_path / "data", val_fraction=0).train) == 4


def test_class_names_are_nfc_whatever_the_file_system_has(tmp_path):
    picture(tmp_path / normalize("NFD", "고양이") / "1.png")
    picture(tmp_path / "개" / "1.png")
    assert scan_folder(tmp_path, val_fraction=0).classes == ("개", "고양이")


def test_a_share_of_each_class_is_held_out_and_always_the_same(tmp_path):
    pets(tmp_path, each=10)
    splits, again, other = (scan_folder(tmp_path, val_fraction=0.2, seed=seed) for seed in (0, 0, 1))
    assert splits.val.labels.tolist() == [0, 0, 1, 1] and len(splits.train) == 16
    assert not set(splits.val.paths) & set(splits.train.paths)
    assert splits.val.paths == again.val.paths != other.val.paths
    assert "held out 4" in splits.notes[0]


def test_a_class_of_one_image_is_kept_for_training(tmp_path):
    pets(tmp_path, each=1)
    splits = scan_folder(tmp_path, val_fraction=0.5)
    assert len(splits.train) == 2 and splits.val is None and "no class has an image to spare" in splits.notes[0]


def test_split_folders_are_respected(tmp_path):
    for split, each in (("train", 3), ("validation", 2), ("test", 1)):
        pets(tmp_path / split, each=each)
    pets(tmp_path / "old")
    splits = scan_folder(tmp_path)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (6, 4, 2)
    assert splits.val.paths[0] == "validation/cats/00.png"
    assert splits.notes == ("Ignored the folder 'old' beside train/: it is not called val or test.",)


def test_a_class_may_be_called_train(tmp_path):
    picture(tmp_path / "train" / "1.png")
    picture(tmp_path / "bus" / "1.png")
    assert scan_folder(tmp_path, val_fraction=0).classes == ("bus", "train")


def test_a_table_names_images_labels_and_splits(tmp_path):
    for name in ("a.png", "in/b.png", "c.png", "d.png"):
        picture(tmp_path / name)
    table = "image,label,split\na.png,cat,train\nin/b.png,dog,\nc.png,cat,valid\nd.png,dog,test\n"
    (tmp_path / "labels.csv").write_text(table, encoding="utf-8-sig")
    for splits in (scan_folder(tmp_path), scan_folder(tmp_path / "labels.csv")):
        assert labelled(splits, splits.train) == {"a.png": "cat", "in/b.png": "dog"}
        assert labelled(splits, splits.val) == {"c.png": "cat"}
        assert labelled(splits, splits.test) == {"d.png": "dog"}


def test_fingerprints_change_when_a_file_does(tmp_path):
    pets(tmp_path)
    before, again = (scan_folder(tmp_path).fingerprints["train"] for _ in range(2))
    picture(tmp_path / "cats" / "00.png", size=(50, 50))
    assert before == again != scan_folder(tmp_path).fingerprints["train"]


def errors():
    """What is in the folder, and what must be said about it."""
    yield "only one class", lambda root: picture(root / "cats" / "1.png"), "are of one class, 'cats'"
    yield "no images", lambda root: (root / "cats").mkdir(), "There are no images for training in"
    yield "no sub-folders", lambda root: picture(root / "1.png"), "holds 1 images but no sub-folders"

    def unknown_class(root: Path) -> None:
        pets(root / "train")
        picture(root / "test" / "dog" / "1.png")

    yield (
        "a class only the test split has", unknown_class,
        "The test split has 1 images of class 'dog', which the train split has not. Did you mean 'dogs'?",
    )  # fmt: skip
    for what, table, message in (
        ("missing images", "image,label\nx.png,a\ny.png,b\n", "2 of 2 rows of {csv} name images"),
        ("missing images named", "image,label\nx.png,a\ny.png,b\n", "line 2: x.png\n  line 3: y.png"),
        ("no header", "x.png,a\n", "{csv} must start with the names of its columns, image and label"),
        ("empty table", "", "It starts with: (nothing)"),
        ("empty label", "image,label\nx.png,\n", "{csv}, line 2: the label is empty"),
        ("short row", "image,label\nx.png\n", "{csv}, line 2: the label is empty"),
        (
            "odd split", "image,label,split\nx.png,a,trian\n",
            "line 2: 'trian' is not a split (train, val or test). Did you mean 'train'?",
        ),
    ):  # fmt: skip
        yield what, lambda root, table=table: (root / "labels.csv").write_text(table), message


@pytest.mark.parametrize(("make", "message"), [pytest.param(m, e, id=what) for what, m, e in errors()])
def test_what_is_wrong_with_a_folder_is_said(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(UserError) as error:
        scan_folder(tmp_path)
    assert message.replace("{csv}", repr(str(tmp_path / "labels.csv"))) in str(error.value)


def test_a_missing_folder_is_answered_with_its_near_match(tmp_path):
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UserError, match=r"There is no data folder '.*pictrues'\. Did you mean 'pictures'\?"):
        scan_folder(tmp_path / "pictrues")


def test_a_file_is_not_a_folder(tmp_path):
    with pytest.raises(UserError, match="is a file, not a folder of images"):
        scan_folder(picture(tmp_path / "1.png"))


def test_a_table_in_another_encoding_is_named(tmp_path):
    (tmp_path / "labels.csv").write_bytes("image,label\nä.png,Bär\n".encode("latin-1"))
    with pytest.raises(UserError, match="is not a CSV file in UTF-8"):
        scan_folder(tmp_path)


def test_a_photo_is_turned_the_way_its_camera_was_held(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.new("RGB", (20, 10)).save(tmp_path / "a.jpg", exif=exif)
    assert decode_image(tmp_path / "a.jpg").shape == (20, 10, 3)


def test_transparency_becomes_white(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    assert decode_image(tmp_path / "a.png").min() == 255


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "CMYK", "RGBA", "YCbCr"])
def test_every_kind_of_image_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.tiff" if mode in ("CMYK", "YCbCr") else "a.png")
    Image.new("RGB", (5, 4), "white").convert(mode).save(path)
    decoded = decode_image(path)
    assert decoded.shape == (4, 5, 3) and decoded.dtype == np.uint8 and decoded.min() > 250


@pytest.mark.parametrize(("value", "expected"), [(65535, 255), (32768, 128), (0, 0)])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, value, expected):
    Image.fromarray(np.full((4, 5), value, np.uint16)).save(tmp_path / "a.png")
    assert (decode_image(tmp_path / "a.png") == expected).all()


def test_a_truncated_or_corrupt_or_missing_image_is_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for name in ("cut.jpg", "cut.png"):
        Image.fromarray(noise).save(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "empty.png").touch()
    for name in ("cut.jpg", "cut.png", "text.png", "empty.png"):
        with pytest.raises(UserError, match=f"{name}' cannot be read as an image: "):
            decode_image(tmp_path / name)
    with pytest.raises(UserError, match=r"There is no image '.*none.png'"):
        decode_image(tmp_path / "none.png")


def test_a_folder_can_be_held_in_memory_at_the_size_of_the_model(tmp_path):
    rows = scan_folder(pets(tmp_path), val_fraction=0).train
    arrays = load_arrays(rows, preprocess=SMALL)
    assert arrays.images.shape == (20, 8, 8, 3) and np.array_equal(arrays.labels, rows.labels)
    assert (arrays.images[0] == (255, 0, 0)).all() and (arrays.images[-1] == (0, 0, 255)).all()


def test_in_memory_unreadable_images_are_named_and_left_out(tmp_path):
    rows = scan_folder(pets(tmp_path), val_fraction=0).train
    (tmp_path / "cats" / "03.png").write_text("broken")
    said: list[str] = []
    arrays = load_arrays(rows, preprocess=SMALL, say=said.append)
    assert np.bincount(arrays.labels).tolist() == [9, 10]
    assert len(said) == 1 and "Skipped an unreadable image (1 so far)" in said[0] and "03.png" in said[0]


def test_what_does_not_fit_into_memory_is_refused_with_a_way_out(tmp_path):
    rows = scan_folder(pets(tmp_path), val_fraction=0).train
    with pytest.raises(UserError, match=r"20 images of 8 x 8 pixels take .* use augment=light"):
        load_arrays(rows, preprocess=SMALL, max_bytes=1000)
