"""Parts as flat frames: every row is at the right place, and every byte of a frame is checked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.routes import flat_frame
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import SHARED_WRITE, TABLES, RouteContext, RouteSide
from meshctl.runtime.routes.header import describe, encode
from meshctl.runtime.transports.allgather import send_bytes
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.runtime.memory import MemoryDataPlane

TAG = 0


def ends(producers: int) -> list[Channel]:
    """Returns the ends of a route from some producers to one consumer, which is the last."""
    hub: dict[int, MemoryDataPlane] = {}
    sides = (
        RouteSide(DeviceMesh.from_sizes(dp_size=producers), 0),
        RouteSide(DeviceMesh.from_sizes(), producers),
    )
    planes = [MemoryDataPlane(job_rank, {}, hub) for job_rank in range(producers + 1)]
    return [Channel(RouteContext(Route("a -> b", "a", "b"), *sides, plane)) for plane in planes]


class Wire(MemoryDataPlane):
    """A consumer's data plane that keeps the frames that arrive."""

    frames: list[Any]

    def on_message(self, source: int, tag: int, frame: Any, *more: Any) -> None:
        self.frames.append(frame)
        super().on_message(source, tag, frame, *more)


def delivered(batch: Batch) -> tuple[Any, Channel, MemoryDataPlane]:
    """Returns the frame of a batch, the consumer's end that has not received it, and the producer's data
    plane."""
    hub: dict[int, MemoryDataPlane] = {}
    producer = MemoryDataPlane(0, {}, hub)
    consumer = Wire(1, {}, hub)
    consumer.frames = []
    one = DeviceMesh.from_sizes()
    sides = RouteSide(one, 0), RouteSide(one, 1)
    route = Route("a -> b", "a", "b")
    Channel(RouteContext(route, *sides, producer)).send(batch, 1)
    [frame] = consumer.frames
    consumer.next(0, TAG)
    return frame, Channel(RouteContext(route, *sides, consumer)), producer


def sent(batch: Batch) -> tuple[bytes, Channel, MemoryDataPlane]:
    """Returns what `delivered` returns, for a frame that is a message."""
    frame, consumer, producer = delivered(batch)
    assert isinstance(frame, bytes) and frame.startswith(flat_frame.MAGIC)
    return frame, consumer, producer


def moved(rows: dict[Channel, range], consumer: Channel) -> Batch:
    """Returns the batch of a consumer to which each producer sends the samples of these numbers."""

    def give(end: Channel) -> None:
        ids = torch.tensor(rows[end])
        end.send(Batch({"x": ids.to(torch.float64)}, ids=ids), 1)

    threads = [threading.Thread(target=give, args=(end,)) for end in rows]
    for thread in threads:
        thread.start()
    found: Batch = consumer.receive(1).value
    for thread in threads:
        thread.join()
    return found


BATCH = Batch(
    {"x": torch.arange(12.0).view(4, 3), "n": torch.arange(4), "none": torch.empty(4, 0, dtype=torch.int8)},
    ids=torch.arange(7, 11),
)


def test_columns_and_ids_arrive_as_they_were() -> None:
    frame, consumer, producer = sent(BATCH)
    producer.send_inline([1], TAG, frame)
    found = consumer.receive(1).value
    assert {name: (c.dtype, c.tolist()) for name, c in found.columns.items()} == {
        name: (c.dtype, c.tolist()) for name, c in BATCH.columns.items()
    }
    assert found.ids.tolist() == BATCH.ids.tolist() and found["none"].shape == (4, 0)


@given(st.integers(0, 200))
def test_a_frame_that_is_cut_off_is_an_error_that_names_the_producer(size: int) -> None:
    frame, consumer, producer = sent(BATCH)
    producer.send_inline([1], TAG, frame[: min(size, len(frame) - 1)])
    with pytest.raises(PeerLost, match="job rank 0 sent"):
        consumer.receive(1)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_changes_a_value(at: int, change: int) -> None:
    frame, consumer, producer = sent(BATCH)
    changed = bytearray(frame)
    changed[at % len(frame)] ^= change
    producer.send_inline([1], TAG, bytes(changed))
    try:
        found = consumer.receive(1).value
    except PeerLost as error:
        assert "job rank 0 sent" in str(error)
    else:
        assert len(found) == 4 and found.ids.tolist() == BATCH.ids.tolist()
        assert at % len(frame) >= len(frame) - 4 * (12 + 8)


LARGE = Batch(
    {"x": torch.arange(3000.0).view(1000, 3), "n": torch.arange(1000, dtype=torch.int8)},
    ids=torch.arange(7, 1007),
)


def sent_large() -> tuple[torch.Tensor, Channel, MemoryDataPlane]:
    """Returns what `sent` returns, for a frame that does not fit into a message."""
    frame, consumer, producer = delivered(LARGE)
    assert isinstance(frame, torch.Tensor)
    return frame, consumer, producer


def deliver(producer: MemoryDataPlane, frame: torch.Tensor) -> None:
    lease = producer.lease([1], TAG, len(frame))
    lease.frame.copy_(frame)
    producer.deliver(lease)


def test_the_rows_of_a_single_producer_are_read_in_place() -> None:
    frame, consumer, producer = sent_large()
    deliver(producer, frame)
    found = consumer.receive(1).value
    assert torch.equal(found["x"], LARGE["x"]) and torch.equal(found["n"], LARGE["n"])
    assert torch.equal(found.ids, LARGE.ids)
    assert found["n"].data_ptr() == found["x"].data_ptr() + 12032  # 3000 floats, and then the next 64 bytes


@given(st.integers(0, 14_000))
def test_a_large_frame_that_is_cut_off_is_an_error_that_names_the_producer(size: int) -> None:
    frame, consumer, producer = sent_large()
    deliver(producer, frame[: min(size, len(frame) - 1)])
    with pytest.raises(PeerLost, match="job rank 0 sent"):
        consumer.receive(1)


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_byte_of_a_large_frame_is_an_error_or_no_part_of_the_head(at: int, change: int) -> None:
    frame, consumer, producer = sent_large()
    changed = frame.clone()
    changed[at] ^= change
    deliver(producer, changed)
    try:
        found = consumer.receive(1).value
    except PeerLost as error:
        assert "job rank 0 sent" in str(error)
    else:
        assert len(found) == 1000 and found["n"].shape == (1000,) and torch.equal(found.ids, LARGE.ids)
        assert at > flat_frame.HEAD_BYTES


def test_the_rows_of_several_producers_are_put_in_sample_order() -> None:
    first, second, consumer = ends(2)
    rows = {first: range(4000, 9000), second: range(4000)}
    found = moved(rows, consumer)
    assert found["x"].tolist() == [float(number) for number in range(9000)]
    assert found.ids[:, 0].tolist() == [*range(9000)]


def test_one_producer_may_send_a_message_and_another_one_a_large_frame() -> None:
    first, second, consumer = ends(2)
    rows = {first: range(5), second: range(5, 900)}
    found = moved(rows, consumer)
    assert found["x"].tolist() == [float(number) for number in range(900)]
    assert found.ids[:, 0].tolist() == [*range(900)]


def test_zeros_without_memory_are_written_as_zeros() -> None:
    """The frame is compared many times, because memory that nobody has written often holds zeros by chance."""
    zeros = torch._efficientzerotensor(64)
    expected, *_ = sent(Batch({"x": torch.zeros(64)}, ids=torch.arange(64)))
    for _ in range(50):
        noise = [bytes([255]) * 256 for _ in range(100)]
        del noise
        frame, *_ = sent(Batch({"x": zeros}, ids=torch.arange(64)))
        assert frame == expected


def ragged_batch(lengths: Sequence[int], first: int) -> Batch:
    """Returns samples from `first` on; each value is the number of its sample. `more` has other lengths."""
    ids = torch.arange(first, first + len(lengths))
    one, other = torch.tensor(lengths), torch.tensor(lengths).flip(0)
    values, offsets = ids.repeat_interleave(one), torch.cat([torch.zeros(1).long(), one.cumsum(0)])
    columns: dict[str, Column] = {
        "x": Ragged(values.double(), offsets),
        "wide": Ragged(values[:, None, None].float(), offsets),
        "n": ids.short(),
        "more": Ragged(
            ids.repeat_interleave(other)[:, None].expand(-1, 3).contiguous(),
            torch.cat([torch.zeros(1).long(), other.cumsum(0)]),
        ),
    }
    return Batch(columns, ids=ids)


def rows_of(batch: Batch) -> dict[str, list[Any]]:
    """Returns the rows of each column as lists."""
    return {
        name: [row.tolist() for row in (column.rows() if isinstance(column, Ragged) else column)]
        for name, column in batch.columns.items()
        if not isinstance(column, list)
    }


lengths_of_samples = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@given(st.lists(lengths_of_samples, min_size=1, max_size=3), st.sampled_from([0, 1 << 20]))
def test_ragged_rows_of_several_producers_arrive_in_flat_frames(
    lengths: list[list[int]], flat_max: int
) -> None:
    """With a `flat_max` of 0 the part counts as large, and its producers write into one flat frame."""
    *producers, consumer = ends(len(lengths))
    firsts = [sum(map(len, lengths[:number])) for number in range(len(lengths))]
    batches = [ragged_batch(some, first) for some, first in zip(lengths, firsts, strict=True)]
    with (
        patch("meshctl.runtime.routes.step.FLAT_MAX_BYTES", flat_max),
        patch("meshctl.runtime.routes.shared_write.SHARED_PART_MIN_BYTES", flat_max and 1 << 20),
    ):
        threads = [
            threading.Thread(target=end.send, args=(batch, 1))
            for end, batch in zip(producers, batches, strict=True)
        ]
        for thread in threads:
            thread.start()
        found: Batch = consumer.receive(1).value
        for thread in threads:
            thread.join()
    each = [rows_of(batch) for batch in batches]
    assert rows_of(found) == {name: [row for rows in each for row in rows[name]] for name in each[0]}
    assert found.ids[:, 0].tolist() == [*range(sum(map(len, lengths)))]


RAGGED = ragged_batch([3, 0, 5, 1], 7)
LARGE_RAGGED = ragged_batch([300, 0, 500, 100], 7)


@given(st.integers(0, 1000), st.integers(1, 255))
def test_a_changed_byte_of_a_ragged_frame_is_an_error_or_changes_a_value(at: int, change: int) -> None:
    frame, consumer, producer = sent(RAGGED)
    changed = bytearray(frame)
    changed[at % len(frame)] ^= change
    producer.send_inline([1], TAG, bytes(changed))
    try:
        found = consumer.receive(1).value
    except PeerLost as error:
        assert "job rank 0 sent" in str(error)
    else:
        lengths = [each.lengths.tolist() for each in (found["x"], found["more"])]
        assert lengths == [[3, 0, 5, 1], [1, 5, 0, 3]] and found.ids.tolist() == RAGGED.ids.tolist()


@given(st.integers(0, 60_000))
def test_a_ragged_frame_that_is_cut_off_is_an_error_that_names_the_producer(size: int) -> None:
    frame, consumer, producer = delivered(LARGE_RAGGED)
    deliver(producer, frame[: min(size, len(frame) - 1)])
    with pytest.raises(PeerLost, match="job rank 0 sent"):
        consumer.receive(1)


def test_a_large_ragged_part_is_written_by_all_of_its_producers() -> None:
    *producers, consumer = ends(2)
    lengths = [60_000] * 4
    batches = ragged_batch(lengths, 0), ragged_batch(lengths, 4)
    threads = [
        threading.Thread(target=end.send, args=(batch, 1))
        for end, batch in zip(producers, batches, strict=True)
    ]
    for thread in threads:
        thread.start()
    found = consumer.receive(1).value
    for thread in threads:
        thread.join()
    for name in ("x", "wide", "more"):
        values = torch.cat([batch[name].values for batch in batches])
        assert torch.equal(found[name].values, values) and found[name].lengths.tolist() == lengths * 2


def test_a_leader_that_lays_out_too_little_memory_is_named() -> None:
    hub: dict[int, MemoryDataPlane] = {}
    leader, writer = MemoryDataPlane(0, {}, hub), MemoryDataPlane(1, {}, hub)
    sides = RouteSide(DeviceMesh.from_sizes(dp_size=2), 0), RouteSide(DeviceMesh.from_sizes(), 2)
    context = RouteContext(Route("a -> b", "a", "b"), *sides, writer)
    lengths = [30_000] * 4
    batches = ragged_batch(lengths, 0), ragged_batch(lengths, 4)
    header = encode(describe(batches[0], Dispatch(), alone=False))
    send_bytes(leader, [1], TAG + TABLES, header)
    send_bytes(leader, [1], TAG + SHARED_WRITE, bytes(5000))
    with pytest.raises(PeerLost, match="job rank 0 laid out 5000 bytes for other rows"):
        Channel(context).send(batches[1], 1)
