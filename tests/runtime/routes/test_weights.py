"""Syncs between all layouts: each consumer receives exactly the shards that it requested, and no sync
hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.routes import sync_plan, weights
from meshctl.runtime.routes.end import FORWARD, TAGS_PER_ROUTE, RouteContext, RouteSide
from meshctl.runtime.routes.sync_plan import Shard as Part
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh, even_split
from meshctl.topology.modes import Route
from meshctl.topology.samples import RouteError
from tests.hang import HANG_S
from tests.runtime.memory import MemoryDataPlane

SHAPES = {
    "embedding": (7, 5),
    "scalar": (),
    "w": (4, 6),
    "bias": (6,),
    "none": (0, 3),
    "u": (6, 4),
    "long": (40,),
    "v": (3, 2, 4),
}
DTYPES = {"bias": torch.bfloat16, "u": torch.float64, "scalar": torch.int64}


def value(name: str, step: int) -> Tensor:
    shape = SHAPES[name]
    count = torch.empty(shape, device="meta").numel()
    return (torch.arange(count).view(shape) + step).to(DTYPES.get(name, torch.float32))


class Shard:
    """The part of DTensor's interface that syncs use."""

    def __init__(self, whole: Tensor, box: Part) -> None:
        self.shape, self.dtype, self.ndim = whole.shape, whole.dtype, whole.ndim
        self._whole, self._box = whole, box

    def __create_chunk_list__(self) -> Sequence[Any]:
        return [self]

    @property
    def offsets(self) -> tuple[int, ...]:
        return self._box.start

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._box.size

    def to_local(self) -> Tensor:
        return self._box.view_of(self._whole, Part((0,) * self.ndim, tuple(self.shape))).clone()


@dataclass(frozen=True)
class Layout:
    """The layout of a component's weights: names per pipeline stage, sharded over two dims, and
    replicated."""

    pp: int = 1
    fsdp: int = 1
    tp: int = 1
    dp: int = 1
    plain: bool = False
    """Whether the weights are whole plain tensors; for a consumer, whether it declares none."""

    @property
    def size(self) -> int:
        return self.pp * self.fsdp * self.tp * self.dp

    def held(self, rank: int, step: int = 0) -> dict[str, Any]:
        rank, tp = divmod(rank, self.tp)
        rank, fsdp = divmod(rank, self.fsdp)
        stage = rank // self.dp
        names = [name for index, name in enumerate(SHAPES) if index * self.pp // len(SHAPES) == stage]
        return {name: self._shard(name, fsdp, tp, step) for name in names}

    def _shard(self, name: str, fsdp: int, tp: int, step: int) -> Any:
        whole = value(name, step)
        if self.plain:
            return whole
        ranges = [range(size) for size in whole.shape]
        if ranges:
            ranges[-1] = even_split(len(ranges[-1]), self.tp, tp)
            part = even_split(len(ranges[0]), self.fsdp, fsdp)
            ranges[0] = ranges[0][part.start : part.stop]
        return Shard(whole, Part(tuple(r.start for r in ranges), tuple(map(len, ranges))))


@dataclass(frozen=True)
class Sync:
    """A sync from one group to another or to itself."""

    producer: Layout
    consumer: Layout
    groups: tuple[int, int]
    lag: int = 0
    checksum: bool = False


def run(
    sizes: Sequence[int],
    syncs: Sequence[Sync],
    steps: int,
    nodes: int = 1,
    transport: type[MemoryDataPlane] = MemoryDataPlane,
) -> int:
    """Runs the syncs in their order in every step, each job rank in a thread. Returns the number of compared
    weights."""
    hub: dict[int, MemoryDataPlane] = {}
    first = [sum(sizes[:group]) for group in range(len(sizes))]
    job_ranks = range(sum(sizes))
    transports = [transport(job_rank, {}, hub) for job_rank in job_ranks]
    faults: list[BaseException] = []
    compared = [0] * len(job_ranks)

    def side(group: int) -> RouteSide:
        return RouteSide(
            DeviceMesh.from_sizes(dp_size=sizes[group]),
            first[group],
            node_of=lambda rank: (first[group] + rank) % nodes,
        )

    def rank_in(group: int, job_rank: int) -> int | None:
        return job_rank - first[group] if job_rank - first[group] in range(sizes[group]) else None

    def work(job_rank: int) -> None:
        channels: list[tuple[Sync, int | None, int | None, WeightChannel]] = []
        for number, sync in enumerate(syncs):
            route = Route(f"sync {number}", "a", "a", kind="weights")
            sides = side(sync.groups[0]), side(sync.groups[1])
            context = RouteContext(route, *sides, transports[job_rank], number * TAGS_PER_ROUTE)
            producer, consumer = (rank_in(group, job_rank) for group in sync.groups)
            made = WeightChannel(
                context,
                None if producer is None else partial(sync.producer.held, producer),
                None if consumer is None else partial(expected_of, sync, consumer),
                lag=sync.lag,
                checksum=sync.checksum,
            )
            channels.append((sync, producer, consumer, made))
        for step in range(steps):
            for sync, producer, consumer, channel in channels:
                if producer is None and consumer is None:
                    continue
                gives = None if producer is None else sync.producer.held(producer, step)
                if not step:
                    channel.open()
                channel.send(gives, step)
                while channel.due(step + sync.lag * (step in (0, steps - 1))):
                    compared[job_rank] += compare(channel, step, expected_of(sync, consumer or 0))

    def expected_of(sync: Sync, consumer: int) -> dict[str, Any]:
        return {} if sync.consumer.plain else sync.consumer.held(consumer)

    def compare(channel: WeightChannel, step: int, takes: Mapping[str, Any]) -> int:
        received = channel.receive(step)
        version, got = received.sent_step, dict(received.value)
        assert set(got) == (
            {name for name, shard in takes.items() if shard._box.count} if takes else set(SHAPES)
        )
        for name, tensor in got.items():
            wanted = value(name, version)
            wanted = Shard(wanted, takes[name]._box).to_local() if takes else wanted
            assert tensor.dtype == wanted.dtype and torch.equal(tensor, wanted), name
        return len(got)

    def guarded(job_rank: int) -> None:
        try:
            work(job_rank)
        except PeerLost:
            pass
        except BaseException as error:
            faults.append(error)
            for transport in transports:
                transport.fail(PeerLost("a fault elsewhere"))

    threads = [threading.Thread(target=guarded, args=(job_rank,), daemon=True) for job_rank in job_ranks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + HANG_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads), "they wait for one another"
    return sum(compared)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the size of buckets to a few rows, and the minimum size of shared frames to a few bytes."""
    monkeypatch.setattr(weights, "MAX_BUCKET_BYTES", 80)
    monkeypatch.setattr(sync_plan, "MAX_JOINED_BYTES", 48)
    monkeypatch.setattr(weights, "SHARED_WRITE_MIN_BYTES", 24)


@st.composite
def layouts(draw: st.DrawFn, size: int) -> Layout:
    sizes = [1, 1, 1, 1]
    for factor in {1: [], 2: [2], 3: [3], 4: [2, 2], 6: [2, 3]}[size]:
        sizes[draw(st.integers(0, 3))] *= factor
    pp, fsdp, tp, dp = sizes
    return Layout(pp, fsdp, tp, dp)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], list[Sync], int, int]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    syncs = []
    for _ in range(draw(st.integers(1, 3))):
        producer, consumer = draw(st.integers(0, len(sizes) - 1)), draw(st.integers(0, len(sizes) - 1))
        wanted = (
            Layout(dp=sizes[consumer], plain=True) if draw(st.booleans()) else draw(layouts(sizes[consumer]))
        )
        syncs.append(
            Sync(
                draw(layouts(sizes[producer])),
                wanted,
                (producer, consumer),
                draw(st.sampled_from([0, 0, 1, 2])),
                draw(st.booleans()),
            )
        )
    return sizes, syncs, draw(st.integers(1, 5)), draw(st.integers(1, 2))


@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(jobs())
def test_any_syncs_between_any_groups(job: tuple[list[int], list[Sync], int, int]) -> None:
    """With syncs in both directions in one step, within a group, and with lags, every consumer receives the
    weights of its step, and all syncs end."""
    sizes, syncs, steps, nodes = job
    assert run(sizes, syncs, steps, nodes) > 0


def test_what_goes_to_another_node_goes_there_once() -> None:
    crossed: set[tuple[int, int, int]] = set()

    class Watched(MemoryDataPlane):
        def on_message(self, source: int, tag: int, frame: Tensor | bytes, *more: Any) -> None:
            if (self.job_rank - source) % 2:
                crossed.add((source, self.job_rank, tag))
            super().on_message(source, tag, frame, *more)

    sync = Sync(Layout(fsdp=2), Layout(dp=4, plain=True), (0, 1))
    assert run([2, 4], [sync], 3, nodes=2, transport=Watched) == 3 * 4 * len(SHAPES)
    assert {(producer, consumer) for producer, consumer, lane in crossed if lane in (0, FORWARD)} == {
        (1, 2),
        (0, 3),
    }


# Buckets that lie under way


class Counted:
    """Counts the frames by which a producer is ahead of a slow consumer."""

    def __init__(self, lag: int) -> None:
        hub: dict[int, MemoryDataPlane] = {}
        self.transports = [MemoryDataPlane(job_rank, {}, hub) for job_rank in range(2)]
        route = Route("publish", "publish", "publish", kind="weights")
        one, other = (RouteSide(DeviceMesh.from_sizes(dp_size=1), job_rank) for job_rank in range(2))
        contexts = [RouteContext(route, one, other, transport) for transport in self.transports]
        self.given = Layout().held(0)
        self.producer = WeightChannel(contexts[0], lambda: self.given, None, lag=lag)
        self.consumer = WeightChannel(contexts[1], None, lambda: {}, lag=lag)
        thread = self._begin(lambda: self.producer.open())
        self.consumer.open()
        thread.join()

    def _begin(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def send_frame(self, *steps: int) -> threading.Thread:
        def work() -> None:
            for step in steps:
                self.producer.send(self.given, step)

        return self._begin(work)

    @property
    def waiting(self) -> int:
        return len(self.transports[1].queued(0, 0))


def test_without_a_lag_one_frame_waits_and_one_is_read() -> None:
    pair = Counted(0)
    thread = pair.send_frame(0)
    pair.consumer.send(None, 0)
    most = 0
    for _ in pair.consumer.receive(0).value:
        while not pair.waiting and thread.is_alive():
            thread.join(0.01)
        most = max(most, pair.waiting)
    thread.join()
    assert most == 1 and not pair.waiting


@pytest.mark.parametrize("lag", [1, 2])
def test_with_a_lag_producers_go_on_and_stop_after_it(lag: int) -> None:
    pair = Counted(lag)
    first = pair.send_frame(*range(lag + 1))
    first.join()
    full = pair.waiting
    more = pair.send_frame(lag + 1)
    more.join(0.1)
    assert more.is_alive() and pair.waiting == full
    for step in range(lag + 2):
        pair.consumer.send(None, step)
        for _ in pair.consumer.receive(step).value:
            pass
    more.join()


def test_what_one_keeps_stays_as_it_is() -> None:
    """Includes parameters that arrived in several parts, in several syncs."""
    hub: dict[int, MemoryDataPlane] = {}
    transport = MemoryDataPlane(0, {}, hub)
    alone = RouteSide(DeviceMesh.from_sizes(dp_size=1), 0)
    route = Route("publish", "publish", "publish", kind="weights")
    context = RouteContext(route, alone, alone, transport)
    channel = WeightChannel(context, lambda: Layout().held(0), lambda: {})
    channel.open()
    kept = []
    for step in range(3):
        channel.send(Layout().held(0, step), step)
        kept.append(dict(channel.receive(step).value))
    assert all(torch.equal(kept[step][name], value(name, step)) for step in range(3) for name in SHAPES)


# What goes wrong


def link(
    producers: Sequence[Mapping[str, Part]],
    wanted: Sequence[Mapping[str, Part]],
    far: sync_plan.Distance = lambda producer, consumers: 1,
    most: int = 1 << 10,
) -> list[sync_plan.Bucket]:
    """Returns the buckets of a sync of `w`, whose consumers are on nodes of their own."""
    plan = sync_plan.SyncPlan({"w": sync_plan.Parameter((4,), torch.float32)}, producers, wanted)
    return plan.buckets(lambda consumer: consumer, far, most, most)


WHOLE = {"w": Part((0,), (4,))}


def test_replicas_are_read_in_turn_and_the_nearest_first() -> None:
    turns = {producer for bucket in link([WHOLE] * 4, [WHOLE], most=4) for producer in bucket.producers}
    assert turns == {0, 1, 2, 3}
    near = link([WHOLE] * 4, [WHOLE] * 2, lambda producer, consumers: 1 + (producer % 2 != consumers[0]), 4)
    assert all(producer % 2 == bucket.consumers[0] for bucket in near for producer in bucket.producers)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(RouteError, match="no weights called `v`"):
        link([WHOLE], [{"v": Part((0,), (4,))}])
    with pytest.raises(RouteError, match="only a part of `w`"):
        link([{"w": Part((0,), (2,))}], [WHOLE])
    with pytest.raises(RouteError, match="more than one part of some elements of `w`"):
        link([{"w": Part((0,), (2,))}, WHOLE], [WHOLE])


def test_other_weights_than_at_first_are_refused() -> None:
    pair = Counted(0)
    changed = {"bias": pair.given["bias"].to_local().float()}
    for other in ({"w": torch.zeros(3)}, {**pair.given, **changed}):
        with pytest.raises(RouteError, match="returns other weights"):
            pair.producer.send(other, 0)


def test_weights_of_another_step_name_who_sent_them() -> None:
    pair = Counted(0)
    pair.transports[0].send(1, 0, Frame([0, 1, [], []]))
    pair.consumer.send(None, 0)
    with pytest.raises(
        RouteError, match="weights of step 1 came from job rank 0 where those of step 0 were due"
    ):
        list(pair.consumer.receive(0).value)


def test_a_checksum_is_of_the_values_alone() -> None:
    assert weights.checksum(torch.arange(2.0)[::2]) == weights.checksum(torch.zeros(1))
    assert weights.checksum(torch.ones(2, 3).t()) == weights.checksum(torch.ones(3, 2))


def test_what_was_given_in_a_dropped_step_is_skipped() -> None:
    pair = Counted(0)
    pair.transports[0].send(1, 0, Frame([0, 5, [], []]))
    pair.consumer.close(4)
    thread = pair.send_frame(4)
    pair.consumer.send(None, 4)
    assert len(list(pair.consumer.receive(4).value)) == len(SHAPES)
    thread.join()
