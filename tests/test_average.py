"""The mean of models' weights: of one build only, and it says of what it is the mean."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import vitocr
from vitocr.average import Part, average, parse_part
from vitocr.catalog import find_model
from vitocr.checkpoint import load_checkpoint, save_model
from vitocr.cli import app
from vitocr.errors import UserError


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """str-micro with every weight one larger."""
    state, description = load_checkpoint(find_model("str-micro"))
    larger = {name: value + 1 if value.is_floating_point() else value for name, value in state.items()}
    save_model(tmp_path / "moved.safetensors", larger, description)
    return tmp_path / "moved.safetensors"


def test_weights_are_averaged_by_their_shares_and_the_file_says_of_what(moved: Path, tmp_path: Path) -> None:
    average([Part("str-micro", 1), Part(str(moved), 3)], tmp_path / "mean.safetensors")
    mean, description = load_checkpoint(tmp_path / "mean.safetensors")
    before = load_checkpoint(find_model("str-micro"))[0]
    for name, value in mean.items():
        expected = before[name] + 0.75 if value.is_floating_point() else before[name]
        assert torch.allclose(value, expected, atol=1e-3), name
    parts = description["provenance"]["mean_of"]
    assert [(part["name"], part["share"]) for part in parts] == [("str-micro", 0.25), ("moved.safetensors", 0.75)]
    assert not description["metrics"] and "calibration" not in description, "nobody has measured it yet"


def test_the_mean_of_a_model_with_itself_reads_as_it_does(tmp_path: Path) -> None:
    out = tmp_path / "same.safetensors"
    done = CliRunner().invoke(app, ["average", "str-micro", "str-micro", "--out", str(out)])
    assert done.exit_code == 0 and "50 % str-micro, 50 % str-micro" in done.output
    picture = Path(__file__).parents[1] / "docs" / "pictures" / "demo.png"
    assert vitocr.load(out)(picture).text == vitocr.load("str-micro")(picture).text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([Part("str-micro", 1)], "at least two"),
        ([Part("str-micro", 1), Part("str-micro", 0)], "above 0"),
        ([Part("str-tiny", 1), Part("str-micro", 1)], "built or answer otherwise.*depth: 8 there, 3 here"),
    ],
)
def test_what_has_no_mean_is_refused_and_nothing_is_written(parts: list[Part], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        average(parts, tmp_path / "mean.safetensors")
    with pytest.raises(UserError, match="safetensors file"):
        average([Part("str-micro", 1)] * 2, tmp_path / "mean.onnx")
    assert not list(tmp_path.iterdir())


def test_how_a_model_began_does_not_keep_it_from_being_averaged(tmp_path: Path) -> None:
    state, description = load_checkpoint(find_model("str-micro"))
    description["model"]["backbone"] |= {"positions_from": "noise", "drop_path": 0.3}
    save_model(tmp_path / "other.safetensors", state, description)
    average([Part("str-micro", 1), Part(str(tmp_path / "other.safetensors"), 1)], tmp_path / "mean.safetensors")
    mean, _ = load_checkpoint(tmp_path / "mean.safetensors")
    assert all(torch.allclose(tensor, state[name]) for name, tensor in mean.items())


def test_a_share_stands_behind_the_last_equals_sign() -> None:
    assert parse_part("str-tiny=0.35") == Part("str-tiny", 0.35)
    assert parse_part("runs/a=b") == Part("runs/a=b", 1.0) and parse_part("str-tiny") == Part("str-tiny", 1.0)
