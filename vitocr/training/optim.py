"""Muon for the matrices of blocks and the filters of a stem, AdamW for everything else, in one optimiser.

Muon (Jordan et al., 2024) replaces the momentum of a weight matrix by the nearest matrix with all
singular values near one, found by a few Newton-Schulz steps. At equal time it reached in two epochs of
CIFAR-10 what AdamW needed four for; it costs a few per cent of a step. Ours differs from
`torch.optim.Muon` in two ways that make it cheaper: matrices of one shape are orthogonalised together,
and under data parallelism every rank does its share of them and the ranks gather the results.
Of a sharded model (trainer=fsdp) every rank keeps its rows of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from vitocr.errors import UserError, did_you_mean
from vitocr.training.exchange import gather_by_socket
from vitocr.training.rates import both_ends

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the quintic of the Muon paper: steepest at zero


def orthogonalise(stack: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """The matrices of `stack` (n, rows, cols) with all their singular values brought near one."""
    a, b, c = NEWTON_SCHULZ
    x = stack.to(dtype)
    tall = x.shape[1] > x.shape[2]
    if tall:  # the iteration works on the smaller of the two Gram matrices
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)  # (n, r, r)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class MuonAdamW(torch.optim.Optimizer):
    """Parameter groups say which rule they follow: `rule="muon"` (matrices and filters) or `"adamw"`."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, ns_steps: int = 5, ns_dtype: torch.dtype,
        gather: Callable[[Tensor], Tensor] = gather_by_socket,
    ) -> None:  # fmt: skip
        """gather: from one rank's numbers (n,) to everyone's (ranks, n); called where there are several ranks."""
        super().__init__(list(groups), {"lr": 0.0, "weight_decay": 0.0})
        self.ns_steps, self.ns_dtype, self.gather = ns_steps, ns_dtype, gather

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                (self.muon_step if group["rule"] == "muon" else self.adamw_step)(group, params)
        return loss

    def adamw_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        states = [self.state[p] for p in params]
        beta1, beta2 = group["betas"]
        adamw(
            params,
            [p.grad for p in params],  # type: ignore[misc]  # filtered in step()
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            foreach=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )

    def muon_step(self, group: dict[str, Any], params: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p] = {"momentum": torch.zeros_like(p)}
        momenta = [self.state[p]["momentum"] for p in params]
        gradients = [p.grad for p in params if p.grad is not None]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(gradients, momenta, group["momentum"])
        whole = [matrix.full_tensor() if isinstance(matrix, DTensor) else matrix for matrix in nesterov]
        # A convolution's filters (out, in, kh, kw) are a matrix too: one row a filter.
        updates = self.orthogonalise_together([matrix.flatten(1) for matrix in whole])
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        for p, update in zip(params, updates, strict=True):
            # Keeps the size of the change to the layer's output alike for wide and tall matrices.
            rows, columns = update.shape
            update = update.view(p.shape)
            if isinstance(p, DTensor):
                from vitocr.training.sharded import like

                update = like(update, p)
            p.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)

    def orthogonalise_together(self, matrices: list[Tensor]) -> list[Tensor]:
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        rank = dist.get_rank() if world > 1 else 0
        owners = share_out([matrix.shape for matrix in matrices], world)
        by_shape: dict[torch.Size, list[int]] = defaultdict(list)
        for i, matrix in enumerate(matrices):
            if owners[i] == rank:
                by_shape[matrix.shape].append(i)
        updates: list[Tensor] = [torch.empty(0)] * len(matrices)
        for where in by_shape.values():
            stack = torch.stack([matrices[i] for i in where])
            for i, update in zip(where, orthogonalise(stack, self.ns_steps, self.ns_dtype), strict=True):
                updates[i] = update
        if world == 1:
            return updates
        owned = [[i for i, owner in enumerate(owners) if owner == r] for r in range(world)]
        most = max(sum(matrices[i].numel() for i in some) for some in owned)
        mine = matrices[0].new_zeros(most, dtype=self.ns_dtype)  # padded: everyone gives as much
        given = [updates[i].flatten() for i in owned[rank]]
        if given:
            torch.cat(given, out=mine[: sum(map(len, given))])
        for some, numbers in zip(owned, self.gather(mine), strict=True):
            sizes = [matrices[i].numel() for i in some]
            for i, update in zip(some, numbers[: sum(sizes)].split(sizes), strict=True):
                updates[i] = update.view(matrices[i].shape)
        return updates


def share_out(shapes: Sequence[torch.Size], world: int) -> list[int]:
    """Which rank orthogonalises which matrix: the dearest first, each to the rank that has least to do."""
    costs = [rows * columns * min(rows, columns) for rows, columns in shapes]
    load, owners = [0] * world, [0] * len(shapes)
    for i in sorted(range(len(shapes)), key=lambda i: -costs[i]):
        owners[i] = load.index(min(load))
        load[owners[i]] += costs[i]
    return owners


def build_optimizer(
    model: nn.Module, spec: dict[str, Any], *, bf16: bool, gather: Callable[[Tensor], Tensor] = gather_by_socket
) -> torch.optim.Optimizer:
    """`spec` is conf/optim/*.yaml. Muon takes the matrices inside blocks and the filters of a stem; the embedding,
    the head and everything that is not a matrix go to AdamW, and what is not a matrix is not decayed.

    bf16: whether Newton-Schulz may run in bfloat16. It is accurate enough, but not to the last digits."""
    name = spec["name"]
    if name not in ("muon", "adamw"):
        raise UserError(f"optim.name={name}: choose muon or adamw.{did_you_mean(name, ['muon', 'adamw'])}")
    matrices, others, undecayed = [], [], []
    for path, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim < 2 or path.endswith(("positions", "class_token", "pos_embed", "cls_token")):
            undecayed.append(p)
        elif name == "muon" and ((p.ndim == 2 and "blocks." in path) or (p.ndim == 4 and "stem." in path)):
            matrices.append(p)
        else:
            others.append(p)
    rates = {"rule": "adamw", "betas": tuple(spec["betas"]), "lr_ends": both_ends("lr", spec["lr"])}
    decay = both_ends("weight_decay", spec["weight_decay"])
    groups = [
        rates | {"params": others, "weight_decay_ends": decay},
        rates | {"params": undecayed, "weight_decay_ends": (0.0, 0.0)},
    ]
    if matrices:
        muon = spec["muon"]
        ends = {f"{name}_ends": both_ends(f"muon.{name}", muon[name]) for name in ("lr", "weight_decay")}
        groups.append({"rule": "muon", "params": matrices, "momentum": muon["momentum"]} | ends)
    for group in groups:  # until the schedule says otherwise (rates.py)
        group["lr"], group["weight_decay"] = group["lr_ends"][0], group["weight_decay_ends"][0]
    return MuonAdamW(
        [group for group in groups if group["params"]],
        ns_steps=spec["muon"]["ns_steps"],
        ns_dtype=torch.bfloat16 if bf16 else torch.float32,
        gather=gather,
    )
