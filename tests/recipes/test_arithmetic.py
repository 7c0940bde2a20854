"""The components of the arithmetic recipes, each alone in one process: what they give, and that they learn."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from arithmetic import Actor, Judge, Sampler, Trainer, data
from arithmetic.actor import advantages
from arithmetic.model import ALPHABET, DIGITS, Transformer, answered, encode_answers, encode_questions

from meshctl import Batch
from meshctl.components import Cycle
from meshctl.runtime.rank_context import RankContext

TRAIN = "arithmetic/train.jsonl"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def problems(count: int) -> Batch:
    batch = Cycle(TRAIN).next(range(count))
    assert batch is not None
    return batch


def ready(component: Sampler | Actor | Trainer, step: int = 1) -> None:
    component._context = RankContext(step=step)
    component.setup()


def test_the_files_are_those_that_the_script_writes(tmp_path: Path) -> None:
    data.write(tmp_path)
    for name in ("train.jsonl", "exam.jsonl"):
        assert (tmp_path / name).read_bytes() == (Path(data.__file__).parent / name).read_bytes()


def test_no_problem_of_the_exam_is_trained_on() -> None:
    folder = Path(data.__file__).parent
    texts = {name: (folder / f"{name}.jsonl").read_text() for name in ("train", "exam")}
    rows = {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items()}
    train, exam = ({row["question"] for row in rows[name]} for name in ("train", "exam"))
    assert len(exam) == data.HELD_OUT and len(train) == 5050 - data.HELD_OUT
    assert not train & exam
    for row in rows["train"] + rows["exam"]:
        first, second = row["question"].split("+")
        assert int(first) + int(second) == int(row["answer"]) < 100


def test_answers_are_written_units_first() -> None:
    assert "".join(ALPHABET[token] for token in encode_answers(["62"])[0]) == "26"


def test_a_digit_does_not_attend_to_later_ones() -> None:
    model = Transformer()
    one, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 9]])
    assert torch.equal(model(one)[:, :3], model(other)[:, :3])
    assert not torch.equal(model(one)[:, 3], model(other)[:, 3])


def test_log_probabilities_are_those_of_the_written_digits() -> None:
    model = Transformer()
    tokens, logp = answered(model, encode_questions(["37+25", "08+01"]), times=3)
    assert tokens.shape == (6, 6 + DIGITS)
    again = (
        model(tokens[:, :-1])[:, -DIGITS:].log_softmax(-1).gather(-1, tokens[:, -DIGITS:, None]).squeeze(-1)
    )
    torch.testing.assert_close(again, logp, atol=1e-5, rtol=1e-5)


def test_each_question_is_answered_as_a_group() -> None:
    sampler = Sampler(times=4)
    ready(sampler)
    rollouts = sampler.sample(problems(3))
    assert rollouts.ids.tolist() == [[question, place] for question in range(3) for place in range(4)]
    assert rollouts.group_ids is not None and rollouts.group_ids[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_an_empty_share_is_answered_with_nothing() -> None:
    sampler = Sampler(times=4)
    ready(sampler)
    assert len(sampler.sample(problems(3).take([]))) == 0


def test_the_judge_marks_each_digit() -> None:
    tokens = torch.cat([encode_questions(["37+25"] * 3), encode_answers(["62", "52", "41"])], 1)
    batch = Batch({"answer": ["62", "62", "62"], "tokens": tokens, "logp": torch.zeros(3, DIGITS)})
    assert Judge().score(batch)["reward"].tolist() == [[1, 1], [1, 0], [0, 0]]
    assert Judge().grade(batch) == {"reward": pytest.approx(1 / 3)}


def test_an_advantage_is_over_the_mean_of_the_group() -> None:
    batch = Batch(
        {"reward": torch.tensor([[1.0], [0.0], [1.0], [1.0]])},
        ids=torch.tensor([[4, 0], [4, 1], [9, 0], [9, 1]]),
        group_depth=1,
    )
    assert advantages(batch).flatten().tolist() == [0.5, -0.5, 0.0, 0.0]


def test_answers_that_belong_to_no_group_are_refused() -> None:
    with pytest.raises(ValueError, match="repeat"):
        advantages(Batch({"reward": torch.ones(2, 1)}))


def test_weights_reach_the_sampler() -> None:
    actor, sampler = Actor(), Sampler()
    ready(actor)
    ready(sampler)
    questions = encode_questions(problems(8)["question"])
    assert not torch.equal(actor.model(questions), sampler.model(questions))
    sampler.load_weights(actor.weights())
    assert torch.equal(actor.model(questions), sampler.model(questions))


def test_what_is_rewarded_becomes_likely() -> None:
    actor, sampler, judge = Actor(entropy=0.0), Sampler(times=16), Judge()
    ready(actor)
    ready(sampler)
    batch = problems(2)
    rewards = []
    for step in range(1, 9):
        actor.place.step = step
        sampler.load_weights(actor.weights())
        scored = judge.score(sampler.sample(batch))
        rewards.append(float(scored["reward"].mean()))
        actor.update(scored)
    assert rewards[0] < 0.3 and rewards[-1] > rewards[0] + 0.3


def test_the_loss_falls_and_a_state_goes_on_where_it_was() -> None:
    trainer = Trainer()
    ready(trainer)
    batch = problems(16)
    losses = [trainer.learn(batch)["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    other = Trainer()
    ready(other)
    other.load_state_dict(deepcopy(trainer.state_dict()))
    assert [other.learn(batch)["loss"] for _ in range(2)] == [trainer.learn(batch)["loss"] for _ in range(2)]
    assert other.examine(batch) == trainer.examine(batch)
