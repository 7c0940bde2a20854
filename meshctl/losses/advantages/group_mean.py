"""The reward of an answer minus the mean over the answers to its prompt (Liu et al., 2025, arXiv:2503.20783,
section 3.1). Without a division by the standard deviation, very easy and very hard prompts get no larger
weight.

    A = r - mean of the group
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.advantages.groups import deviations, of_answers


def group_mean(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Returns `[samples]`. `rewards` and the int64 `group_index` are `[samples]`. A group of one answer has
    the advantage 0."""
    return deviations(of_answers(rewards, "group_mean"), group_index)
