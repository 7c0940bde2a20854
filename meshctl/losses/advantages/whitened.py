"""The reward of an answer, normalized over all answers of all ranks, without groups (as REINFORCE++ does: Hu
et al., 2025, arXiv:2501.03262, section 3.2).

    A = (r - mean of the batch) / (std of the batch + eps)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meshctl.losses.advantages.groups import of_answers


def whitened(rewards: Tensor, over_ranks: Callable[[Tensor], Tensor], *, eps: float = 1e-8) -> Tensor:
    """Returns `[samples]`. `rewards` are `[samples]`. `over_ranks` adds a tensor over all data ranks."""
    mean, deviation = moments(of_answers(rewards, "whitened"), torch.ones_like(rewards), over_ranks)
    return (rewards - mean) / (deviation + eps)


def moments(values: Tensor, mask: Tensor, over_ranks: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the mean and the standard deviation of `values` over all data ranks, 0-dim. Values where `mask`
    is 0 do not count. The function calls `over_ranks` twice."""
    weights = mask.to(torch.float64)
    total, count = over_ranks(torch.stack([(values * weights).sum(), weights.sum()]))
    mean = total / count.clamp(min=1)
    squares = over_ranks(((values - mean).square() * weights).sum()[None])[0]
    return mean.to(values.dtype), (squares / count.clamp(min=1)).sqrt().to(values.dtype)
