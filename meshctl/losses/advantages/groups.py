"""Sums over the groups of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from meshctl.losses.function import LossError


def of_answers(rewards: Tensor, advantage: str) -> Tensor:
    """Returns the rewards if they are `[samples]`. Raises `LossError` for rewards of tokens."""
    if rewards.ndim != 1:
        raise LossError(f"advantage `{advantage}` needs one reward for each answer, not one for each token")
    return rewards


def group_sums(values: Tensor, group_index: Tensor) -> Tensor:
    """Returns `[samples]`: the sum of `values`, `[samples]`, over the group of each sample."""
    groups = int(group_index.max()) + 1 if len(group_index) else 0
    return values.new_zeros(groups).index_add(0, group_index, values)[group_index]


def group_sizes(values: Tensor, group_index: Tensor) -> Tensor:
    """Returns `[samples]`, in the dtype of `values`: the number of samples in the group of each sample."""
    return group_sums(torch.ones_like(values), group_index)


def deviations(values: Tensor, group_index: Tensor) -> Tensor:
    """Returns `[samples]`: the difference of each value from the mean of its group."""
    return values - group_sums(values, group_index) / group_sizes(values, group_index)
