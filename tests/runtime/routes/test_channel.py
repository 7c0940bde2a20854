"""Data routes: plain values and batches reach their consumers in each step, and what does not fit is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import DISPATCH, Dispatch, Route
from meshctl.topology.samples import RouteError, Run, SampleTable
from tests.runtime.memory import MemoryDataPlane

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


# Several steps


ROUTE = Route("a -> b", "a", "b")
INT64_MAX = 2**63 - 1


def received(
    steps: Sequence[Sequence[Any]], consumers: int = 1, route: Route = ROUTE
) -> dict[int, list[Batch]]:
    """Returns what each consumer receives in each step, where `steps` has the value of each producer."""

    def send(channel: Channel, rank: int) -> None:
        for step, values in enumerate(steps, 1):
            channel.send(values[rank], step)

    def receive(channel: Channel, rank: int) -> list[Batch]:
        return [channel.receive(step).value for step in range(1, len(steps) + 1)]

    meshes = [DeviceMesh.from_sizes(dp_size=size) for size in (len(steps[0]), consumers)]
    return run(route, *meshes, send, receive)


def _by_parity(table: SampleTable, parts: int, options: Dispatch) -> list[list[Run]]:
    positions: list[list[int]] = [[] for _ in range(parts)]
    for position, id in enumerate(table.ids_of(table.in_order)):
        positions[id[0] % parts].append(position)
    return [table.select(some) for some in positions]


BY_PARITY = replace(DISPATCH["slice_dp"], partition=_by_parity)


def test_groups_are_kept_in_parts_of_many_runs() -> None:
    ids = torch.stack([torch.arange(900) // 2, torch.arange(900) % 2], 1)
    x = torch.arange(900, dtype=torch.float64)
    batches = [
        Batch({"x": x[start:stop]}, ids=ids[start:stop], group_depth=1)
        for start, stop in ((0, 10), (10, 900))
    ]
    route = replace(ROUTE, dispatch=Dispatch(f"{__name__}:BY_PARITY"))
    for part, [batch] in received([batches], 2, route).items():
        rows = ids[:, 0] % 2 == part
        assert batch.group_depth == 1 and torch.equal(batch.ids, ids[rows])
        assert torch.equal(batch["x"], x[rows])


def test_a_users_mode_that_reads_the_ids_reads_those_of_each_step() -> None:
    steps = [[Batch({"x": torch.arange(4)}, ids=torch.arange(4) + 3 * step)] for step in range(2)]
    route = replace(ROUTE, dispatch=Dispatch(f"{__name__}:BY_PARITY"))
    found = received(steps, 2, route)
    assert [batch.ids[:, 0].tolist() for batch in found[0]] == [[0, 2], [4, 6]]
    assert [batch["x"].tolist() for batch in found[1]] == [[1, 3], [0, 2]]


@pytest.mark.parametrize(
    "first",
    [[], [[Batch({"x": [1]}, ids=torch.tensor([0])), Batch({}, ids=torch.empty(0, 1, dtype=torch.int64))]]],
)
def test_a_list_and_a_batch_in_one_step_are_an_error(first: list[Any]) -> None:
    mixed = [Batch({"x": torch.arange(4)}, ids=torch.arange(4)), [1, 2, 3]]
    with pytest.raises((RouteError, PeerLost), match="`a` returned a Batch on some of its ranks"):
        received([*first, mixed])


def test_a_tensor_without_values_is_an_error() -> None:
    batch = Batch({"x": torch.empty(4, device="meta")}, ids=torch.arange(4))
    with pytest.raises((ValueError, PeerLost), match="column 'x': a tensor on meta has no values"):
        received([[batch]])


@pytest.mark.parametrize("count", [4, 100_000])
def test_a_tensor_of_zeros_without_memory_arrives_as_zeros(count: int) -> None:
    zeros = torch._efficientzerotensor(count)
    found = received([[Batch({"x": zeros}, ids=torch.arange(count))], [Batch({"x": [zeros]})]])[0]
    assert not found[0]["x"].any() and not found[1]["x"][0].any()


@pytest.mark.parametrize(
    "ids", [[INT64_MAX], [INT64_MAX - 1, INT64_MAX], [INT64_MAX, -INT64_MAX - 1], [-INT64_MAX - 1]]
)
def test_ids_may_be_any_int64(ids: list[int]) -> None:
    batch = Batch({"x": torch.tensor(ids)}, ids=torch.tensor(ids))
    [found] = received([[batch]])[0]
    assert found.ids[:, 0].tolist() == found["x"].tolist() == sorted(ids)


def test_the_loss_of_one_group_does_not_end_what_another_sends() -> None:
    hub: dict[int, MemoryDataPlane] = {}
    transports = [MemoryDataPlane(job_rank, {}, hub) for job_rank in range(3)]
    routes = [Route("a -> c", "a", "c"), Route("b -> c", "b", "c")]

    def channel(number: int, job_rank: int) -> Channel:
        sides = (RouteSide(DeviceMesh.from_sizes(), job_rank) for job_rank in (number, 2))
        return Channel(RouteContext(routes[number], *sides, transports[job_rank], number * 8))

    transports[2].on_peer_ended(0, "is gone")
    channel(1, 1).send(Batch({"x": torch.ones(3)}), 1)
    assert channel(1, 2).receive(1).value["x"].tolist() == [1.0] * 3
    with pytest.raises(PeerLost, match="job rank 0 is gone"):
        channel(0, 2).receive(1)
