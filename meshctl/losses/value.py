"""The loss of a critic: the squared error of its values, optionally clipped as those of the policy are
(Schulman et al., 2017, arXiv:1707.06347, equation 9; the clipping is that of the authors' code).

    loss = 1/2 max((v - R)^2, (clamp(v, v_old - clip, v_old + clip) - R)^2)

v is the value of the text before a token, and R the return from this token on: its advantage before
whitening plus v_old (`gae`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from meshctl.losses.loss import LossError, LossSum, lacking
from meshctl.losses.policy import Tokens


def value(
    predicted_values: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    sequence_tokens: Tensor,
    returns: Tensor,
    values: Tensor | None = None,
    *,
    clip: float | None = None,
    aggregation: Literal["token", "sequence"] = "token",
) -> LossSum:
    """Returns the sum of the losses of all tokens, with the number of units of `aggregation` as the count.

    `sequence_tokens` is `[samples]`; all other inputs are `[tokens]`. `values` are those of the critic before
    its first update with the batch; `clip` needs them. `aggregation` is `token` or `sequence`. `metrics` has
    the sums of `value` and `return`.
    """
    units = Tokens(predicted_values, mask, sample_index, sequence_tokens).units(aggregation)
    losses = (predicted_values - returns).square()
    if clip is not None:
        if values is None:
            raise LossError(lacking("loss `value` with `clip`", ["values"], {"returns": returns}))
        bounded = torch.clamp(predicted_values, values - clip, values + clip)
        losses = torch.maximum(losses, (bounded - returns).square())
    metrics = {"value": units.sum(predicted_values.detach()), "return": units.sum(returns.detach())}
    return LossSum(units.sum(losses / 2), units.count.detach(), metrics)
