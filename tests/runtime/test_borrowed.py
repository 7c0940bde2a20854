"""Writes of endpoints into received batches are detected in the step in which they happen, at every size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.checks import Borrowed, digest_of
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.inputs import Arguments
from tests.runtime.in_process import Outcome, run
from tests.runtime.plans import Dispatch, Input, call, plan

STEPS = 8
"""More than a source can be ahead, so that all workers see a fault in step 2."""
Use = Callable[[Batch], Any]


def columns(numbers: range, width: int) -> dict[str, Any]:
    return {"x": torch.tensor([[float(n)] * width for n in numbers])}


def with_text(numbers: range, width: int) -> dict[str, Any]:
    return {**columns(numbers, width), "text": [[str(n)] for n in numbers]}


def with_rows(numbers: range, width: int) -> dict[str, Any]:
    return {**columns(numbers, width), "rows": Ragged.of([torch.ones(width) * n for n in numbers])}


class Source(Component):
    def __init__(self, made: Callable[[range, int], dict[str, Any]], width: int) -> None:
        self.made, self.width = made, width

    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch(self.made(samples, self.width))


class User(Component):
    def __init__(self, use: Use) -> None:
        self.use = use

    @endpoint
    def take(self, batch: Batch) -> Any:
        made = self.use(batch) if self.step == 2 else None
        return batch if made is None else made

    @endpoint
    def pair(self, batch: Batch, other: Batch) -> Any:
        return self.take(other)


def outcome_of(
    use: Use,
    made: Callable[[range, int], dict[str, Any]] = columns,
    width: int = 3,
    *,
    groups: tuple[str, str] = ("a", "b"),
    workers: int = 2,
    inputs: tuple[Input | str, ...] = ("batch",),
    method: str = "take",
    checks: str = "basic",
) -> Outcome:
    """Runs a stage that uses its batch in the second step."""
    components = {"source": (groups[0], dict[str, int]()), "user": (groups[1], dict[str, int]())}
    stages = [
        call("batch", "source.next", samples=6),
        call("other", "source.next", samples=6),
        call("used", f"user.{method}", *inputs),
        call("after", "user.take", "used"),
    ]
    placed = plan(
        dict.fromkeys(dict.fromkeys(groups), workers), components, stages, steps=STEPS, checks=checks
    )
    return run(placed, lambda name, rank: Source(made, width) if name == "source" else User(use))


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


APART, TOGETHER = ("a", "b"), ("a", "a")
"""The groups of the source and of the user. Pages are not read-only within a process."""
WRITES: list[tuple[Use, Callable[[range, int], dict[str, Any]], int, tuple[str, str], int, str, str]] = [
    (by_data_ptr, with_rows, 3, APART, 1, "basic", "x"),
    (by_numpy, with_text, 3, APART, 2, "basic", "x"),
    # torch counts its writes at every size
    *((use, columns, 3, TOGETHER, 2, "basic", "x") for use in (by_view, in_inference_mode)),
    (by_view, columns, 3000, APART, 2, "basic", "x"),
    # other writes are found in copies of the bytes, and in samples of large columns
    *((use, columns, 3000, APART, 1, "basic", "x") for use in (by_data_ptr, by_numpy)),
    *((use, columns, 60_000, TOGETHER, 1, "basic", "x") for use in (by_data_ptr, by_numpy)),
    *((use, with_rows, 3, APART, 2, "basic", "rows") for use in (of_values, of_offsets)),
    *((use, with_text, 3, APART, 1, "basic", "text") for use in (appended, replaced)),
    # all checks compare digests
    (by_data_ptr, with_rows, 3000, TOGETHER, 1, "all", "x"),
    (into_an_item, with_text, 3000, APART, 1, "all", "text"),
    (lambda batch: batch["rows"].values.numpy().fill(7.0), with_rows, 3000, APART, 2, "all", "rows"),
]


@pytest.mark.parametrize(("use", "made", "width", "groups", "workers", "checks", "column"), WRITES)
def test_a_write_into_a_received_batch_is_an_error_of_its_step_that_names_the_column(
    use: Use,
    made: Callable[[range, int], dict[str, Any]],
    width: int,
    groups: tuple[str, str],
    workers: int,
    checks: str,
    column: str,
) -> None:
    faults = outcome_of(use, made, width, groups=groups, workers=workers, checks=checks).faults
    texts = {str(fault) for fault in faults.values() if isinstance(fault, StageError)}
    borrowed = f"`user.take` wrote into column `{column}`, which is borrowed: clone() it before you change it"
    assert texts == {borrowed} or (checks == "all" and any(f"column `{column}`" in text for text in texts))


def test_a_write_into_read_only_memory_is_one_of_the_producer() -> None:
    batch = Batch({"x": torch.zeros(3000)})
    arguments = Arguments([batch], {}, batch, (batch,))
    borrowed = Borrowed("user.take", lambda tensor: True)
    borrowed.begin(arguments)
    batch["x"].numpy()[0] = 1.0
    with pytest.raises(StageError, match=r"the producer of column `x` wrote into it while `user.take` read"):
        borrowed.end(arguments)


@pytest.mark.parametrize(
    ("inputs", "method"),
    [
        ((Input(("other", "batch")),), "take"),
        ((Input(("batch",), parameter="batch"), Input(("other",), parameter="other")), "pair"),
    ],
    ids=["joined", "two parameters"],
)
def test_writes_into_one_of_several_inputs_are_found(inputs: tuple[Input, ...], method: str) -> None:
    def columns_of(numbers: range, width: int) -> dict[str, Any]:
        return (
            columns(numbers, width)
            if method == "pair"
            else {f"x{next(number) % 4}": torch.ones(len(numbers))}
        )

    number: Iterator[int] = iter(range(1000))
    use = by_numpy if method == "pair" else lambda batch: batch[batch.names[0]].numpy().fill(7.0)
    faults = outcome_of(use, columns_of, inputs=inputs, method=method, workers=1).faults
    assert any("wrote into column `x" in str(fault) for fault in faults.values())


def returns_another_column(batch: Batch) -> Batch:
    return batch.with_columns(y=batch["x"] * 2)


def requires_gradients(batch: Batch) -> None:
    x = batch["x"].requires_grad_()
    (x * 2).sum().backward()


def writes_into_a_clone(batch: Batch) -> Batch:
    own = batch.clone()
    own["x"].add_(1)
    return own


def writes_into_what_it_made(batch: Batch) -> Batch:
    y = batch["x"] * 2
    y += 1
    return batch.with_columns(x=y)


def reads_only(batch: Batch) -> Batch:
    with torch.inference_mode():
        batch["x"].numpy().sum()
        return batch.where(batch["x"][:, 0] >= 0)


@pytest.mark.parametrize(
    "use",
    [returns_another_column, requires_gradients, writes_into_a_clone, writes_into_what_it_made, reads_only],
)
@pytest.mark.parametrize(("width", "checks"), [(3, "basic"), (3000, "all")])
@pytest.mark.parametrize("made", [with_text, with_rows], ids=["text", "ragged"])
def test_what_an_endpoint_may_do_with_a_batch_is_no_write(
    use: Use, width: int, checks: str, made: Callable[[range, int], dict[str, Any]]
) -> None:
    outcome = outcome_of(use, made, width, checks=checks)
    assert not outcome.faults and {*outcome.last.values()} == {STEPS}


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


def test_tensors_that_were_received_in_inference_mode_have_no_versions() -> None:
    """torch counts no writes into such tensors. The comparison of the bytes detects them."""
    with torch.inference_mode():
        batch = Batch({"x": torch.ones(3), "y": torch.ones(3)})
    arguments = Arguments([batch], {}, batch, (batch,))
    borrowed = Borrowed("user.take")
    borrowed.begin(arguments)
    borrowed.end(arguments)


@pytest.mark.parametrize("named", [True, False])
def test_with_all_checks_a_write_into_a_value_that_is_no_batch_is_found(named: bool) -> None:
    class Changes(Component):
        @endpoint(collect="first")
        def make(self, batch: Batch) -> dict[str, Any]:
            return {"lengths": [1, 2], "x": torch.ones(2)}

        @endpoint
        def take(self, stats: Any) -> None:
            if self.step == 2:
                stats["lengths"].append(3)

    given = Input(("made",), parameter="stats" if named else "", dispatch=Dispatch("all"))
    stages = [call("batch", "source.next", samples=6), call("made", "user.make", "batch", collect="first")]
    stages.append(call("used", "user.take", given))
    components = {"source": ("a", dict[str, int]()), "user": ("a", dict[str, int]())}
    placed = plan({"a": 1}, components, stages, steps=STEPS, checks="all")
    outcome = run(placed, lambda name, rank: Source(columns, 3) if name == "source" else Changes())
    [fault] = outcome.faults.values()
    where = "the input `stats`" if named else "the input"
    assert str(fault).startswith(f"{where} was written during the call of `user.take`")


def test_the_digest_of_a_list_of_batches_depends_on_their_columns_alone() -> None:
    """Its frame has gaps between the columns, which may hold any bytes."""
    columns = {"x": torch.tensor([3, 2, 1]), "rows": Ragged.of([torch.full((n,), n) for n in (3, 2, 1)])}
    batches = [Batch(columns, ids=torch.tensor([3, 2, 1]))]
    digests = set()
    for number in range(50):
        torch.full((1000,), number).sum()  # other bytes in memory that is used again
        digests.add(digest_of(batches))
    assert len(digests) == 1
    assert digest_of([Batch({**columns, "x": torch.tensor([3, 2, 0])})]) not in digests
