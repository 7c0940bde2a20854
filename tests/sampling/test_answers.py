"""Answers that a sampler and an actor score with the same weights, and prompts that a model cannot continue."""

from __future__ import annotations

import pytest
import torch

from meshctl.data.examples import PromptLimits
from meshctl.hf.parity import SentWeights
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.component import ComponentError
from meshctl.sampling.answers import (
    HELD_VERSION,
    IDS,
    LOGPROBS,
    MAX_ANSWERS,
    UNSCORED,
    HeldBySampler,
)


def answers(count: int, first: int = 0) -> Batch:
    rows = [torch.tensor([9, number, number + 1]) for number in range(first, first + count)]
    labels = [torch.cat([torch.tensor([-100]), row[1:]]) for row in rows]
    empty = Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    columns = {
        "input_ids": Ragged.of(rows) if rows else empty,
        "labels": Ragged.of(labels) if rows else empty,
    }
    return Batch({**columns, "sampled_logprobs": columns["input_ids"]}, ids=torch.arange(count))


class Scores:
    """Scores of weights with one number: this number for each label."""

    def __init__(self, weight: float) -> None:
        self.weight, self.calls = weight, 0

    def __call__(self, texts: Batch) -> Ragged:
        self.calls += 1
        column = texts["labels"]
        return Ragged((column.values != -100) * self.weight, column.offsets)


def marked(sampler: HeldBySampler, batch: Batch) -> Batch:
    return batch.with_columns(**sampler.marks(batch))


def lengths(batch: Batch, name: str = IDS) -> list[int]:
    return [len(row) for row in batch.columns[name].rows()]


def test_a_sampler_holds_its_first_answers_and_sends_them_once_for_each_version() -> None:
    sampler, score = HeldBySampler(), Scores(-1.0)
    sampler.load(1, score)
    assert score.calls == 0
    first, second = marked(sampler, answers(6)), marked(sampler, answers(6, first=50))
    assert lengths(first) == [3] * MAX_ANSWERS + [0] * 2 and lengths(second) == [0] * 6
    assert first.columns[HELD_VERSION].tolist() == [UNSCORED] * 6
    score.weight = -2.0
    sampler.load(3, score)
    none, later = marked(sampler, answers(0)), marked(sampler, answers(2, first=70))
    assert score.calls == 1 and first.names == answers(6).names
    assert [row.tolist() for row in later.columns[LOGPROBS].rows()] == [[0, -2, -2]] * 2
    assert later.columns[HELD_VERSION].tolist() == [3, 3]
    assert none.columns.keys() == later.columns.keys() and len(none.columns[IDS]) == 0
    assert lengths(marked(sampler, answers(2))) == [0, 0]


def test_a_long_text_is_truncated() -> None:
    sampler = HeldBySampler(max_tokens=2)
    sampler.marks(answers(5))
    sampler.load(2, Scores(-1.0))
    found = marked(sampler, answers(5))
    assert [row.tolist() for row in found.columns[IDS].rows()] == [[9, 0], [9, 1], [9, 2], [9, 3], []]
    assert [row.tolist() for row in found.columns[LOGPROBS].rows()] == [[0, -1]] * 4 + [[]]


def test_an_actor_compares_scores_of_the_same_version() -> None:
    sampler, actor, score = HeldBySampler(), SentWeights(), Scores(-3.0)
    actor.sent(1, score)
    assert actor.differences(answers(2)).tolist() == []
    assert not actor.is_on and score.calls == 0
    first = marked(sampler, answers(6))
    others = first.between(5, 6)  # those of a rank without held answers, which takes part
    assert actor.differences(others).tolist() == [] and actor.is_on
    actor.sent(1, score)
    assert score.calls == 1
    assert actor.differences(first).tolist() == []
    for step, weight in ((2, -3.0), (3, -4.0)):
        actor.sent(step, Scores(weight))
    for version, own, expected in ((2, -3.5, [0.5] * 8), (3, -4.0, [0.0] * 8), (9, -4.0, [])):
        sampler.load(version, Scores(own))  # of which the actor has sent all but the last
        assert actor.differences(marked(sampler, answers(6))).tolist() == expected


def prompts(*lengths: int) -> Batch:
    rows = Ragged.of([torch.zeros(length, dtype=torch.int64) for length in lengths])
    return Batch({"prompt_ids": rows}, ids=torch.arange(40, 40 + len(lengths))[:, None])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (prompts(8, 9000), r"samples 41 \(up to 9000 tokens\) and answers of 4 tokens exceed"),
        (prompts(5, 0), r"samples 41 \(up to 0 tokens\) have no token"),
        (Batch({"prompt_ids": Ragged.of([torch.tensor([256])])}), "outside the model's vocabulary of 256"),
        (Batch({"prompt_ids": torch.ones(2, 3)}), "needs prompts, a row of tokens for each sample"),
        (Batch({"input_ids": Ragged.of([torch.tensor([1])])}), "needs prompts, a row of tokens"),
    ],
)
def test_a_prompt_that_does_not_fit_is_an_error(batch: Batch, message: str) -> None:
    with pytest.raises(ComponentError, match=message):
        PromptLimits(256, 8192, 4, ComponentError).prompts_of(batch)
