"""Augmentation image by image: what conf/augment says is what is done, and the seed decides the rest."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml

from vitocr.data.augment import build_augment
from vitocr.data.batch_augment import BatchAugment
from vitocr.errors import UserError
from vitocr.preprocess import Preprocess

CONF = Path(__file__).parents[1] / "conf" / "augment"
FRAME = {"size": (24, 32), "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


def photo(height: int = 40, width: int = 30) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def conf(name: str) -> dict:
    return yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["light", "strong"])
def test_the_pipelines_in_conf_work_and_obey_the_seed(name):
    augment = build_augment(conf(name)["transforms"], **FRAME)
    outputs = [augment(photo(), seed) for seed in range(40)]
    assert all(out.shape == (3, 24, 32) and out.dtype == np.float32 for out in outputs)
    for seed in (7, 3):  # in any order
        np.testing.assert_array_equal(augment(photo(), seed), outputs[seed])
    assert len({out.tobytes() for out in outputs}) > 30


def test_the_batch_group_in_conf_names_options_that_exist_and_their_defaults():
    options = conf("batch")
    assert options.pop("kind") == "batch"
    assert BatchAugment(**options) == BatchAugment(cutmix="auto", mixup="auto", ops="auto")


def test_no_transforms_is_what_evaluation_does():
    expected = Preprocess(**FRAME)(photo())
    np.testing.assert_array_equal(build_augment([], **FRAME)(photo(), 1), expected)


def test_a_transform_that_takes_a_size_gets_that_of_the_model():
    augment = build_augment([{"RandomCrop": {"pad_if_needed": True}}], **FRAME)
    assert augment(photo(60, 60), 0).shape == (3, 24, 32)


def test_coins_of_two_transforms_fall_independently():
    flips = [{"HorizontalFlip": {"p": 0.5}}, {"VerticalFlip": {"p": 0.5}}]
    augment = build_augment(flips, **FRAME | {"size": (40, 30)})
    assert len({augment(photo(), seed).tobytes() for seed in range(40)}) == 4


def test_worker_processes_can_be_given_a_pipeline():
    augment = build_augment(conf("strong")["transforms"], **FRAME)
    copy = pickle.loads(pickle.dumps(augment))
    np.testing.assert_array_equal(copy(photo(), 5), augment(photo(), 5))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"HorizontalFlipp": {}}, "no transform 'HorizontalFlipp'. Did you mean 'HorizontalFlip'?"),
        ({"Affine": {"rotation": 3}}, "Affine has no argument 'rotation'. Did you mean 'rotate'?"),
        ({"HorizontalFlip": {"p": 7}}, "HorizontalFlip cannot be made with {'p': 7}"),
        ({"OneOf": {"transforms": [{"Blurr": {}}]}}, "no transform 'Blurr'"),
        ("HorizontalFlip", "a transform is written as `- Name: {arguments}`, not 'HorizontalFlip'"),
    ],
)
def test_mistakes_in_a_pipeline_are_named(step, message):
    with pytest.raises(UserError) as error:
        build_augment([step], **FRAME)
    assert message in str(error.value)
