"""Blocks: what their sources and values must be, and the orders of minibatches. Which samples each pass of a block
has on each rank is compared with a model in tests/pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshctl.plan.model import Block, Plan, Stage
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Input, call, plan

SHARED = Dispatch(allow_empty=True)


class Held(Source):
    """A source of questions with a known length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class HeldStream(Held):
    """The same source without a length. It ends by returning None."""

    __len__ = None  # type: ignore[assignment]

    @endpoint
    def next(self, samples: range) -> Batch | None:
        rest = [number for number in samples if number < self.length]
        return super().next(range(rest[0], rest[-1] + 1)) if rest else None


class Taker(Component):
    """Records its inputs, and returns the mean of their numbers."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @endpoint
    def answer(self, batch: Batch) -> Batch:
        return batch.with_columns(answer=batch["x"] * 2)

    @endpoint(collect="mean")
    def score(self, batch: Batch) -> dict[str, float]:
        self.seen.append((self.step, self.rank, [tuple(id) for id in batch.ids.tolist()]))
        return {"x": float(batch["x"].float().mean()) if len(batch) else float("nan")}


class Broken(Taker):
    @endpoint(collect="mean")
    def score(self, batch: Batch) -> dict[str, float]:
        raise ZeroDivisionError


def mean(outcome: in_process.Outcome, stage: str, step: int) -> float:
    """Returns the mean of the metric `x` over all calls of a stage in a step."""
    metrics = [event for event in outcome.events if (event.name, event.stage) == ("metric", stage)]
    parts = [(event.value["values"]["x"], event.value["weight"]) for event in metrics if event.step == step]
    filled = [(value, weight) for value, weight in parts if weight]
    return sum(value * weight for value, weight in filled) / sum(weight for _, weight in filled)


# Until the data of a source end


def evaluated(
    held: Held, workers: dict[str, int], taker: type[Taker] = Taker
) -> tuple[in_process.Outcome, list[Any]]:
    """Runs a training with an evaluation in every second step. Returns the outcome and what was scored."""
    seen: list[Any] = []

    def inside(name: str, what: str, *inputs: str, **more: Any) -> Stage:
        given = [Input((part,), dispatch=SHARED) for part in inputs]
        return call(f"eval.{name}", what, *given, every=2, block="eval", **more)

    stages = [
        call("batch", "data.next", samples=6),
        call("train", "echo.take", "batch"),
        inside("questions", "held.next", samples=4),
        inside("answers", "exam.answer", "eval.questions"),
        inside("exam", "exam.score", "eval.answers", collect="mean"),
    ]
    parts: dict[str, Any] = {"data": ("a", {}), "held": ("a", {}), "echo": ("b", {}), "exam": ("b", {})}
    job = replace(plan(workers, parts, stages, steps=4), blocks=(Block("eval", until="eval.questions"),))
    made = {"data": Source, "held": lambda: held, "echo": lambda: Echo([]), "exam": lambda: taker(seen)}
    return in_process.run(job, lambda name, rank: made[name]()), seen


@pytest.mark.parametrize("held", [Held, HeldStream])
@pytest.mark.parametrize(
    ("workers", "length"), [({"a": 1, "b": 1}, 4), ({"a": 2, "b": 3}, 1), ({"a": 2, "b": 3}, 10)]
)
def test_a_block_goes_through_the_whole_data_set_in_each_of_its_steps(
    held: type[Held], workers: dict[str, int], length: int
) -> None:
    outcome, seen = evaluated(held(length), workers)
    assert not outcome.faults and set(outcome.last.values()) == {4}
    assert {step for step, *_ in seen} == {2, 4}
    for step in (2, 4):
        got = sorted(id for at, _, some in seen if at == step for [id] in some)
        assert got == [*range(length)]
        assert mean(outcome, "eval.exam", step) == pytest.approx((length - 1) / 2)


@pytest.mark.parametrize("held", [Held, HeldStream])
def test_a_source_without_samples_is_an_error(held: type[Held]) -> None:
    outcome, _ = evaluated(held(0), {"a": 1, "b": 1})
    [fault] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
    assert str(fault) == "`held.next` returned no samples, but `eval` runs until its data end"


def test_an_error_in_a_pass_ends_the_run() -> None:
    outcome, _ = evaluated(Held(3), {"a": 1, "b": 1}, Broken)
    assert any(isinstance(fault, ZeroDivisionError) for fault in outcome.faults.values())


# Minibatches


PPO = Block("ppo", times=3, over="rollouts", size=4, seed=7)


def epochs(
    workers: dict[str, int],
    samples: int = 10,
    block: Block = PPO,
    rollouts: str = "echo.take",
    sizes: dict[str, int] | None = None,
) -> Plan:
    """A stage `update` in a block over the samples of the stage `rollouts`."""
    stages = [
        call("batch", "data.next", samples=samples),
        call("rollouts", rollouts, "batch"),
        call("ppo.update", "actor.score", Input(("rollouts",), dispatch=SHARED), block="ppo", collect="mean"),
    ]
    parts: dict[str, Any] = {"data": ("a", {}), "echo": ("a", {}), "actor": ("b", sizes or {})}
    return replace(plan(workers, parts, stages, steps=2), blocks=(block,))


def learnt(job: Plan, echo: type[Echo] = Echo) -> tuple[in_process.Outcome, list[Any]]:
    seen: list[Any] = []
    made = {"data": lambda: Held(1000), "echo": lambda: echo([]), "actor": lambda: Taker(seen)}
    return in_process.run(job, lambda name, rank: made[name]()), seen


def passes(seen: list[Any], step: int, ranks: int) -> list[list[tuple[int, ...]]]:
    """Returns the ids of each pass, over all data ranks."""
    by_rank = [[some for at, who, some in seen if (at, who) == (step, rank)] for rank in range(ranks)]
    return [sorted(id for some in parts for id in some) for parts in zip(*by_rank, strict=True)]


@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 3}])
def test_each_round_goes_once_over_all_samples_in_an_order_of_its_own(workers: dict[str, int]) -> None:
    outcome, seen = learnt(epochs(workers))
    assert not outcome.faults
    orders = []
    for step in (1, 2):
        got = passes(seen, step, workers["b"])
        assert [len(some) for some in got] == [4, 4, 2] * 3
        for number in range(3):
            every = sorted(id for some in got[3 * number : 3 * number + 3] for id in some)
            assert every == [(id,) for id in range(10 * step - 10, 10 * step)]
        orders += [str([[id - 10 * step for (id,) in some] for some in got[at : at + 3]]) for at in (0, 3, 6)]
    assert len(set(orders)) == 6
    assert mean(outcome, "ppo.update", 1) == pytest.approx(4.5)


def test_minibatches_are_the_same_on_any_layout() -> None:
    found = []
    for workers, sizes in (
        ({"a": 1, "b": 1}, {}),
        ({"a": 3, "b": 2}, {}),
        ({"a": 2, "b": 4}, {"dp_size": 2, "tp_size": 2}),
    ):
        outcome, seen = learnt(epochs(workers, sizes=sizes))
        assert not outcome.faults
        found.append([sorted(set(some)) for some in passes(seen, 1, workers["b"])])
    assert found[0] == found[1] == found[2]


def test_samples_of_a_group_stay_in_one_minibatch() -> None:
    job = epochs({"a": 2, "b": 2}, samples=5, rollouts="echo.thrice", block=replace(PPO, size=7, times=1))
    outcome, seen = learnt(job)
    assert not outcome.faults
    got = passes(seen, 1, 2)
    assert [len(some) for some in got] == [6, 6, 3]
    assert all(len({group for group, _ in some}) * 3 == len(some) for some in got)


def test_a_batch_without_samples_is_one_empty_minibatch() -> None:
    class Empty(Echo):
        @endpoint
        def drop(self, batch: Batch) -> Batch:
            return batch.where([False] * len(batch))

    outcome, seen = learnt(epochs({"a": 2, "b": 2}, rollouts="echo.drop"), Empty)
    assert not outcome.faults and passes(seen, 1, 2) == [[]] * 3


def test_a_value_that_is_no_batch_cannot_be_cut() -> None:
    job = epochs({"a": 1, "b": 1})
    first, second, *rest = job.stages
    second = replace(second, method="loss", collect="mean")
    routes = [replace(one, collect="mean") if one.source == "rollouts" else one for one in job.routes]
    outcome, _ = learnt(replace(job, stages=(first, second, *rest), routes=tuple(routes)))
    [fault] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
    assert str(fault) == "block `ppo` cuts a Batch into minibatches, and `rollouts` returned a dict"
