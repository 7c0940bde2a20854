"""The values of stages in whole steps: samples, shares, metrics and what each stage receives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch, BatchError
from meshctl.runtime.component import endpoint
from meshctl.runtime.errors import StageError
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.loop.sources import Weights, ids, published_to
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Input, call, plan

MESHES: list[dict[str, int]] = [
    {},
    {"dp_size": 2},
    {"tp_size": 2},
    {"dp_size": 2, "fsdp_size": 2},
    {"pp_size": 2, "tp_size": 2},
    {"fsdp_size": 3},
    {"fsdp_size": 4, "ulysses_size": 2},
]


def world(sizes: dict[str, int]) -> int:
    total = 1
    for name, size in sizes.items():
        total *= size if name != "ulysses_size" else 1
    return total


@pytest.mark.parametrize("ours", MESHES, ids=str)
@pytest.mark.parametrize("theirs", MESHES, ids=str)
def test_every_sample_arrives_once_on_each_data_rank_and_comes_back_in_order(
    ours: dict[str, int], theirs: dict[str, int]
) -> None:
    seen: list[Any] = []
    back: list[Any] = []
    job = plan(
        {"a": world(ours), "b": world(theirs)},
        {"source": ("a", ours), "echo": ("b", theirs), "sink": ("a", ours)},
        [call("batch", "source.next", samples=13), call("there", "echo.take", "batch"),
         call("back", "sink.take", Input(("there",), dispatch=Dispatch("all")))],
        steps=2,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "echo" else back)
    )
    assert not outcome.faults
    mesh = job.component("echo").mesh
    for step in (1, 2):
        expected = [(number,) for number in range((step - 1) * 13, step * 13)]
        for rank in range(mesh.world_size):
            [batch] = [batch for at, who, batch in seen if (at, who) == (step, rank)]
            assert ids(batch) == [expected[i] for i in mesh.sample_range(13, rank)]
            assert batch["text"] == [str(id) for (id,) in ids(batch)]
            assert [len(row) for row in batch["rows"].rows()] == [id % 5 for (id,) in ids(batch)]
        for rank in range(world(ours)):
            [batch] = [batch for at, who, batch in back if (at, who) == (step, rank)]
            assert ids(batch) == expected


def test_metrics_are_weighted_by_samples_and_logged_by_representatives_only() -> None:
    job = plan(
        {"a": 1, "b": 4}, {"source": ("a", {}), "echo": ("b", {"tp_size": 2})},
        [call("batch", "source.next", samples=5), call("loss", "echo.loss", "batch", collect="mean")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    reported = sorted(
        (event.rank, event.value["weight"], event.value["values"])
        for event in outcome.events
        if event.name == "metric"
    )
    assert reported == [(0, 3.0, {"x": 1.0, "n": 3.0}), (2, 2.0, {"x": 3.5, "n": 2.0})]


def test_a_reduced_value_that_a_stage_receives_is_the_same_on_every_rank() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=5), call("loss", "echo.loss", "batch", collect="mean"),
         call("pairs", "echo.pair", Input(("batch",), "first"), Input(("loss",), "second", Dispatch("all")))], steps=1,
    )  # fmt: skip
    in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert [second for _, _, _, second in seen] == [{"x": 2.0, "n": 2.6}] * 2


def test_a_list_of_every_workers_value() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 4, "c": 2}, {"source": ("a", {}), "echo": ("b", {"pp_size": 2, "tp_size": 2}), "sink": ("c", {})},
        [call("batch", "source.next", samples=5), call("taken", "echo.take", "batch", collect="last_pp"),
         call("copies", "sink.pair", Input(("batch",), "first"), Input(("taken",), "second"))], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "sink" else [])
    )
    assert not outcome.faults
    assert [[ids(batch) for batch in second] for _, _, _, second in seen] == [
        [[(n,) for n in range(5)]] * 2
    ] * 2


def test_numbers_are_reduced_and_batches_are_not() -> None:
    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=5, collect="mean"), call("taken", "echo.take", "batch")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    assert "`batch` returned a Batch, but collect: mean is for numbers and tensors" in str(outcome.faults[0])


class Careless(Echo):
    @endpoint
    def nothing(self, batch: Batch) -> None: ...

    @endpoint
    def numbers(self, batch: Batch) -> dict[str, float]:
        return {"x": 1.0}

    @endpoint
    def column(self, batch: Batch) -> Batch:
        return batch.with_columns(y=batch["nope"])

    @endpoint
    def words(self, batch: Batch) -> Batch:
        self.log({"said": "hello"})  # type: ignore[dict-item]
        return batch


@pytest.mark.parametrize(
    ("method", "kind", "message"),
    [
        ("nothing", StageError, "`made` returned None; is its `return` missing?"),
        (
            "numbers",
            StageError,
            "`made` returned a dict; flatten joins batches, lists and tensors: use mean, sum or first",
        ),
        ("column", BatchError, "the batch has no column 'nope'; its columns are x, rows, text"),
        ("words", TypeError, "'said' is a str"),
    ],
)
def test_the_result_of_an_endpoint_is_checked_on_its_producer(
    method: str, kind: type[Exception], message: str
) -> None:
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "gen": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", f"gen.{method}", "batch"), call("taken", "echo.take", "made")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: {"source": Source(), "gen": Careless([]), "echo": Echo([])}[name]
    )
    assert type(outcome.faults[0]) is kind and message in str(outcome.faults[0])


def test_weights_that_are_left_unread_are_an_error() -> None:
    class Lazy(Weights):
        def load_weights(self, stream: Any) -> None:
            next(iter(stream))

    outcome = published_to(Lazy([]))
    assert "`sampler.load_weights` left `b` of its stream unread" in str(outcome.faults[0])


def test_the_method_that_loads_weights_may_have_any_name() -> None:
    class Other(Weights):
        def update(self, stream: Any) -> None:
            self.load_weights(stream)

    sampler = Other([])
    outcome = published_to(sampler, "update")
    assert not outcome.faults and sampler.seen


def test_inputs_are_aligned_by_id_even_when_the_first_was_balanced() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 3}, {"source": ("a", {}), "other": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=11), call("copy", "other.take", "batch"),
         call("pairs", "echo.pair", Input(("batch",), "first", Dispatch(balance="tokens")), Input(("copy",), "second"))], steps=2,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "echo" else [])
    )
    assert not outcome.faults
    assert len(seen) == 6
    for _, _, first, second in seen:
        assert ids(first) == ids(second)
        assert first["text"] == second["text"]
    assert sorted(id for step, _, first, _ in seen if step == 1 for id in ids(first)) == [
        (n,) for n in range(11)
    ]


def test_a_list_joins_columns_by_id_and_a_column_given_twice_is_an_error() -> None:
    job = plan(
        {"a": 2}, {"source": ("a", {}), "echo": ("a", {})},
        [call("batch", "source.next", samples=4), call("copy", "echo.take", "batch"), call("both", "echo.take", Input(("batch", "copy")))],
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    fault = next(error for error in outcome.faults.values() if isinstance(error, StageError))
    assert "column 'x' is given twice, by the stages `batch` and `copy`: take one that" in str(fault)


def test_samples_go_home_to_the_rank_that_made_them() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 3, "b": 1}, {"source": ("b", {}), "echo": ("a", {}), "judge": ("b", {}), "again": ("a", {})},
        [call("batch", "source.next", samples=9), call("made", "echo.take", Input(("batch",), dispatch=Dispatch(balance="tokens"))),
         call("judged", "judge.take", "made"), call("home", "again.take", Input(("judged",), dispatch=Dispatch(home="made")))], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job,
        lambda name, rank: Source() if name == "source" else Echo(seen if name in ("echo", "again") else []),
    )
    assert not outcome.faults
    first = {rank: ids(batch) for _, rank, batch in seen[:3]}
    assert {rank: ids(batch) for _, rank, batch in seen[3:]} == first


def test_groups_stay_together() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("a", {}), "sink": ("b", {})},
        [call("batch", "source.next", samples=5), call("many", "echo.thrice", "batch"), call("taken", "sink.take", "many")], steps=1,
    )  # fmt: skip
    in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert [(rank, [id[0] for id in ids(batch)]) for _, rank, batch in sorted(seen, key=lambda s: s[1])] == [
        (0, [0] * 3 + [1] * 3 + [2] * 3), (1, [3] * 3 + [4] * 3)]  # fmt: skip
    assert seen[0][2].group_ids is not None


def test_too_few_samples_name_the_stage_and_both_numbers() -> None:
    job = plan(
        {"a": 1, "b": 4}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=3), call("taken", "echo.take", "batch")],
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    fault = next(error for error in outcome.faults.values() if isinstance(error, StageError))
    assert "3 samples for 4 shares" in str(fault) and "`taken`" in str(fault)


def test_allow_empty_delivers_an_empty_batch_with_the_same_columns() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 4}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=3), call("taken", "echo.take", Input(("batch",), dispatch=Dispatch(allow_empty=True)))],
        steps=1,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert not outcome.faults
    [empty] = [batch for _, rank, batch in seen if rank == 3]
    assert len(empty) == 0 and empty.names == ("x", "rows", "text") and empty["x"].dtype == torch.int64


@pytest.mark.parametrize("execute", ["first", "peer"])
def test_execute_modes(execute: str) -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 4}, {"source": ("a", {}), "echo": ("b", {}), "sink": ("a", {})},
        [call("batch", "source.next", samples=6), call("taken", "echo.take", Input(("batch",), dispatch=Dispatch("all")), execute=execute),
         call("back", "sink.take", "taken")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "echo" else [])
    )
    assert bool(outcome.faults) == (
        execute == "peer"
    )  # two peers of one producer give each sample twice: flatten says so
    got = {rank: [id for (id,) in ids(batch)] for _, rank, batch in seen}
    assert got == (
        {0: list(range(6))}
        if execute == "first"
        else {0: [0, 1, 2], 1: [0, 1, 2], 2: [3, 4, 5], 3: [3, 4, 5]}
    )
