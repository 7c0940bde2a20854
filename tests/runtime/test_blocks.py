"""Blocks: what their sources and values must be, and the orders of minibatches. Which samples each pass of a block
has on each rank is compared with a model in tests/pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshctl.plan.model import Block, Plan
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

    @endpoint(collect="mean")
    def score(self, batch: Batch) -> dict[str, float]:
        self.seen.append((self.step, self.rank, [tuple(id) for id in batch.ids.tolist()]))
        return {"x": float(batch["x"].float().mean()) if len(batch) else float("nan")}


# Until the data of a source end


@pytest.mark.parametrize("held", [Held, HeldStream])
def test_a_source_without_samples_is_an_error(held: type[Held]) -> None:
    stages = [
        call("eval.questions", "held.next", samples=4, block="eval"),
        call(
            "eval.exam",
            "exam.score",
            Input(("eval.questions",), dispatch=SHARED),
            block="eval",
            collect="mean",
        ),
    ]
    blocks = (Block("eval", until="eval.questions"),)
    job = replace(plan({"a": 1}, {"held": ("a", {}), "exam": ("a", {})}, stages), blocks=blocks)
    outcome = in_process.run(job, lambda name, rank: held(0) if name == "held" else Taker([]))
    [fault] = outcome.faults.values()
    assert isinstance(fault, StageError)
    assert str(fault) == "`held.next` returned no samples, but `eval` runs until its data end"


# Minibatches


PPO = Block("ppo", times=3, over="rollouts", size=4, seed=7)


def epochs(workers: dict[str, int], sizes: dict[str, int] | None = None) -> Plan:
    """A stage `update` in a block over the samples of the stage `rollouts`."""
    stages = [
        call("batch", "data.next", samples=10),
        call("rollouts", "echo.take", "batch"),
        call("ppo.update", "actor.score", Input(("rollouts",), dispatch=SHARED), block="ppo", collect="mean"),
    ]
    parts: dict[str, Any] = {"data": ("a", {}), "echo": ("a", {}), "actor": ("b", sizes or {})}
    return replace(plan(workers, parts, stages, steps=2), blocks=(PPO,))


def learnt(job: Plan) -> tuple[in_process.Outcome, list[Any]]:
    seen: list[Any] = []
    made = {"data": lambda: Held(1000), "echo": lambda: Echo([]), "actor": lambda: Taker(seen)}
    return in_process.run(job, lambda name, rank: made[name]()), seen


def passes(seen: list[Any], step: int, ranks: int) -> list[list[tuple[int, ...]]]:
    """Returns the ids of each pass, over all data ranks."""
    by_rank = [[some for at, who, some in seen if (at, who) == (step, rank)] for rank in range(ranks)]
    return [sorted({id for some in parts for id in some}) for parts in zip(*by_rank, strict=True)]


def test_each_round_goes_once_over_all_samples_in_an_order_of_its_own_which_is_that_of_any_layout() -> None:
    found = []
    for ranks, sizes in ((1, {}), (3, {}), (4, {"dp_size": 2, "tp_size": 2})):
        outcome, seen = learnt(epochs({"a": min(ranks, 2), "b": ranks}, sizes))
        assert not outcome.faults
        orders = []
        for step in (1, 2):
            got = passes(seen, step, ranks)
            assert [len(some) for some in got] == [4, 4, 2] * 3
            for at in (0, 3, 6):
                numbers = [[id - 10 * (step - 1) for (id,) in some] for some in got[at : at + 3]]
                assert sorted(id for some in numbers for id in some) == [*range(10)]
                orders.append(str(numbers))
        assert len(set(orders)) == 6
        found.append(orders)
    assert found[0] == found[1] == found[2]


def test_a_value_that_is_no_batch_cannot_be_cut() -> None:
    job = epochs({"a": 1, "b": 1})
    first, second, *rest = job.stages
    second = replace(second, method="loss", collect="mean")
    routes = [replace(one, collect="mean") if one.source == "rollouts" else one for one in job.routes]
    outcome, _ = learnt(replace(job, stages=(first, second, *rest), routes=tuple(routes)))
    [fault] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
    assert str(fault) == "block `ppo` cuts a Batch into minibatches, and `rollouts` returned a dict"
