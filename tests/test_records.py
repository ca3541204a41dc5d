"""What the recipes and the records promise: every recipe composes and fits, every record has its one command."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from vitocr.codec import open_charset
from vitocr.config import conf_dir, differences
from vitocr.models.model import build_model

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "bench"))  # its files are scripts, which find each other beside themselves

import rerun  # noqa: E402

RECIPES = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
README = (ROOT / "docs" / "records" / "README.md").read_text(encoding="utf-8")
RECORDS = sorted(path.parent.name for path in (ROOT / "docs" / "records").glob("*/metrics.csv"))


def composed(*words: str) -> dict[str, Any]:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return OmegaConf.to_container(compose("config", overrides=list(words)), resolve=True)  # type: ignore[return-value]


def parameters_of(config: dict[str, Any]) -> int:
    of_head: dict[str, Any] = {"classes": 10}
    if config["kind"] == "text":
        of_head = {"symbols": len(open_charset(config["charset"])), "max_length": config["max_length"]}
    model = build_model(
        {"image_size": config["preprocess"]["size"], "backbone": config["backbone"], "head": config["head"] | of_head}
    )
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_composes_to_a_model_small_enough_to_ship(recipe: str) -> None:
    assert 2 * parameters_of(composed(f"experiment={recipe}")) < 12e6, "bytes, in half precision"


def test_the_small_reader_is_a_third_of_the_other_and_sees_the_same_words() -> None:
    tiny, micro = composed("experiment=str_tiny"), composed("experiment=str_micro")
    assert 2 * parameters_of(micro) < 4e6
    differ = {line.split(":")[0].split(".")[0] for line in differences(tiny, micro)}
    assert differ == {"backbone", "head"}
    assert [entry["path"] for entry in tiny["data"]["train"]] == ["render", "blanks", "data/words"]


@pytest.mark.parametrize("recipe", ["task=str", "experiment=words", "experiment=str_tiny", "experiment=str_micro"])
def test_single_effects_of_the_renderer_can_be_set_for_every_recipe_of_words(recipe: str) -> None:
    its_own = composed(recipe)["render"]["effects"]
    expected = ({} if isinstance(its_own, str) else its_own) | {"steep": 0.3}
    assert composed(recipe, "render.effects={steep: 0.3}")["render"]["effects"] == expected


def test_what_ships_is_what_the_plain_commands_train() -> None:
    """So a record of either is a record of both."""
    assert differences(composed("experiment=cifar10_tiny"), composed("task=cifar10")) == []
    assert differences(composed("experiment=cifar10_hybrid"), composed("task=cifar10", "backbone=hybrid")) == []


@pytest.mark.parametrize("record", RECORDS)
def test_every_record_is_listed_with_the_command_that_its_log_begins_with(record: str) -> None:
    words = rerun.commands(README)[record]
    lines = (ROOT / "docs" / "records" / record / "log.txt").read_text(encoding="utf-8").splitlines()[:3]
    assert f"python train.py {' '.join(words)}" in [line.replace("'", "") for line in lines]


def test_a_record_can_be_run_again_for_its_steps_where_its_minutes_would_come_to_something_else() -> None:
    words = rerun.in_steps(rerun.commands(README)["str-10m"], rerun.steps_of("str-10m"))
    assert words == ["task=str", "steps=1712"]
    figures = {"test": {"accuracy": 0.5}}
    assert "(seed 1, for its 1,712 steps)" in rerun.table(rerun.rows_of("x", 1, figures, figures, steps=1712))


def test_a_second_run_is_compared_with_what_the_model_of_the_first_was_measured_on_afterwards() -> None:
    again = {
        "IIIT5k_test": {"accuracy": {"36": 0.8}, "protocol": "36"},
        "val": {"accuracy": {"36": 0.1}, "protocol": "36"},
    }
    (row,) = rerun.rows_of("str-10m", 1, rerun.figures_of_record("str-10m"), again)
    assert (row["set"], row["first"]) == ("IIIT5k_test", 2393 / 3000)


def test_two_runs_of_a_record_are_compared_set_by_set() -> None:
    first = {"val": {"accuracy": 0.5}, "test": {"accuracy": 0.90, "n": 3}, "parameters": 7}
    again = {"val": {"accuracy": 0.1}, "test": {"accuracy": 0.91}, "parameters": 7}
    (row,) = rerun.rows_of("x", 1, first, again)
    assert (row["set"], row["first"], row["again"]) == ("test", 0.90, 0.91)
    assert "| 1.00 | yes |" in rerun.table([row])
    read = {"words": {"accuracy": {"36": 0.8, "94": 0.7}, "protocol": "36"}}
    reread = {"words": {"accuracy": {"36": 0.77, "94": 0.7}, "protocol": "36"}}
    assert "| 3.00 | no |" in rerun.table(rerun.rows_of("y", 2, read, reread))
