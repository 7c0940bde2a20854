"""Both kinds of routes carry what is sent in each step, and a loss concerns one group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import Received, RouteContext, RouteSide
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from tests.runtime.memory import MemoryDataPlane

ONE = DeviceMesh.from_sizes(dp_size=1)


def contexts(route: Route) -> list[RouteContext]:
    hub: dict[int, MemoryDataPlane] = {}
    return [
        RouteContext(route, RouteSide(ONE, 0), RouteSide(ONE, 1), MemoryDataPlane(job_rank, {}, hub))
        for job_rank in range(2)
    ]


def data_pair() -> Any:
    producer, consumer = map(Channel, contexts(Route("a -> b", "a", "b")))
    return producer, consumer


def weight_pair() -> Any:
    producer, consumer = contexts(Route("s", "s", "s", kind="weights"))
    weights = {"x": torch.zeros(3)}
    return WeightChannel(producer, lambda: weights, None), WeightChannel(consumer, None, lambda: {})


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[Tensor], Any]]] = {
    "data": (data_pair, lambda x: Batch({"x": x})),
    "weights": (weight_pair, lambda x: {"x": x}),
}


def background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def opened(kind: str) -> tuple[Any, Callable[[Tensor], Any]]:
    make, value = PAIRS[kind]
    producer, consumer = make()
    if kind == "weights":
        thread = background(lambda: producer.open(0))
        consumer.open(0)
        thread.join()
    return (producer, consumer), value


def column(received: Received) -> Tensor:
    """Returns the column, entry or weight `x` of a value."""
    value = received.value
    found: Tensor = value["x"] if isinstance(value, (dict, Batch)) else dict(value)["x"]
    return found


def announce(consumer: Any, kind: str, step: int) -> None:
    """Calls `send`, by which a rank that only consumes weights learns of a step."""
    if kind == "weights":
        consumer.send(None, step)


@pytest.mark.parametrize("kind", PAIRS)
def test_an_end_carries_what_is_sent_in_each_step(kind: str) -> None:
    (producer, consumer), value = opened(kind)
    for step in (1, 2):
        thread = background(partial(producer.send, value(torch.full((3,), float(step))), step))
        announce(consumer, kind, step)
        assert torch.equal(column(consumer.receive(step)), torch.full((3,), float(step)))
        thread.join()
    assert producer.bytes_sent > 0


def test_the_loss_of_one_group_does_not_end_what_another_sends() -> None:
    hub: dict[int, MemoryDataPlane] = {}
    transports = [MemoryDataPlane(job_rank, {}, hub) for job_rank in range(3)]
    routes = [Route("a -> c", "a", "c"), Route("b -> c", "b", "c")]

    def channel(number: int, job_rank: int) -> Channel:
        sides = RouteSide(ONE, number), RouteSide(ONE, 2)
        return Channel(RouteContext(routes[number], *sides, transports[job_rank], number * 8))

    transports[2].on_peer_ended(0, "is gone")
    channel(1, 1).send(Batch({"x": torch.ones(3)}), 1)
    assert torch.equal(column(channel(1, 2).receive(1)), torch.ones(3))
    with pytest.raises(PeerLost, match="job rank 0 is gone"):
        channel(0, 2).receive(1)
