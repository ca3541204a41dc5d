"""What is particular to reading text: its data, how a batch becomes a loss, how it is judged and reported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitocr.calibrate import calibrate_text
from vitocr.calibration import FEWEST
from vitocr.codec import open_charset
from vitocr.data.batch_augment import eval_images, scale_and_bias
from vitocr.data.blanks import BLANKS
from vitocr.data.text_augment import augment, draw
from vitocr.data.text_loader import TextBatch, TextLoader, fit_row
from vitocr.data.text_rows import Concat, Kept, Subset, TextSource, hold_out
from vitocr.data.text_sources import Mixture, open_source, parse_entries
from vitocr.errors import UserError
from vitocr.evaluate import read_all
from vitocr.heads.text import TextTargets
from vitocr.models.model import Model
from vitocr.output import progress
from vitocr.predict import Predictor
from vitocr.preprocess import Preprocess
from vitocr.text_metrics import normalise, protocol_for
from vitocr.training.feed import batching
from vitocr.training.rendering import DRAWN, RENDER, drawn_rows

Say = Callable[[str], object]
CALIBRATED_ON = 2_000  # words at most
READ_AHEAD = 20_000  # photographed words of a source that are decoded before training begins: seconds, not minutes


class TextKit:
    """A text an image."""

    kind = "text"
    counts: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, config: dict[str, Any], *, workers: int, say: Say) -> None:
        self.config, self.workers, self.say = config, workers, say
        self.preprocess = Preprocess.from_dict(config["preprocess"])
        data, seed = config["data"], config["seed"]
        paths, weights = parse_entries(data["train"] or [RENDER])
        # Files first: what is wrong with them should not be said after minutes of rendering.
        opened: dict[int, TextSource] = {
            at: self.open(path) for at, path in sorted(enumerate(paths), key=lambda entry: entry[1] in DRAWN)
        }
        sources = [opened[at] for at in range(len(paths))]
        self.val: list[TextSource] = [self.open(path) for path in data["val"]]
        self.test: list[TextSource] = [self.open(path) for path in data["test"]]
        if not self.val and data["val_size"]:
            # Held back from the last source of words named, which is where people put their own.
            last = max((at for at, path in enumerate(paths) if path != BLANKS), default=None)
            if last is None:
                raise UserError("data.train names blanks alone: nothing is to be read in them.")
            sources[last], held = hold_out(sources[last], data["val_size"], seed=seed)
            self.val = [held]
        for at, path in enumerate(paths):
            if path not in DRAWN:
                kept = sources[at] = Kept(sources[at], partial(fit_row, preprocess=self.preprocess))
                first = min(len(kept), READ_AHEAD)
                kept.read_ahead(progress(range(first), first, what="decoding words"))
        self.mixture = Mixture(sources, weights, seed=seed)
        labels = (text for source in sources for row in range(len(source)) if (text := source.text(row)))
        self.codec = open_charset(config["charset"], labels=labels)
        self.protocol = config["protocol"] or protocol_for(self.codec.characters)
        self.head_arguments = {
            "symbols": len(self.codec),
            "max_length": config["max_length"],
            "smoothing": config["label_smoothing"],
        }
        self.sizes = {"train": len(self.mixture), "val": sum(map(len, self.val)), "test": sum(map(len, self.test))}
        self.sizes = {name: size for name, size in self.sizes.items() if size}
        self.data_description = {
            "train": [source.name for source in sources],
            "fingerprints": {source.name: source.fingerprint() for source in [*sources, *self.val]},
        }
        self.summary = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        self.summary += f" words, {len(self.codec)} characters"

    def open(self, path: Any) -> TextSource:
        if path not in DRAWN:
            return open_source(path)
        return drawn_rows(path, self.config, size=self.preprocess.size, say=self.say)

    def loader(self, split: str, *, train: bool, rank: int, world: int) -> TextLoader:
        if train:
            data: Any = self.mixture
        else:
            data = Mixture(self.val, None, seed=0).rows
        return TextLoader(
            data,
            charset=self.codec,
            max_length=self.config["max_length"],
            preprocess=self.preprocess,
            **batching(self.config, train=train, rank=rank, world=world),
            workers=self.workers,
            max_bad_fraction=self.config["max_bad_fraction"],
            say=self.say if rank == 0 else lambda message: None,
        )

    def prepare(self, batch: TextBatch, *, dtype: torch.dtype, **when_and_who: Any) -> tuple[Tensor, TextTargets]:
        """Augmented images (B, 3, h, w) and what they say; `when_and_who`: progress, rank, world, and more."""
        rank, world = when_and_who["rank"], when_and_who["world"]
        images = batch.images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        how, size = self.config["augment"], len(images)
        rng = np.random.default_rng((self.config["seed"], batch.position))
        shares = {name: float(how[name]) for name in ("ops", "warp", "disguise", "lean")}
        drawn = draw(size * world, rng, **shares).of(slice(rank * size, (rank + 1) * size))
        photographs = batch.spans[:, 0, 0].isnan()  # nobody knows where their characters stand
        # Characters stay where their spans say they are, as long as the spans are told.
        movable = photographs | (self.align_weight(when_and_who["progress"]) == 0)
        images = augment(images, drawn, movable=movable, photographs=photographs)
        scale, bias = scale_and_bias(self.preprocess.mean, self.preprocess.std, images.device)
        images = images.mul_(scale).add_(bias).to(dtype)
        return images, TextTargets(batch.ids, batch.lengths, batch.spans)

    def align_weight(self, progress: float) -> float:
        """The alignment is told early on, until the model has found it, and then left to itself."""
        until = self.config["align_until"]
        return float(self.config["align"] * max(0.0, 1 - progress / until)) if until else 0.0

    def loss_options(self, progress: float) -> dict[str, Any]:
        return {"label_smoothing": self.config["label_smoothing"], "align": self.align_weight(progress)}

    def judge(self, model: Model, batch: TextBatch, *, dtype: torch.dtype) -> Tensor:
        """Sums over the words of a batch of what `counts` names, and how many words these are."""
        images = eval_images(batch.images, self.preprocess.mean, self.preprocess.std, dtype)
        tokens = model.backbone(images)
        decoded = model.head.decode(tokens)  # type: ignore[operator]
        right = 0
        for ids, length, text in zip(decoded.ids.tolist(), decoded.lengths.tolist(), batch.texts, strict=True):
            right += normalise(self.codec.decode(ids[:length]), self.protocol) == normalise(text, self.protocol)
        fits = (batch.lengths <= self.config["max_length"]) & (batch.lengths > 0)
        loss = torch.zeros((), dtype=torch.float64)
        if fits.any():
            longest = int(batch.lengths[fits].max())
            targets = TextTargets(batch.ids[fits, :longest], batch.lengths[fits], batch.spans[fits, :longest])
            loss = model.head.loss(tokens[fits], targets)["loss"].double() * len(images)  # type: ignore[operator]
        return torch.stack([loss.cpu(), torch.tensor(right).double(), torch.tensor(len(images)).double()]).to(
            images.device
        )

    def report(self, model: Model, description: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
        """The figures of every test set (without any, of the validation set), and a sheet of readings. The description
        is told how confidences are to be taken."""
        if sum(map(len, self.val)) >= FEWEST:
            description["calibration"] = self.calibrate(Predictor(model, description))
        predictor = Predictor(model, description)
        sets = {source.name: source for source in self.test or self.val}
        figures: dict[str, dict[str, Any]] = {}
        for number, (name, source) in enumerate(sets.items()):
            summary, shown = read_all(
                predictor,
                source,
                protocol=self.protocol,
                watch=lambda items, total: progress(items, total, what="reading"),
            )
            figures["test" if self.test and len(sets) == 1 else name if self.test else "val"] = summary
            low, high = summary["accuracy_95"][self.protocol]
            self.say(
                f"{name}: {100 * summary['accuracy'][self.protocol]:.2f}% of {summary['n']:,} words right "
                f"(protocol {self.protocol}, 95% interval {100 * low:.2f} to {100 * high:.2f}), "
                f"{summary['words_per_second']:.0f} words/s"
            )
            if number == 0:
                from vitocr.drawing.readings import draw_readings

                draw_readings(folder / "samples.png", *shown, protocol=self.protocol)
        return figures

    def calibrate(self, predictor: Predictor) -> dict[str, Any]:
        """From words that were held back. A model learns from smoothed labels, and is less sure than it should be."""
        held = Concat(self.val, name="held back")
        some = Subset(held, np.linspace(0, len(held) - 1, min(len(held), CALIBRATED_ON)).astype(np.int64))
        found = calibrate_text(
            predictor, [some], protocol=self.protocol, batch_size=64,
            watch=lambda items, total: progress(items, total, what="calibrating"),
        )  # fmt: skip
        return found.calibration | {"protocol": self.protocol}
