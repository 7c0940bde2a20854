"""The components of the arithmetic recipes, each alone in one process: what they give, and that they learn."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from arithmetic import Actor, Judge, Sampler, Trainer, data
from arithmetic.model import encode_questions

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
