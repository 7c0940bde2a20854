"""The reward of an answer, normalized over the answers to its prompt (Shao et al., 2024, arXiv:2402.03300,
section 4.1.2).

    A = (r - mean of the group) / (std of the group + eps)
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.advantages.groups import deviations, group_sizes, group_sums, of_answers


def grpo(rewards: Tensor, group_index: Tensor, *, eps: float = 1e-4) -> Tensor:
    """Returns `[samples]`. `rewards` and the int64 `group_index` are `[samples]`.

    The standard deviation is that of a sample: the squares are divided by the size of the group minus 1. A
    group of one answer has the advantage 0.
    """
    difference = deviations(of_answers(rewards, "grpo"), group_index)
    others = (group_sizes(rewards, group_index) - 1).clamp(min=1)
    deviation = (group_sums(difference.square(), group_index) / others).sqrt()
    return difference / (deviation + eps)
