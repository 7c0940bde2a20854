"""`hf.Model` trains on sampled answers: equal to a loop written by hand, on one rank and on two."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from meshctl.hf import Model, ModelError
from meshctl.losses import LossError
from meshctl.runtime.batch.batch import Batch, Ragged
from tests.hf import answers, parity
from tests.hf.answers import rollouts_of
from tests.hf.parity import MODELS
from tests.runtime import worlds

GRPO = {"loss": "grpo", "loss_options": {"kl": answers.KL}}
OTHERS: dict[str, dict[str, Any]] = {
    "dapo by groups": {"loss": "dapo", "loss_options": {"aggregation": "group"}},
    "dr_grpo": {"loss": "dr_grpo", "loss_options": {"max_tokens": 6}},
    "gspo": {"loss": "gspo"},
    "ppo": {"loss": "ppo", "advantage_options": {"kl": 0.1}},
    "whitened": {"loss": "rloo", "advantage": "whitened"},
    "value": {"loss": "value", "head": "score"},
    "distill": {"loss": "distill", "loss_options": {"divergence": "sampled"}},
}
ON_TWO_RANKS = ("dapo by groups", "whitened", "ppo", "value")
"""Losses whose advantages or units depend on other ranks, and a critic."""


def model(**arguments: Any) -> Model:
    return parity.made("llama", **{"dtype": "float64", "lr": 1e-2, **arguments})


@pytest.mark.parametrize(
    "parts", [{}, {"micro_batch": 3}, {"micro_batch_tokens": 15}, {"logits_chunk_tokens": 5}], ids=str
)
def test_grpo_equals_a_loop_written_by_hand(parts: dict[str, int]) -> None:
    case = parity.Case("llama", **parts)
    parity.check_equal(answers.trained(parity.component(case, {}, **GRPO)), answers.by_hand())


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    tasks = {"grpo": (GRPO, answers.by_hand())}
    tasks |= {name: (OTHERS[name], answers.on_mesh({}, **OTHERS[name])) for name in ON_TWO_RANKS}

    def check(number: int, arguments: dict[str, Any], expected: parity.Trained) -> worlds.Check:
        def run(rank: int) -> None:
            sizes = {"dp": 2} if number % 2 else {"fsdp": 2}
            parity.check_equal(answers.on_mesh(sizes, micro_batch=3, **arguments), expected)

        run.__name__ = f"check_{number}"
        return run

    checks = [check(number, *task) for number, task in enumerate(tasks.values())]
    verdicts = worlds.run(2, checks, tmp_path_factory.mktemp("world"))
    assert [*verdicts.values()] == [worlds.PASSED] * len(tasks)


@pytest.mark.parametrize("name", OTHERS)
def test_micro_batches_change_nothing(name: str) -> None:
    """Micro-batches of three samples divide groups of two."""
    whole, parts = model(**OTHERS[name]), model(**OTHERS[name], micro_batch=3)
    assert parts.update(rollouts_of(1)) == pytest.approx(whole.update(rollouts_of(1)), rel=1e-9)
    assert parts.evaluate(rollouts_of(2)) == pytest.approx(whole.evaluate(rollouts_of(2)), rel=1e-7)


def test_own_advantages_replace_those_of_rewards() -> None:
    batch = rollouts_of(1)
    rewards = batch["rewards"].view(-1, answers.GROUP)
    advantages = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    lengths = batch["input_ids"].lengths
    own = batch.select("input_ids", "labels", "old_logprobs", "sampled_logprobs", "ref_logprobs")
    by_token = Ragged(advantages.repeat_interleave(lengths), batch["input_ids"].offsets)
    expected = model(**GRPO).evaluate(batch)
    assert model(**GRPO).evaluate(own.with_columns(advantages=advantages)) == pytest.approx(expected)
    assert model(**GRPO).evaluate(own.with_columns(advantages=by_token)) == pytest.approx(expected)


def test_a_critic_learns_the_returns() -> None:
    critic = model(loss="value", head="score", advantage_options={"gamma": 1.0, "lam": 1.0})
    batch = rollouts_of(1)
    batch = batch.select("input_ids", "labels", "rewards").joined(critic.values(batch))
    before = critic.evaluate(batch)
    for _ in range(20):
        critic.update(batch)
    after = critic.evaluate(batch)
    assert after["loss"] < before["loss"] / 5
    lengths = torch.stack([(row != -100).sum() for row in batch["labels"].rows()])
    assert after["return"] == pytest.approx(float((batch["rewards"] * lengths).sum() / lengths.sum()))


# Log-probabilities


@pytest.mark.parametrize("parts", [{}, {"logits_chunk_tokens": 5}], ids=["whole", "chunked"])
def test_temperature_divides_the_logits(parts: dict[str, int]) -> None:
    one, batch = model(temperature=0.7, **parts), rollouts_of(1)
    expected = torch.cat(parity.label_logprobs(model().module, batch, 0.7))
    for column in (one.logprobs(batch)["logprobs"], one.old_logprobs(batch)["old_logprobs"]):
        torch.testing.assert_close(column.values, expected)


def test_a_teacher_gives_its_likeliest_tokens() -> None:
    teacher, batch = model(top_logprobs=3, temperature=0.5), rollouts_of(1)
    found = teacher.teacher_logprobs(batch)
    assert set(found.names) == {"teacher_logprobs", "teacher_top_ids", "teacher_top_logprobs"}
    for row, (ids, _) in enumerate(parity.texts_in(batch)):
        logs = (teacher.module(input_ids=ids[None]).logits[0, :-1] / 0.5).log_softmax(-1).detach()
        expected = logs.topk(3)
        torch.testing.assert_close(found["teacher_top_logprobs"][row][1:], expected.values)
        assert found["teacher_top_ids"][row][1:].equal(expected.indices.int())


@pytest.mark.parametrize("divergence", ["forward_kl", "reverse_kl"])
def test_distillation_over_the_whole_vocabulary_is_the_divergence(divergence: str) -> None:
    batch, vocabulary = rollouts_of(1).select("input_ids", "labels"), MODELS["llama"]["vocab_size"]
    teacher = model(top_logprobs=vocabulary)
    teacher.update(rollouts_of(3).select("input_ids", "labels"))  # other weights than the student's
    options = {"divergence": divergence, "tail": False}
    student = model(loss="distill", loss_options=options)
    total, count = 0.0, 0
    for ids, labels in parity.texts_in(batch):
        mine, theirs = (
            one.module(input_ids=ids[None]).logits[0, :-1].log_softmax(-1) for one in (student, teacher)
        )
        p, q = (theirs, mine) if divergence == "forward_kl" else (mine, theirs)
        of_tokens = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(1)
        total += float(of_tokens.detach()[labels[1:] != -100].sum())
        count += int((labels[1:] != -100).sum())
    taught = batch.joined(teacher.teacher_logprobs(batch))
    assert student.evaluate(taught)["loss"] == pytest.approx(total / count)
    before = student.evaluate(taught)["loss"]
    for _ in range(5):
        student.update(taught)
    assert student.evaluate(taught)["loss"] < before


# Parity of sampler and actor


def sampled_by(one: Model, batch: Batch, version: int, error: float = 0.0) -> Batch:
    """Returns the batch as a sampler gives it that has the weights of `version`."""
    exact = one.logprobs(batch)["logprobs"]
    values = torch.where(exact.values != 0, exact.values + error, 0.0)
    versions = torch.full((len(batch),), version)
    columns = {"sampled_logprobs": Ragged(values, exact.offsets), "@version": versions}
    return batch.select("input_ids", "labels", "rewards").with_columns(**columns)


@pytest.mark.parametrize("parts", [{}, {"micro_batch": 3}, {"logits_chunk_tokens": 5}], ids=str)
def test_parity_is_measured_where_versions_agree(parts: dict[str, int]) -> None:
    one = model(loss="grpo", **parts)
    dict(one.weights())
    first = one.update(sampled_by(one, rollouts_of(1), version=0, error=0.03))
    assert first["parity_mean"] == pytest.approx(0.03) and first["parity_max"] == pytest.approx(0.03)
    assert first["lag"] == 0
    second = one.update(sampled_by(one, rollouts_of(1), version=0, error=0.03))
    assert "parity_mean" not in second and second["lag"] == 1
    unknown = one.update(sampled_by(one, rollouts_of(1), version=5))
    assert not {"parity_mean", "lag"} & set(unknown)


def test_a_large_difference_is_reported_once_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "meshctl")
    one = model(loss="grpo")
    for _ in range(2):
        dict(one.weights())
        one.update(sampled_by(one, rollouts_of(1), version=0, error=0.2))
    assert [record.message for record in caplog.records] == [
        "step 0: the log-probabilities of the sampled tokens differ by 0.2 nats in the mean between the sampler and "
        "this model, which have the same weights; more than 0.1 means that they compute different distributions; "
        "compare `temperature`, `top_p`, `top_k` and `dtype` of both"
    ]
    off = model(loss="grpo", parity="off")
    dict(off.weights())
    found = off.update(sampled_by(off, rollouts_of(1), version=0, error=0.2))
    assert not {"parity_mean", "parity_max", "lag"} & set(found)
    strict = model(loss="grpo", parity="error")
    before = {name: tensor.clone() for name, tensor in strict.weights()}
    with pytest.raises(ModelError, match=r"differ by 0.2 nats .* the weights were not changed"):
        strict.update(sampled_by(strict, rollouts_of(1), version=0, error=0.2))
    torch.testing.assert_close(dict(strict.weights()), before)


# Wrong input


def without(*names: str, batch: Batch | None = None) -> Batch:
    whole = batch or rollouts_of(1)
    return whole.select(*(name for name in whole.names if name not in names))


def nan_in(batch: Batch, row: int) -> Batch:
    rewards = batch["rewards"].clone()
    rewards[row] = torch.nan
    return batch.with_columns(rewards=rewards)


SHORT = Ragged.of([torch.zeros(2)] * 8)


@pytest.mark.parametrize(
    ("arguments", "batch", "message"),
    [
        (
            {"loss": "grpo"},
            without("rewards"),
            "advantage `grpo` needs `rewards`,.*a reward component provides",
        ),
        ({"loss": "ppo"}, without("values"), "a stage that calls `values` of a critic"),
        (
            {"loss": "grpo"},
            without("old_logprobs", "sampled_logprobs"),
            "calls `sample` of a sampler provides",
        ),
        (GRPO, without("ref_logprobs"), "a stage that calls `ref_logprobs` of a reference model provides"),
        ({"loss": "grpo"}, nan_in(rollouts_of(1), 3), "the rewards of samples 5.1 are not finite"),
        ({"loss": "grpo"}, rollouts_of(1, group=1), "set `group_size` of the sampler to 2 or more"),
        (
            {"loss": "grpo"},
            rollouts_of(1).with_columns(old_logprobs=SHORT),
            "`old_logprobs` must have one value",
        ),
        (
            {"loss": "grpo", "advantage": f"{__name__}.longer"},
            rollouts_of(1),
            r"returned the shape \[16\]; it",
        ),
    ],
)
def test_wrong_batches_are_named(arguments: dict[str, Any], batch: Batch, message: str) -> None:
    with pytest.raises((ModelError, LossError), match=message):
        model(**arguments).update(batch)


def longer(rewards: torch.Tensor) -> torch.Tensor:
    return torch.cat([rewards, rewards])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0}, "`temperature` is 0; it must be above 0"),
        ({"parity": "warning"}, "`parity` is warn or error or off, not `warning`"),
        ({"loss": "grpo", "advantage": "gea"}, "advantage `gea` does not exist, did you mean `gae`"),
        ({"loss": "ppo", "advantage_options": {"lambda": 1}}, "advantage `gae` has no option `lambda`"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelError, LossError), match=message):
        Model(MODELS["llama"], **arguments)
