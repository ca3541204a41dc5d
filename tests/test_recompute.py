"""Recomputation keeps less for the backward pass and changes nothing else, to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitocr.heads.classify import ClassTargets
from vitocr.models.flops import training_flops
from vitocr.models.model import Model, build_model


def model_of(**changes: Any) -> Model:
    torch.manual_seed(0)
    backbone = {"_target_": "vitocr.models.vit.ViT", "patch": 4, "dim": 32, "depth": 4, "heads": 2} | changes
    head = {"_target_": "vitocr.heads.classify.Classify", "classes": 3}
    model = build_model({"image_size": [16, 16], "backbone": backbone, "head": head}).train()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def step(model: Model, *, recompute: bool, bf16: bool = False, keep: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a step and the gradients, all randomness drawn from one seed."""
    model.backbone.recompute = recompute  # type: ignore[assignment]
    model.zero_grad()
    torch.manual_seed(1)
    pictures = torch.randn(8, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model.loss(pictures, ClassTargets(torch.arange(8) % 3), keep=keep)["loss"]
    torch.rand(3)  # what comes between the passes does not matter
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"drop_path": 0.5, "class_token": True},
        {"positions": "rotary", "drop_path": 0.3},
        {"attention": "strided"},
        {"attention": "fixed", "positions": "sinusoidal"},
        {"stem": [[8, 2]], "patch": 2, "norm": "post"},
    ],
    ids=["plain", "stochastic depth", "rotary", "strided", "fixed", "hybrid"],
)
def test_gradients_are_the_same_to_the_last_bit(changes: dict, bf16: bool) -> None:
    model = model_of(**changes)
    for keep in (1.0, 0.5):
        loss, plain = step(model, recompute=False, bf16=bf16, keep=keep)
        again, recomputed = step(model, recompute=True, bf16=bf16, keep=keep)
        assert torch.equal(loss, again)
        assert plain.keys() == recomputed.keys() == dict(model.named_parameters()).keys()
        for name, gradient in plain.items():
            assert torch.equal(gradient, recomputed[name]), name


@pytest.mark.parametrize("wrapped", ["ddp", "fsdp"])
def test_ranks_may_recompute(wrapped: str, tmp_path: Path) -> None:
    plain, shared = model_of(drop_path=0.5), model_of(drop_path=0.5)
    shared.backbone.recompute = True  # type: ignore[assignment]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    if wrapped == "fsdp":
        mesh = init_device_mesh("cpu", (1,))
        for block in shared.backbone.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(shared, mesh=mesh)
    else:
        shared = DistributedDataParallel(shared)  # type: ignore[assignment]
    gradients = []
    for model in (plain, shared):
        torch.manual_seed(1)
        for _ in range(2):
            model(torch.randn(8, 3, 16, 16)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None and other is not None
        assert torch.equal(one, other.full_tensor() if isinstance(other, DTensor) else other)


def test_of_a_block_only_what_came_in_is_kept() -> None:
    def kept(recompute: bool) -> int:
        model, total = model_of(depth=12), 0

        def count(x: Tensor) -> Tensor:
            nonlocal total
            total += x.numel() if x.grad_fn is not None or not x.requires_grad else 0  # weights are there anyway
            return x

        model.backbone.recompute = recompute  # type: ignore[assignment]
        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            model.loss(torch.randn(8, 3, 16, 16), ClassTargets(torch.arange(8) % 3))
        return total

    assert kept(True) < kept(False) / 5


def test_a_step_makes_every_block_twice() -> None:
    model, calls = model_of(), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for block in model.backbone.blocks:  # type: ignore[union-attr]
        block.attention.register_forward_hook(count)
    step(model, recompute=False)
    assert calls == 4
    step(model, recompute=True)
    assert calls == 4 + 8


def test_looking_inside_and_evaluating_recompute_nothing() -> None:
    model = model_of()
    model.backbone.recompute = True  # type: ignore[assignment]
    seen: dict[str, Tensor] = {}
    pictures = torch.randn(2, 3, 16, 16)
    shown = model(pictures, seen=seen)
    assert "block3.attention" in seen
    with torch.no_grad():
        torch.testing.assert_close(model(pictures), shown)


def test_it_is_no_part_of_the_model_or_of_its_arithmetic() -> None:
    model = model_of()
    before = training_flops(model, (16, 16))
    model.backbone.recompute = True  # type: ignore[assignment]
    assert training_flops(model, (16, 16)) == before
    assert "recompute" not in str(model.spec)
