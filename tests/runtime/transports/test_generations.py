"""A loss concerns one peer group; a group is reopened with its next generation and the older one is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.runtime.transports.tcp.transport import TcpTransport

TAG = 4
OWN, A, B = range(3)
GROUPS = {OWN: "own", A: "a", B: "b"}
Make = Callable[..., tuple[DataPlane, Any]]


@pytest.fixture(params=[LocalTransport, TcpTransport], ids=["local", "tcp"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`make(job_rank, a=1)` returns a data plane and its transport; group `a` has generation 1."""
    made: list[Any] = []

    def one(job_rank: int, a: int = 0) -> tuple[DataPlane, Any]:
        plane = DataPlane(Context(job_rank, group_of=GROUPS.__getitem__, generations={"a": a}))
        transport = request.param(plane, "token")
        made.extend((plane, transport))
        return plane, transport

    yield one
    for one_made in made:
        one_made.release()


def connect(*transports: Any) -> None:
    """Connects data planes. The job rank of each is its index."""
    for transport in transports:
        transport.connect({rank: other.address for rank, other in enumerate(transports)})


def wait_for_loss(plane: DataPlane) -> str:
    with pytest.raises(PeerLost) as lost:
        plane.receive_value(A, TAG)
    return str(lost.value)


def test_a_loss_in_one_group_does_not_end_receives_from_another(make: Make) -> None:
    (own, first), (a, second), (b, third) = make(OWN), make(A), make(B)
    connect(first, second, third)
    a.send(OWN, TAG, Frame("from a"))
    b.send(OWN, TAG, Frame("from b"))
    assert own.receive_value(A, TAG) == "from a"
    a.release()
    assert wait_for_loss(own) == "job rank 1 is gone"
    assert own.receive_value(B, TAG) == "from b"
    b.send(OWN, TAG, Frame("more"))
    assert own.receive_value(B, TAG) == "more"
    assert wait_for_loss(own) == "job rank 1 is gone", "the loss is sticky"


def test_the_next_generation_is_accepted_and_the_older_one_refused(make: Make) -> None:
    (own, first), (a, second), (b, third) = make(OWN), make(A), make(B)
    connect(first, second, third)
    for plane in (a, b):
        plane.send(OWN, TAG, Frame("before"))
    assert own.receive_value(A, TAG) == "before"
    a.send(OWN, TAG, Frame("never taken"))
    b.send(OWN, TAG, Frame("kept"))
    a.release()
    assert [own.receive_value(B, TAG) for _ in range(2)] == ["before", "kept"]
    own.reopen("a", 1)
    (stale, late), (next_a, new) = make(A), make(A, a=1)
    connect(first, new, third)
    late.connect({OWN: first.address})
    stale.send(OWN, TAG, Frame("of the older generation"))
    next_a.send(OWN, TAG, Frame("after"))
    assert own.receive_value(A, TAG) == "after"
    own.send(A, TAG, Frame("back"))
    assert next_a.receive_value(OWN, TAG) == "back"
    b.send(OWN, TAG, Frame("still there"))
    assert own.receive_value(B, TAG) == "still there"
    assert not own.losses and not own.queued(A, TAG)


def test_a_loss_that_a_peer_announces_ends_waits_for_that_peer_too(make: Make) -> None:
    (own, first), (_, second), (b, third) = make(OWN), make(A), make(B)
    connect(first, second, third)
    b.send(OWN, TAG, Frame("first"))
    assert own.receive_value(B, TAG) == "first"
    b.announce_loss(PeerLost("job rank 1 is gone", A))
    for peer in (A, B):
        with pytest.raises(PeerLost, match="job rank 1 is lost, as job rank 2 reported"):
            own.receive_value(peer, TAG)


def test_a_generation_only_grows(make: Make) -> None:
    own, _ = make(OWN, a=2)
    for generation in (1, 2):
        with pytest.raises(ValueError, match="not newer"):
            own.reopen("a", generation)


def test_leased_buffers_of_a_replaced_peer_come_back() -> None:
    planes = [DataPlane(Context(rank, group_of=GROUPS.__getitem__)) for rank in (OWN, A)]
    transports = [LocalTransport(plane, "token") for plane in planes]
    connect(*transports)
    lease = planes[OWN].lease((A,), TAG, 1 << 17)
    planes[OWN].deliver(lease)
    del lease
    arena = transports[OWN].pool.arena
    assert (arena.stats().blocks, arena.stats().free) == (1, 0)
    planes[OWN].reopen("a", 1)
    assert (arena.stats().blocks, arena.stats().free) == (1, 1)
    for plane in planes:
        plane.release()
