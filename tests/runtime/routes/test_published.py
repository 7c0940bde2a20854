"""Producers of one node publish small batches without waiting for one another, and every consumer receives
every sample once, also in steps in which only some of the producers publish theirs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, RouteContext, RouteSide
from meshctl.runtime.routes.published import PUBLISHED_MAX_BYTES, PublishedChannel, channel_for
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.samples import RouteError
from tests.hang import HANG_S
from tests.runtime.routes.test_random_steps import run_on_sockets

PRODUCERS, CONSUMERS, SLOTS = 3, 2, 2
MESHES = DeviceMesh.from_sizes(dp_size=PRODUCERS), DeviceMesh.from_sizes(dp_size=CONSUMERS)
Make = Callable[[int, int], Any]
"""(Rank of the producer, step) -> its value."""


def received(make: Make, steps: int, route: Route = Route("a -> b", "a", "b")) -> dict[int, list[Any]]:
    """Returns the values of each consumer, copied. Consumers take each step when it comes."""
    done = threading.Barrier(PRODUCERS + CONSUMERS, timeout=HANG_S)

    def send(channel: Channel, rank: int) -> None:
        assert isinstance(channel, PublishedChannel)
        for step in range(steps):
            channel.send(make(rank, step), step)
        done.wait()

    def take(channel: Channel, rank: int) -> list[Any]:
        found = []
        for step in range(steps):
            value = channel.receive(step).value
            found.append(value.clone() if isinstance(value, Batch) else value)
        done.wait()
        return found

    return run_on_sockets(route, *MESHES, send, take, "all", SLOTS)


def numbers(rows: int, first: int, width: int = 1) -> Tensor:
    return torch.arange(first, first + rows)[:, None].expand(rows, width).contiguous()


def batch_of(rows: int, first: int, width: int = 1, **more: Any) -> Batch:
    """A batch each of whose values is the number of its sample."""
    columns = {"x": numbers(rows, first, width), "y": numbers(rows, first)[:, 0].float(), **more}
    return Batch(columns, ids=torch.arange(first, first + rows))


def check(parts: Sequence[Batch], given: Sequence[Batch]) -> None:
    """Checks that the consumers have all samples of the producers, evenly and in the order of their ids, with
    their values."""
    ids = torch.cat([part.ids[:, 0] for part in parts])
    assert ids.tolist() == sorted(id for batch in given for id in batch.ids[:, 0].tolist())
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        rows = part["x"].rows() if isinstance(part["x"], Ragged) else part["x"]
        for row, y, id in zip(rows, part["y"], part.ids[:, 0], strict=True):
            assert bool((row == id).all()) and y == id


def check_steps(make: Make, steps: int) -> None:
    found = received(make, steps)
    for step in range(steps):
        given = [make(rank, step) for rank in range(PRODUCERS)]
        check([found[rank][step] for rank in range(CONSUMERS)], given)


def test_steady_steps_arrive_with_their_own_values() -> None:
    check_steps(lambda rank, step: batch_of(7, 100 * step + 7 * rank), 9)


def test_steady_producers_publish_their_rows_once_for_all_consumers() -> None:
    sent: list[int] = []

    def send(channel: Channel, rank: int) -> None:
        for step in range(6):
            channel.bytes_sent = 0
            channel.send(batch_of(7, 100 * step + 7 * rank), step)
        sent.append(channel.bytes_sent)

    def take(channel: Channel, rank: int) -> list[Any]:
        return [channel.receive(step) for step in range(6)]

    run_on_sockets(Route("a -> b", "a", "b"), *MESHES, send, take, "all", SLOTS)
    assert sent == [2 * 64] * PRODUCERS  # 56 and 28 bytes, each at a multiple of 64


@pytest.mark.parametrize("odd", range(PRODUCERS))
@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2, 3, 5, 6], []])
def test_a_producer_that_changes_sends_while_others_publish(odd: int, rows: list[int]) -> None:
    """In steps 3 and 6 one producer has fewer rows, listed ids, or no rows."""

    def make(rank: int, step: int) -> Batch:
        batch = batch_of(7, 100 * step + 7 * rank)
        return batch.take(rows) if rank == odd and step in (3, 6) else batch

    check_steps(make, 9)


@pytest.mark.parametrize("how", ["words", "ragged", "width", "large"])
def test_producers_that_change_together_send(how: str) -> None:
    """In steps 3 and 6 all producers have another column, ragged rows, wider rows or very large ones."""

    def make(rank: int, step: int) -> Batch:
        first = 100 * step + 7 * rank
        if step not in (3, 6):
            return batch_of(7, first)
        if how == "words":
            return batch_of(7, first, z=["word"] * 7)
        if how == "ragged":
            rows = [torch.full((2 + row % 2,), first + row) for row in range(7)]
            return batch_of(7, first).with_columns(x=Ragged.of(rows))
        return batch_of(7, first, 3 if how == "width" else PUBLISHED_MAX_BYTES // 8)

    check_steps(make, 9)


def test_larger_batches_get_larger_memory() -> None:
    check_steps(lambda rank, step: batch_of(7, 100 * step + 7 * rank, 1 << step // 3 * 4), 12)


def test_numbers_travel_in_the_headers() -> None:
    found = received(lambda rank, step: float(rank + step), 8, Route("a -> b", "a", "b", collect="sum"))
    assert found == {rank: [float(3 + 3 * step) for step in range(8)] for rank in range(CONSUMERS)}


def test_a_stream_ends_when_the_last_producer_has_ended() -> None:
    """Producer 0 ends after 4 steps, producer 1 after 5, producer 2 after 6."""
    ended: dict[int, list[bool]] = {}

    def send(channel: Channel, rank: int) -> None:
        ended[rank] = []
        for step in range(7):
            value = batch_of(8, 100 * step + 8 * rank) if step < 4 + rank else END
            ended[rank].append(channel.send(value, step))

    def take(channel: Channel, rank: int) -> list[Any]:
        return [channel.receive(step).value for step in range(7)]

    found = run_on_sockets(Route("a -> b", "a", "b"), *MESHES, send, take, "all", SLOTS)
    assert ended == dict.fromkeys(range(PRODUCERS), [False] * 6 + [True])
    for values in found.values():
        assert [len(value) for value in values[:6]] == [12, 12, 12, 12, 8, 4]
        assert values[6] is END


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_producer_runs_ahead_of_the_others_as_far_as_there_are_slots(slots: int) -> None:
    """While producer 2 does nothing, the others send as many further steps as there are slots."""
    ahead = threading.Barrier(PRODUCERS, timeout=HANG_S)

    def send(channel: Channel, rank: int) -> None:
        for step in range(8):
            if step == 3 and rank < PRODUCERS - 1:
                for more in range(slots):
                    channel.send(batch_of(7, 100 * (3 + more) + 7 * rank), 3 + more)
                ahead.wait()
            if step == 3 and rank == PRODUCERS - 1:
                ahead.wait()  # the others have come so far without this one
            if step < 3 or rank == PRODUCERS - 1 or step >= 3 + slots:
                channel.send(batch_of(7, 100 * step + 7 * rank), step)

    def take(channel: Channel, rank: int) -> list[Any]:
        return [channel.receive(step).value.clone() for step in range(8)]

    found = run_on_sockets(Route("a -> b", "a", "b"), *MESHES, send, take, "all", slots)
    for step in range(8):
        given = [batch_of(7, 100 * step + 7 * rank) for rank in range(PRODUCERS)]
        check([found[rank][step] for rank in range(CONSUMERS)], given)


def test_a_producer_waits_where_a_consumer_has_taken_none_of_its_slots() -> None:
    sent = [0] * PRODUCERS
    may_take = threading.Event()

    def send(channel: Channel, rank: int) -> None:
        for step in range(8):
            channel.send(batch_of(7, 100 * step + 7 * rank), step)
            sent[rank] += 1

    def take(channel: Channel, rank: int) -> list[Any]:
        found = [channel.receive(step).value.clone() for step in range(3)]
        if rank:
            assert may_take.wait(HANG_S)
        else:
            while min(sent) < 3 + SLOTS:
                time.sleep(0.001)
            time.sleep(0.05)
            assert sent == [3 + SLOTS] * PRODUCERS
            may_take.set()
        return [*found, *(channel.receive(step).value.clone() for step in range(3, 8))]

    run_on_sockets(Route("a -> b", "a", "b"), *MESHES, send, take, "all", SLOTS)


def test_too_few_samples_are_an_error_of_the_producer_that_has_fewer() -> None:
    def send(channel: Channel, rank: int) -> None:
        for step in range(5):
            rows = 7 if step < 4 else int(not rank)
            channel.send(batch_of(7, 100 * step + 7 * rank).take(range(rows)), step)

    def take(channel: Channel, rank: int) -> list[Any]:
        return [channel.receive(step).value.clone() for step in range(5)]

    with pytest.raises(RouteError, match="1 sample"):
        run_on_sockets(Route("a -> b", "a", "b"), *MESHES, send, take, "all", SLOTS)


@pytest.mark.parametrize("dispatch", [Dispatch(balance="tokens"), Dispatch(home="c")])
def test_parts_that_depend_on_the_samples_are_not_published(dispatch: Dispatch) -> None:
    sides = RouteSide(MESHES[0], 0, group="a"), RouteSide(MESHES[1], PRODUCERS, group="b")
    route = Route("a -> b", "a", "b", dispatch=dispatch)
    assert type(channel_for(RouteContext(route, *sides, DataPlane(Context(0))))) is Channel
