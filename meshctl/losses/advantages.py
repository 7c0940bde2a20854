"""Advantages: how much better a sampled answer, or a token of it, is than what was expected.

    estimate = find("grpo", eps=1e-6)       a name of `ADVANTAGES`, or the dotted path of a user's function
    estimate({"rewards": ..., "group_index": ..., ...})

`hf.Model.update` calls the function with its whole share of the batch, before it cuts micro-batches. Groups
are whole there. The positional parameters of the function name its inputs; one with a default is optional.
The keyword-only parameters are its options.

    input                                          shape                  content
    rewards                                        [samples]              reward of an answer; or
                                                   [samples, tokens]      reward of each of its tokens
    group_index                                    int64 [samples]        number of each sample's group
    mask                                           [samples, tokens]      1 for a label, 0 elsewhere
    values                                         [samples, tokens]      value of the text before the label
    old_logprobs, sampled_logprobs, ref_logprobs   [samples, tokens]      log-probability of the label
    over_ranks                                     a function             adds a tensor over all data ranks

The function returns advantages, `[samples]` or `[samples, tokens]`, or `Estimates` with the returns. A user's
function has the same form:

    def centered(rewards, over_ranks):
        total, count = over_ranks(torch.stack([rewards.sum(), torch.ones_like(rewards).sum()]))
        return rewards - total / count

All ranks call the function, also with an empty batch, and call `over_ranks` equally often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.losses.loss import Function, LossError, find_function, lacking
from meshctl.losses.policy import KlEstimator, kl_estimate

ADVANTAGES = {
    "grpo": "meshctl.losses.advantages.grpo",
    "group_mean": "meshctl.losses.advantages.group_mean",
    "rloo": "meshctl.losses.advantages.rloo",
    "gae": "meshctl.losses.advantages.gae",
    "whitened": "meshctl.losses.advantages.whitened",
}
"""Name of an advantage -> dotted path of its function. A new advantage is a function and one line here."""
DEFAULTS = {
    "grpo": "grpo",
    "dr_grpo": "group_mean",
    "dapo": "grpo",
    "gspo": "grpo",
    "cispo": "grpo",
    "rloo": "rloo",
    "ppo": "gae",
    "value": "gae",
}
"""Name of a loss -> the advantage of its paper."""


class Estimates(NamedTuple):
    """The result of an advantage."""

    advantages: Tensor
    """`[samples]` or `[samples, tokens]`, without a gradient."""
    returns: Tensor | None = None
    """`[samples, tokens]`: the targets of a critic's values."""


@dataclass(frozen=True)
class Advantage(Function):
    """A function that computes advantages, with its options."""

    KIND, TABLE = "advantage", ADVANTAGES

    def __call__(self, inputs: Mapping[str, Any]) -> Estimates:
        """Calls the function with `inputs`, a mapping from input names to values.

        Raises `LossError` if a required input is missing, or if the function returns something else.
        """
        found = self.apply(inputs)
        found = Estimates(found) if isinstance(found, Tensor) else found
        if not isinstance(found, Estimates):
            raise LossError(
                f"advantage `{self.name}` returned a {type(found).__name__}; it must return a tensor or "
                "Estimates"
            )
        return found


def find(name: str, **options: Any) -> Advantage:
    """Returns the advantage `name` with these options. `name` is a key of `ADVANTAGES` or the dotted path of
    a function. Raises `LossError` for an unknown name or option."""
    return find_function(Advantage, name, options)


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


def grpo(rewards: Tensor, group_index: Tensor, *, eps: float = 1e-4) -> Tensor:
    """Returns the reward of each answer, normalized over the answers to its prompt, `[samples]` (Shao et al.,
    2024, arXiv:2402.03300, section 4.1.2).

        A = (r - mean of the group) / (std of the group + eps)

    The standard deviation is that of a sample: the squares are divided by the size of the group minus 1. A
    group of one answer has the advantage 0.
    """
    difference = deviations(of_answers(rewards, "grpo"), group_index)
    others = (group_sizes(rewards, group_index) - 1).clamp(min=1)
    deviation = (group_sums(difference.square(), group_index) / others).sqrt()
    return difference / (deviation + eps)


def group_mean(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Returns the reward of each answer minus the mean over the answers to its prompt, `[samples]` (Liu et
    al., 2025, arXiv:2503.20783, section 3.1). Without a division by the standard deviation, very easy and
    very hard prompts get no larger weight. A group of one answer has the advantage 0."""
    return deviations(of_answers(rewards, "group_mean"), group_index)


def rloo(rewards: Tensor, group_index: Tensor) -> Tensor:
    """Returns the reward of each answer minus the mean over the other answers to its prompt, `[samples]`
    (Kool et al., 2019; Ahmadian et al., 2024, arXiv:2402.14740, equation 7). A group of one answer has the
    advantage 0."""
    sizes = group_sizes(of_answers(rewards, "rloo"), group_index)
    return deviations(rewards, group_index) * sizes / (sizes - 1).clamp(min=1)


def whitened(rewards: Tensor, over_ranks: Callable[[Tensor], Tensor], *, eps: float = 1e-8) -> Tensor:
    """Returns the reward of each answer, normalized over all answers of all ranks, `[samples]` (as
    REINFORCE++ does: Hu et al., 2025, arXiv:2501.03262, section 3.2).

        A = (r - mean of the batch) / (std of the batch + eps)
    """
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


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    over_ranks: Callable[[Tensor], Tensor],
    old_logprobs: Tensor | None = None,
    sampled_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
    eps: float = 1e-8,
    kl: float = 0.0,
    kl_estimator: KlEstimator = "k1",
) -> Estimates:
    """Generalized advantage estimation, from the values of a critic (Schulman et al., 2015, arXiv:1506.02438,
    equation 16). Returns the advantages and the returns of all tokens, `[samples, tokens]`.

        d_t = r_t + gamma v_(t+1) - v_t
        A_t = d_t + gamma lam A_(t+1)
        R_t = A_t + v_t                          the return, which the critic learns

    v_t is the value of the text before token t, and 0 after the last one. The reward of an answer is that of
    its last token. Tokens without a label, such as those of a tool, are left out: the token after them is the
    next.

    `rewards` are `[samples]` or `[samples, tokens]`; all other tensors are `[samples, tokens]`. With
    `whiten`, the advantages of all ranks have the mean 0 and the standard deviation 1; the returns are those
    before. `kl` is the weight of a penalty in the reward of each token, an estimate of the divergence from
    `ref_logprobs` (Ouyang et al., 2022, arXiv:2203.02155, equation 2).
    """
    is_label = mask != 0
    earned = rewards if rewards.ndim == 2 else _at_the_end(rewards, is_label)
    if ref_logprobs is not None:
        own = sampled_logprobs if old_logprobs is None else old_logprobs
        if own is None:
            raise LossError(lacking("`kl` of advantage `gae`", ["sampled_logprobs"], {"rewards": rewards}))
        earned = earned - kl * kl_estimate(own - ref_logprobs, kl_estimator)
    advantages = _advantages(earned, values, is_label, gamma, lam)
    returns = torch.where(is_label, advantages + values, 0.0)
    if whiten:
        mean, deviation = moments(advantages, mask, over_ranks)
        advantages = torch.where(is_label, (advantages - mean) / (deviation + eps), 0.0)
    return Estimates(advantages, returns)


def _at_the_end(rewards: Tensor, is_label: Tensor) -> Tensor:
    """Returns `[samples, tokens]`: the reward of each sample at its last label, and 0 elsewhere."""
    labels_from_here = is_label.flip(1).cumsum(1).flip(1)
    is_last = is_label & (labels_from_here == 1)
    return torch.where(is_last, rewards[:, None], 0.0)


def _advantages(rewards: Tensor, values: Tensor, is_label: Tensor, gamma: float, lam: float) -> Tensor:
    """Returns `[samples, tokens]`: the advantage of each label, and 0 elsewhere."""
    found = torch.zeros_like(values)
    next_value, next_advantage = values.new_zeros(len(values)), values.new_zeros(len(values))
    for token in reversed(range(values.shape[1])):
        here = is_label[:, token]
        error = rewards[:, token] + gamma * next_value - values[:, token]
        advantage = error + gamma * lam * next_advantage
        found[:, token] = torch.where(here, advantage, 0.0)
        next_value = torch.where(here, values[:, token], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
    return found
