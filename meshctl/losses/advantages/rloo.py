"""The reward of an answer minus the mean over the other answers to its prompt (Kool et al., 2019; Ahmadian et
al., 2024, arXiv:2402.14740, equation 7).

    A = r - (sum over the other answers of r) / (size of the group - 1)
"""

from __future__ import annotations

from torch import Tensor

from meshctl.losses.advantages.groups import deviations, group_sizes, of_answers


def rloo(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Returns `[samples]`. `rewards` and the int64 `group_index` are `[samples]`. A group of one answer has
    the advantage 0."""
    sizes = group_sizes(of_answers(rewards, "rloo"), group_index)
    return deviations(rewards, group_index) * sizes / (sizes - 1).clamp(min=1)
