"""`run.checks: all`: the peers of a data rank return the same value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.checks import difference_of
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from tests.runtime.in_process import Outcome, run
from tests.runtime.plans import Dispatch, Input, call, plan

STEPS = 8
Make = Callable[[Batch, int], Any]
"""(batch, rank) -> the value that the endpoint returns in step 2."""


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.tensor([float(n) for n in samples]), "text": [str(n) for n in samples]})


class User(Component):
    def __init__(self, make: Make) -> None:
        self.make = make

    @endpoint
    def take(self, batch: Batch) -> Any:
        return self.make(batch, self.rank) if self.step == 2 else batch

    @endpoint
    def end(self, value: Any) -> None:
        pass

    @endpoint(collect="mean")
    def logs(self, batch: Batch) -> Any:
        self.log(self.make(batch, self.rank))
        return {"loss": 1.0}

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> Any:
        return self.make(batch, self.rank) if self.step == 2 else {}


def outcome_of(
    make: Make,
    method: str = "take",
    *,
    checks: str = "all",
    dispatch: str = "slice_dp",
    collect: str = "flatten",
    sizes: dict[str, int] | None = None,
    is_sent: bool = True,
) -> Outcome:
    components = {"source": ("a", dict[str, int]()), "user": ("b", sizes or {"dp_size": 1, "tp_size": 2})}
    given = Input(("batch",), dispatch=Dispatch(dispatch))
    stages = [
        call("batch", "source.next", samples=6),
        call("used", f"user.{method}", given, collect=collect),
    ]
    if is_sent:
        stages.append(call("after", "user.end", Input(("used",), dispatch=Dispatch("all"))))
    placed = plan({"a": 1, "b": 2}, components, stages, steps=STEPS, checks=checks)
    return run(placed, lambda name, rank: Source() if name == "source" else User(make))


def text_of(outcome: Outcome) -> str:
    [error] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
    return str(error)


def test_the_first_difference_of_two_peers_is_named_with_both_values() -> None:
    def make(batch: Batch, rank: int) -> Batch:
        y = batch["x"].clone()
        y[4:] += rank
        return batch.with_columns(y=y)

    text = text_of(outcome_of(make))
    assert text == (
        "the peers of a data rank must return the same value: column `y` of sample 10 is 10.0 on job rank 1 "
        "and 11.0 on job rank 2"
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda batch, rank: batch[rank:], "the number of samples is 6 on job rank 1 and 5 on job rank 2"),
        (lambda batch, rank: batch.with_columns(**{f"y{rank}": batch["x"]}), "column `y0` is there on"),
        (lambda batch, rank: batch.with_columns(text=[[rank]] * 6), "column `text` of sample 6 is [0] on"),
        (
            lambda batch, rank: batch.with_columns(r=Ragged.of([torch.ones(2 + rank)] * 6)),
            "column `r` of sample 6 is [1.0, 1.0] on job rank 1 and [1.0, 1.0, 1.0] on job rank 2",
        ),
        (
            lambda batch, rank: batch.take([rank, 1 - rank, *range(2, 6)]),
            "the id of row 0 is 6 on job rank 1 and 7 on job rank 2",
        ),
        (lambda batch, rank: [rank, rank], "the value is [0, 0] on job rank 1 and [1, 1] on job rank 2"),
    ],
)
def test_every_kind_of_difference_is_found(make: Make, text: str) -> None:
    assert text in text_of(outcome_of(make))


@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize("collect", ["mean", "sum", "first"])
def test_metrics_are_compared_whether_or_not_a_stage_takes_them(is_sent: bool, collect: str) -> None:
    outcome = outcome_of(lambda batch, rank: {"loss": 0.5 + rank}, "loss", collect=collect, is_sent=is_sent)
    assert "`loss` is 0.5 on job rank 1 and 1.5 on job rank 2" in text_of(outcome)


def test_a_logged_number_that_differs_is_reported_once_with_both_values() -> None:
    outcome = outcome_of(lambda batch, rank: {"seconds": 0.5 + rank, "x": 1.0}, "logs", is_sent=False)
    assert not outcome.faults
    [event] = [event for event in outcome.events if event.name == "differs"]
    assert (event.rank, event.step, event.stage) == (1, 1, "used")
    assert event.value == {"metric": "seconds", "counted": "job rank 1", "values": ["0.5", "1.5"]}


@pytest.mark.parametrize(
    "options",
    [
        {"checks": "basic"},
        {"sizes": {"dp_size": 2}},
        {"sizes": {"dp_size": 1, "pp_size": 2}},
        {"dispatch": "slice"},
        {"collect": "none", "method": "loss"},
    ],
    ids=["basic", "two data ranks", "another pipeline stage", "other inputs", "all values are taken"],
)
def test_values_that_may_differ_are_not_compared(options: dict[str, Any]) -> None:
    outcome = outcome_of(
        lambda batch, rank: {"loss": 0.5 + rank}, **{"method": "loss", "collect": "mean", **options}
    )
    assert not outcome.faults


def test_equal_values_pass_also_where_no_route_carries_them() -> None:
    def make(batch: Batch, rank: int) -> Any:
        return {"loss": 0.1, "nan": float("nan"), "model": torch.nn.Linear(1, 1), "nested": {"n": 1}}

    outcome = outcome_of(make, "loss", collect="mean", is_sent=False)
    assert not outcome.faults and {*outcome.last.values()} == {STEPS}


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0 + 1e-7]), True),
        (torch.tensor([1.0]), torch.tensor([1.0001]), False),
        (torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16), True),
        (torch.tensor([1]), torch.tensor([1.0]), False),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([]), torch.tensor([]), True),
        (1.0, 1.0 + 1e-9, True),
        (1.0, torch.tensor(1.0), False),
        ({"a": {"b": [1, "x"]}}, {"a": {"b": [1, "x"]}}, True),
        ({"a": None}, {}, False),
    ],
)
def test_numbers_may_differ_by_rounding(first: Any, second: Any, are_equal: bool) -> None:
    assert (difference_of(first, second) is None) == are_equal
