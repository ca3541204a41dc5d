"""Any folder of images as a data set, and the one way an image file is read.

Layouts, in the order they are looked for:
- a CSV: `labels.csv` in the folder (or the path of any .csv) with the columns image, label and, if wanted,
  split (train, val or test); images are relative to the CSV's folder;
- train/, and val/ or test/ if there are any, each with one sub-folder a class;
- one sub-folder a class.
Where no validation split is given, a share of each class is held out from the train split. The order of rows
and classes depends on the names alone, never on the file system.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitocr.data.arrays import PathRows, Splits, split_off
from vitocr.errors import UserError, did_you_mean

EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
LAYOUT = "Expected one sub-folder a class (cats/1.jpg, dogs/1.jpg), or a labels.csv with columns image,label."

Found = dict[str, list[tuple[str, str]]]  # split -> (path relative to the root, class name)


def scan_folder(root: str | Path, *, val_fraction: float = 0.1, seed: int = 0) -> Splits:
    """Find the images below `root` and what they are. val_fraction: held out of train if there is no val."""
    root = Path(root)
    notes: list[str] = []
    if not root.exists():
        siblings = [entry.name for entry in root.parent.iterdir()] if root.parent.is_dir() else []
        raise UserError(f"There is no data folder {str(root)!r}.{did_you_mean(root.name, siblings)}")
    if root.is_file() and root.suffix.lower() != ".csv":
        raise UserError(f"{str(root)!r} is a file, not a folder of images. {LAYOUT}")
    table = root if root.is_file() else root / "labels.csv"
    if table.is_file():
        root = table.parent
        found = _read_csv(table)
    else:
        found = _read_folders(root, notes)
    return _to_splits(root, found, notes, val_fraction=val_fraction, seed=seed)


def decode_image(path: str | Path) -> NDArray[np.uint8]:
    """An image file as (H, W, 3) uint8, the way a person would see it. UserError if it cannot be read."""
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except FileNotFoundError as error:
        raise UserError(f"There is no image {str(path)!r}.") from error
    except Exception as error:  # Pillow's plugins raise whatever they trip over: SyntaxError, struct.error, ...
        raise UserError(f"{str(path)!r} cannot be read as an image: {error}") from error


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Any PIL image as (H, W, 3) uint8: turned upright, transparency on white, 16 bits scaled to 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image, dtype=np.float64)
        # Pillow opens 16-bit greyscale as I;16 or I; floats are 0..1 or 0..255, and nothing says which.
        full = 65535 if image.mode.startswith("I;16") or values.max(initial=0) > 255 else 255
        full = 1 if image.mode == "F" and values.max(initial=0) <= 1 else full
        image = Image.fromarray((values * (255 / full)).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))


def _to_splits(root: Path, found: Found, notes: list[str], *, val_fraction: float, seed: int) -> Splits:
    classes = tuple(sorted({name for _, name in found["train"]}))
    if not classes:
        raise UserError(f"There are no images for training in {str(root)!r}. {LAYOUT}")
    if len(classes) == 1:
        raise UserError(f"All images in {str(root)!r} are of one class, {classes[0]!r}. {LAYOUT}")
    index = {name: i for i, name in enumerate(classes)}
    rows: dict[str, PathRows | None] = {"val": None, "test": None}
    for split, pairs in found.items():
        unknown = Counter(name for _, name in pairs if name not in index)
        if unknown:
            name, count = unknown.most_common(1)[0]
            raise UserError(
                f"The {split} split has {count} images of class {name!r}, which the train split has not"
                f"{f' (and {len(unknown) - 1} more)' * (len(unknown) > 1)}.{did_you_mean(name, classes)}"
            )
        pairs = sorted(pairs, key=lambda pair: (pair[1], pair[0]))
        labels = np.array([index[name] for _, name in pairs], dtype=np.int64)
        if pairs:
            rows[split] = PathRows(root, tuple(path for path, _ in pairs), labels)
    fingerprints = {split: _fingerprint(part) for split, part in rows.items() if part is not None}
    train, val = rows["train"], rows["val"]
    assert train is not None
    if val is None and val_fraction:
        rest, held = split_off(train, max(1, round(len(train) * val_fraction)), seed=seed)
        if len(held):
            train, val = rest, held
            notes.append(f"No validation split was given: held out {len(held)} of {len(rest) + len(held)} images.")
        else:
            notes.append("No validation split: no class has an image to spare.")
    return Splits(
        train,
        val,
        rows["test"],
        classes,
        name=root.resolve().name,
        fingerprints=fingerprints,
        notes=tuple(notes),
    )


def _read_folders(root: Path, notes: list[str]) -> Found:
    folders = {entry.name: entry for entry in _visible(root) if entry.is_dir()}
    train = folders.get("train")
    # A class may be called train too, but then it holds images, not folders.
    if train is None or _images_in(train):
        return {"train": _read_classes(root, root, notes)}
    found: Found = {"train": []}
    for name, folder in folders.items():
        if name.lower() in SPLITS:
            found.setdefault(SPLITS[name.lower()], []).extend(_read_classes(folder, root, notes))
        else:
            notes.append(f"Ignored the folder {name!r} beside train/: it is not called val or test.")
    return found


def _read_classes(folder: Path, root: Path, notes: list[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for entry in _visible(folder):
        if not entry.is_dir():
            continue
        before = len(pairs)
        for file in images_below(entry):
            pairs.append((file.relative_to(root).as_posix(), normalize("NFC", entry.name)))
        if len(pairs) == before:
            notes.append(f"Ignored the folder {entry.relative_to(root).as_posix()!r}: it holds no images.")
    loose = len(_images_in(folder))
    if loose and not pairs:
        raise UserError(
            f"{str(folder)!r} holds {loose} images but no sub-folders: nothing says what they are. {LAYOUT}"
        )
    if loose:
        notes.append(f"Ignored {loose} images in {str(folder)!r} itself: no class's folder.")
    return pairs


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX")))


def _images_in(folder: Path) -> list[Path]:
    return [file for file in _visible(folder) if file.suffix.lower() in EXTENSIONS and file.is_file()]


def images_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Image files at any depth, links followed, but not round in circles."""
    real = folder.resolve()
    if real in above:
        return
    for entry in _visible(folder):
        if entry.is_dir():
            yield from images_below(entry, above | {real})
        elif entry.suffix.lower() in EXTENSIONS:
            yield entry


def _read_csv(table: Path) -> Found:
    found: Found = {"train": []}
    missing: list[str] = []
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            if not {"image", "label"} <= set(columns):
                raise UserError(
                    f"{str(table)!r} must start with the names of its columns, image and label (and "
                    f"split, if there are splits). It starts with: {', '.join(columns) or '(nothing)'}"
                )
            for row in reader:
                where = f"{str(table)!r}, line {reader.line_num}"
                image = (row["image"] or "").strip()
                label = normalize("NFC", (row["label"] or "").strip())
                split = (row.get("split") or "train").strip().lower()
                if not image or not label:
                    raise UserError(f"{where}: the {'label' if image else 'image'} is empty.")
                if split not in SPLITS:
                    hint = did_you_mean(split, SPLITS)
                    raise UserError(f"{where}: {split!r} is not a split (train, val or test).{hint}")
                if not (table.parent / image).is_file():
                    missing.append(f"  line {reader.line_num}: {image}")
                found.setdefault(SPLITS[split], []).append((image, label))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{str(table)!r} is not a CSV file in UTF-8: {error}") from error
    if missing:
        more = f"\n  and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UserError(
            f"{len(missing)} of {sum(map(len, found.values()))} rows of {str(table)!r} name images that are "
            f"not there (relative to {str(table.parent)!r}):\n" + "\n".join(missing[:5]) + more
        )
    return found


def _fingerprint(rows: PathRows) -> str:
    """Of names, labels and sizes: cheap, and it changes when files come, go or are replaced."""
    digest = hashlib.sha256()
    for row, (path, label) in enumerate(zip(rows.paths, rows.labels, strict=True)):
        digest.update(f"{path}\0{label}\0{os.path.getsize(rows.path(row))}\n".encode())
    return digest.hexdigest()
