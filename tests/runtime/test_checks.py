"""What a worker checks in each call: writes into what an endpoint receives, and with `run.checks: all` the values
of the peers of a data rank."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.checks import Borrowed, difference_of, digest_of, parts_of
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.inputs import Arguments
from tests.runtime.in_process import Outcome, run
from tests.runtime.plans import Dispatch, Input, call, plan

STEPS = 8
"""More than a source can be ahead, so that all workers see a fault in step 2."""
Use = Callable[[Any], Any]
Make = Callable[[Batch, int], Any]
"""(batch, rank) -> the value that the endpoint returns in step 2."""


def batch_of(width: int) -> Batch:
    rows = Ragged.of([torch.ones(width) * n for n in range(3)])
    columns = {
        "x": torch.arange(3.0 * width).view(3, width),
        "rows": rows,
        "text": [[str(n)] for n in range(3)],
    }
    return Batch(columns, ids=torch.arange(3))


def used(use: Use, given: Arguments, **options: Any) -> str:
    """Returns the error after a use of the arguments; empty if there is none."""
    borrowed = Borrowed("user.take", **options)
    borrowed.begin(given)
    for value in (*given.positional, *given.named.values()):
        use(value)
    try:
        borrowed.end(given)
    except StageError as error:
        return str(error)
    return ""


# Writes into what is borrowed


def by_data_ptr(batch: Batch) -> None:
    (ctypes.c_float).from_address(batch["x"].data_ptr()).value = 99.0


def by_numpy(batch: Batch) -> None:
    batch["x"].numpy()[:, 0] = 99.0


def by_view(batch: Batch) -> None:
    batch[1:]["x"].detach().view(-1)[1:].mul_(2.0)


def in_inference_mode(batch: Batch) -> None:
    with torch.inference_mode():
        batch["x"].add_(1.0)


def of_values(batch: Batch) -> None:
    batch["rows"].values[0] = 99.0


def of_offsets(batch: Batch) -> None:
    batch["rows"].offsets[1] += 1


def appended(batch: Batch) -> None:
    batch["text"].append("more")


def replaced(batch: Batch) -> None:
    batch["text"][0] = ["other"]


def into_an_item(batch: Batch) -> None:
    batch["text"][0].append("more")


def in_the_middle(batch: Batch) -> None:
    batch["x"].view(-1)[1_000_017:1_000_018].numpy()[:] = -1.0


WIDE = 1_000_000
BY_TORCH = (by_view, in_inference_mode)
WRITES: list[tuple[Use, int, bool, str]] = [
    *((use, width, False, "x") for use in BY_TORCH for width in (3, WIDE)),
    # other writes are found in copies of the bytes, and in samples of large columns
    *((use, width, False, "x") for use in (by_data_ptr, by_numpy) for width in (3, 3000, WIDE)),
    *((use, 3, False, "rows") for use in (of_values, of_offsets)),
    *((use, 3, False, "text") for use in (appended, replaced)),
    # all checks compare digests
    *((use, 3000, True, "x") for use in (by_data_ptr, by_view)),
    *((use, 3, True, "text") for use in (into_an_item, replaced)),
    (in_the_middle, WIDE, True, "x"),
    (of_values, 3000, True, "rows"),
]


@pytest.mark.parametrize(("use", "width", "has_digests", "column"), WRITES)
def test_a_write_into_a_received_batch_names_the_column(
    use: Use, width: int, has_digests: bool, column: str
) -> None:
    batch, other = batch_of(width), batch_of(3)
    found = used(
        lambda value: value is batch and use(value), two_inputs(other, batch), has_digests=has_digests
    )
    assert (
        found
        == f"`user.take` wrote into column `{column}`, which is borrowed: clone() it before you change it"
    )


def two_inputs(first: Batch, second: Batch) -> Arguments:
    return Arguments([], {"batch": first, "other": second}, first, (first, second))


@pytest.mark.parametrize("is_inference", [True, False])
def test_a_write_into_read_only_memory_is_one_of_the_producer(is_inference: bool) -> None:
    """torch counts no writes into tensors that were made in inference mode."""
    with torch.inference_mode(is_inference):
        batch = batch_of(3000)
    found = used(by_numpy, Arguments([batch], {}, batch, (batch,)), is_read_only=lambda tensor: True)
    assert found.startswith("the producer of column `x` wrote into it while `user.take` read")


def requires_gradients(batch: Batch) -> None:
    x = batch["x"].requires_grad_()
    (x * 2).sum().backward()


def writes_into_a_clone(batch: Batch) -> None:
    batch.clone()["x"].add_(1)


def reads_only(batch: Batch) -> None:
    with torch.inference_mode():
        batch["x"].numpy().sum()
        batch.where(batch["x"][:, 0] >= 0).with_columns(y=batch["x"] * 2)


@pytest.mark.parametrize("use", [requires_gradients, writes_into_a_clone, reads_only])
@pytest.mark.parametrize(("width", "has_digests"), [(3, False), (3000, True)])
def test_what_an_endpoint_may_do_with_a_batch_is_no_write(use: Use, width: int, has_digests: bool) -> None:
    batch = batch_of(width)
    assert used(use, Arguments([batch], {}, batch, (batch,)), has_digests=has_digests) == ""


@pytest.mark.parametrize("is_named", [True, False])
def test_with_all_checks_a_write_into_a_value_that_is_no_batch_is_found(is_named: bool) -> None:
    stats = {"lengths": [1, 2], "x": torch.ones(2)}
    given = Arguments([], {"stats": stats}, None, ()) if is_named else Arguments([stats], {}, None, ())
    where = "the input `stats`" if is_named else "the input"
    assert used(lambda value: value["lengths"].append(3), given, has_digests=True).startswith(
        f"`user.take` wrote into {where}, which is borrowed"
    )
    assert used(lambda value: value["lengths"].append(3), given) == ""


def test_the_digest_of_a_list_of_batches_depends_on_their_columns_alone() -> None:
    """Its frame has gaps between the columns, which may hold any bytes."""
    digests = set()
    for number in range(50):
        torch.full((1000,), number).sum()  # other bytes in memory that is used again
        digests.add(digest_of([batch_of(3)]))
    assert len(digests) == 1
    assert digest_of([batch_of(3).with_columns(x=torch.ones(3))]) not in digests


def test_a_producer_may_write_into_its_own_tensor_in_the_next_step() -> None:
    """A consumer in the same process still has the batch of the step before."""
    seen: list[float] = []

    class Reuses(Component):
        def setup(self) -> None:
            self.x = torch.zeros(6, 3)

        @endpoint
        def next(self, samples: range) -> Batch:
            self.x[:] = samples.start
            return Batch({"x": self.x})

    class Keeps(Component):
        def setup(self) -> None:
            self.kept: list[Batch] = []

        @endpoint
        def take(self, batch: Batch) -> None:
            self.kept.append(batch)
            seen[:] = [float(each["x"][0, 0]) for each in self.kept]

    stages = [call("batch", "source.next", samples=6), call("used", "user.take", "batch")]
    placed = plan({"a": 1}, {"source": ("a", {}), "user": ("a", {})}, stages)
    outcome = run(placed, lambda name, rank: Reuses() if name == "source" else Keeps())
    assert not outcome.faults and seen == [0.0, 6.0, 12.0]


# Peers


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
    [text] = {str(fault) for fault in outcome.faults.values() if isinstance(fault, StageError)}
    return text


@pytest.mark.parametrize("checks", ["basic", "all"])
def test_a_write_is_an_error_of_its_step(checks: str) -> None:
    text = text_of(outcome_of(lambda batch, rank: batch["x"].mul_(2.0 - rank), checks=checks))
    assert text.startswith("`user.take` wrote into column `x`, which is borrowed")


def changed(batch: Batch, rank: int) -> Batch:
    y = batch["x"].clone()
    y[4:] += rank
    return batch.with_columns(y=y)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (changed, "column `y` of sample 10 is 10.0 on job rank 1 and 11.0 on job rank 2"),
        (lambda batch, rank: batch[rank:], "the number of samples is 6 on job rank 1 and 5 on job rank 2"),
        (lambda batch, rank: batch.with_columns(**{f"y{rank}": batch["x"]}), "column `y0` is [6.0, 7.0, 8.0"),
        (lambda batch, rank: batch.with_columns(text=[[rank]] * 6), "column `text` of sample 6 is [0] on"),
        (
            lambda batch, rank: batch.with_columns(r=Ragged.of([torch.ones(2 + rank)] * 6)),
            "column `r` of sample 6 is [1.0, 1.0] on job rank 1 and [1.0, 1.0, 1.0] on job rank 2",
        ),
        (
            lambda batch, rank: batch.take([rank, 1 - rank, *range(2, 6)]),
            "row 0 of the ids is [6] on job rank 1 and [7] on job rank 2",
        ),
        (lambda batch, rank: [rank, rank], "row 0 of the value is 0 on job rank 1 and 1 on job rank 2"),
    ],
)
def test_the_first_difference_of_two_peers_is_named_with_both_values(make: Make, text: str) -> None:
    found = text_of(outcome_of(make))
    assert found.startswith("the peers of a data rank must return the same value: ") and text in found


@pytest.mark.parametrize(("is_sent", "collect"), [(True, "mean"), (False, "sum"), (False, "first")])
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
    words = {"method": "loss", "collect": "mean", **options}
    assert not outcome_of(lambda batch, rank: {"loss": 0.5 + rank}, **words).faults


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
        ([{"a": torch.ones(2)}], [{"a": torch.ones(2)}], True),
        ({"a": None}, {}, False),
    ],
)
def test_numbers_may_differ_by_rounding(first: Any, second: Any, are_equal: bool) -> None:
    assert (difference_of(parts_of(first), parts_of(second)) is None) == are_equal
