"""`@endpoint(retry=n)`: a failed call is repeated on its rank, with the same arguments and random numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from meshctl.run.events import Event
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, ComponentError, endpoint
from meshctl.runtime.errors import CollectiveError, StageError
from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.progress import Progress
from meshctl.runtime.rank_context import RankContext
from tests.runtime import in_process
from tests.runtime.pipelines import Source
from tests.runtime.plans import call, plan

Act = Callable[[Component, Batch], object]


class Learner(Component):
    def __init__(self, act: Act) -> None:
        self.act = act

    @endpoint(collect="mean", retry=2)
    def update(self, batch: Batch) -> dict[str, float]:
        self.act(self, batch)
        return {"x": float(batch["x"].sum())}


class FlakySource(Source):
    left = 3

    @endpoint(retry=3)
    def next(self, samples: range) -> Batch | None:
        if self.left:
            self.left -= 1
            raise TimeoutError
        return Batch({"x": torch.tensor(list(samples))})


def run(
    act: Act, source: type[Component] = Source, ranks: int = 1, group: str = "b", make: Any = Learner
) -> in_process.Outcome:
    """`group` is that of the learner; the source is in `a`, which has one worker."""
    job = plan(
        {"a": 1, "b": ranks},
        {"source": ("a", {}), "learner": (group, {})},
        [call("batch", "source.next", samples=4), call("update", "learner.update", "batch", collect="mean")],
        steps=3,
    )
    return in_process.run(job, lambda name, rank: source() if name == "source" else make(act))


def named(outcome: in_process.Outcome, name: str) -> list[Event]:
    return [event for event in outcome.events if event.name == name]


@pytest.mark.parametrize("failures", [2, 3])
def test_a_failed_call_is_repeated_with_its_arguments_and_counted(failures: int) -> None:
    calls, seen = Counter[tuple[int, int]](), set[tuple[float, ...]]()

    def act(it: Component, batch: Batch) -> None:
        calls[it.step, it.rank] += 1
        it.log({"seen": 1.0})
        if (it.step, it.rank) == (2, 1):
            seen.add(tuple(batch["x"].tolist()))
            if calls[2, 1] <= failures:
                raise ConnectionError("no answer")

    outcome = run(act, ranks=2)
    assert calls[2, 1] == 3
    if failures == 3:  # the last exception ends the run
        assert any(isinstance(error, ConnectionError) for error in outcome.faults.values())
        return
    assert not outcome.faults and seen == {(6, 7)}
    assert calls == {
        (step, rank): 3 if (step, rank) == (2, 1) else 1 for step in (1, 2, 3) for rank in (0, 1)
    }
    found = [(event.value["error"], event.value["times"], event.step) for event in named(outcome, "retried")]
    assert found == [("ConnectionError", 1, 2), ("ConnectionError", 2, 2)]
    metrics = [(event.step, event.value) for event in named(outcome, "metric")]
    [[step, retries]] = [(step, one) for step, one in metrics if "retries" in one["values"]]
    assert (step, retries["values"], retries["collect"]) == (2, {"retries": 2.0}, "sum")
    assert len([one for _, one in metrics if "seen" in one["values"]]) == 6


def test_random_numbers_are_the_same_in_each_repetition() -> None:
    drawn: list[float] = []

    def act(it: Component, batch: Batch) -> None:
        drawn.append(float(torch.rand(())))
        if len(drawn) == 1:
            raise OSError

    assert not run(act, group="a").faults  # workers are threads here, and would share torch's generator
    assert drawn[0] == drawn[1] and len(set(drawn)) == 3


def test_a_source_may_be_called_again() -> None:
    seen: list[Any] = []
    outcome = run(lambda it, batch: seen.append(batch["x"].tolist()), FlakySource)
    assert not outcome.faults and len(named(outcome, "retried")) == 3
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_call_that_wrote_into_its_arguments_is_not_repeated() -> None:
    def act(it: Component, batch: Batch) -> None:
        batch["x"][0] = -1
        raise ValueError

    [error] = run(act).faults.values()
    assert isinstance(error, StageError) and "wrote into column `x`" in str(error)


def test_a_collective_in_such_a_call_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    monkeypatch.setattr(in_process, "LoopContext", partial(LoopContext, progress=progress))
    monkeypatch.setattr(in_process, "RankContext", partial(RankContext, progress=progress))

    def act(it: Component, batch: Batch) -> None:
        with it.place.progress.calls_of("learner:dp").call(("all_reduce",)):
            raise ConnectionError

    [error] = run(act).faults.values()
    assert isinstance(error, CollectiveError)
    assert str(error).startswith("`learner.update` calls a collective, and its `retry` may repeat")


@pytest.mark.parametrize("retry", [-1, True, "2", 1.5])
def test_a_wrong_number_of_repetitions_is_refused(retry: Any) -> None:
    with pytest.raises(ComponentError, match="`retry` must be an integer of at least 0"):
        endpoint(retry=retry)
