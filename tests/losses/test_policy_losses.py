"""Losses of sampled answers against their formulas, written out token by token with Python's floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.losses import LossError, find
from tests.examples import examples
from tests.losses.answers import Answer, answers_of, inputs_of, part_of

At = Callable[[Answer, int], float]
"""Returns the loss of a token: (answer, its index) -> loss."""


def clamp(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def ratio(one: Answer, token: int, first: str = "logprobs", second: str = "old_logprobs") -> float:
    return math.exp(one.tokens[first][token] - one.tokens[second][token])


def correction(one: Answer, token: int, cap: float = 2.0) -> float:
    return min(ratio(one, token, "old_logprobs", "sampled_logprobs"), cap)


def surrogate(r: float, advantage: float, low: float, high: float) -> float:
    if advantage > 0:
        return -advantage * min(r, 1 + high)
    return -advantage * max(r, 1 - low)


def divergence(one: Answer, token: int, estimator: str) -> float:
    difference = one.tokens["logprobs"][token] - one.tokens["ref_logprobs"][token]
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    return math.exp(-difference) - 1 + difference


def clipping(clip: float, clip_high: float, kl: float = 0.0, kl_estimator: str = "k3", **_: Any) -> At:
    def at(one: Answer, token: int) -> float:
        found = surrogate(ratio(one, token), one.tokens["advantages"][token], clip, clip_high)
        return found * correction(one, token) + kl * divergence(one, token, kl_estimator)

    return at


def gspo(clip: float = 3e-4, clip_high: float = 4e-4, **_: Any) -> At:
    def at(one: Answer, token: int) -> float:
        product = math.prod(ratio(one, label) for label in one.labels)
        s = product ** (1 / len(one.labels))
        return surrogate(s, one.tokens["advantages"][token], clip, clip_high) * correction(one, token)

    return at


def cispo(max_ratio: float = 5.0, min_ratio: float = 0.0, **_: Any) -> At:
    def at(one: Answer, token: int) -> float:
        weight = clamp(ratio(one, token), min_ratio, max_ratio) * correction(one, token)
        return -weight * one.tokens["advantages"][token] * one.tokens["logprobs"][token]

    return at


def rloo(kl: float = 0.0, **_: Any) -> At:
    def at(one: Answer, token: int) -> float:
        found = -one.tokens["advantages"][token] * one.tokens["logprobs"][token] * correction(one, token)
        return found + kl * divergence(one, token, "k3")

    return at


def value(clip: float | None = None, **_: Any) -> At:
    def at(one: Answer, token: int) -> float:
        new, old, target = (one.tokens[name][token] for name in ("predicted_values", "values", "returns"))
        errors = [(new - target) ** 2]
        if clip is not None:
            errors.append((clamp(new, old - clip, old + clip) - target) ** 2)
        return max(errors) / 2

    return at


def distill(divergence: str = "reverse_kl", beta: float = 0.5, tail: bool = True, **_: Any) -> At:
    def at(one: Answer, token: int) -> float:
        if divergence == "sampled":
            own = one.tokens["logprobs"][token]
            weight = min(ratio(one, token, "logprobs", "sampled_logprobs"), 2.0)
            return weight * (own - one.tokens["teacher_logprobs"][token]) * own
        s, t = ([math.exp(log) for log in logs[token]] for logs in (one.top, one.teacher_top))
        if tail:
            s, t = [*s, 1 - sum(s)], [*t, 1 - sum(t)]
        mixed = [beta * b + (1 - beta) * a for a, b in zip(s, t, strict=True)]
        if divergence == "jsd":
            return beta * kl(t, mixed) + (1 - beta) * kl(s, mixed)
        return kl(t, s) if divergence == "forward_kl" else kl(s, t)

    return at


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def aggregated(answers: list[Answer], at: At, aggregation: str, max_tokens: float = 1.0) -> float:
    """Returns the mean of the losses of all tokens."""
    losses = [[at(one, token) for token in one.labels] for one in answers]
    if aggregation == "token":
        return sum(map(sum, losses)) / sum(map(len, losses))
    if aggregation == "sequence":
        return sum(sum(one) / len(one) for one in losses) / len(losses)
    if aggregation == "constant":
        return sum(sum(one) / max_tokens for one in losses) / len(losses)
    groups: dict[int, list[float]] = {}
    for one, of_one in zip(answers, losses, strict=True):
        groups.setdefault(one.group, []).extend(of_one)
    return sum(sum(group) / len(group) for group in groups.values()) / len(groups)


CASES: list[tuple[str, At, str, dict[str, Any]]] = [
    ("grpo", clipping(0.2, 0.2), "sequence", {}),
    ("grpo", clipping(0.1, 0.3, 0.4), "sequence", {"clip": 0.1, "clip_high": 0.3, "kl": 0.4}),
    ("grpo", clipping(0.2, 0.2, 0.4, "k1"), "group", {"kl": 0.4, "kl_estimator": "k1"}),
    ("grpo", clipping(0.2, 0.2, 0.4, "k2"), "token", {"kl": 0.4, "kl_estimator": "k2"}),
    ("dr_grpo", clipping(0.2, 0.2), "constant", {}),
    ("dr_grpo", clipping(0.2, 0.2, 0.1), "constant", {"max_tokens": 7.0, "kl": 0.1}),
    ("dapo", clipping(0.2, 0.28), "token", {}),
    ("dapo", clipping(0.2, 0.28), "group", {}),
    ("ppo", clipping(0.2, 0.2), "token", {}),
    ("gspo", gspo(), "sequence", {}),
    ("gspo", gspo(0.05, 0.1), "token", {"clip": 0.05, "clip_high": 0.1}),
    ("cispo", cispo(), "token", {}),
    ("cispo", cispo(1.1, 0.9), "group", {"max_ratio": 1.1, "min_ratio": 0.9}),
    ("rloo", rloo(), "constant", {}),
    ("rloo", rloo(0.3), "sequence", {"kl": 0.3}),
    ("value", value(), "token", {}),
    ("value", value(0.1), "sequence", {"clip": 0.1}),
    ("distill", distill(), "token", {}),
    ("distill", distill("forward_kl"), "sequence", {"divergence": "forward_kl"}),
    ("distill", distill("forward_kl", tail=False), "token", {"divergence": "forward_kl", "tail": False}),
    ("distill", distill("jsd", 0.3), "token", {"divergence": "jsd", "beta": 0.3}),
    ("distill", distill("sampled"), "token", {"divergence": "sampled"}),
]
NAMES = sorted({name for name, *_ in CASES})
by_case = pytest.mark.parametrize(("name", "at", "aggregation", "options"), CASES)


@by_case
def test_a_loss_is_the_mean_of_its_formula(
    name: str, at: At, aggregation: str, options: dict[str, Any]
) -> None:
    for seed in range(5):
        answers = answers_of(seed)
        result = find(name, **{"aggregation": aggregation, **options})(inputs_of(answers))
        expected = aggregated(answers, at, aggregation, options.get("max_tokens", 1.0))
        assert float(result.total / result.count) == pytest.approx(expected, rel=1e-10)


@by_case
@settings(max_examples=examples(10, 300), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 16), max_size=4),
)
def test_parts_add_up_to_the_whole(
    name: str, at: At, aggregation: str, options: dict[str, Any], seed: int, sizes: list[int], cuts: list[int]
) -> None:
    """Micro-batches may be empty, and may divide groups."""
    loss, inputs = find(name, **{"aggregation": aggregation, **options}), inputs_of(answers_of(seed, sizes))
    whole, samples = loss(inputs), sum(sizes)
    bounds = [0, *sorted(min(cut, samples) for cut in cuts), samples]
    parts = [loss(part_of(inputs, start, stop)) for start, stop in pairwise(bounds)]
    assert sum(float(part.total) for part in parts) == pytest.approx(float(whole.total), rel=1e-10, abs=1e-12)
    assert sum(float(part.count) for part in parts) == pytest.approx(float(whole.count), rel=1e-12)
    for metric, expected in whole.metrics.items():
        found = sum(float(part.metrics[metric]) for part in parts)
        assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


DIFFERENTIABLE = {"value": "predicted_values", "distill": "top_logprobs"}
STOPPED = ("cispo", "rloo")
"""Losses whose gradient is by design not that of their value: their weights have none."""


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(STOPPED)))
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    inputs, wanted = inputs_of(answers_of(4)), DIFFERENTIABLE.get(name, "logprobs")
    loss = find(name, **({"kl": 0.2} if name in ("grpo", "dr_grpo", "dapo", "ppo", "gspo") else {}))

    def total(values: Tensor) -> Tensor:
        result = loss(inputs | {wanted: values})
        assert not any(one.requires_grad for one in (result.count, *result.metrics.values()))
        return result.total

    assert torch.autograd.gradcheck(total, [inputs[wanted].clone().requires_grad_()], eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("name", [*STOPPED, "distill"])
def test_weights_have_no_gradient(name: str) -> None:
    answers = answers_of(2)
    inputs = inputs_of(answers)
    own = inputs["logprobs"].clone().requires_grad_()
    options = {"divergence": "sampled"} if name == "distill" else {}
    result = find(name, aggregation="token", **options)(inputs | {"logprobs": own})
    assert not any(one.requires_grad for one in (result.count, *result.metrics.values()))
    (found,) = torch.autograd.grad(result.total, own)

    def weight(one: Answer, token: int) -> float:
        if name == "distill":
            gap = one.tokens["logprobs"][token] - one.tokens["teacher_logprobs"][token]
            return min(ratio(one, token, "logprobs", "sampled_logprobs"), 2.0) * gap
        clipped = clamp(ratio(one, token), 0.0, 5.0) if name == "cispo" else 1.0
        return -clipped * correction(one, token) * one.tokens["advantages"][token]

    expected = [
        weight(one, token) if one.mask[token] else 0.0 for one in answers for token in range(len(one.mask))
    ]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_values_without_a_label_may_be_infinite(name: str) -> None:
    inputs = inputs_of(answers_of(3))
    hidden = inputs["mask"] == 0
    assert bool(hidden.any())
    wanted = DIFFERENTIABLE.get(name, "logprobs")
    broken = inputs | {wanted: inputs[wanted].clone()}
    broken[wanted][hidden] = -math.inf
    assert float(find(name)(broken).total) == pytest.approx(float(find(name)(inputs).total))


@pytest.mark.parametrize(("old", "options"), [("sampled", {}), ("old", {"importance_cap": None})])
def test_losses_without_a_correction(old: str, options: dict[str, Any]) -> None:
    """Without `old_logprobs`, the ratio is to those of the sampler."""
    answers = answers_of(5)
    inputs = inputs_of(answers)
    if old == "sampled":
        del inputs["old_logprobs"]

    def at(one: Answer, token: int) -> float:
        r = ratio(one, token, "logprobs", f"{old}_logprobs")
        return surrogate(r, one.tokens["advantages"][token], 0.2, 0.2)

    result = find("ppo", **options)(inputs)
    assert float(result.total / result.count) == pytest.approx(aggregated(answers, at, "token"))
    assert "importance" not in result.metrics


def test_metrics_are_means_of_tokens() -> None:
    answers = answers_of(7)
    result = find("grpo", kl=0.1, aggregation="token")(inputs_of(answers))
    labels = [(one, token) for one in answers for token in one.labels]
    mean = {name: float(one / result.count) for name, one in result.metrics.items()}
    assert mean["kl"] == pytest.approx(sum(divergence(*label, "k3") for label in labels) / len(labels))
    assert mean["importance"] == pytest.approx(sum(correction(*label) for label in labels) / len(labels))
    kept = sum(
        surrogate(ratio(one, token), one.tokens["advantages"][token], 0.2, 0.2)
        == pytest.approx(-ratio(one, token) * one.tokens["advantages"][token])
        for one, token in labels
    )
    assert mean["clip_fraction"] == pytest.approx(1 - kept / len(labels))
    assert mean["old_kl"] > 0


def test_a_reference_is_required_by_its_option_only() -> None:
    assert "ref_logprobs" not in find("grpo").inputs
    assert "ref_logprobs" in find("grpo", kl=0.1).required


@pytest.mark.parametrize(
    ("name", "options", "left_out", "message"),
    [
        (
            "grpo",
            {"kl": 0.1},
            ["ref_logprobs"],
            "a stage that calls `ref_logprobs` of a reference model provides",
        ),
        ("grpo", {}, ["advantages"], "`advantages`, which .*`advantage` names provides `advantages`$"),
        ("ppo", {}, ["old_logprobs", "sampled_logprobs"], "loss `ppo` needs `sampled_logprobs`, `old_logp"),
        ("dapo", {"aggregation": "group"}, ["group_tokens"], "`aggregation: group` needs `group_tokens`"),
        ("value", {}, ["returns"], "with `advantage: gae` provides `returns`"),
        ("value", {"clip": 0.2}, ["values"], "loss `value` with `clip` needs `values`.* of a critic"),
        ("distill", {}, ["teacher_top_logprobs"], "of a teacher with `top_logprobs` provides"),
        (
            "distill",
            {"divergence": "sampled"},
            ["teacher_logprobs"],
            "loss `distill` needs `teacher_logprobs`.* of a teacher provides",
        ),
        (
            "distill",
            {"divergence": "kl"},
            [],
            "`divergence` is forward_kl or reverse_kl or jsd or sampled, not",
        ),
        ("grpo", {"aggregation": "mean"}, [], "`aggregation` is token or sequence or group or constant, not"),
        ("grpo", {"kl": 0.1, "kl_estimator": "k4"}, [], "`kl_estimator` is k1 or k2 or k3, not `k4`"),
    ],
)
def test_wrong_use_is_named(name: str, options: dict[str, Any], left_out: list[str], message: str) -> None:
    inputs = {key: one for key, one in inputs_of(answers_of(0)).items() if key not in left_out}
    with pytest.raises(LossError, match=message):
        find(name, **options)(inputs)
