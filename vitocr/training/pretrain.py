"""What is particular to pretraining by hidden patches: pictures without labels, what is hidden of them, the judging.

What is hidden of a training image is drawn for the global batch from (seed, position), so that one process and many
hide the same, and so does a resumed run. Of a validation image it is drawn from the image itself: it is the same
every time, whatever batch the image comes in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitocr.data.batch_augment import eval_images
from vitocr.data.cifar10 import load_cifar10
from vitocr.data.loader import Batch
from vitocr.data.text_loader import fit_row
from vitocr.data.text_rows import Concat, Kept, Subset, TextSource, hold_out
from vitocr.data.unlabelled import PictureArrays, PictureLoader, open_pictures
from vitocr.drawing.masked import draw_masked
from vitocr.errors import UserError
from vitocr.heads.reconstruct import normalised
from vitocr.models.masked import Mask, MaskedModel, join, patches_of, split_patches, take
from vitocr.models.model import Model
from vitocr.preprocess import Preprocess
from vitocr.training.classify import build_augments
from vitocr.training.feed import batching
from vitocr.training.rendering import RENDER, rendered_words

Say = Callable[[str], object]
SHOWN = 24  # pictures of the sheet
HIDDEN_COLOUR = 232  # of all three channels


class NoCodec:
    """There is nothing to name."""

    def to_dict(self) -> dict[str, Any]:
        return {"type": "none"}


class PretrainKit:
    """Hidden patches."""

    kind = "pretrain"
    counts: tuple[str, ...] = ("loss",)

    def __init__(self, config: dict[str, Any], *, workers: int, say: Say) -> None:
        self.config, self.say = config, say
        self.preprocess = Preprocess.from_dict(config["preprocess"])
        if not config["head"]["_target_"].endswith(".Reconstruct"):
            raise UserError("pretraining trains with head=reconstruct; other heads come afterwards, by init=")
        self.patch, self.grid = patches_of(config["backbone"], self.preprocess.size)
        self.codec = NoCodec()
        self.head_arguments = {"pixels": 3 * self.patch[0] * self.patch[1]}
        self.share = float(config["head"]["mask"])
        if config["augment"]["kind"] not in ("batch", "none"):
            raise UserError(
                f"pretraining augments whole batches, but augment.kind={config['augment']['kind']}: "
                "use augment=pretrain, augment=batch or augment=none"
            )
        self.batch_augment = build_augments(config, self.preprocess)[0]

        entries = config["data"]["source"]
        entries = [entries] if isinstance(entries, str) else list(entries)
        if not entries:
            raise UserError("data.source is empty: give cifar10, render, folders of images or LMDBs")
        opened = [self.open(str(entry)) for entry in entries]
        # Reading from memory needs no help.
        self.workers = 0 if set(entries) <= {"cifar10", RENDER} else workers
        self.train: TextSource = opened[0] if len(opened) == 1 else Concat(opened, name=" + ".join(map(str, entries)))
        self.val: TextSource | None = None
        if config["data"]["val_size"]:
            self.train, self.val = hold_out(self.train, config["data"]["val_size"], seed=config["data"]["seed"])
        self.sizes = {"train": len(self.train)} | ({"val": len(self.val)} if self.val is not None else {})
        self.data_description = {
            "train": [source.name for source in opened],
            "fingerprints": {source.name: source.fingerprint() for source in opened},
        }
        patches = self.grid[0] * self.grid[1]
        self.summary = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        self.summary += f" pictures, of which {self.hidden_of(patches)} of {patches} patches are hidden"

    def hidden_of(self, patches: int) -> int:
        return split_patches(torch.zeros(1, patches), self.share).hidden.shape[1]

    def open(self, entry: str) -> TextSource:
        config = self.config
        if entry == "cifar10":
            splits = load_cifar10(Path(config["data"]["data_dir"]), say=self.say)
            images = splits.train.images  # type: ignore[union-attr]
            return PictureArrays(images, name="cifar10", fingerprint=splits.fingerprints["train_images"])
        if entry == RENDER:
            if "render" not in config:
                raise UserError("data.source=render needs the options of the renderer: use task=pretrain_words")
            return rendered_words(config, size=self.preprocess.size, say=self.say)
        return Kept(open_pictures(entry), partial(fit_row, preprocess=self.preprocess))

    def loader(self, split: str, *, train: bool, rank: int, world: int) -> PictureLoader:
        source = self.train if split == "train" else self.val
        assert source is not None
        return PictureLoader(
            source,
            preprocess=self.preprocess,
            **batching(self.config, train=train, rank=rank, world=world),
            workers=self.workers,
            max_bad_fraction=self.config["max_bad_fraction"],
            say=self.say if rank == 0 else lambda message: None,
        )

    def prepare(self, batch: Batch, *, dtype: torch.dtype, **when_and_who: Any) -> tuple[Tensor, Mask]:
        """Augmented images (B, 3, H, W) and what is hidden of them; `when_and_who`: progress, epochs, rank, world.

        In float32 whatever `dtype` is: they are also what is to be told, and the backbone sees only a few of them."""
        images = self.batch_augment(
            batch, mean=self.preprocess.mean, std=self.preprocess.std, dtype=torch.float32, **when_and_who
        ).images
        rank, world, size = when_and_who["rank"], when_and_who["world"], len(images)
        rng = np.random.default_rng((self.config["seed"], batch.position, 2))  # 0 and 1 are the augmentation's
        noise = rng.random((size * world, self.grid[0] * self.grid[1]), dtype=np.float32)
        mine = torch.from_numpy(noise[rank * size : (rank + 1) * size])
        return images, split_patches(mine.to(images.device), self.share)

    def loss_options(self, progress: float) -> dict[str, Any]:
        return {}

    def fixed_mask(self, images: Tensor) -> Mask:
        """What is hidden of uint8 images (B, H, W, 3) whenever they are judged."""
        patches = self.grid[0] * self.grid[1]
        seeds = [zlib.crc32(image.cpu().numpy().tobytes()) for image in images]
        noise = np.stack([np.random.default_rng(seed).random(patches, dtype=np.float32) for seed in seeds])
        return split_patches(torch.from_numpy(noise).to(images.device), self.share)

    def judge(self, model: Model, batch: Batch, *, dtype: torch.dtype) -> Tensor:
        """Sums over the images of a batch of what `counts` names, and how many images these are."""
        images = eval_images(batch.images, self.preprocess.mean, self.preprocess.std)
        loss = model.loss(images, self.fixed_mask(batch.images))["loss"].double()
        return torch.stack([loss * len(images), torch.full_like(loss, len(images))])

    def report(self, model: Model, description: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
        """The picture; the figures are those of the last validation."""
        source, what = (self.val, "held out") if self.val is not None else (self.train, "trained on")
        assert source is not None and isinstance(model, MaskedModel)
        some = Subset(source, np.unique(np.linspace(0, len(source) - 1, SHOWN).astype(np.int64)))
        loader = PictureLoader(
            some, preprocess=self.preprocess, batch_size=SHOWN, shuffle=False, drop_last=False, say=lambda message: None
        )
        images = next(iter(loader)).images
        loss = description["metrics"].get("val", {}).get("loss")
        caption = f"{100 * self.share:.0f} % of the patches hidden; pictures {what}"
        if loss is not None:
            caption += f"; {loss:.3f} of a patch's variance is missed"
            self.say(f"val loss {loss:.4f}: the share of a hidden patch's variance that is missed")
        caption += "\nThe mean and the contrast of hidden patches are given, as only the rest is learned"
        draw_masked(folder / "samples.png", images.numpy(), *self.complete(model, images), caption=caption)
        return {}

    @torch.inference_mode()
    def complete(self, model: MaskedModel, images: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Of uint8 images (B, H, W, 3): what is seen of them, and what the model makes of that.

        A patch is told without its mean and deviation, which are therefore those of the original here."""
        device = model.vit.embed.weight.device
        mask = self.fixed_mask(images.to(device))
        pixels = eval_images(images.to(device), self.preprocess.mean, self.preprocess.std)
        patches = model.vit.cut(pixels)  # (B, N, P)
        _, mean, deviation = normalised(take(patches, mask.hidden))
        told = model.reconstruct(pixels, mask).float() * deviation + mean  # (B, M, P)
        where = mask.hidden[..., None].expand_as(told)
        completed = self.to_uint8(patches.scatter(1, where, told))
        covered = torch.zeros_like(patches).scatter(1, where, torch.ones_like(told))
        gone = join(covered, self.preprocess.size, self.patch).permute(0, 2, 3, 1).bool().cpu().numpy()
        seen = np.where(gone, np.uint8(HIDDEN_COLOUR), images.numpy())
        return seen, completed

    def to_uint8(self, patches: Tensor) -> np.ndarray:
        """Normalised patches (B, N, P) to images (B, H, W, 3)."""
        images = join(patches, self.preprocess.size, self.patch).permute(0, 2, 3, 1).cpu()
        raw = images * torch.tensor(self.preprocess.std) + torch.tensor(self.preprocess.mean)
        return (255 * raw).round().clamp(0, 255).to(torch.uint8).numpy()
