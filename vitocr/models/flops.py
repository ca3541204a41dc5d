"""How much arithmetic a training step is: multiplications and additions of its matrix products."""

from functools import cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@cache
def training_flops(model: nn.Module, size: tuple[int, int], keep: float = 1.0) -> float:
    """Per image, forward and backward, as torch counts them; element-wise work is not counted."""
    # Counted with gradients on, because without them a CPU takes another attention kernel.
    extra = {} if keep == 1.0 else {"keep": keep}
    device = next(model.parameters()).device
    # The model is in the middle of its training: its random state and running statistics stay as they are.
    statistics = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 3, *size, device=device), **extra)
    for buffer, before in zip(model.buffers(), statistics, strict=True):
        buffer.copy_(before)
    return 3 * counter.get_total_flops() / 2  # the backward pass costs two forward passes
