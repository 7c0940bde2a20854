"""Blocks that go over minibatches of a value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from meshctl.plan.model import Block, Plan, Stage
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.blocks.components import (
    SHARED,
    Exam,
    Held,
    HeldStream,
    evaluation,
    execute,
    inside,
    mean,
    passes,
    values,
)
from tests.runtime.in_process import Outcome
from tests.runtime.pipelines import Echo
from tests.runtime.plans import Input, call, plan

# Minibatches

PPO = Block("ppo", times=3, over="rollouts", size=4, seed=7)


class Learner(Exam):
    """Keeps the minibatches that it got."""

    @endpoint
    def values(self, batch: Batch) -> Batch:
        self.seen.append(("values", self.step, self.rank, tuples(batch)))
        return Batch({"value": batch["x"].float() / 2})

    @endpoint(collect="mean")
    def fit(self, batch: Batch) -> dict[str, float]:
        self.seen.append(("fit", self.step, self.rank, tuples(batch)))
        return {}

    @endpoint(collect="mean")
    def update(self, batch: Batch) -> dict[str, float]:
        self.seen.append(("update", self.step, self.rank, tuples(batch)))
        if "value" in batch:
            assert torch.equal(batch["value"], batch["x"].float() / 2)
        return {"x": float(batch["x"].float().mean()) if len(batch) else float("nan")}

    @endpoint
    def keep(self, batch: Batch) -> Batch:
        return batch.with_columns(round=[len(self.seen)] * len(batch))

    @endpoint(dispatch="all")
    def whole(self, batch: Batch) -> None:
        self.seen.append(("whole", self.step, self.rank, tuples(batch)))


def tuples(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(id) for id in batch.ids.tolist()]


def minibatch(name: str, what: str, *inputs: str | Input, **more: Any) -> Stage:
    made = tuple(part if isinstance(part, Input) else Input((part,), dispatch=SHARED) for part in inputs)
    return call(f"ppo.{name}", what, *made, block="ppo", **more)


def epochs(
    *stages: Stage,
    workers: dict[str, int],
    samples: int = 10,
    block: Block = PPO,
    rollouts: str = "echo.take",
    sizes: dict[str, dict[str, int]] | None = None,
    before: tuple[Stage, ...] = (),
) -> Plan:
    given = sizes or {}
    components = {
        "data": ("a", given.get("a", {})), "echo": ("a", given.get("a", {})),
        "actor": ("b", given.get("b", {})), "critic": ("c", given.get("c", {})),
    }  # fmt: skip
    placed = {name: one for name, one in components.items() if one[0] in workers}
    source = [call("batch", "data.next", samples=samples), call("rollouts", rollouts, "batch")]
    return replace(plan(workers, placed, [*source, *before, *stages], steps=2), blocks=(block,))


def learn(job: Plan) -> tuple[Outcome, list[Any]]:
    seen: list[Any] = []

    def make(name: str, rank: int) -> Component:
        return Held(1000) if name == "data" else Echo([]) if name == "echo" else Learner(seen)

    return in_process.run(job, make), seen


@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 2, "b": 3}])
def test_each_round_goes_once_over_all_samples_in_minibatches(workers: dict[str, int]) -> None:
    job = epochs(minibatch("update", "actor.update", "rollouts", collect="mean"), workers=workers)
    outcome, seen = learn(job)
    assert not outcome.faults
    orders = []
    for step in (1, 2):
        got = passes(seen, "update", step, workers["b"])
        assert [len(some) for some in got] == [4, 4, 2] * 3
        for number in range(3):
            every = sorted(id for some in got[3 * number : 3 * number + 3] for id in some)
            assert every == [(id,) for id in range(10 * step - 10, 10 * step)]
        orders += [str([[id - 10 * step for (id,) in some] for some in got[at : at + 3]]) for at in (0, 3, 6)]
    assert len(set(orders)) == 6  # each round has an order of its own
    assert mean(values(outcome, "ppo.update", "x")[1]) == pytest.approx(4.5)


def test_minibatches_are_the_same_on_any_layout() -> None:
    found = []
    for workers, sizes in (
        ({"a": 1, "b": 1}, {}),
        ({"a": 3, "b": 2}, {}),
        ({"a": 2, "b": 4}, {"b": {"dp_size": 2, "tp_size": 2}}),
    ):
        job = epochs(
            minibatch("update", "actor.update", "rollouts", collect="mean"), workers=workers, sizes=sizes
        )
        outcome, seen = learn(job)
        assert not outcome.faults
        ranks = workers["b"]
        got = passes(seen, "update", 1, ranks)
        found.append([sorted(set(some)) for some in got])
    assert found[0] == found[1] == found[2]


def test_samples_of_a_group_stay_in_one_minibatch() -> None:
    job = epochs(
        minibatch("update", "actor.update", "rollouts", collect="mean"),
        workers={"a": 2, "b": 2},
        samples=5,
        rollouts="echo.thrice",
        block=replace(PPO, size=7, times=1),
    )
    outcome, seen = learn(job)
    assert not outcome.faults
    got = passes(seen, "update", 1, 2)
    assert [len(some) for some in got] == [6, 6, 3]
    assert all(len({group for group, _ in some}) * 3 == len(some) for some in got)


def test_stages_of_several_groups_have_the_same_minibatches() -> None:
    pair = Input(("rollouts", "ppo.values"), dispatch=SHARED)
    job = epochs(
        minibatch("values", "critic.values", "rollouts"),
        minibatch("update", "actor.update", pair, collect="mean"),
        minibatch("fit", "critic.fit", "ppo.values", collect="mean"),
        workers={"a": 1, "b": 2, "c": 3},
    )
    outcome, seen = learn(job)
    assert not outcome.faults
    assert passes(seen, "values", 2, 3) == passes(seen, "update", 2, 2) == passes(seen, "fit", 2, 3)
    assert [len(some) for some in passes(seen, "fit", 2, 3)] == [4, 4, 2] * 3


def test_a_batch_from_outside_follows_the_minibatch() -> None:
    pair = Input(("rollouts", "extra"), dispatch=SHARED)
    job = epochs(
        minibatch("update", "actor.update", pair, collect="mean"),
        workers={"a": 2, "b": 3},
        before=(call("extra", "actor.values", "batch"),),
        rollouts="echo.bare",
    )

    class Bare(Echo):
        @endpoint
        def bare(self, batch: Batch) -> Batch:
            return batch.select("x")

    seen: list[Any] = []
    made = {"data": lambda: Held(1000), "echo": lambda: Bare([]), "actor": lambda: Learner(seen)}
    outcome = in_process.run(job, lambda name, rank: made[name]())
    assert not outcome.faults
    assert [len(some) for some in passes(seen, "update", 2, 3)] == [4, 4, 2] * 3


def test_the_value_of_a_block_is_that_of_its_last_round() -> None:
    job = epochs(
        minibatch("kept", "actor.keep", "rollouts"),
        call("whole", "actor.whole", Input(("ppo.kept",), dispatch=Dispatch("all"))),
        workers={"a": 2, "b": 2},
    )
    outcome, seen = learn(job)
    assert not outcome.faults
    whole = [(step, some) for kind, step, _, some in seen if kind == "whole"]
    assert (
        sorted(whole) == [(1, [(id,) for id in range(10)])] * 2 + [(2, [(id,) for id in range(10, 20)])] * 2
    )


def test_a_value_that_is_no_batch_cannot_be_cut() -> None:
    job = epochs(minibatch("update", "actor.update", "rollouts", collect="mean"), workers={"a": 1, "b": 1})
    stages = tuple(
        replace(stage, method="loss", collect="mean") if stage.name == "rollouts" else stage
        for stage in job.stages
    )
    routes = tuple(
        replace(route, collect="mean") if route.source == "rollouts" else route for route in job.routes
    )
    outcome, _ = learn(replace(job, stages=stages, routes=routes))
    [fault] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
    assert str(fault) == "block `ppo` cuts a Batch into minibatches, and `rollouts` returned a dict"


@pytest.mark.parametrize(
    ("dispatch", "more"),
    [
        (Dispatch(balance="tokens", allow_empty=True), {}),
        (Dispatch("slice", allow_empty=True), {}),
        (Dispatch("all", allow_empty=True), {}),
        (SHARED, {"execute": "first"}),
        (SHARED, {"execute": "peer"}),
    ],
)
@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 3}, {"a": 3, "b": 2}])
def test_minibatches_reach_ranks_by_any_mode(
    dispatch: Dispatch, more: dict[str, str], workers: dict[str, int]
) -> None:
    whole = Input(("rollouts",), dispatch=dispatch)
    job = epochs(minibatch("keep", "actor.values", whole, **more), workers=workers)
    outcome, seen = learn(job)
    assert not outcome.faults
    ranks = 1 if more == {"execute": "first"} else workers["b"]
    for step in (1, 2):
        got = [sorted(set(some)) for some in passes(seen, "values", step, ranks)]
        assert [len(some) for some in got] == [4, 4, 2] * 3
        assert sorted({id for some in got[:3] for id in some}) == [(10 * step - 10 + id,) for id in range(10)]


def test_a_batch_without_samples_is_one_empty_minibatch() -> None:
    class Empty(Echo):
        @endpoint
        def drop(self, batch: Batch) -> Batch:
            return batch.where([False] * len(batch))

    seen: list[Any] = []
    made = {"data": lambda: Held(1000), "echo": lambda: Empty([]), "actor": lambda: Learner(seen)}
    job = epochs(
        minibatch("kept", "actor.keep", "rollouts"),
        minibatch("update", "actor.update", "rollouts", collect="mean"),
        call("whole", "actor.whole", Input(("ppo.kept",), dispatch=Dispatch("all", allow_empty=True))),
        workers={"a": 2, "b": 2},
        rollouts="echo.drop",
    )
    outcome = in_process.run(job, lambda name, rank: made[name]())
    assert not outcome.faults
    assert passes(seen, "update", 1, 2) == [[]] * 3
    assert passes(seen, "whole", 1, 2) == [[]]


def test_a_source_that_runs_out_on_one_rank_before_the_others() -> None:
    job = evaluation(
        inside("answers", "exam.answer", "eval.questions"),
        inside("exam", "exam.score", "eval.answers", collect="mean"),
        workers={"a": 3, "b": 2},
        samples=6,
    )
    outcome, seen = execute(job, HeldStream, length=7)
    assert not outcome.faults
    assert sorted(id for step, _, some in seen for id in some if step == 1) == sorted([*range(7)] * 2)
