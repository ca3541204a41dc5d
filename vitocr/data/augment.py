"""Augmentation image by image, with albumentations. The only file that imports it: the library is no longer
maintained, so this is where it would be replaced.

A pipeline is a plain list out of conf/augment: the name of a transform and its arguments, nested for
`OneOf`, `SomeOf` and `Sequential`.

    - RandomResizedCrop: {scale: [0.5, 1.0]}      # its size, when not given, is the model's
    - HorizontalFlip: {p: 0.5}
    - SomeOf: {n: 2, transforms: [{Solarize: {p: 1.0}}, {Equalize: {p: 1.0}}]}
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitocr.errors import UserError, did_you_mean
from vitocr.preprocess import Preprocess

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or importing it asks the network for a newer version
import albumentations

Spec = Sequence[Mapping[str, Mapping[str, Any] | None]]


class ImageAugment:
    """Random transforms, then what evaluation does: (H, W, 3) uint8 and a seed -> (3, h, w) float32."""

    def __init__(self, pipeline: albumentations.Compose, preprocess: Preprocess) -> None:
        self.pipeline, self.preprocess = pipeline, preprocess

    def __call__(self, image: NDArray[np.uint8], seed: int) -> NDArray[np.float32]:
        # One stream of random numbers for the whole pipeline. (Its own `set_random_seed` would give every
        # transform the same stream, so that for example all coins fall alike.)
        self.pipeline.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return self.preprocess(self.pipeline(image=image)["image"])


def build_augment(
    transforms: Spec, *, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> ImageAugment:
    """size: height and width of what comes out. What the transforms leave at another size is stretched."""
    pipeline = albumentations.Compose([_build(step, size) for step in transforms])
    return ImageAugment(pipeline, Preprocess(size=size, mean=tuple(mean), std=tuple(std)))


def _build(step: Mapping[str, Mapping[str, Any] | None], size: tuple[int, int]) -> Any:
    if not isinstance(step, Mapping) or len(step) != 1:
        raise UserError(f"augment: a transform is written as `- Name: {{arguments}}`, not {step!r}.")
    ((name, given),) = step.items()
    known = _transforms()
    if name not in known:
        raise UserError(f"augment: albumentations has no transform {name!r}.{did_you_mean(name, known)}")
    arguments = dict(given or {})
    parameters = inspect.signature(known[name].__init__).parameters
    unknown = sorted(set(arguments) - set(parameters))
    if unknown:
        raise UserError(f"augment: {name} has no argument {unknown[0]!r}.{did_you_mean(unknown[0], parameters)}")
    if "transforms" in arguments:
        arguments["transforms"] = [_build(inner, size) for inner in arguments["transforms"]]
    for key, value in {"size": size, "height": size[0], "width": size[1]}.items():
        if key in parameters and parameters[key].default is inspect.Parameter.empty:
            arguments.setdefault(key, value)
    try:
        return known[name](**arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"augment: {name} cannot be made with {dict(given or {})}: {error}") from error


def _transforms() -> dict[str, Any]:
    kinds = (albumentations.BasicTransform, albumentations.BaseCompose)
    return {
        name: value
        for name, value in vars(albumentations).items()
        if inspect.isclass(value) and issubclass(value, kinds)
    }
