"""Answers that a sampler and an actor score with the same weights."""

from __future__ import annotations

import torch

from meshctl.hf.parity import SentWeights
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.sampling.answers import IDS, LOGPROBS, MAX_ANSWERS, HeldBySampler


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


def marked(sampler: HeldBySampler, batch: Batch, version: int, step: int, score: Scores) -> Batch:
    return batch.with_columns(**sampler.marks(batch, version, step, score))


def versions(batch: Batch, version: int) -> torch.Tensor:
    return torch.full((len(batch),), version)


def test_a_sampler_holds_its_first_answers_and_scores_them_once_for_each_version() -> None:
    sampler, score = HeldBySampler(), Scores(-1.0)
    assert sampler.marks(answers(2), None, 3, score) == {} == sampler.marks(answers(2), 2, 3, score)
    first = marked(sampler, answers(6), 0, 2, score)
    assert [len(row) for row in first.columns[IDS].rows()] == [3] * MAX_ANSWERS + [0] * 2
    again = marked(sampler, answers(6, first=50), 0, 2, score)
    assert torch.equal(again.columns[IDS].values, first.columns[IDS].values) and score.calls == 1
    score.weight = -2.0
    later = marked(sampler, answers(2, first=70), 1, 3, score)
    assert score.calls == 2 and first.names == answers(6).names
    assert [row.tolist() for row in later.columns[LOGPROBS].rows()] == [[0, -2, -2]] * 2
    none = marked(sampler, answers(0), 0, 2, score)
    assert none.columns.keys() == later.columns.keys() and len(none.columns[IDS]) == 0


def test_a_long_text_is_truncated() -> None:
    found = marked(HeldBySampler(max_tokens=2), answers(5), 0, 2, Scores(-1.0))
    assert [row.tolist() for row in found.columns[IDS].rows()] == [[9, 0], [9, 1], [9, 2], [9, 3], []]
    assert [row.tolist() for row in found.columns[LOGPROBS].rows()] == [[0, -1]] * 4 + [[]]


def test_an_actor_compares_scores_of_the_same_version() -> None:
    sampler, actor, score = HeldBySampler(), SentWeights(), Scores(-3.0)
    actor.sent(1, score)
    assert actor.differences(answers(2), versions(answers(2), 0)).tolist() == []
    assert not actor.is_on and score.calls == 0
    first = marked(sampler, answers(6), 0, 2, Scores(-1.0))
    others = first.between(5, 6)  # those of a rank without held answers, which takes part
    assert actor.differences(others, versions(others, 0)).tolist() == [] and actor.is_on
    actor.sent(1, score)
    assert score.calls == 1
    assert actor.differences(first, versions(first, 0)).tolist() == []
    for step, weight in ((2, -3.0), (3, -4.0)):
        actor.sent(step, Scores(weight))
    same = marked(sampler, answers(6), 2, 4, Scores(-3.5))
    assert actor.differences(same, versions(same, 2)).tolist() == [0.5] * 8
    other = marked(sampler, answers(6), 3, 5, Scores(-4.0))
    assert actor.differences(other, versions(other, 3)).tolist() == [0.0] * 8
    assert actor.differences(other, versions(other, 9)).tolist() == [], "it has not sent this version"
