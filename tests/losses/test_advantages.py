"""Advantages against their formulas, written out with Python's floats."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.losses import LOSSES, LossError
from meshctl.losses import find as find_loss
from meshctl.losses.advantages import ADVANTAGES, DEFAULTS, find
from tests.examples import examples

Groups = list[list[float]]
GROUPS: Groups = [[1.0, 0.0, 0.0, 1.0], [0.5], [2.0, 2.0], [-1.0, 3.0, 0.25]]
groups_of_rewards = st.lists(
    st.lists(st.floats(-5, 5, allow_subnormal=False), min_size=1, max_size=4), min_size=1, max_size=5
)


def alone(tensor: Tensor) -> Tensor:
    """Adds a tensor over a single rank."""
    return tensor


def inputs_of(groups: Groups) -> dict[str, Any]:
    rewards = torch.tensor([reward for group in groups for reward in group], dtype=torch.float64)
    sizes = torch.tensor(list(map(len, groups)), dtype=torch.int64)
    index = torch.repeat_interleave(torch.arange(len(groups)), sizes)
    return {"rewards": rewards, "group_index": index, "over_ranks": alone}


def grpo(group: list[float], eps: float = 1e-4) -> list[float]:
    mean = statistics.fmean(group)
    deviation = statistics.stdev(group) if len(group) > 1 else 0.0
    return [(reward - mean) / (deviation + eps) for reward in group]


def group_mean(group: list[float]) -> list[float]:
    return [reward - statistics.fmean(group) for reward in group]


def rloo(group: list[float]) -> list[float]:
    if len(group) == 1:
        return [0.0]
    others = [group[:index] + group[index + 1 :] for index in range(len(group))]
    return [reward - statistics.fmean(rest) for reward, rest in zip(group, others, strict=True)]


@pytest.mark.parametrize("formula", [grpo, group_mean, rloo])
@settings(max_examples=examples(30, 500), deadline=None)
@given(groups=groups_of_rewards)
def test_advantages_of_groups(formula: Any, groups: Groups) -> None:
    found = find(formula.__name__)(inputs_of(groups))
    expected = [one for group in groups for one in formula(group)]
    assert found.advantages.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert found.returns is None


def test_whitened_rewards_have_the_moments_of_all_ranks() -> None:
    whole = find("whitened")(inputs_of(GROUPS)).advantages
    rewards = [reward for group in GROUPS for reward in group]
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    assert whole.tolist() == pytest.approx([(reward - mean) / deviation for reward in rewards])


@pytest.mark.parametrize("name", ADVANTAGES)
def test_a_rank_without_samples_has_empty_advantages(name: str) -> None:
    empty = torch.zeros(0, 3, dtype=torch.float64)
    inputs = inputs_of([]) | {"mask": empty, "values": empty}
    assert find(name)(inputs).advantages.numel() == 0


# gae

LENGTHS = (4, 1, 3)
LONGEST = max(LENGTHS)


def tokens_of(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    mask = torch.zeros(len(LENGTHS), LONGEST, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
    mask[0, 1] = 0  # a token that the policy has not sampled
    random_tokens = {
        name: torch.tensor([[draw.uniform(-2, 0) for _ in range(LONGEST)] for _ in LENGTHS]).double()
        for name in ("values", "old_logprobs", "sampled_logprobs", "ref_logprobs")
    }
    rewards = torch.tensor([draw.uniform(-1, 1) for _ in LENGTHS], dtype=torch.float64)
    return {"rewards": rewards, "mask": mask, "over_ranks": alone, **random_tokens}


def expected_gae(inputs: dict[str, Any], gamma: float, lam: float, kl: float = 0.0) -> tuple[Groups, Groups]:
    """Returns advantages and returns by the sum of equation 16, over all later tokens."""
    advantages, returns = [], []
    for row in range(len(LENGTHS)):
        labels = [token for token in range(LONGEST) if inputs["mask"][row, token]]
        values = [float(inputs["values"][row, token]) for token in labels] + [0.0]
        rewards = [0.0] * (len(labels) - 1) + [float(inputs["rewards"][row])]
        for number, token in enumerate(labels):
            penalty = inputs["old_logprobs"][row, token] - inputs["ref_logprobs"][row, token]
            rewards[number] -= kl * float(penalty)
        errors = [reward + gamma * values[n + 1] - values[n] for n, reward in enumerate(rewards)]
        own = [
            sum((gamma * lam) ** (later - n) * errors[later] for later in range(n, len(errors)))
            for n in range(len(errors))
        ]
        of_row, of_return = [0.0] * LONGEST, [0.0] * LONGEST
        for number, token in enumerate(labels):
            of_row[token], of_return[token] = own[number], own[number] + values[number]
        advantages.append(of_row)
        returns.append(of_return)
    return advantages, returns


@pytest.mark.parametrize(("gamma", "lam", "kl"), [(1.0, 0.95, 0.0), (0.9, 0.5, 0.2), (1.0, 1.0, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_gae_is_the_sum_of_later_errors(seed: int, gamma: float, lam: float, kl: float) -> None:
    inputs = tokens_of(seed)
    found = find("gae", gamma=gamma, lam=lam, kl=kl, whiten=False)(inputs)
    advantages, returns = expected_gae(inputs, gamma, lam, kl)
    torch.testing.assert_close(found.advantages, torch.tensor(advantages).double(), rtol=1e-6, atol=1e-6)
    assert found.returns is not None
    torch.testing.assert_close(found.returns, torch.tensor(returns).double(), rtol=1e-6, atol=1e-6)


def test_rewards_of_tokens_are_those_of_answers_at_their_last_tokens() -> None:
    inputs = tokens_of(1)
    by_token = torch.zeros(len(LENGTHS), LONGEST, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        by_token[row, length - 1] = inputs["rewards"][row]
    expected = find("gae")(inputs)
    found = find("gae")(inputs | {"rewards": by_token})
    torch.testing.assert_close(found, expected)


def test_whitened_advantages_have_a_mean_of_0_and_returns_are_those_before() -> None:
    inputs = tokens_of(2)
    white, plain = find("gae")(inputs), find("gae", whiten=False)(inputs)
    own = [float(one) for one in white.advantages[inputs["mask"] != 0]]
    assert statistics.fmean(own) == pytest.approx(0, abs=1e-9)
    assert statistics.pstdev(own) == pytest.approx(1)
    torch.testing.assert_close(white.returns, plain.returns)


# The table


def wrong(rewards: Tensor) -> list[float]:
    return [0.0]


def test_each_loss_with_advantages_has_a_default() -> None:
    wanted = {name for name in LOSSES if {"advantages", "returns"} & {*find_loss(name).inputs}}
    assert set(DEFAULTS) == wanted and set(DEFAULTS.values()) <= set(ADVANTAGES)


def test_wrong_use_is_named() -> None:
    with pytest.raises(LossError, match=r"needs `values`, .*a stage that calls `values` of a critic"):
        find("gae")({**inputs_of(GROUPS), "mask": torch.zeros(10, 2)})
    with pytest.raises(LossError, match="a sampler with `group_size`, provides `group_index`"):
        find("grpo")({"rewards": torch.zeros(2)})
    with pytest.raises(LossError, match="`rloo` needs one reward for each answer"):
        find("rloo")(inputs_of(GROUPS) | {"rewards": torch.zeros(10, 2)})
    with pytest.raises(LossError, match="returned a list; it must return a tensor or Estimates"):
        find(f"{__name__}.wrong")(inputs_of(GROUPS))
