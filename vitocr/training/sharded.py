"""`trainer=fsdp`: the model, its gradients, the optimiser and the average cut into shards, one of each a rank.

torch's FSDP2, over GPUs (NCCL) or CPU ranks (gloo). A block's weights are gathered when it runs and let
go behind it, so that a model may be larger than what one device holds. The rest of a run does not know:
- checkpoints are whole files in the form every other run writes, the optimiser's state by parameter
  group as torch numbers it; a run may go on under another trainer;
- Muon holds its matrices whole while it makes their updates (see optim.py); optim=adamw never does.

Nothing here is imported unless a run is sharded.
"""

import multiprocessing
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher, _WorkerOutput
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


def shard(module: L.LightningModule, mesh: DeviceMesh) -> None:
    """Every block of the backbone a unit of its own, all the rest one more, gathered when a step begins.

    Not the blocks of a head: decoding calls their parts one by one, and FSDP gathers around `forward`."""
    for name, blocks in module.named_modules():
        if ".backbone." in name and name.endswith(".blocks"):  # ours and timm's; a ModuleList or a Sequential
            for block in blocks.children():
                fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    for step in ("training_step", "validation_step"):  # what Lightning calls in place of `forward`
        register_fsdp_forward_method(module, step)


def like(value: Tensor, model: Tensor) -> Tensor:
    """This rank's part of a whole tensor that every rank has, cut as `model` is."""
    value = value.to(model.device)
    if not isinstance(model, DTensor):
        return value  # a buffer, which every rank keeps whole
    # src_data_rank=None: everyone has it, nobody needs to send it.
    return distribute_tensor(value, model.device_mesh, model.placements, src_data_rank=None)


def whole(values: Mapping[str, Any]) -> dict[str, Any]:
    """Shards put together for the first rank, which saves them; the others, who must call this too, keep theirs.

    One tensor after the other and out of the device's memory, which need not hold them all."""

    def joined(shards: DTensor) -> Tensor:
        full = shards.full_tensor()
        return full.cpu() if dist.get_rank() == 0 else shards

    return {name: joined(value) if isinstance(value, DTensor) else value for name, value in values.items()}


class Sharded(ModelParallelStrategy):
    def __init__(self, ranks: int) -> None:
        super().__init__(data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)

    def _configure_launcher(self) -> None:
        if self.root_device.type == "cpu" and "fork" in multiprocessing.get_all_start_methods():
            self._launcher = ForkLauncher(self, start_method="fork")
        else:
            super()._configure_launcher()

    def on_validation_start(self) -> None:
        """All ranks judge with the running statistics of the first, which are those it saves."""
        assert self.lightning_module is not None
        for buffer in self.lightning_module.buffers():
            dist.broadcast(buffer, src=0)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True  # Lightning's own form of the state is numbered otherwise than any other run's

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = optimizer.state_dict()
        return state | {"state": {number: whole(values) for number, values in state["state"].items()}}

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return super(ModelParallelStrategy, self).load_checkpoint(checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        module = self.lightning_module
        assert module is not None
        here = module.state_dict()
        saved = checkpoint["state_dict"]
        cut = {name: like(value, here[name]) if name in here else value for name, value in saved.items()}
        module.load_state_dict(cut, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        def cut(value: Tensor, p: Tensor) -> Tensor:
            return like(value, p) if value.shape == p.shape else value  # the count of steps is a number

        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            params = [p for group in optimizer.param_groups for p in group["params"]]  # as torch numbers them
            state = {n: {k: cut(v, params[n]) for k, v in values.items()} for n, values in saved["state"].items()}
            optimizer.load_state_dict(saved | {"state": state})


class ForkLauncher(_MultiProcessingLauncher):
    """Starts CPU ranks in no time. The weights stay with them: their shards mean nothing to the process that
    forked them, and what it goes on with it reads from the files they wrote."""

    def _collect_rank_zero_results(self, trainer: L.Trainer, results: Any) -> _WorkerOutput | None:
        if self._strategy.local_rank != 0:
            return None
        return _WorkerOutput(None, None, trainer.state, results, self.get_extra_results(trainer))
