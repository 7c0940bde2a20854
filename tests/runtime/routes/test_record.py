"""Recorded values are read back unchanged: from files, and by a group that runs alone on a recording."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from meshctl.plan.model import Plan
from meshctl.plan.subset import covered, incoming, only
from meshctl.run.directory import Recorded, RunDir
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.component import endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.end import END
from meshctl.runtime.routes.record import DTYPES, Recorder, read, write
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source, pipelines
from tests.runtime.plans import Input, call, plan, sync

# Files


def same(one: Any, other: Any) -> bool:
    """Whether two batches have the same values, dtypes, columns in the same order, ids, groups and flags."""
    if isinstance(one, Batch) and isinstance(other, Batch):
        digests = [
            (list(batch.columns), batch.group_depth, batch.most, batch.ids.tolist()) for batch in (one, other)
        ]
        return digests[0] == digests[1] and all(
            same(column, other.columns[name]) for name, column in one.columns.items()
        )
    if isinstance(one, Ragged) and isinstance(other, Ragged):
        return same(one.values, other.values) and same(one.lengths, other.lengths)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def everything() -> Batch:
    """Returns a batch of three samples in groups, with a column of every kind and dtype."""
    tensors = {
        f"t{number}": torch.arange(6).reshape(3, 2).to(dtype) for number, dtype in enumerate(DTYPES.values())
    }
    columns: dict[str, Column] = {
        **tensors,
        "complex": torch.ones(3, dtype=torch.complex64),
        "wide": torch.arange(24).reshape(2, 12)[:, ::4].T,
        "none": torch.zeros(3, 0, 4),
        "tokens": Ragged.of([torch.arange(2), torch.arange(0), torch.arange(5)]),
        "pairs": Ragged(torch.ones(4, 2, dtype=torch.bfloat16), torch.tensor([0, 4, 4, 4])),
        "text": ["a", {"b": [1, (2, b"c")]}, None],
        "tensor:text": [1, 2, 3],
        "@version": torch.tensor([4, 4, 5]),
    }
    return Batch(columns, ids=torch.tensor([[1, 0], [1, 1], [2, 0]]), group_depth=1, most=7)


VALUES: dict[str, Any] = {
    "batch": everything(),
    "empty": everything().take([]),
    "nothing": Batch({}),
    "mapping": {"loss": 0.5, "deep": [1, (2, None)]},
    "scalar": torch.tensor(3.5),
    "list": [1.5, "a"],
    "none": None,
    "end": END,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_it_was(value: Any, tmp_path: Path) -> None:
    write(tmp_path / "new" / "0-of-1.safetensors", value, 2.5, {})
    back, weight = read(tmp_path / "new" / "0-of-1.safetensors")
    assert same(value, back) and weight == 2.5
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["0-of-1.safetensors"]


def test_whoever_changes_what_was_read_does_not_change_the_file(tmp_path: Path) -> None:
    write(tmp_path / "file", everything(), 1.0, {})
    read(tmp_path / "file")[0]["t9"].zero_()
    assert same(everything(), read(tmp_path / "file")[0])


def test_the_tools_of_safetensors_open_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    write(tmp_path / "file", everything(), 1.0, {"stage": "batch", "step": "3"})
    with safetensors.safe_open(tmp_path / "file", "pt") as opened:
        assert opened.metadata() == {"stage": "batch", "step": "3"}
        assert torch.equal(opened.get_tensor("ids"), everything().ids)
        assert torch.equal(opened.get_tensor("values:tokens"), everything()["tokens"].values)


def test_what_is_no_data_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FrameError, match="a value of the type PosixPath"):
        write(tmp_path / "file", Batch({"x": [Path()]}), 1.0, {})
    assert not list(tmp_path.iterdir())


HEADS: list[Any] = [
    [],
    {},
    {"rest": 1},
    {"rest": {"dtype": "U8", "shape": [8], "data_offsets": [0, 9]}},
    {"rest": {"dtype": "U8", "shape": [2**62, 4], "data_offsets": [0, 8]}},
    {"rest": {"dtype": "U8", "shape": [-8], "data_offsets": [0, -8]}},
    {"rest": {"dtype": "U8", "shape": [10**6], "data_offsets": [0, 10**6]}},
    {"rest": {"dtype": "I64", "shape": [1], "data_offsets": [1, 9]}},
    {"rest": {"dtype": "U8", "shape": [0, 2**80], "data_offsets": [0, 0]}},
    {"rest": {"dtype": "P9", "shape": [1], "data_offsets": [0, 1]}},
    {"rest": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8], "more": 1}},
]


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_a_header_that_is_none_names_the_file(head: Any, tmp_path: Path) -> None:
    text = json.dumps(head).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(text)) + text + b"x" * 20)
    with pytest.raises(FrameError, match=f"^{tmp_path}/file is not a recording"):
        read(tmp_path / "file")


# Steps on disk


def test_only_whole_steps_count(tmp_path: Path) -> None:
    recorded = RunDir(tmp_path).recorded("batch")
    for step, producer, producers in [
        (1, 0, 1),
        (2, 0, 2),
        (3, 0, 2),
        (3, 1, 2),
        (10, 1, 2),
        (4, 0, 3),
        (4, 0, 1),
    ]:
        write(recorded.file(step, producer, producers), None, 1.0, {})
    (recorded.path / "step-x").mkdir()
    assert recorded.steps() == [1, 3, 4]
    assert [path.name for path in recorded.files(3)] == ["0-of-2.safetensors", "1-of-2.safetensors"]
    RunDir(tmp_path).forget_recorded(2)
    assert recorded.steps() == [1] and len(recorded.folders()) == 2


def two_groups(every: int = 1, **more: Any) -> Plan:
    stages = [
        call("batch", "source.next", samples=4, every=every),
        call("there", "echo.take", "batch", **more),
    ]
    return plan({"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("b", {})}, stages, steps=9)


@pytest.mark.parametrize(
    ("every", "steps", "after", "last", "lacking"),
    [
        (1, [1, 2, 3], 0, 3, ()),
        (1, [4, 5, 6], 3, 6, ()),
        (1, [1, 3, 6], 0, 6, (2, 4, 5)),
        (2, [2, 4, 6], 0, 6, ()),
        (2, [4, 8], 2, 8, (6,)),
        (3, [1, 2, 3, 4, 6], 0, 6, ()),
    ],
)
def test_the_steps_that_a_recording_is_good_for(
    every: int, steps: list[int], after: int, last: int, lacking: tuple[int, ...]
) -> None:
    found = covered(two_groups(every), {"batch -> there": steps})
    assert (found.after, found.last, found.lacking.get("batch -> there", ())) == (after, last, lacking)


def test_what_is_left_of_a_plan() -> None:
    stages = [
        call("batch", "source.next", samples=4), call("there", "echo.take", "batch"), call("loss", "echo.loss", "there", collect="mean"),
        call("back", "sink.take", "there"), sync("publish", "echo", "source"), sync("copy", "echo", "twin"),
    ]  # fmt: skip
    parts: dict[str, tuple[str, dict[str, Any]]] = {
        "source": ("a", {}),
        "sink": ("a", {}),
        "echo": ("b", {}),
        "twin": ("b", {}),
    }
    job = plan({"a": 1, "b": 2}, parts, stages)
    alone = only(job, "b", [])
    assert [route.name for route in alone.missing] == ["batch -> there"]
    assert alone.skipped == ("publish",)
    left = only(job, "b", ["batch -> there"]).plan
    assert [stage.name for stage in left.stages] == ["there", "loss", "copy"]
    assert [route.name for route in left.routes] == ["there -> loss", "copy"]
    assert (left.job_size, left.group("b").first_job_rank, [route.name for route in left.replayed]) == (
        2,
        0,
        ["batch -> there"],
    )
    assert Plan.from_json(left.to_json()) == left


# Runs


Seen = list[Any]


def run(
    job: Plan,
    seen: Seen,
    folder: Path,
    recorded: dict[str, Recorded] | None = None,
) -> in_process.Outcome:
    """Runs a plan in threads, which records all of its routes or replays the given ones."""
    return in_process.run(
        job,
        lambda name, rank: Source() if name.startswith("source") else Echo(seen),
        recorder=None if recorded else recorder_of(job, folder),
        recorded=recorded or {},
    )


def recorder_of(job: Plan, folder: Path) -> Recorder:
    return Recorder([route.name for route in job.routes], RunDir(folder).recorded)


def replay(job: Plan, group: str, seen: Seen, folder: Path) -> in_process.Outcome:
    recorded = {route.name: RunDir(folder).recorded(route.source) for route in incoming(job, group)}
    return run(only(job, group, recorded).plan, seen, folder, recorded)


def of_group(job: Plan, group: str, seen: Seen) -> Iterator[Any]:
    """Returns the arguments of the calls by rank, in their order."""
    for rank in range(job.group(group).workers):
        yield [(at, *values) for at, who, *values in seen if who == rank]


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(job=pipelines())
def test_a_group_alone_gets_what_it_got_among_all(
    job: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    whole: dict[str, Seen] = {group.name: [] for group in job.groups}
    outcome = in_process.run(
        job,
        lambda name, rank: Source() if name.startswith("source") else Echo(whole[name[-1]]),
        recorder=recorder_of(job, folder),
    )
    assert not outcome.faults
    for group in whole:
        seen: Seen = []
        assert not replay(job, group, seen, folder).faults
        for one, other in zip(of_group(job, group, whole[group]), of_group(job, group, seen), strict=True):
            assert [at for at, _ in one] == [at for at, _ in other]
            assert all(same(batch, again) for (_, batch), (_, again) in zip(one, other, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_any_number_of_ranks_may_take_it(workers: int, tmp_path: Path) -> None:
    def job(workers: int) -> Plan:
        stages = [
            call("batch", "source.next", samples=11), call("thrice", "echo.thrice", "batch"),
            call("there", "sink.take", Input(("thrice",), dispatch=Dispatch(balance="tokens"))),
            call("pairs", "sink.pair", Input(("thrice",), "first", Dispatch(balance="tokens")), Input(("thrice",), "second")),
        ]  # fmt: skip
        return plan(
            {"a": 2, "b": workers},
            {"source": ("a", {}), "echo": ("a", {}), "sink": ("b", {})},
            stages,
            steps=2,
        )

    assert not run(job(2), [], tmp_path).faults
    lived: Seen = []
    assert not in_process.run(
        job(workers),
        lambda name, rank: Source() if name == "source" else Echo(lived if name == "sink" else []),
    ).faults
    seen: Seen = []
    assert not replay(job(workers), "b", seen, tmp_path).faults
    for one, other in zip(of_group(job(workers), "b", lived), of_group(job(workers), "b", seen), strict=True):
        assert len(one) == 4 and all(
            all(map(same, call, again)) for call, again in zip(one, other, strict=True)
        )


class Short(Source):
    """A source of ten samples on two ranks. In step 3 only one of them has samples left."""

    @endpoint
    def next(self, samples: range) -> Batch | None:
        return Batch({"x": torch.tensor(list(samples))}) if samples.stop <= 10 else None


def test_a_step_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    stages = [call("long", "source.next", samples=4), call("short", "brief.next", samples=4),
              call("one", "echo.take", "long"), call("two", "echo.take", "short")]  # fmt: skip
    job = plan(
        {"a": 2, "b": 2, "c": 1},
        {"source": ("a", {}), "brief": ("b", {}), "echo": ("c", {})},
        stages,
        steps=0,
    )
    recorder = Recorder(["long -> one", "short -> two"], RunDir(tmp_path).recorded)
    lived: Seen = []
    outcome = in_process.run(
        job,
        lambda name, rank: {"source": Source, "brief": Short}[name]() if name != "echo" else Echo(lived),
        recorder=recorder,
    )
    assert not outcome.faults and set(outcome.last.values()) == {3}
    for stage in ("long", "short"):
        assert RunDir(tmp_path).recorded(stage).steps() == [1, 2, 3]
        assert not [
            path for folder in RunDir(tmp_path).recorded(stage).folders(3) for path in folder.iterdir()
        ]
    seen: Seen = []
    job = replace(job, run=replace(job.run, steps=3))
    assert not replay(job, "c", seen, tmp_path).faults
    assert [len(batch) for _, _, batch in seen] == [4, 4, 4, 4, 4, 2]
    done = [call for call in lived if call[0] <= 3]  # a stage may have begun the step that was dropped
    assert all(all(map(same, call, again)) for call, again in zip(done, seen, strict=True))


def test_a_damaged_file_is_reported_in_one_line(tmp_path: Path) -> None:
    job = two_groups()
    assert not run(job, [], tmp_path).faults
    RunDir(tmp_path).recorded("batch").files(2)[0].write_bytes(b"nothing")
    faults = replay(job, "b", [], tmp_path).faults
    assert faults
    for fault in faults.values():
        assert isinstance(fault, StageError) and "step-2/0-of-1.safetensors is not a recording" in str(fault)
