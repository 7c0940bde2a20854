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


class Flaky(Component):
    """Fails in its first calls of step 2 on rank 1."""

    def __init__(self, failures: int, drawn: list[Any]) -> None:
        self.left, self.drawn = failures, drawn

    @endpoint(collect="mean", retry=2)
    def update(self, batch: Batch) -> dict[str, float]:
        self.drawn.append((self.step, self.rank, batch["x"].tolist()))
        self.log({"seen": 1.0})
        if self.step == 2 and self.rank == 1 and self.left:
            self.left -= 1
            raise ConnectionError("no answer")
        return {"x": float(batch["x"].sum())}


class Drawing(Flaky):
    @endpoint(collect="mean", retry=1)
    def update(self, batch: Batch) -> dict[str, float]:
        self.drawn.append(float(torch.rand(())))
        if self.left:
            self.left -= 1
            raise OSError
        return {"x": 0.0}


class Writing(Flaky):
    @endpoint(collect="mean", retry=1)
    def update(self, batch: Batch) -> dict[str, float]:
        batch["x"][0] = -1
        raise ValueError


class FlakySource(Source):
    def __init__(self, failures: int) -> None:
        self.left = failures

    @endpoint(retry=3)
    def next(self, samples: range) -> Batch | None:
        if self.left:
            self.left -= 1
            raise TimeoutError
        return Batch({"x": torch.tensor(list(samples))})


def run(
    learner: Callable[[], Component], source: Component | None = None, ranks: int = 1, group: str = "b"
) -> in_process.Outcome:
    """`group` is that of the learner; the source is in `a`, which has one worker."""
    job = plan(
        {"a": 1, "b": ranks},
        {"source": ("a", {}), "learner": (group, {})},
        [call("batch", "source.next", samples=4), call("update", "learner.update", "batch", collect="mean")],
        steps=3,
    )
    return in_process.run(job, lambda name, rank: (source or Source()) if name == "source" else learner())


def named(outcome: in_process.Outcome, name: str) -> list[Event]:
    return [event for event in outcome.events if event.name == name]


def test_a_failed_call_is_repeated_with_its_arguments_and_counted() -> None:
    drawn: list[Any] = []
    outcome = run(lambda: Flaky(2, drawn), ranks=2)
    assert not outcome.faults
    assert Counter((step, rank) for step, rank, _ in drawn) == {
        (step, rank): 3 if (step, rank) == (2, 1) else 1 for step in (1, 2, 3) for rank in (0, 1)
    }
    [repeated] = {tuple(x) for step, rank, x in drawn if (step, rank) == (2, 1)}
    assert repeated == (6, 7)
    found = [(event.value["error"], event.value["times"], event.step) for event in named(outcome, "retried")]
    assert found == [("ConnectionError", 1, 2), ("ConnectionError", 2, 2)]
    retries = [event for event in named(outcome, "metric") if "retries" in event.value["values"]]
    assert [(event.step, event.value["values"], event.value["collect"]) for event in retries] == [
        (2, {"retries": 2.0}, "sum")
    ]
    logged = [event for event in named(outcome, "metric") if "seen" in event.value["values"]]
    assert len(logged) == 6


def test_the_last_exception_ends_the_run() -> None:
    drawn: list[Any] = []
    outcome = run(lambda: Flaky(3, drawn), ranks=2)
    assert any(isinstance(error, ConnectionError) for error in outcome.faults.values())
    assert len([one for one in drawn if one[:2] == (2, 1)]) == 3


def test_random_numbers_are_the_same_in_each_repetition() -> None:
    drawn: list[Any] = []
    outcome = run(
        lambda: Drawing(1, drawn), group="a"
    )  # workers are threads here, and would share torch's generator
    assert not outcome.faults
    assert drawn[0] == drawn[1] and len(set(drawn)) == 3


def test_a_source_may_be_called_again() -> None:
    drawn: list[Any] = []
    outcome = run(lambda: Flaky(0, drawn), FlakySource(3))
    assert not outcome.faults and len(named(outcome, "retried")) == 3
    assert [x for _, _, x in drawn] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_call_that_wrote_into_its_arguments_is_not_repeated() -> None:
    [error] = run(lambda: Writing(0, [])).faults.values()
    assert isinstance(error, StageError) and "wrote into column `x`" in str(error)


class Summing(Flaky):
    @endpoint(collect="mean", retry=1)
    def update(self, batch: Batch) -> dict[str, float]:
        with self.place.progress.calls_of("learner:dp").call(("all_reduce",)):
            raise ConnectionError


def test_a_collective_in_such_a_call_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress()
    monkeypatch.setattr(Summing, "place", RankContext(progress=progress))
    monkeypatch.setattr(in_process, "LoopContext", partial(LoopContext, progress=progress))
    [error] = run(lambda: Summing(0, [])).faults.values()
    assert isinstance(error, CollectiveError)
    assert str(error).startswith("`learner.update` calls a collective, and its `retry` may repeat")


@pytest.mark.parametrize("retry", [-1, True, "2", 1.5])
def test_a_wrong_number_of_repetitions_is_refused(retry: Any) -> None:
    with pytest.raises(ComponentError, match="`retry` must be an integer of at least 0"):
        endpoint(retry=retry)
