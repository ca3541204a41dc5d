"""How much arithmetic a training step is: multiplications and additions of its matrix products."""

from itertools import chain

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode


def training_flops(model: nn.Module, size: tuple[int, int], keep: float = 1.0) -> float:
    """Per image, forward and backward, as torch counts them; element-wise work is not counted."""
    extra = {} if keep == 1.0 else {"keep": keep}
    # On tensors without contents: nothing is computed, and the model, which may be in the middle of its
    # training, keeps its running statistics and the random state as they are.
    shapes = {
        name: torch.empty_like(value, device="meta")
        for name, value in chain(model.named_parameters(), model.named_buffers())  # a state_dict lacks some buffers
    }
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        functional_call(model, shapes, (torch.empty(2, 3, *size, device="meta"),), extra)
    return 3 * counter.get_total_flops() / 2  # the backward pass costs two forward passes
