"""Each loss of pairs, samples or tokens against its formula, written out with Python's floats, and the lookup of
losses. `test_policy_losses` has those of sampled answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.labels import IGNORED
from meshctl.losses import LOSSES, LossError, LossSum, find
from meshctl.losses.loss import token_logprobs
from tests.losses import test_policy_losses

PAIRS = 7
generator = torch.Generator().manual_seed(3)


def logprobs(scale: float = 20.0) -> Tensor:
    return -scale * torch.rand(PAIRS, generator=generator, dtype=torch.float64)


INPUTS: dict[str, Any] = {
    "chosen_logprobs": logprobs(),
    "rejected_logprobs": logprobs(),
    "ref_chosen_logprobs": logprobs(),
    "ref_rejected_logprobs": logprobs(),
    "chosen_tokens": torch.randint(1, 9, (PAIRS,), generator=generator),
    "rejected_tokens": torch.randint(1, 9, (PAIRS,), generator=generator),
    "chosen_scores": logprobs(3.0),
    "rejected_scores": logprobs(3.0),
    "margin": logprobs(1.0),
    "sequence_logprobs": logprobs(),
    "ref_sequence_logprobs": logprobs(),
    "desirable": torch.tensor([True, False, False, True, True, False, True]),
    "kl": torch.tensor(0.7, dtype=torch.float64),
    "logprobs": logprobs(),
    "mask": torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 2.0], dtype=torch.float64),
    "class_logprobs": -torch.rand((PAIRS, 3), generator=generator, dtype=torch.float64),
    "label": torch.tensor([0, 1, 2, 0, 1, 2, 0]),
}
Row = dict[str, Any]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def ratio(row: Row, side: str) -> float:
    return row[f"{side}_logprobs"] - row[f"ref_{side}_logprobs"]


def mean(row: Row, side: str) -> float:
    return row[f"{side}_logprobs"] / row[f"{side}_tokens"]


def odds(row: Row, side: str) -> float:
    likelihood = math.exp(mean(row, side))
    return likelihood / (1 - likelihood)


def dpo(row: Row, beta: float = 0.1, label_smoothing: float = 0.0) -> float:
    h = beta * (ratio(row, "chosen") - ratio(row, "rejected"))
    return -(1 - label_smoothing) * math.log(sigmoid(h)) - label_smoothing * math.log(sigmoid(-h))


def ipo(row: Row, beta: float = 0.1, per_token: bool = True) -> float:
    chosen, rejected = ratio(row, "chosen"), ratio(row, "rejected")
    if per_token:
        chosen, rejected = chosen / row["chosen_tokens"], rejected / row["rejected_tokens"]
    return (chosen - rejected - 0.5 / beta) ** 2


def simpo(row: Row, beta: float = 2.0, gamma: float = 1.0) -> float:
    return -math.log(sigmoid(beta * mean(row, "chosen") - beta * mean(row, "rejected") - gamma))


def orpo(row: Row, beta: float = 0.1) -> float:
    log_odds_ratio = math.log(odds(row, "chosen") / odds(row, "rejected"))
    return -mean(row, "chosen") - beta * math.log(sigmoid(log_odds_ratio))


def kto(row: Row, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0) -> float:
    r = row["sequence_logprobs"] - row["ref_sequence_logprobs"]
    if row["desirable"]:
        return desirable_weight * (1 - sigmoid(beta * (r - row["kl"])))
    return undesirable_weight * (1 - sigmoid(beta * (row["kl"] - r)))


def bradley_terry(row: Row, center: float = 0.0) -> float:
    chosen, rejected = row["chosen_scores"], row["rejected_scores"]
    return -math.log(sigmoid(chosen - rejected - row["margin"])) + center * (chosen + rejected) ** 2


def cross_entropy(row: Row) -> float:
    return -row["mask"] * row["logprobs"]


def classification(row: Row) -> float:
    return -float(row["class_logprobs"][row["label"]])


CASES: list[tuple[Callable[..., float], dict[str, Any]]] = [
    (cross_entropy, {}),
    (classification, {}),
    (dpo, {}),
    (dpo, {"beta": 0.3, "label_smoothing": 0.1}),
    (ipo, {}),
    (ipo, {"beta": 0.2, "per_token": False}),
    (simpo, {}),
    (simpo, {"beta": 1.5, "gamma": 0.3}),
    (orpo, {}),
    (orpo, {"beta": 0.7}),
    (kto, {}),
    (kto, {"beta": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.6}),
    (bradley_terry, {}),
    (bradley_terry, {"center": 0.01}),
]


def rows_of(inputs: dict[str, Any]) -> list[Row]:
    def value(name: str, row: int) -> Any:
        column = inputs[name]
        return (column if column.ndim == 0 else column[row]).tolist()

    return [{name: value(name, row) for name in inputs} for row in range(PAIRS)]


@pytest.mark.parametrize(("formula", "options"), CASES)
def test_a_loss_is_the_sum_of_its_formula(formula: Callable[..., float], options: dict[str, Any]) -> None:
    result = find(formula.__name__, **options)(INPUTS)
    expected = sum(formula(row, **options) for row in rows_of(INPUTS))
    assert result.total.dtype == torch.float64
    assert result.total.item() == pytest.approx(expected, rel=1e-12)
    assert result.count.item() == (5.5 if formula is cross_entropy else PAIRS)


NAMES = sorted({formula.__name__ for formula, _ in CASES})


def test_every_loss_has_a_case() -> None:
    assert {*NAMES, *test_policy_losses.NAMES} == set(LOSSES)


@pytest.mark.parametrize("name", NAMES)
def test_parts_add_up_to_the_whole(name: str) -> None:
    loss = find(name)
    whole = loss(INPUTS)
    parts = []
    for rows in (slice(0, 1), slice(1, 5), slice(5, 5), slice(5, PAIRS)):
        parts.append(loss({key: one if one.ndim == 0 else one[rows] for key, one in INPUTS.items()}))
    assert sum(part.total for part in parts).item() == pytest.approx(whole.total.item(), rel=1e-12)
    assert sum(part.count for part in parts).item() == whole.count.item()
    for metric, value in whole.metrics.items():
        assert sum(part.metrics[metric] for part in parts).item() == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    loss = find(name)
    differentiable = [one for one in loss.inputs if one.endswith(("logprobs", "scores"))]

    def total(*values: Tensor) -> Tensor:
        result = loss(INPUTS | dict(zip(differentiable, values, strict=True)))
        assert not any(one.requires_grad for one in (result.count, *result.metrics.values()))
        return result.total

    assert torch.autograd.gradcheck(total, [INPUTS[one].clone().requires_grad_() for one in differentiable])


def test_log_probabilities_of_labels() -> None:
    logits = torch.randn(2, 3, 11, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[0, 10, IGNORED], [3, 4, IGNORED]])
    found = token_logprobs(logits, labels)
    options: Any = {"reduction": "none", "ignore_index": IGNORED}
    expected = -torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)
    torch.testing.assert_close(found, expected.view(2, 3))
    assert token_logprobs(logits.bfloat16(), labels).dtype == torch.float32


def test_metrics_of_pairs() -> None:
    result = find("dpo", beta=0.5)(INPUTS)
    margins = [0.5 * (ratio(row, "chosen") - ratio(row, "rejected")) for row in rows_of(INPUTS)]
    assert result.metrics["margin"].item() == pytest.approx(sum(margins))
    assert result.metrics["accuracy"].item() == sum(margin > 0 for margin in margins)


def test_a_masked_log_probability_may_be_infinite() -> None:
    values = torch.tensor([-1.0, -math.inf], requires_grad=True)
    result = find("cross_entropy")({"logprobs": values, "mask": torch.tensor([True, False])})
    result.total.backward()
    assert result.total.item() == 1.0
    assert values.grad is not None and values.grad.tolist() == [-1.0, 0.0]


def test_a_certain_answer_has_finite_odds() -> None:
    inputs = INPUTS | {"chosen_logprobs": torch.zeros(PAIRS, dtype=torch.float64)}
    assert math.isfinite(find("orpo")(inputs).total.item())


def test_optional_inputs_have_defaults() -> None:
    loss = find("kto")
    assert loss.required == ("sequence_logprobs", "ref_sequence_logprobs", "desirable")
    assert loss.optional == ("kl",)
    without = loss({key: one for key, one in INPUTS.items() if key != "kl"})
    assert without.total.item() == loss(INPUTS | {"kl": torch.tensor(-5.0)}).total.item()


def users(logprobs: Tensor, mask: Tensor, *, power: float = 1.0) -> tuple[Tensor, Tensor]:
    return -(logprobs**power * mask).sum(), mask.sum()


def mean_of(logprobs: Tensor) -> Tensor:
    return logprobs.mean()


not_callable = 3


def test_a_users_function_is_found_by_its_path() -> None:
    result = find(f"{__name__}.users", power=3.0)(INPUTS)
    assert isinstance(result, LossSum)
    assert result.total.item() == pytest.approx(-(INPUTS["logprobs"] ** 3 * INPUTS["mask"]).sum().item())


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("dop", {}, "loss `dop` does not exist, did you mean `dpo`"),
        ("nowhere.loss", {}, "module 'nowhere' does not exist"),
        ("math.nothing", {}, "module math has no function 'nothing'"),
        (f"{__name__}.not_callable", {}, "has no function 'not_callable'"),
        ("dpo", {"bata": 1.0}, "loss `dpo` has no option `bata`; its options, .*, are beta, label_smoothing"),
    ],
)
def test_what_cannot_be_found_is_named(name: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(LossError, match=expected):
        find(name, **options)


def test_a_mean_is_refused() -> None:
    with pytest.raises(LossError, match=r"returned a Tensor; it must return a LossSum or the pair"):
        find(f"{__name__}.mean_of")(INPUTS)
