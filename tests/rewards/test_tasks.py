"""`rewards.Tasks`: the number of a sample determines its task, and the task's verifier scores the answer."""

from __future__ import annotations

import pytest

from meshctl.data import DataError
from meshctl.rewards import Function, Tasks

pytest.importorskip("reasoning_gym")


def test_a_task_follows_from_the_number_of_its_sample() -> None:
    source = Tasks("chain_sum", "byte", options={"min_terms": 2, "max_terms": 2}, seed=3)
    batch = source.next(range(10, 14))
    assert batch is not None
    assert batch.names == ("prompt_ids", "solution", "entry", "prompt")
    assert [bytes(row.tolist()).decode() for row in batch["prompt_ids"].rows()] == batch["prompt"]
    again = Tasks("chain_sum", "byte", options={"min_terms": 2, "max_terms": 2}, seed=3).next(range(12, 13))
    assert again is not None and again["entry"] == batch["entry"][2:3]
    assert len({*batch["prompt"]}) == 4 and len(source) == 1_000_000


def test_the_reward_is_that_of_the_tasks_own_verifier() -> None:
    source = Tasks("chain_sum", "byte")
    batch = source.next(range(3))
    assert batch is not None
    answers = [batch["solution"][0], "no idea", f" {batch['solution'][2]}\n"]
    judge = Function("reasoning_gym", workers=0)
    assert judge.score(batch.with_columns(response=answers))["rewards"].tolist() == [1.0, 0.0, 1.0]


def test_held_out_tasks_are_other_ones() -> None:
    train = Tasks("chain_sum", "byte", size=20, holdout=5)
    exam = Tasks("chain_sum", "byte", size=20, holdout=5, held_out=True)
    one, other = train.next(range(15)), exam.next(range(5))
    assert one is not None and other is not None
    assert (len(train), len(exam)) == (15, 5)
    assert not {*one["prompt"]} & {*other["prompt"]}


def test_a_chat_is_rendered() -> None:
    batch = Tasks("chain_sum", "byte", chat=True, system="Be short.").next(range(1))
    assert batch is not None and "Be short." in batch["prompt"][0]


@pytest.mark.parametrize(
    ("task", "args", "message"),
    [
        ("chain_sums", {}, "reasoning-gym has no task `chain_sums`: did you mean `chain_sum`?"),
        ("chain_sum", {"options": {"terms": 2}}, "task `chain_sum`: .*unexpected keyword argument 'terms'"),
        ("chain_sum", {"options": {"min_terms": -1}}, "task `chain_sum`: .*min_terms"),
        ("chain_sum", {"size": 0}, "`size` is 0; it must be at least 1"),
    ],
)
def test_invalid_arguments(task: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Tasks(task, "byte", **args)  # type: ignore[arg-type]
