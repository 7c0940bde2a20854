"""The consumers of a route receive the values of its producers: every sample once, unchanged, over every
transport.

Workers are threads of one process, and producers write shared frames as they do in processes. `nodes` lists
the workers that share memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.samples import RouteError
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
