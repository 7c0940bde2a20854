"""The context in which a model computes without training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Returns a context in which a model computes without gradients and dropout.

    After a forward pass without a backward pass, FSDP keeps some parameters unsharded. The end of the context
    shards these parameters again, and sets the model to its earlier mode.
    """
    is_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(is_training)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
