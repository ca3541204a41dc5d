"""Rates of the optimiser: the schedule, and what "auto" comes to in short and long trainings."""

import pytest
import torch

from vitocr.errors import UserError
from vitocr.models.model import build_model
from vitocr.training.optim import build_optimizer
from vitocr.training.rates import AUTO, LONG, SHORT, between, both_ends, set_rates

SPEC = {
    "name": "muon", "lr": "auto", "betas": [0.9, 0.98], "weight_decay": 0.05,
    "muon": {"lr": "auto", "momentum": 0.95, "weight_decay": "auto", "ns_steps": 5},
}  # fmt: skip
FLAT = {"warmup": 0.0, "decay": "linear", "final": 1.0}  # a schedule that changes nothing


def optimiser(**changes: object) -> torch.optim.Optimizer:
    spec = {
        "image_size": [8, 8],
        "backbone": {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 16, "depth": 1, "heads": 2},
        "head": {"_target_": "vitocr.heads.classify.Classify", "classes": 2},
    }
    return build_optimizer(build_model(spec), SPEC | changes, bf16=False)


def rates(optimizer: torch.optim.Optimizer, *, progress: float = 0.5, steps: float, schedule: dict = FLAT) -> dict:
    set_rates(optimizer, progress=progress, steps=steps, schedule=schedule)
    return {(group["rule"], group["weight_decay"] > 0): group["lr"] for group in optimizer.param_groups}


def test_a_long_training_is_slower_and_forgets_less() -> None:
    few, many = optimiser(), optimiser()
    assert rates(few, steps=SHORT)[("muon", True)] == pytest.approx(0.01)
    assert rates(many, steps=LONG)[("muon", True)] == pytest.approx(0.005)
    decays = [group["weight_decay"] for opt in (few, many) for group in opt.param_groups if group["rule"] == "muon"]
    assert decays == pytest.approx([0.1, 0.04])


def test_rates_fall_steadily_with_the_length_of_the_training_and_stay_within_their_ends() -> None:
    for ends in AUTO.values():
        values = [between(ends, steps) for steps in (0, 100, SHORT, 17_000, 20_000, LONG, 10**7)]
        assert values == sorted(values, reverse=True)
        assert values[0] == values[2] == ends[0]
        assert values[5] == pytest.approx(values[6]) == pytest.approx(ends[1])


def test_a_number_is_taken_as_it_is_however_long_the_training() -> None:
    given = optimiser(lr=3e-3, muon={"lr": 0.02, "momentum": 0.95, "weight_decay": 0.3, "ns_steps": 5})
    for steps in (10, 10**6):
        assert rates(given, steps=steps) == {("adamw", True): 3e-3, ("adamw", False): 3e-3, ("muon", True): 0.02}
        assert given.param_groups[-1]["weight_decay"] == 0.3


def test_the_schedule_scales_every_rate_and_no_decay() -> None:
    halfway = rates(optimiser(), steps=SHORT, schedule={"warmup": 0.0, "decay": "linear"})
    assert halfway == {("adamw", True): 5e-4, ("adamw", False): 5e-4, ("muon", True): 0.005}


def test_vectors_are_not_decayed_in_trainings_of_any_length() -> None:
    optimizer = optimiser()
    rates(optimizer, steps=20_000)
    assert sorted(group["weight_decay"] for group in optimizer.param_groups)[0] == 0.0


@pytest.mark.parametrize(("name", "value"), [("lr", "autp"), ("muon.weight_decay", "none"), ("weight_decay", "auto")])
def test_what_is_no_rate_is_named(name: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"optim\.{name}={value}: give a number"):
        both_ends(name, value)
