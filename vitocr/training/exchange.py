"""Ranks forked on one machine exchange gradients and updates through memory they share.

gloo sends everything through a socket, which on two cores took 10 of the 170 ms of a step for the
gradients and as much again for Muon's updates. Here a rank writes its part, all wait for each other
(gloo still does that, with its time-outs and its notice of a rank that died), and each reads what the
others wrote. Sums are taken in the order of the ranks, so that all of them hold the same bits.
"""

import mmap

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

LARGEST_PART = 32 * 2**20  # bytes; what is larger goes through in several parts


class SharedMemory:
    """Made before the ranks are forked, who inherit it. An anonymous mapping: /dev/shm, which containers
    keep small, has no part in it, and the kernel frees it with the last rank, however that ends."""

    def __init__(self, *, ranks: int, largest: int) -> None:
        """largest: bytes a rank has to give at once; more is possible, in parts."""
        part = -(-min(max(largest, 4096), LARGEST_PART) // 64) * 64
        memory = torch.frombuffer(mmap.mmap(-1, 2 * ranks * part), dtype=torch.uint8)
        # Two sides, used in turn: who writes the one knows that all have read it, for they were there when
        # the other was written.
        self.sides = memory.view(2, ranks, part)
        self.part, self.turn = part, 0

    def publish(self, mine: Tensor) -> Tensor:
        """This rank's numbers (n,) among everyone's (ranks, n), which stay there until the next call but one."""
        side = self.sides[self.turn, :, : mine.nbytes].view(mine.dtype)
        self.turn = 1 - self.turn
        side[dist.get_rank()].copy_(mine)
        dist.barrier()
        return side

    def gather(self, mine: Tensor) -> Tensor:
        """Everyone's numbers (ranks, n)."""
        parts = [self.publish(part).clone() for part in mine.split(self.part // mine.itemsize)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def mean_(self, mine: Tensor) -> None:
        """Puts the mean over the ranks in the place of this rank's numbers (n,)."""
        for part in mine.split(self.part // mine.itemsize):
            everyone = self.publish(part)
            torch.sum(everyone, dim=0, out=part)
            part.div_(len(everyone))


def gather_by_socket(mine: Tensor) -> Tensor:
    """Everyone's numbers (ranks, n), by the process group's own means: NCCL, or gloo between machines."""
    everyone = mine.new_empty(dist.get_world_size() * len(mine))
    dist.all_gather_into_tensor(everyone, mine)
    return everyone.view(-1, len(mine))


def average_bucket(memory: SharedMemory, bucket: GradBucket) -> Future[Tensor]:
    """The hook that DistributedDataParallel calls for every bucket of gradients."""
    flat = bucket.buffer()
    memory.mean_(flat)
    done: Future[Tensor] = Future()
    done.set_result(flat)
    return done


def wrap(model: torch.nn.Module, memory: SharedMemory) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1024)
    wrapped.register_comm_hook(memory, average_bucket)
    return wrapped


class ForkedDDP(DDPStrategy):
    """One rank a core of this machine, forked: started in no time, and sharing the data set's memory."""

    def __init__(self, *, ranks: int, largest: int) -> None:
        super().__init__(start_method="fork", gradient_as_bucket_view=True)
        self.memory = SharedMemory(ranks=ranks, largest=largest)

    def _setup_model(self, model: torch.nn.Module) -> DistributedDataParallel:
        return wrap(model, self.memory)
