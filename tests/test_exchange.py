"""Ranks on one machine exchange through the memory they share."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from vitocr.training.exchange import SharedMemory, gather_by_socket, wrap

RANKS = 3


def numbers(rank: int, turn: int) -> Tensor:
    return torch.randn(5000, generator=torch.Generator().manual_seed(10 * rank + turn))


def exchange(rank: int, memory: SharedMemory, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = []
    for turn in range(6):  # more often than there are sides: none is written before all have read it
        mean = numbers(rank, turn)
        memory.mean_(mean)
        found.append({
            "gathered": memory.gather(numbers(rank, turn).bfloat16()),
            "by socket": gather_by_socket(numbers(rank, turn).bfloat16()),
            "mean": mean,
        })  # fmt: skip
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("largest", [20_000, 4096], ids=["at-once", "in-parts"])
def test_everyone_gets_everyones_numbers_and_the_same_mean_to_the_bit(tmp_path: Path, largest: int) -> None:
    memory = SharedMemory(ranks=RANKS, largest=largest)
    start_processes(exchange, (memory, str(tmp_path)), nprocs=RANKS, start_method="fork")
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)]
    for turn in range(6):
        given = torch.stack([numbers(rank, turn) for rank in range(RANKS)])
        for found in (rank[turn] for rank in ranks):
            assert torch.equal(found["gathered"], given.bfloat16())
            assert torch.equal(found["by socket"], given.bfloat16())
            assert torch.allclose(found["mean"], given.mean(dim=0), atol=1e-6)
            assert torch.equal(found["mean"], ranks[0][turn]["mean"])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 600), nn.Tanh(), nn.Linear(600, 1))


def gradients_on_a_rank(rank: int, memory: SharedMemory, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = network()
    wrapped = wrap(model, memory)
    for _ in range(3):  # the buckets are arranged anew after the first
        model.zero_grad()
        wrapped(torch.eye(4)[2 * rank : 2 * rank + 2]).square().mean().backward()
    torch.save([p.grad for p in model.parameters()], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_gradients_of_two_ranks_are_those_of_one_process_on_both_their_images(tmp_path: Path) -> None:
    alone = network()
    alone(torch.eye(4)).square().mean().backward()
    memory = SharedMemory(ranks=2, largest=sum(p.nbytes for p in alone.parameters()))
    start_processes(gradients_on_a_rank, (memory, str(tmp_path)), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for p, one, other in zip(alone.parameters(), first, second, strict=True):
        assert torch.equal(one, other)
        assert p.grad is not None and torch.allclose(one, p.grad, atol=1e-6)
