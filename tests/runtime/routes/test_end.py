"""Every kind of route end satisfies the protocol `RouteEnd`, including one that is defined here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Queue
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import Received, RouteContext, RouteEnd, RouteSide
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from tests.runtime.memory import MemoryDataPlane

ONE = DeviceMesh.from_sizes(dp_size=1)


class QueueEnd:
    """Both ends of a route in one process: a queue of (generation, step, value)."""

    def __init__(self, route: Route, queue: Queue[tuple[int, int, Any]]) -> None:
        self.route, self.bytes_sent = route, 0
        self._queue, self._generation, self._last = queue, 0, 1 << 30

    def open(self, step: int) -> None:
        pass

    def due(self, step: int) -> bool:
        return not self._queue.empty()

    def send(self, value: Any, step: int, weight: float = 1.0) -> bool:
        self._queue.put((self._generation, step, value))
        self.bytes_sent += 1
        return False

    def receive(self, step: int) -> Received:
        while True:
            generation, sent, value = self._queue.get()
            if generation >= self._generation and sent <= self._last:
                return Received(value, sent_step=sent)

    def reopen(self, generation: int) -> None:
        self._generation = generation

    def close(self, last: int) -> None:
        self._last = last


Pair = tuple[RouteEnd, RouteEnd]
"""The ends of the producer and of the consumer."""


def contexts(route: Route) -> list[RouteContext]:
    hub: dict[int, MemoryDataPlane] = {}
    return [
        RouteContext(route, RouteSide(ONE, 0), RouteSide(ONE, 1), MemoryDataPlane(job_rank, {}, hub))
        for job_rank in range(2)
    ]


def queue_pair() -> Pair:
    route, queue = Route("a -> b", "a", "b"), Queue[tuple[int, int, Any]]()
    return QueueEnd(route, queue), QueueEnd(route, queue)


def data_pair() -> Pair:
    producer, consumer = map(Channel, contexts(Route("a -> b", "a", "b")))
    return producer, consumer


def weight_pair() -> Pair:
    producer, consumer = contexts(Route("s", "s", "s", kind="weights"))
    weights = {"x": torch.zeros(3)}
    return WeightChannel(producer, lambda: weights, None), WeightChannel(consumer, None, lambda: {})


PAIRS: dict[str, tuple[Callable[[], Pair], Callable[[Tensor], Any]]] = {
    "queue": (queue_pair, lambda x: {"x": x}),
    "data": (data_pair, lambda x: Batch({"x": x})),
    "weights": (weight_pair, lambda x: {"x": x}),
}


def background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def opened(kind: str) -> tuple[Pair, Callable[[Tensor], Any]]:
    make, value = PAIRS[kind]
    producer, consumer = make()
    thread = background(lambda: producer.open(0))
    consumer.open(0)
    thread.join()
    return (producer, consumer), value


def column(received: Received) -> Tensor:
    """Returns the column, entry or weight `x` of a value."""
    value = received.value
    found: Tensor = value["x"] if isinstance(value, (dict, Batch)) else dict(value)["x"]
    return found


def announce(consumer: RouteEnd, kind: str, step: int) -> None:
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
    assert producer.bytes_sent > 0 and not consumer.due(2)
    producer.close(2)
    consumer.close(2)


@pytest.mark.parametrize("kind", PAIRS)
def test_what_an_older_generation_sent_is_dropped(kind: str) -> None:
    (producer, consumer), value = opened(kind)
    first = background(lambda: producer.send(value(torch.zeros(3)), 1))
    announce(consumer, kind, 1)
    first.join()
    producer.reopen(1)
    consumer.reopen(1)
    second = background(lambda: producer.send(value(torch.ones(3)), 1))
    announce(consumer, kind, 1)
    assert torch.equal(column(consumer.receive(1)), torch.ones(3))
    second.join()


def test_a_generation_that_nobody_announced_is_refused() -> None:
    (producer, consumer), value = opened("data")
    producer.reopen(1)
    producer.send(value(torch.ones(3)), 1)
    with pytest.raises(PeerLost, match="job rank 0 sent another layout"):
        consumer.receive(1)


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
