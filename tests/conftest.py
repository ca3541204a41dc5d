"""What several tests need: a tiny data set, and no process group left over from the test before."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")
LONGEST = ("test_training", "test_ideas", "test_text_training", "test_wheel", "test_shipped", "test_pretrain")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: begun last, one of them would keep a single worker busy while the other has nothing."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three classes of 20 PNGs, 24x24 pixels: the class decides the shape and its colour."""
    root = tmp_path_factory.mktemp("shapes")
    random = np.random.default_rng(0)
    for name, colour in zip(SHAPES, [(220, 60, 40), (50, 190, 70), (60, 80, 230)], strict=True):
        (root / name).mkdir()
        for number in range(20):
            image = Image.fromarray(random.integers(90, 140, (24, 24, 3), dtype=np.uint8))
            left, top = (int(value) for value in random.integers(2, 8, 2))
            box = (left, top, left + 13, top + 13)
            draw = ImageDraw.Draw(image)
            if name == "circle":
                draw.ellipse(box, fill=colour)
            elif name == "square":
                draw.rectangle(box, fill=colour)
            else:
                draw.polygon([(left, top + 13), (left + 13, top + 13), (left + 6, top)], fill=colour)
            image.save(root / name / f"{number:02}.png")
    return root


@pytest.fixture(autouse=True)
def no_process_group_outlives_its_test() -> Iterator[None]:
    yield
    dist = sys.modules.get("torch.distributed")  # tests that never imported torch should not start now
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
