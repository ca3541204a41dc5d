"""The CRNN: columns read both ways, in the interface of every backbone."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from vitocr.errors import UserError
from vitocr.heads.classify import ClassTargets
from vitocr.heads.text import TextTargets
from vitocr.models.crnn import Crnn
from vitocr.models.flops import training_flops
from vitocr.models.model import Model, build_model

CONF = Path(__file__).parents[1] / "conf"
STEM = [[8, 2], [12, 2], [16, [2, 1]], [16, [2, 1]]]
WORDS: dict[str, Any] = {
    "ctc": {"_target_": "vitocr.heads.ctc.Ctc"},
    "transformer": {"_target_": "vitocr.heads.transformer.Transformer", "heads": 2, "ctc": 0.5},
    "permuted": {"_target_": "vitocr.heads.permuted.Permuted", "heads": 2},
    "lstm": {"_target_": "vitocr.heads.lstm.Lstm", "hidden": 16},
}


def crnn(**changes: Any) -> Crnn:
    torch.manual_seed(0)
    return Crnn(**{"image_size": (32, 64), "stem": STEM, "hidden": 16} | changes).eval()


def images(count: int = 2, height: int = 32, width: int = 64) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def reader(head: str, **backbone: Any) -> Model:
    torch.manual_seed(0)
    parts = {"_target_": "vitocr.models.crnn.Crnn", "stem": STEM, "hidden": 16} | backbone
    return build_model(
        {"image_size": [32, 64], "backbone": parts, "head": WORDS[head] | {"symbols": 10, "max_length": 8}}
    )


def test_an_image_becomes_one_token_a_column() -> None:
    model = crnn()
    assert (model.grid, model.dim, model.prefix) == ((1, 16), 32, 0)
    assert model(images(3)).shape == (3, 16, 32)
    assert model(images(3, 32, 96)).shape == (3, 24, 32)  # wider images have more columns


def test_columns_come_left_to_right() -> None:
    """What changes at the right edge changes the last column of the stem alone, and the first LSTM's way back."""
    model = crnn(depth=1)
    picture = images(1)
    changed = picture.clone()
    changed[..., -1:] += 5.0
    differs = (model(picture) - model(changed)).abs()[0] > 1e-6  # (columns, D)
    assert not differs[:12, :16].any()  # read from the left
    assert differs[15].all() and differs[:, 16:].any(dim=1)[8:].all()  # read from the right


def test_every_row_of_the_features_counts() -> None:
    model = crnn()
    assert model.rows == 2
    for row in (0, 31):
        changed = images(1)
        changed[:, :, row] += 1.0
        assert not torch.allclose(model(images(1)), model(changed))


def test_the_configuration_for_words_is_of_the_size_of_its_rival() -> None:
    spec = yaml.safe_load((CONF / "backbone" / "crnn.yaml").read_text())
    head = WORDS["ctc"] | {"symbols": 94, "max_length": 25}
    model = build_model({"image_size": [32, 128], "backbone": spec, "head": head})
    assert model.backbone.grid == (1, 32)
    assert 2e6 < sum(p.numel() for p in model.parameters()) < 4.5e6
    rival = yaml.safe_load((CONF / "backbone" / "text_hybrid.yaml").read_text())
    assert spec["stem"] == rival["stem"]  # what differs is what reads the columns


def test_intermediates_come_by_name() -> None:
    seen: dict[str, Tensor] = {}
    tokens = crnn()(images(), seen=seen)
    assert list(seen) == ["embedded", "block0.tokens", "block1.tokens"]
    assert torch.equal(seen["block1.tokens"], tokens)


@pytest.mark.parametrize("head", WORDS)
def test_every_head_reads_its_tokens_and_learns(head: str) -> None:
    model = reader(head)
    pictures = images(4)
    targets = TextTargets(torch.randint(0, 10, (4, 3)), torch.full((4,), 3), torch.full((4, 3, 2), torch.nan))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = model.loss(pictures, targets)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert model.eval().decode(pictures).ids.shape[0] == 4


def test_it_names_a_class_of_a_small_square_image_too() -> None:
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 10}
    backbone = {"_target_": "vitocr.models.crnn.Crnn", "stem": [[8, 2], [16, 2]], "hidden": 16}
    model = build_model({"image_size": [32, 32], "backbone": backbone, "head": head})
    pictures, targets = images(8, 32, 32), ClassTargets(torch.arange(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        model.loss(pictures, targets)["loss"].backward()
        optimizer.step()
    assert (model(pictures).argmax(dim=1) == targets.ids).all()


def test_half_precision_trains() -> None:
    model, exact = reader("ctc"), reader("ctc")
    targets = TextTargets(torch.randint(0, 10, (4, 3)), torch.full((4,), 3), torch.full((4, 3, 2), torch.nan))
    exact.loss(images(4), targets)["loss"].backward()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(images(4), targets)["loss"]
    loss.backward()
    for (name, p), reference in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert p.grad is not None and reference.grad is not None and p.grad.dtype == torch.float32
        assert (p.grad - reference.grad).norm() < 0.2 * reference.grad.norm() + 1e-3, name


def test_arithmetic_is_counted_and_leaves_the_model_alone() -> None:
    model = reader("ctc")
    before = copy.deepcopy(model.state_dict())
    columns, width = 16, 16
    recurrent = 2 * columns * 4 * width * (2 * 16 + width + 2 * width + width)  # both ways, two layers
    assert training_flops(model, (32, 64)) > 3 * 2 * recurrent
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(UserError, match="every column: call it with keep=1"):
        crnn()(images(), keep=0.5)
    with pytest.raises(UserError, match="64 pixels high, and this CRNN reads images of 32"):
        crnn()(images(1, 64, 64))
    with pytest.raises(UserError, match=r"backbone: backbone.stem is empty"):
        reader("ctc", stem=[])
    with pytest.raises(UserError, match=r"backbone.hidden=0"):
        reader("ctc", hidden=0)
    with pytest.raises(UserError, match=r"does not divide"):
        reader("ctc", stem=[[8, 5]])
