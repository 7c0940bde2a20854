"""Blocks of stages that run several times in a step, in threads."""

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
from tests.runtime.in_process import Outcome
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Checkpoint, Input, call, plan

EVAL = Block("eval", until="eval.questions")
SHARED = Dispatch(allow_empty=True)


class Held(Source):
    """A source of questions with a known length."""

    def __init__(self, length: int, seen: list[Any] | None = None) -> None:
        self.length, self.seen = length, seen

    def __len__(self) -> int:
        return self.length

    @endpoint
    def next(self, samples: range) -> Batch | None:
        if self.seen is not None:
            self.seen.append((self.step, self.rank, samples))
        return super().next(samples)


class HeldStream(Held):
    """The same source without a length. It ends by returning None."""

    __len__ = None  # type: ignore[assignment]

    @endpoint
    def next(self, samples: range) -> Batch | None:
        rest = [number for number in samples if number < self.length]
        return super().next(range(rest[0], rest[-1] + 1)) if rest else None


class Exam(Component):
    """Records its inputs, and returns the mean number of their samples."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @endpoint
    def answer(self, batch: Batch) -> Batch:
        self.seen.append((self.step, self.rank, ids(batch)))
        return batch.with_columns(answer=batch["x"] * 2)

    @endpoint(collect="mean")
    def score(self, batch: Batch) -> dict[str, float]:
        self.log({"logged": 1.0}, weight=len(batch))
        self.seen.append((self.step, self.rank, ids(batch)))
        return {"x": float(batch["x"].float().mean()) if len(batch) else float("nan")}

    @endpoint(collect="sum")
    def count(self, batch: Batch) -> dict[str, float]:
        return {"n": float(len(batch))}

    @endpoint(collect="mean")
    def against(self, batch: Batch, scale: Any) -> dict[str, float]:
        self.seen.append((self.step, self.rank, ids(batch), scale))
        return {"x": 0.0}

    @endpoint(dispatch="all")
    def note(self, value: Any) -> None:
        self.seen.append((self.step, self.rank, value if not isinstance(value, Batch) else ids(value)))

    @endpoint
    def draw(self, batch: Batch) -> Batch:
        return batch.with_columns(drawn=torch.rand(len(batch)))


def ids(batch: Batch) -> list[int]:
    return [id for (id,) in batch.ids.tolist()]


def inside(name: str, what: str, *inputs: str | Input, every: int = 1, **more: Any) -> Stage:
    made = tuple(part if isinstance(part, Input) else Input((part,), dispatch=SHARED) for part in inputs)
    return call(f"eval.{name}", what, *made, every=every, block="eval", **more)


def evaluation(
    *stages: Stage,
    workers: dict[str, int],
    every: int = 1,
    steps: int = 2,
    samples: int = 4,
    before: tuple[Stage, ...] = (),
    **run: Any,
) -> Plan:
    """A training of one stage and a block `eval`, on the groups `a` (sources) and `b`."""
    block = [inside("questions", "held.next", samples=samples, every=every), *stages]
    job = plan(
        workers,
        {"data": ("a", {}), "held": ("a", {}), "echo": ("b", {}), "exam": ("b", {})},
        [call("batch", "data.next", samples=6), call("train", "echo.take", "batch"), *before, *block],
        steps=steps,
        **run,
    )
    return replace(job, blocks=(EVAL,))


def execute(job: Plan, held: type[Held] = Held, length: int = 10, **more: Any) -> tuple[Outcome, list[Any]]:
    seen: list[Any] = []
    data = more.pop("data", Source)

    def make(name: str, rank: int) -> Component:
        if name == "held":
            return held(length)
        return data() if name == "data" else Exam(seen) if name.startswith("exam") else Echo([])

    return in_process.run(job, make, **more), seen


def values(outcome: Outcome, stage: str, name: str) -> dict[int, list[tuple[float, float]]]:
    """Returns step -> the (value, weight) of a metric in each call."""
    found: dict[int, list[tuple[float, float]]] = {}
    for event in outcome.events:
        if event.name == "metric" and event.stage == stage and name in event.value["values"]:
            part = event.value["values"][name], event.value["weight"]
            found.setdefault(event.step or 0, []).append(part)
    return found


def mean(parts: list[tuple[float, float]]) -> float:
    filled = [(value, weight) for value, weight in parts if weight]
    return sum(value * weight for value, weight in filled) / sum(weight for _, weight in filled)


@pytest.mark.parametrize("held", [Held, HeldStream])
@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 2, "b": 3}])
@pytest.mark.parametrize("length", [1, 4, 9, 10])
def test_a_block_goes_through_the_whole_data_set_in_each_of_its_steps(
    held: type[Held], workers: dict[str, int], length: int
) -> None:
    job = evaluation(
        inside("answers", "exam.answer", "eval.questions", every=2),
        inside("exam", "exam.score", "eval.answers", collect="mean", every=2),
        workers=workers,
        every=2,
        steps=4,
    )
    outcome, seen = execute(job, held, length)
    assert not outcome.faults and set(outcome.last.values()) == {4}
    for step in (2, 4):
        got = sorted(id for at, _, some in seen if at == step for id in some)
        assert got == sorted([*range(length)] * 2)
        assert mean(values(outcome, "eval.exam", "x")[step]) == pytest.approx((length - 1) / 2)
        assert mean(values(outcome, "eval.exam", "logged")[step]) == 1.0
    assert {step for step, *_ in seen} == {2, 4}


def test_an_empty_share_takes_part_in_every_pass() -> None:
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        workers={"a": 2, "b": 3},
        steps=1,
    )
    _, seen = execute(job, length=5)
    assert sorted(seen) == [(1, 0, [0, 1]), (1, 0, [4]), (1, 1, []), (1, 1, [2]), (1, 2, []), (1, 2, [3])]


def test_a_source_starts_at_its_first_sample_and_is_not_called_for_an_empty_share() -> None:
    calls: list[Any] = []
    job = evaluation(inside("exam", "exam.score", "eval.questions", collect="mean"), workers={"a": 2, "b": 1})

    def make(name: str, rank: int) -> Component:
        if name == "held":
            return Held(5, calls)
        return Source() if name == "data" else Exam([]) if name == "exam" else Echo([])

    in_process.run(job, make)
    expected = [(0, range(2)), (0, range(4, 5)), (1, range(2, 4))]
    assert sorted(calls, key=str) == [(step, *rest) for step in (1, 2) for rest in expected]


def test_numbers_of_all_passes_are_added_under_sum() -> None:
    job = evaluation(
        inside("count", "exam.count", "eval.questions", collect="sum"), workers={"a": 1, "b": 2}, steps=1
    )
    outcome, _ = execute(job)
    parts = values(outcome, "eval.count", "n")[1]
    assert sum(value for value, _ in parts) == 10.0
    assert {event.value["collect"] for event in outcome.events if event.stage == "eval.count"} == {"sum"}


def outside(name: str, what: str, *inputs: str | Input, **more: Any) -> Stage:
    return call(name, what, *inputs, **more)


@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 3}])
def test_a_stage_outside_receives_the_samples_of_all_passes_in_order(workers: dict[str, int]) -> None:
    job = evaluation(
        inside("answers", "exam.answer", "eval.questions"),
        outside("note", "exam.note", Input(("eval.answers",), dispatch=Dispatch("all"))),
        workers=workers,
    )
    outcome, seen = execute(job)
    assert not outcome.faults
    whole = [(at, rank, [*range(10)]) for at in (1, 2) for rank in range(workers["b"])]
    assert all(one in seen for one in whole)


@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 3}])
def test_a_stage_outside_receives_the_mean_of_all_passes(workers: dict[str, int]) -> None:
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        outside("note", "exam.note", Input(("eval.exam",), dispatch=Dispatch("all"))),
        workers=workers,
    )
    outcome, seen = execute(job)
    assert not outcome.faults
    noted = [value for _, _, value in seen if isinstance(value, dict)]
    assert noted == [{"x": pytest.approx(4.5)}] * 2 * workers["b"]


def test_a_value_from_outside_is_received_once_and_used_in_every_pass() -> None:
    scale = Input(("train",), "scale", Dispatch("all", allow_empty=True))
    job = evaluation(
        inside("exam", "exam.against", Input(("eval.questions",), "batch", SHARED), scale, collect="mean"),
        workers={"a": 1, "b": 1},
        steps=2,
    )
    outcome, seen = execute(job)
    assert not outcome.faults
    got = [(step, some, ids(batch)) for step, _, some, batch in seen]
    passes = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert got == [(step, some, [*range(6 * step - 6, 6 * step)]) for step in (1, 2) for some in passes]


def test_a_block_whose_input_does_not_run_is_skipped_whole() -> None:
    scale = Input(("rare",), "scale", Dispatch("all", allow_empty=True))
    rare = call("rare", "echo.take", "batch", every=2)
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        inside("scaled", "exam.against", Input(("eval.questions",), "batch", SHARED), scale, collect="mean"),
        workers={"a": 1, "b": 1},
        before=(rare,),
    )
    _, seen = execute(job)
    assert {step for step, *_ in seen} == {2}


def test_seeds_differ_by_pass_and_repeat_themselves() -> None:
    from meshctl.runtime.seeding import Seeds

    drawn = []
    for pass_number in (0, 1, 2, 1):
        Seeds(0, "x", device="cpu").seed_all(3, pass_number)
        drawn.append(float(torch.rand(1)))
    assert len({*drawn}) == 3 and drawn[1] == drawn[3]


def test_a_source_of_a_block_is_no_part_of_the_position_and_does_not_end_the_run() -> None:
    saved: list[tuple[int, dict[str, int]]] = []
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        workers={"a": 1, "b": 1},
        steps=3,
        checkpoint=Checkpoint(1),
    )
    outcome, _ = execute(job, length=2, save=lambda step, given: saved.append((step, dict(given))))
    assert set(outcome.last.values()) == {3}
    assert all((step, {"batch": 6 * step}) in saved for step in (1, 2, 3))
    assert {name for _, given in saved for name in given} == {"batch"}


def test_a_source_without_samples_is_an_error() -> None:
    job = evaluation(inside("exam", "exam.score", "eval.questions", collect="mean"), workers={"a": 1, "b": 1})
    for held in (Held, HeldStream):
        outcome, _ = execute(job, held, length=0)
        [fault] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
        assert str(fault) == "`held.next` returned no samples, but `eval` runs until its data end"


class Ends(Source):
    """A source that ends in step 3 without announcing it."""

    @endpoint
    def next(self, samples: range) -> Batch | None:
        return super().next(samples) if samples.start < 12 else None


def test_an_unannounced_end_in_a_step_with_a_block_drops_it() -> None:
    scale = Input(("train",), "scale", Dispatch("all", allow_empty=True))
    job = evaluation(
        inside("exam", "exam.against", Input(("eval.questions",), "batch", SHARED), scale, collect="mean"),
        workers={"a": 2, "b": 2},
        steps=0,
    )
    outcome, seen = execute(job, data=Ends)
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert {step for step, *_ in seen} == {1, 2}


def test_an_unannounced_end_does_not_disturb_a_block_of_its_own_data() -> None:
    last = call("last", "exam.note", "train", when="end")
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        last,
        workers={"a": 2, "b": 2},
        steps=0,
    )
    outcome, seen = execute(job, data=Ends)
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert [step for step, *_ in seen if step == 2]
    assert all(mean(parts) == pytest.approx(4.5) for parts in values(outcome, "eval.exam", "x").values())


@pytest.mark.parametrize("data", [Source, Ends])
def test_a_block_at_the_end_of_a_run(data: type[Source]) -> None:
    stages = [inside("exam", "exam.score", "eval.questions", collect="mean", when="end")]
    job = evaluation(*stages, workers={"a": 1, "b": 2}, steps=2 if data is Source else 0)
    job = replace(
        job,
        stages=tuple(replace(stage, when="end") if stage.block else stage for stage in job.stages),
    )
    outcome, seen = execute(job, data=data)
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert sorted(id for step, _, some in seen for id in some if step == 2) == [*range(10)]
    assert {step for step, *_ in seen} == {2}


def test_an_error_in_a_pass_names_the_stage() -> None:
    class Broken(Exam):
        @endpoint(collect="mean")
        def score(self, batch: Batch) -> dict[str, float]:
            raise ZeroDivisionError

    job = evaluation(inside("exam", "exam.score", "eval.questions", collect="mean"), workers={"a": 1, "b": 1})
    made = {"held": lambda: Held(3), "data": Source, "echo": lambda: Echo([]), "exam": lambda: Broken([])}
    outcome = in_process.run(job, lambda name, rank: made[name]())
    assert any(isinstance(fault, ZeroDivisionError) for fault in outcome.faults.values())


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


def passes(seen: list[Any], what: str, step: int, ranks: int) -> list[list[tuple[int, ...]]]:
    """Returns the ids of each pass, over all data ranks."""
    by_rank = [
        [some for kind, at, who, some in seen if (kind, at, who) == (what, step, rank)]
        for rank in range(ranks)
    ]
    return [sorted(id for some in parts for id in some) for parts in zip(*by_rank, strict=True)]


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
