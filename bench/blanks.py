"""How often a model reads something where there is nothing to read: 1,000 crops without text.

    python bench/blanks.py str-tiny --out docs/records/blanks

The crops are none of those that `blanks` draws for training (vitocr/data/render/blank.py), nor made by its code:

    photos    of CIFAR-10's test set, whole or a strip of one; nobody trained on them
    skies     the upper rows of its aeroplanes, birds and ships
    textures  coloured noise of every roughness, cells, weaves, marble, ripples, sand: numpy alone

An answer counts as wrong if its text is not empty at the threshold the model comes with (`--threshold` for another).
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown, save
from numpy.typing import NDArray
from PIL import Image

import vitocr
from vitocr.errors import UserError
from vitocr.metrics import bootstrap_interval

Image_ = NDArray[np.uint8]  # (H, W, 3)
SKY_CLASSES = (0, 2, 8)  # aeroplane, bird, ship
KINDS = {"photos": 400, "skies": 200, "textures": 400}


def photos(count: int, random: np.random.Generator, *, images: Image_, labels: NDArray[np.int64]) -> list[Image_]:
    made = []
    for row in random.choice(len(images), count, replace=False):
        image = np.asarray(images[row])
        if random.random() < 0.5:
            high = int(random.integers(8, 33))
            top = int(random.integers(0, 33 - high))
            image = image[top : top + high]
        made.append(enlarged(image, random))
    return made


def skies(count: int, random: np.random.Generator, *, images: Image_, labels: NDArray[np.int64]) -> list[Image_]:
    """What stands highest in such a picture is mostly sky; that it is seldom quite empty makes it no less blank."""
    rows = random.choice(np.flatnonzero(np.isin(labels, SKY_CLASSES)), count, replace=False)
    return [enlarged(np.asarray(images[row])[: int(random.integers(4, 13))], random) for row in rows]


def textures(count: int, random: np.random.Generator, **_: Any) -> list[Image_]:
    kinds: tuple[Callable[[np.random.Generator, int, int], NDArray], ...]
    kinds = (spectral, spectral, cells, weave, marble, ripples, sand)
    made = []
    for number in range(count):
        high, wide = int(random.integers(24, 65)), int(random.integers(40, 257))
        grey = kinds[number % len(kinds)](random, high, wide)
        grey = (grey - grey.min()) / max(float(np.ptp(grey)), 1e-6)
        dark, bright = random.uniform(0, 255, (2, 3))
        image = dark + grey[..., None] * (bright - dark) + random.normal(0, random.uniform(0, 8), (high, wide, 3))
        made.append(as_a_file(image.clip(0, 255).astype(np.uint8), random))
    return made


def spectral(random: np.random.Generator, high: int, wide: int) -> NDArray:
    """Noise whose spectrum falls as a power of the frequency: from sand to clouds."""
    y, x = np.fft.fftfreq(high)[:, None], np.fft.rfftfreq(wide)[None]
    frequency = np.hypot(y * random.uniform(0.3, 1.0), x)
    frequency[0, 0] = 1.0
    phases = np.exp(2j * np.pi * random.random(frequency.shape))
    return np.fft.irfft2(phases * frequency ** -random.uniform(0.5, 3.0), s=(high, wide))


def cells(random: np.random.Generator, high: int, wide: int) -> NDArray:
    """Stones, scales, cracked mud: how far the nearest of some points is, or which one it is."""
    y, x = np.mgrid[:high, :wide]
    points = random.uniform((0, 0), (high, wide), (int(random.integers(8, 60)), 2))
    away = np.sort(np.hypot(y[..., None] - points[:, 0], x[..., None] - points[:, 1]), axis=2)
    return away[..., 0] if random.random() < 0.5 else np.minimum(away[..., 1] - away[..., 0], 3.0)


def weave(random: np.random.Generator, high: int, wide: int) -> NDArray:
    y, x = np.mgrid[:high, :wide]
    across, down = random.uniform(0.15, 1.5, 2)
    return np.maximum(np.sin(x * across), np.sin(y * down + np.pi * (np.sin(x * across / 2) > 0)))


def marble(random: np.random.Generator, high: int, wide: int) -> NDArray:
    x = np.mgrid[:high, :wide][1] / wide
    noise = spectral(random, high, wide)
    return np.sin(random.uniform(5, 40) * (x + random.uniform(0.5, 2) * noise / (np.ptp(noise) + 1e-9)))


def ripples(random: np.random.Generator, high: int, wide: int) -> NDArray:
    """Rings of wood or of water, whose middle may lie outside."""
    y, x = np.mgrid[:high, :wide]
    away = np.hypot((y - random.uniform(-high, 2 * high)) * random.uniform(1, 3), x - random.uniform(-wide, 2 * wide))
    return np.sin(away * random.uniform(0.1, 0.9))


def sand(random: np.random.Generator, high: int, wide: int) -> NDArray:
    return random.normal(size=(high, wide)) + np.linspace(0, random.uniform(-4, 4), wide)


def enlarged(image: Image_, random: np.random.Generator) -> Image_:
    """At the size and in the shape of a word crop."""
    high = int(random.integers(20, 65))
    size = (round(high * random.uniform(1.0, 6.0)), high)
    return as_a_file(np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)), random)


def as_a_file(image: Image_, random: np.random.Generator) -> Image_:
    """Half of them were JPEGs once."""
    if random.random() < 0.5:
        return image
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=int(random.integers(30, 95)))
    return np.asarray(Image.open(buffer))


def make(kind: str, *, count: int, cifar10: Path, seed: int, split: str = "test") -> list[Image_]:
    images = np.load(cifar10 / f"{split}_images.npy", mmap_mode="r")
    labels = np.load(cifar10 / f"{split}_labels.npy")
    makers = {"photos": photos, "skies": skies, "textures": textures}
    return makers[kind](count, np.random.default_rng([seed, len(kind)]), images=images, labels=labels)


def summarise(readings: Sequence[Any]) -> dict[str, Any]:
    """readings: with a text and a confidence each."""
    wrong = np.array([bool(reading.text) for reading in readings], dtype=np.float64)
    loudest = sorted((reading for reading in readings if reading.text), key=lambda reading: -reading.confidence)
    return {
        "n": len(readings),
        "not_empty": int(wrong.sum()),
        "share": float(wrong.mean()),
        "share_95": list(bootstrap_interval(wrong)),
        "surest": [{"text": reading.text, "confidence": reading.confidence} for reading in loudest[:10]],
    }


def measure(
    model: str | Path, *, cifar10: Path, share: float = 1.0, seed: int = 0, threshold: float | None = None
) -> dict[str, Any]:
    """The figures of every kind, and of all. share: of the 1,000 crops."""
    predictor = vitocr.load(model)
    if not predictor.reads_text:
        raise UserError(f"{model} reads no text: it has an answer for every picture.")
    read = {
        kind: predictor(make(kind, count=max(1, round(share * count)), cifar10=cifar10, seed=seed), threshold=threshold)
        for kind, count in KINDS.items()
    }
    figures = {kind: summarise(readings) for kind, readings in read.items()}
    return figures | {"all": summarise([reading for readings in read.values() for reading in readings])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a file, a run's folder or the name of a shipped model")
    parser.add_argument("--threshold", type=float, help="of confidence; default: the model's own")
    parser.add_argument("--share", type=float, default=1.0, help="of the 1,000 crops, for a trial")
    parser.add_argument("--cifar10", type=Path, default=Path("data/cifar10"), help="its cache (see data/README.md)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--look", type=Path, help="also draw a sheet of some crops there")
    parser.add_argument("--out", type=Path, help="folder for blanks.json and blanks.md")
    args = parser.parse_args()
    options = {"cifar10": args.cifar10, "seed": args.seed}
    figures = measure(args.model, share=args.share, threshold=args.threshold, **options)
    if args.look:
        from vitocr.data.render import Crop, contact_sheet

        none = np.empty((0, 4), np.float32)
        shown = [Crop(image, "", none) for kind in KINDS for image in make(kind, count=32, **options)]
        contact_sheet(shown, args.look, cell=(48, 192))
    table = markdown(
        ["crops without text", "of", "not empty", "share", "95 % interval"],
        [
            [kind, f"{told['n']:,}", f"{told['not_empty']:,}", f"{100 * told['share']:.2f} %",
             " to ".join(f"{100 * end:.2f}" for end in told["share_95"])]
            for kind, told in figures.items()
        ],
    )  # fmt: skip
    print(table)
    for entry in figures["all"]["surest"]:
        print(f"read {entry['text']!r} with confidence {entry['confidence']:.3f}")
    if args.out:
        save(args.out, "blanks", {"model": args.model, "threshold": args.threshold, "sets": figures}, table)


if __name__ == "__main__":
    main()
