"""The consumers of a route receive the values of its producers: every sample once, unchanged, over every
transport.

Workers are threads of one process, and producers write shared frames as they do in processes. `nodes` lists
the workers that share memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes import step as step_module
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import DISPATCH, EXECUTE, Dispatch, Route
from meshctl.topology.samples import Id, RouteError, SampleTable
from tests.examples import examples
from tests.runtime.memory import MemoryDataPlane
from tests.runtime.routes.test_rows import DTYPES, alike
from tests.topology.meshes import parts_for, samples_by_rank

Work = Callable[[Channel, int], Any]


def run(
    route: Route,
    producers: DeviceMesh,
    consumers: DeviceMesh,
    send_frame: Work,
    take: Work,
    execute: str = "all",
    nodes: int = 1,
) -> dict[int, Any]:
    """Returns the result of every consumer by rank. The workers of each side are spread evenly over nodes.
    Raises the first error of a worker."""
    hub: dict[int, MemoryDataPlane] = {}
    sent: dict[int, Any] = {}
    faults: list[Exception] = []
    sides = [
        RouteSide(producers, 0, node_of=lambda rank: rank * nodes // producers.world_size),
        RouteSide(
            consumers, producers.world_size, execute, lambda rank: rank * nodes // consumers.world_size
        ),
    ]
    job_ranks = range(producers.world_size + consumers.world_size)
    transports = {job_rank: MemoryDataPlane(job_rank, {}, hub) for job_rank in job_ranks}

    def work(job_rank: int) -> None:
        rank = job_rank - producers.world_size
        channel = Channel(RouteContext(route, *sides, transports[job_rank]))
        try:
            if rank < 0:
                send_frame(channel, job_rank)
            elif rank in channel.consumers.part_of:
                sent[rank] = take(channel, rank)
        except Exception as error:
            faults.append(error)
            for transport in transports.values():
                transport.fail(PeerLost(str(error)))

    threads = [threading.Thread(target=work, args=(job_rank,), daemon=True) for job_rank in job_ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return sent


def column_of(kind: str, ids: list[Id], dtype: torch.dtype) -> Any:
    """Returns values that depend only on the ids, so that the producer of a sample does not matter."""
    numbers = [sum(index * 10**job_rank for job_rank, index in enumerate(reversed(id))) for id in ids]
    match kind:
        case "list":
            return [{"n": number, "t": str(number)} if number % 3 else None for number in numbers]
        case "ragged":
            return Ragged.of(
                [torch.full((number % 4, 2), number).to(dtype) for number in numbers]
                or [torch.empty(0, 2, dtype=dtype)]
            )
        case "flat":
            return torch.tensor(numbers, dtype=torch.float64).to(dtype)
        case "wide":
            return torch.tensor(numbers, dtype=torch.float64).to(dtype)[:, None, None].expand(len(ids), 2, 3)
    return torch.empty(len(ids), 0, dtype=dtype)


def batch_of(ids: list[Id], kinds: Mapping[str, str], dtype: torch.dtype, depth: int) -> Batch:
    rows = len(ids)
    columns = {name: column_of(kind, ids, dtype) for name, kind in kinds.items()}
    if not rows:
        columns = {
            name: Ragged(c.values[:0], c.offsets[:1]) if isinstance(c, Ragged) else c
            for name, c in columns.items()
        }
    return Batch(columns, ids=torch.tensor(ids, dtype=torch.int64).view(rows, depth))


@st.composite
def held_by(draw: st.DrawFn, producers: int) -> list[list[Id]]:
    """Draws the samples of each producer: even and in order, or arbitrary."""
    depth = draw(st.integers(1, 2))
    numbers = list(range(draw(st.integers(0, 14))))
    if draw(st.booleans()):
        numbers = draw(st.permutations(numbers))
    ids: list[Id] = [(number,) if depth == 1 else (number // 2, number % 2) for number in numbers]
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), min_size=producers - 1, max_size=producers - 1)))
    return [ids[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


SIZES: list[dict[str, Any]] = [
    {"dp_size": 1},
    {"dp_size": 2},
    {"dp_size": 3},
    {"dp_size": 2, "tp_size": 2},
    {"fsdp_size": 4},
]
MESHES = [DeviceMesh.from_sizes(**sizes) for sizes in SIZES]
CASES = settings(max_examples=examples(40, 150), suppress_health_check=[HealthCheck.too_slow])


@CASES
@given(
    st.data(),
    st.sampled_from(MESHES),
    st.sampled_from(MESHES),
    st.sampled_from(sorted(DISPATCH)),
    st.sampled_from(sorted(EXECUTE)),
    st.sampled_from(["", "tokens"]),
    st.sampled_from([0, 1, 1 << 16]),
    st.sampled_from([1, 2]),
)
def test_every_consumer_receives_its_samples_unchanged(
    data: st.DataObject,
    producers: DeviceMesh,
    consumers: DeviceMesh,
    mode: str,
    execute: str,
    balance: Any,
    together: int,
    nodes: int,
) -> None:
    held = data.draw(held_by(producers.data_size))
    depth = next((len(id) for ids in held for id in ids), 1)
    names = data.draw(
        st.lists(st.sampled_from(["list", "ragged", "flat", "wide", "none"]), min_size=1, max_size=3)
    )
    kinds = {str(number): kind for number, kind in enumerate(names)}
    dtype = data.draw(st.sampled_from(DTYPES))
    batches = [batch_of(ids, kinds, dtype, depth) for ids in held]
    dispatch = Dispatch(mode, balance, allow_empty=True)
    lengths = tuple(tuple(batch.lengths.tolist()) for batch in batches) if balance else None
    table = SampleTable(tuple(map(tuple, held)), lengths)
    wanted = {
        rank: [held[producer][row] for producer, row in mine]
        for rank, mine in samples_by_rank(execute, dispatch, consumers, table).items()
    }
    most = max(sum(map(len, part)) for part in parts_for(execute, dispatch, consumers, table))

    def send_frame(channel: Channel, rank: int) -> None:
        for step in range(2):
            channel.send(batches[producers.data_rank(rank)], step)

    def take(channel: Channel, rank: int) -> list[Batch]:
        return [channel.receive(step).value for step in range(2)]

    with patch("meshctl.runtime.routes.shared_write.SHARED_PART_MIN_BYTES", together):
        got = run(
            Route("a -> b", "a", "b", dispatch=dispatch),
            producers,
            consumers,
            send_frame,
            take,
            execute,
            nodes,
        )
    assert got.keys() == wanted.keys()
    for rank, twice in got.items():
        for batch in twice:
            assert [tuple(id) for id in batch.ids.tolist()] == wanted[rank] and batch.most == most
            alike(batch, batch_of(wanted[rank], kinds, dtype, depth))


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


@pytest.mark.parametrize(
    ("collect", "values", "joined"),
    [
        ("mean", [1.0, 4.0], 3.0), ("sum", [1, 4], 5), ("first", ["x", "y"], "x"), ("none", [1, None], [1, None]),
        ("mean", [{"a": 1.0}, {"a": 4.0, "b": 2.0}], {"a": 3.0, "b": 2.0}), ("flatten", [[1], [2, 3]], [1, 2, 3]),
        ("flatten", [torch.tensor([1]), torch.tensor([2])], [1, 2]), ("sum", [torch.tensor(1), torch.tensor(2)], 3),
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_join_alike_for_all_consumers(collect: str, values: list[Any], joined: Any) -> None:
    def send_frame(channel: Channel, rank: int) -> None:
        channel.send(values[rank], 1, 1.0 + rank)

    two = DeviceMesh.from_sizes(dp_size=2)
    got = run(
        Route("a -> b", "a", "b", collect=collect),
        two,
        two,
        send_frame,
        lambda channel, rank: plain(channel.receive(1).value),
    )
    assert got == {0: joined, 1: joined}


@pytest.mark.parametrize(
    ("collect", "value", "text"),
    [
        ("flatten", None, "`a` returned None; is its `return` missing"), ("flatten", 3, "`a` returned a int; flatten joins batches"),
        ("mean", Batch({"x": [1]}), "`a` returned a Batch, but collect: mean"), ("flatten", {1}, "`a` returned a set"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_cannot_be_joined_are_reported_on_their_producer(
    collect: str, value: Any, text: str
) -> None:
    one = DeviceMesh.from_sizes(dp_size=1)
    with pytest.raises((RouteError, PeerLost), match=text):
        run(
            Route("a -> b", "a", "b", collect=collect),
            one,
            one,
            lambda channel, rank: channel.send(value, 1),
            lambda channel, rank: channel.receive(1),
        )


def test_a_sample_that_two_hold_is_an_error_for_all() -> None:
    two, batch = DeviceMesh.from_sizes(dp_size=2), Batch({"x": [1]}, ids=torch.tensor([0]))
    with pytest.raises((RouteError, PeerLost), match="sample 0 occurs twice"):
        run(
            Route("a -> b", "a", "b"),
            two,
            two,
            lambda channel, rank: channel.send(batch, 1),
            lambda channel, rank: channel.receive(1),
        )


def test_whoever_reckons_with_other_parts_is_named() -> None:
    hub: dict[int, MemoryDataPlane] = {}
    transports = [MemoryDataPlane(job_rank, {}, hub) for job_rank in range(3)]
    two, one = DeviceMesh.from_sizes(dp_size=2), DeviceMesh.from_sizes()
    routes = [
        Route("a -> b", "a", "b"),
        Route("a -> b", "a", "b", dispatch=Dispatch(allow_empty=True)),
        Route("a -> b", "a", "b"),
    ]
    channels = [
        Channel(RouteContext(route, RouteSide(two, 0), RouteSide(one, 2), transport))
        for route, transport in zip(routes, transports, strict=True)
    ]
    batches = [Batch({"x": torch.ones(2)}, ids=torch.arange(2) + 2 * rank) for rank in range(2)]
    threads = [
        threading.Thread(target=channels[rank].send, args=(batches[rank], 1), daemon=True)
        for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    with pytest.raises(PeerLost, match="job rank 1 sent another layout of the samples on `a -> b`"):
        channels[2].receive(1)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("balance", "times"), [("tokens", 2), ("", 4)])
def test_only_producers_compute_parts_that_depend_on_the_samples(balance: Any, times: int) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    rows = [[torch.ones(5), torch.ones(1)], [torch.ones(2), torch.ones(2)]]
    batches = [
        Batch({"x": Ragged.of(some)}, ids=torch.arange(2) + 2 * number) for number, some in enumerate(rows)
    ]
    with patch.object(step_module, "parts_for", wraps=step_module.parts_for) as computed:
        found = run(
            Route("a -> b", "a", "b", dispatch=Dispatch(balance=balance)),
            mesh,
            mesh,
            lambda end, rank: end.send(batches[rank], 1),
            lambda end, rank: end.receive(1).value.ids.tolist(),
        )
    assert found == ({0: [[0]], 1: [[1], [2], [3]]} if balance else {0: [[0], [1]], 1: [[2], [3]]})
    assert computed.call_count == times


def test_values_of_a_step_are_not_used_for_the_next() -> None:
    """Samples, columns, their kinds and widths change from step to step and back, while ids continue."""
    made = [
        ({"x": torch.ones(4)}, 0), ({"x": torch.ones(4)}, 4), ({"x": torch.ones(6)}, 8), ({"x": torch.ones(4, 2)}, 14),
        ({"x": torch.ones(4).int()}, 18), ({"y": torch.ones(4)}, 22), ({"x": torch.ones(4)}, 26),
        ({"x": Ragged.of([torch.ones(2)] * 4)}, 30), ({"x": torch.ones(3)}, 34), ({"x": torch.ones(4)}, 0),
    ]  # fmt: skip
    mesh = DeviceMesh.from_sizes(dp_size=2)

    def send_frame(channel: Channel, rank: int) -> None:
        for step, (columns, first) in enumerate(made):
            count = len(next(iter(columns.values())))
            ids = torch.arange(count) * (1 + step % 2) + first + 100 * rank * (-1) ** step + 100
            channel.send(Batch(dict(columns), ids=ids), step)

    def take(channel: Channel, rank: int) -> list[Batch]:
        return [channel.receive(step).value.clone() for step in range(len(made))]

    found = run(Route("a -> b", "a", "b", slots=20), mesh, mesh, send_frame, take)
    for step, (columns, first) in enumerate(made):
        count = len(next(iter(columns.values())))
        ids = sorted(
            n * (1 + step % 2) + first + 100 * rank * (-1) ** step + 100
            for rank in range(2)
            for n in range(count)
        )
        both = [found[rank][step] for rank in range(2)]
        assert [id for batch in both for [id] in batch.ids.tolist()] == ids
        for batch in both:
            alike(batch, Batch(dict(columns), ids=batch.ids))
