"""Muon and AdamW in one optimiser: the same steps as torch's own, alone and shared among ranks."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from vitocr.errors import UserError
from vitocr.models.model import Model, build_model
from vitocr.training.optim import MuonAdamW, build_optimizer, orthogonalise

SHAPES = [(16, 16), (32, 16), (16, 32), (16, 16), (32, 16), (16, 16)]  # three kinds, none of an even number
SPEC: dict[str, Any] = {
    "name": "muon",
    "lr": 1e-3,
    "betas": [0.9, 0.98],
    "weight_decay": 0.05,
    "muon": {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, "ns_steps": 5},
}


def matrices(shapes: list[tuple[int, int]] = SHAPES) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]


def gradients(shapes: list[tuple[int, int]], steps: int) -> Iterator[list[Tensor]]:
    """Large ones and small ones by turns, so that every convention of momentum shows."""
    random = torch.Generator().manual_seed(1)
    for step in range(steps):
        yield [torch.randn(shape, generator=random) * 10.0 ** (step % 3) for shape in shapes]


def take_steps(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], grads: Iterator[list[Tensor]]) -> None:
    for step in grads:
        for p, grad in zip(params, step, strict=True):
            p.grad = grad.clone()
        optimizer.step()


def muon(params: list[nn.Parameter], dtype: torch.dtype = torch.float32, **changes: Any) -> MuonAdamW:
    group = {"rule": "muon", "lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, "params": params}
    return MuonAdamW([group | changes], ns_dtype=dtype)


def difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


# The steps


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_orthogonalising_brings_every_singular_value_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    stack = torch.randn(3, *shape) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    values = torch.linalg.svdvals(orthogonalise(stack, steps=5, dtype=torch.float32))
    assert values.max() < 1.3
    assert (values > 0.6).float().mean() > 0.9  # the smallest may need another step or two
    u, _, v = torch.linalg.svd(stack, full_matrices=False)
    alike = nn.functional.cosine_similarity(
        orthogonalise(stack, steps=10, dtype=torch.float32).flatten(1), (u @ v).flatten(1)
    )
    assert (alike > 0.97).all()


def test_a_matrix_without_gradient_information_stays_finite() -> None:
    assert orthogonalise(torch.zeros(1, 4, 4), steps=5, dtype=torch.float32).abs().max() == 0


@pytest.mark.parametrize("shape", [(64, 64), (128, 64), (64, 128)])
def test_muon_goes_where_torchs_muon_goes(shape: tuple[int, int]) -> None:
    """Same momentum, Nesterov, scale by shape and decay. torch's rounds to bfloat16 on the way, hence 2 %."""
    ours, theirs = matrices([shape]), matrices([shape])
    start = ours[0].detach().clone()
    recipe: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    take_steps(muon(ours, **recipe), ours, gradients([shape], 7))
    take_steps(torch.optim.Muon(theirs, nesterov=True, **recipe), theirs, gradients([shape], 7))
    assert difference(ours[0] - start, theirs[0] - start) < 0.02


def test_muon_is_torchs_muon_to_the_last_bits_when_both_orthogonalise_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float32(grad: Tensor, coefficients: Any, steps: int, eps: float) -> Tensor:
        return orthogonalise(grad[None], steps, torch.float32)[0]

    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", in_float32)
    ours, theirs = matrices(), matrices()
    recipe: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    take_steps(muon(ours, **recipe), ours, gradients(SHAPES, 7))
    take_steps(torch.optim.Muon(theirs, nesterov=True, **recipe), theirs, gradients(SHAPES, 7))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_stack_of_filters_is_a_matrix_with_a_row_for_each() -> None:
    """(out, in, 3, 3) takes the step of (out, in x 3 x 3)."""
    flat = matrices([(16, 36)])
    filters = [nn.Parameter(flat[0].detach().clone().view(16, 4, 3, 3))]
    take_steps(muon(flat), flat, gradients([(16, 36)], 3))
    take_steps(muon(filters), filters, ([g.view(16, 4, 3, 3) for g in step] for step in gradients([(16, 36)], 3)))
    assert filters[0].shape == (16, 4, 3, 3)
    assert torch.allclose(filters[0].flatten(1), flat[0], atol=1e-6)


def test_bfloat16_is_close_enough_to_orthogonalise_in() -> None:
    exact, rounded = matrices(), matrices()
    take_steps(muon(exact), exact, gradients(SHAPES, 3))
    take_steps(muon(rounded, torch.bfloat16), rounded, gradients(SHAPES, 3))
    for a, b, start in zip(rounded, exact, matrices(), strict=True):
        assert difference(a - start, b - start) < 0.03
        assert a.dtype == torch.float32


def test_adamw_is_torchs_adamw() -> None:
    ours, theirs = matrices(), matrices()
    recipe: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.98), "weight_decay": 0.1}
    optimizer = MuonAdamW([{"rule": "adamw", "params": ours} | recipe], ns_dtype=torch.float32)
    take_steps(optimizer, ours, gradients(SHAPES, 5))
    take_steps(torch.optim.AdamW(theirs, **recipe), theirs, gradients(SHAPES, 5))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-7)


def test_the_learning_rate_of_the_moment_is_used() -> None:
    """The schedule writes into the groups before every step."""
    params = matrices([(16, 16)])
    optimizer = muon(params)
    optimizer.param_groups[0]["lr"] = 0.0
    take_steps(optimizer, params, gradients([(16, 16)], 1))
    assert torch.equal(params[0], matrices([(16, 16)])[0])


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    params = matrices()
    params[0].grad = torch.ones_like(params[0])
    muon(params).step()
    changed = [not torch.equal(a, b) for a, b in zip(params, matrices(), strict=True)]
    assert changed == [True, False, False, False, False, False]


# Which parameters go where


def model(**backbone: Any) -> Model:
    torch.manual_seed(0)
    target = {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 16, "depth": 3, "heads": 2, "class_token": True}
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 10}
    return build_model({"image_size": [16, 16], "backbone": target | backbone, "head": head})


def destinations(model: nn.Module, spec: dict[str, Any]) -> dict[str, tuple[str, float]]:
    """Parameter name -> (rule, weight decay)."""
    names = {p: name for name, p in model.named_parameters()}
    groups = build_optimizer(model, spec, bf16=False).param_groups
    return {names[p]: (group["rule"], group["weight_decay"]) for group in groups for p in group["params"]}


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_every_parameter_goes_somewhere_once(name: str) -> None:
    hybrid = model(stem=[[8, 2]], patch=2)
    assert destinations(hybrid, SPEC | {"name": name}).keys() == dict(hybrid.named_parameters()).keys()
    total = sum(
        len(group["params"]) for group in build_optimizer(hybrid, SPEC | {"name": name}, bf16=False).param_groups
    )
    assert total == len(list(hybrid.parameters()))


def test_muon_takes_the_matrices_of_the_blocks_and_the_filters_of_a_stem() -> None:
    where = destinations(model(stem=[[8, 2]], patch=2), SPEC)
    inside = {name for name, (rule, _) in where.items() if rule == "muon"}
    layers = ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.up", "mlp.down")
    blocks = {f"backbone.blocks.{i}.{layer}.weight" for i in range(3) for layer in layers}
    assert inside == blocks | {"backbone.stem.layers.0.weight"}
    assert {where[name][1] for name in inside} == {0.1}
    assert where["backbone.embed.weight"] == where["head.logits.weight"] == ("adamw", 0.05)


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_vectors_positions_and_the_class_token_are_not_decayed(name: str) -> None:
    where = destinations(model(stem=[[8, 2]], patch=2), SPEC | {"name": name})
    for parameter, (_, decay) in where.items():
        vector = parameter.endswith((".bias", "positions", "class_token")) or ".norm" in parameter
        vector = vector or parameter == "backbone.stem.layers.1.weight"  # of a BatchNorm
        assert (decay == 0) == vector, parameter


def test_frozen_parameters_are_left_out() -> None:
    frozen = model()
    frozen.backbone.requires_grad_(False)
    assert destinations(frozen, SPEC).keys() == {"head.logits.weight", "head.logits.bias"}


def test_a_misspelt_optimiser_gets_a_near_match() -> None:
    with pytest.raises(UserError, match=r"optim.name=moun: choose muon or adamw. Did you mean 'muon'?"):
        build_optimizer(model(), SPEC | {"name": "moun"}, bf16=False)


# Going on


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    one = model()
    optimizer = build_optimizer(one, SPEC | {"name": name}, bf16=False)
    shapes: Any = [p.shape for p in one.parameters()]
    take_steps(optimizer, list(one.parameters()), gradients(shapes, 3))
    torch.save({"model": one.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "saved.pt")

    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    other = model()
    other.load_state_dict(saved["model"])
    resumed = build_optimizer(other, SPEC | {"name": name}, bf16=False)
    resumed.load_state_dict(saved["optimizer"])
    assert [g["rule"] for g in resumed.param_groups] == [g["rule"] for g in optimizer.param_groups]
    take_steps(optimizer, list(one.parameters()), gradients(shapes, 2))
    take_steps(resumed, list(other.parameters()), gradients(shapes, 2))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_copied_optimiser_does_not_share_its_momentum() -> None:
    params = matrices()
    optimizer = muon(params)
    take_steps(optimizer, params, gradients(SHAPES, 1))
    before = copy.deepcopy(optimizer.state_dict())
    take_steps(optimizer, params, gradients(SHAPES, 1))
    assert not torch.equal(before["state"][0]["momentum"], optimizer.state_dict()["state"][0]["momentum"])


# Shared among ranks


def run_rank(rank: int, world: int, folder: str, shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    params = matrices(shapes)
    stacked: list[int] = []

    def counting(stack: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
        stacked.append(len(stack))
        return orthogonalise(stack, steps, dtype)

    import vitocr.training.optim

    vitocr.training.optim.orthogonalise = counting
    take_steps(muon(params, dtype), params, gradients(shapes, 1))
    first = sum(stacked)
    take_steps(muon(params, dtype), params, gradients(shapes, 2))
    torch.save({"params": [p.detach() for p in params], "orthogonalised": first}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("shapes", "world", "dtype"),
    [
        (SHAPES, 2, torch.float32),  # 3 of a kind, 2 and 1: one rank has less to do
        (SHAPES[:1], 2, torch.float32),  # one rank has nothing to do
        (SHAPES, 3, torch.bfloat16),
    ],
    ids=["uneven", "fewer-matrices-than-ranks", "three-ranks-bf16"],
)
def test_ranks_together_take_the_step_of_one_process(
    tmp_path: Path, shapes: list[tuple[int, int]], world: int, dtype: torch.dtype
) -> None:
    alone = matrices(shapes)
    take_steps(muon(alone, dtype), alone, gradients(shapes, 1))
    take_steps(muon(alone, dtype), alone, gradients(shapes, 2))
    start_processes(run_rank, (world, str(tmp_path), shapes, dtype), nprocs=world, start_method="fork")
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    for other in ranks[1:]:  # to the bit, or the copies of the model drift apart
        assert all(torch.equal(a, b) for a, b in zip(ranks[0]["params"], other["params"], strict=True))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-3
    for a, b in zip(ranks[0]["params"], alone, strict=True):
        assert torch.allclose(a, b, atol=tolerance)
    counts = [rank["orthogonalised"] for rank in ranks]
    assert sum(counts) == len(shapes) and max(counts) < max(len(shapes), 2)  # shared, not repeated
