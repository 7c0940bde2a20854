"""The loss of a reward model: the negative log-likelihood of preferences under the model of Bradley and Terry
(1952), as in Ouyang et al., 2022, arXiv:2203.02155, equation 1.

    loss = -log sigmoid(score(chosen) - score(rejected) - margin) + center (score(chosen) + score(rejected))^2

The margin is that of Llama 2 (arXiv:2307.09288, equation 2). The term with `center` keeps scores near 0
(Eisenstein et al., 2023, arXiv:2312.09244).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from meshctl.losses.dpo import preference_sum
from meshctl.losses.loss import LossSum


def bradley_terry(
    chosen_scores: Tensor, rejected_scores: Tensor, margin: Tensor | float = 0.0, *, center: float = 0.0
) -> LossSum:
    """Returns the sum of the losses of all pairs, with the number of pairs as the count.

    `chosen_scores` and `rejected_scores` are `[pairs]`. `margin` is `[pairs]` if the batch has a column of
    this name, and 0 otherwise. `metrics` has the same keys as the metrics of `dpo`.
    """
    losses = -logsigmoid(chosen_scores - rejected_scores - margin)
    losses = losses + center * (chosen_scores + rejected_scores) ** 2
    return preference_sum(losses, chosen_scores, rejected_scores)
