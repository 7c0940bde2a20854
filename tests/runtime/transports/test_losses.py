"""Peers that leave, are stopped or die, over each transport; and peers on another node."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from meshctl.network.addresses import address_towards
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes import sync_plan, weights
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.frames import Frame, tensor_of
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.runtime.transports.peers import Kind
from meshctl.runtime.transports.tcp import connection
from meshctl.runtime.transports.tcp import transport as tcp_transport
from meshctl.runtime.transports.tcp.transport import TcpTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.hang import HANG_S
from tests.runtime.hostile_world import (
    BACK,
    KINDS,
    SIZES,
    TAG,
    Impostor,
    Worker,
    World,
    message,
    pattern,
    send_frame,
)

pytestmark = pytest.mark.slow
both = pytest.mark.parametrize("kind", KINDS)
LARGE = torch.arange(1 << 20)
"""8 MiB, which is more than the socket of a stopped receiver buffers."""


# Ends


@pytest.mark.parametrize("late", [True, False])
def test_frames_of_a_peer_that_has_ended_in_order_are_still_received(late: bool) -> None:
    frames = 6

    def consumer(worker: Worker) -> list[int]:
        got = [int(tensor_of(worker.transport.receive(1, TAG).frame)[0])]
        worker.way.credit(1, TAG)  # stays unread: its end comes as a reset
        worker.report("took one")
        if late:
            worker.receive()
        got += [int(tensor_of(worker.transport.receive(1, TAG).frame)[0]) for _ in range(frames - 1)]
        with pytest.raises(PeerLost, match="job rank 1 has ended"):
            worker.transport.receive(1, TAG)
        worker.transport.close()
        return got

    def leaver(worker: Worker) -> None:
        impostor = Impostor(worker.addresses[0])
        for number in range(frames):
            impostor.frame(TAG, bytes([number]))
        assert impostor.receive()[0] == Kind.CREDIT
        impostor.send(message(Kind.GOODBYE))
        worker.receive()
        os._exit(0)

    with World(consumer, leaver, slots={TAG: frames}) as world:
        assert world.receive(0) == "took one"
        world.notify(1)
        assert world.status(1) == 0
        if late:
            world.notify(0)
        assert world.results(0) == [list(range(frames))]


def test_a_peer_that_died_before_the_handshake_is_named() -> None:
    def consumer(worker: Worker) -> None:
        worker.receive()
        late = DataPlane(Context(0))
        LocalTransport(late, "token").connect({1: worker.addresses[1]})
        late.receive(1, TAG)

    with World(consumer, lambda worker: None) as world:
        world.kill(1)
        world.status(1)
        world.notify(0)
        assert world.ends(0)[:2] == ["PeerLost", "job rank 1 is gone"]


@both
def test_a_job_rank_may_send_its_first_message_while_the_other_leaves(kind: str) -> None:
    """The message belongs to the step in which a stream has ended. The store knows that the rank has left."""

    def leaver(worker: Worker) -> bool:
        worker.transport.send(1, TAG, Frame("heard"))
        worker.receive()
        worker.transport.close()
        return True

    def sender(worker: Worker) -> bool:
        assert worker.transport.receive_value(0, TAG) == "heard"
        worker.report("heard")
        worker.receive()
        worker.transport.send(0, TAG, Frame("dropped"))
        worker.transport.close()
        return True

    with World(leaver, sender, has_left=lambda job_rank: True, kind=kind) as world:
        assert world.receive(1) == "heard"
        world.notify(0)
        assert world.is_silent(0, 0.2)
        world.notify(1)
        assert world.results() == [True, True]


@both
@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("has_left", [True, False])
def test_a_peer_that_has_left_without_reading_is_not_lost(
    kind: str, is_connected: bool, has_left: bool
) -> None:
    """A rank that knows the end of a stream leaves while another one begins to tell it."""

    def sender(worker: Worker) -> bool:
        if is_connected:
            send_frame(worker, (1,), pattern(10, 0))
            worker.report("sent")
        worker.receive()
        send_frame(worker, (1,), pattern(10, 1))
        worker.transport.close()
        return True

    def quitter(worker: Worker) -> None:
        worker.receive()
        os._exit(0)

    with World(sender, quitter, has_left=lambda job_rank: has_left, kind=kind) as world:
        if is_connected:
            assert world.receive(0) == "sent"
        world.notify(1)
        assert world.status(1) == 0
        world.notify(0)
        if has_left:
            assert world.results(0) == [True]
        else:
            name, text, _ = world.ends(0)
            assert name == "PeerLost"
            assert text.startswith(("job rank 1 is gone", "job rank 1 cannot be reached at 127.0.0.1:"))


@both
def test_a_waiting_peer_learns_which_peer_the_other_has_lost(kind: str) -> None:
    """Job rank 2 waits for 1, which waits for 0. Only 1 is connected to 0."""

    def dies(worker: Worker) -> None:
        send_frame(worker, (1,), pattern(10, 0))
        worker.receive()

    def between(worker: Worker) -> None:
        worker.transport.receive(0, TAG)
        send_frame(worker, (2,), pattern(10, 0))
        worker.report("given")
        try:
            worker.transport.receive(0, TAG)
        except PeerLost as lost:
            worker.transport.announce_loss(lost)
            raise

    def last(worker: Worker) -> None:
        worker.transport.receive(1, BACK - 1)
        worker.transport.receive(1, BACK)

    with World(dies, between, last, route_of="lane {}".format, kind=kind) as world:
        assert world.receive(1) == "given"
        world.kill(0)
        assert world.ends(1)[:2] == ["PeerLost", f"job rank 0 is gone, and `lane {TAG}` waits for it"]
        assert world.ends(2)[:2] == [
            "PeerLost",
            f"job rank 0 is lost, as job rank 1 reported, and `lane {BACK}` waits for it",
        ]


@both
def test_a_stopped_peer_goes_on(kind: str) -> None:
    steps = 1000

    def producer(worker: Worker) -> bool:
        for step in range(steps):
            send_frame(worker, (1,), pattern(SIZES[step % 8], step))
            if step == 10:
                worker.report("begun")
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        for step in range(steps):
            frame = tensor_of(worker.transport.receive(0, TAG).frame)
            assert step % 50 or torch.equal(frame, pattern(SIZES[step % 8], step))
        worker.transport.close()
        return True

    with World(producer, consumer, kind=kind) as world:
        assert world.receive(0) == "begun"
        for job_rank in (0, 1):
            world.kill(job_rank, signal.SIGSTOP)
            time.sleep(0.2)
            world.kill(job_rank, signal.SIGCONT)
        assert world.results() == [True, True]


# Deaths


@both
@pytest.mark.parametrize("size", [1, len(LARGE)], ids=["small", "large"])
def test_a_producer_that_is_killed_is_named_though_its_data_loader_lives_on(kind: str, size: int) -> None:
    def producer(worker: Worker) -> None:
        worker.transport.send(1, TAG, Frame(LARGE[:size]))
        if not os.fork():
            worker.receive()
            os._exit(0)
        while True:
            worker.transport.send(1, TAG, Frame(LARGE[:size]))

    def consumer(worker: Worker) -> None:
        worker.transport.receive(0, TAG)
        worker.report("took one")
        while True:
            worker.transport.receive(0, TAG)

    with World(producer, consumer, kind=kind) as world:
        assert world.receive(1) == "took one"
        world.kill(0)
        assert world.ends(1)[:2] == ["PeerLost", "job rank 0 is gone"]


@both
@pytest.mark.parametrize("is_stopped", [False, True], ids=["killed", "stopped, then killed"])
def test_a_consumer_that_is_killed_is_named(kind: str, is_stopped: bool) -> None:
    """Also in a producer that waits for a slot while most of a frame is in transit."""

    def producer(worker: Worker) -> None:
        worker.transport.send(1, TAG, Frame(0))
        worker.receive()
        for number in range(2):
            worker.transport.send(1, TAG, Frame([number, LARGE]))
        worker.report("sent")
        worker.transport.send(1, TAG, Frame(3))

    def consumer(worker: Worker) -> None:
        worker.transport.receive(0, TAG)
        worker.report("taken")
        worker.receive()

    with World(producer, consumer, kind=kind) as world:
        assert world.receive(1) == "taken"
        if is_stopped:
            world.kill(1, signal.SIGSTOP)
        world.notify(0)
        assert world.receive(0) == "sent"
        world.kill(1)
        assert world.ends(0)[:2] == ["PeerLost", "job rank 1 is gone"]


def dies_after(worker: Worker, messages: int) -> None:
    """Kills this process between two messages, after it has sent or received this many."""
    way, left = worker.way, [messages]
    push, dispatch = way.send_queue.push, way.dispatch

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def sent(*args: object) -> None:
        count()
        push(*args)

    def dispatched(*args: object) -> None:
        dispatch(*args)
        count()

    way.send_queue.push, way.dispatch = sent, dispatched


def batch_of(rank: int) -> Batch:
    """Returns a batch that is so large and uneven that both producers write every part into a shared frame."""
    ids = torch.arange(rank * 16, rank * 16 + 16)
    lengths = [500 + 1000 * ((7 * row + rank) % 5) for row in range(16)]
    return Batch({"tokens": Ragged.of([torch.full((length,), length) for length in lengths])}, ids=ids)


def at_work(job_rank: int, victim: int, messages: int) -> Callable[[Worker], int]:
    """A worker of a route from job ranks 0 and 1 to 2 and 3. The victim dies after some messages, and workers that
    lose a peer end too."""

    def run(worker: Worker) -> None:
        mesh, route = (
            DeviceMesh.from_sizes(dp_size=2),
            Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens")),
        )
        sides = RouteSide(mesh, 0, group="a"), RouteSide(mesh, 2, group="b")
        channel = Channel(RouteContext(route, *sides, worker.transport))
        for step in range(10_000):
            if job_rank < 2:
                channel.send(batch_of(job_rank), step, 16)
            else:
                rows = channel.receive(step).value["tokens"].rows()
                assert all(len(row) == int(row[0]) == int(row[-1]) for row in rows)

    def work(worker: Worker) -> int:
        if job_rank == victim:
            dies_after(worker, messages)
        try:
            run(worker)
        except PeerLost as lost:
            worker.report(["PeerLost", str(lost), time.monotonic()])
            os._exit(1)
        return 0

    return work


@pytest.mark.parametrize("victim", [0, 1, 2, 3], ids=["leader", "writer", "consumer", "other consumer"])
@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow_suite) for seed in (1, 2, 4, 5))]
)
def test_a_death_between_any_two_messages_ends_all_who_wait(victim: int, seed: int) -> None:
    messages = 1 + random.Random(100 * victim + seed).randrange(seed * 8, seed * 8 + 8)
    with World(*[at_work(job_rank, victim, messages) for job_rank in range(4)]) as world:
        assert world.status(victim) == -signal.SIGKILL
        ends = {job_rank: world.ends(job_rank) for job_rank in range(4) if job_rank != victim}
        ended = {victim: 0.0, **{job_rank: when for job_rank, (_, _, when) in ends.items()}}
        for job_rank, (name, text, when) in ends.items():
            assert name == "PeerLost" and text.endswith(" is gone"), (messages, ends)
            named = int(text.split()[2])  # who does not wait for the victim itself hears of one that did
            assert ended[named] < when and named != job_rank, (messages, ends)
        assert f"job rank {victim} is gone" in [text for _, text, _ in ends.values()]


# Generations


OWN, A, B = range(3)
GROUPS = {OWN: "own", A: "a", B: "b"}
Make = Callable[..., tuple[DataPlane, Any]]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """`make(job_rank, a=1)` returns a data plane and its transport; group `a` has generation 1."""
    made: list[DataPlane] = []

    def one(job_rank: int, a: int = 0) -> tuple[DataPlane, Any]:
        made.append(DataPlane(Context(job_rank, group_of=GROUPS.__getitem__, generations={"a": a})))
        return made[-1], KINDS[request.param](made[-1], "token")

    yield one
    for plane in made:
        plane.release()


def connect(*transports: Any) -> None:
    """Connects data planes. The job rank of each is its index."""
    for transport in transports:
        transport.connect({rank: other.address for rank, other in enumerate(transports)})


def loss_of(plane: DataPlane, peer: int = A) -> str:
    with pytest.raises(PeerLost) as lost:
        plane.receive_value(peer, TAG)
    return str(lost.value)


def test_a_loss_concerns_one_group_and_the_next_generation_is_accepted_and_the_older_one_refused(
    make: Make,
) -> None:
    (own, first), (a, second), (b, third) = make(OWN), make(A), make(B)
    connect(first, second, third)
    for plane in (a, b):
        plane.send(OWN, TAG, Frame("before"))
    assert own.receive_value(A, TAG) == "before"
    a.send(OWN, TAG, Frame("never taken"))
    a.release()
    while not own.losses:
        own.poll(0.01)
    assert own.receive_value(B, TAG) == "before"
    b.send(OWN, TAG, Frame("kept"))
    assert own.receive_value(B, TAG) == "kept"
    own.reopen("a", 1)
    with pytest.raises(ValueError, match="not newer"):
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
    next_a.release()
    assert [loss_of(own), loss_of(own)] == ["job rank 1 is gone"] * 2, "the loss is sticky"


def test_a_loss_that_a_peer_announces_ends_waits_for_that_peer_too(make: Make) -> None:
    (own, first), (_, second), (b, third) = make(OWN), make(A), make(B)
    connect(first, second, third)
    b.send(OWN, TAG, Frame("first"))
    assert own.receive_value(B, TAG) == "first"
    b.announce_loss(PeerLost("job rank 1 is gone", A))
    for peer in (A, B):
        assert loss_of(own, peer) == "job rank 1 is lost, as job rank 2 reported"


def test_leased_buffers_of_a_replaced_peer_come_back() -> None:
    planes = [DataPlane(Context(rank, group_of=GROUPS.__getitem__)) for rank in (OWN, A)]
    transports = [LocalTransport(plane, "token") for plane in planes]
    connect(*transports)
    lease = planes[OWN].lease((A,), TAG, 1 << 17)
    planes[OWN].deliver(lease)
    del lease
    arena = transports[OWN].pool.arena
    assert not arena.has((TAG, (A,)), 1)
    planes[OWN].reopen("a", 1)
    assert arena.has((TAG, (A,)), 1)
    for plane in planes:
        plane.release()


# Weights


@pytest.mark.parametrize("early", [True, False])
def test_a_sync_of_many_buckets_waits_for_a_late_consumer(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Two producers with a lag, which may be ahead by more frames than a tag has slots at first. With
    `early`, they send before the consumer knows the number of buckets."""
    monkeypatch.setattr(weights, "MAX_BUCKET_BYTES", GRAIN)
    monkeypatch.setattr(sync_plan, "MAX_JOINED_BYTES", GRAIN)
    held = {f"w{number}": torch.full((4 * GRAIN // 8,), float(number)) for number in range(4)}
    lag, steps = 1, 5

    def channel_of(worker: Worker) -> WeightChannel:
        sides = RouteSide(DeviceMesh.from_sizes(dp_size=2), 0), RouteSide(DeviceMesh.from_sizes(), 2)
        context = RouteContext(Route("s", "s", "s", kind="weights"), *sides, worker.transport)
        if worker.job_rank == 2:
            return WeightChannel(context, None, lambda: {}, lag=lag)
        return WeightChannel(context, lambda: held, None, lag=lag)

    def producer(worker: Worker) -> bool:
        channel = channel_of(worker)
        channel.open()
        for step in range(steps):
            channel.send({name: tensor + step for name, tensor in held.items()}, step)
            if step == lag:
                worker.report("ahead")
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        channel, begin = channel_of(worker), WeightChannel._begin

        def late_begin(*words: Any) -> None:
            if not early:
                begin(*words)
            worker.receive()
            worker.poll()
            if early:
                begin(*words)

        monkeypatch.setattr(WeightChannel, "_begin", late_begin)
        channel.open()
        for step in range(steps):
            channel.send(None, step)
            while channel.due(step + lag * (step == steps - 1)):
                received = channel.receive(step)
                for name, tensor in received.value:
                    assert torch.equal(tensor, held[name] + received.sent_step)
        worker.transport.close()
        return True

    with World(producer, producer, consumer) as world:
        assert [world.receive(0), world.receive(1)] == ["ahead", "ahead"]
        world.notify(2)
        assert world.results(2) == [True]


# Sockets between nodes


def test_the_address_is_that_of_the_way_to_the_head_and_a_peer_that_cannot_be_reached_is_named() -> None:
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
    with suppress(OSError):  # a machine may have no IPv6 at all
        assert address_towards("[::1]", 1) == "::1"
    plane = DataPlane(Context(0, name_of="group:{}".format))
    with socket.socket() as deaf:  # it is bound, so that nobody else takes the port
        deaf.bind(("127.0.0.1", 0))
        _, port = deaf.getsockname()
        way = TcpTransport(plane, "token")
        way.connect({1: f"127.0.0.1 {port}"})
        assert way.address == f"127.0.0.1 {way._listener.getsockname()[1]}"
        with pytest.raises(PeerLost, match=f"group:1 cannot be reached at 127.0.0.1:{port}: .*refused"):
            plane.send(1, TAG, Frame(0))
    plane.release()


def test_a_stopped_consumer_between_nodes_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel still answers. The limit for a hang is decided elsewhere."""
    for module in (connection, tcp_transport):
        monkeypatch.setattr(module, "SILENCE_S", 1.0)
    plane = DataPlane(Context(0))
    way = TcpTransport(plane, "token")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        way.connect({1: "{} {}".format(*listener.getsockname())})
        plane.send(1, TAG, Frame([1, LARGE]))
        peer, _ = listener.accept()
        waiting = threading.Thread(target=lambda: plane.wait_until(lambda: bool(plane.losses)), daemon=True)
        waiting.start()
        waiting.join(4)
        assert waiting.is_alive() and way.is_sending
        peer.close()
        with suppress(PeerLost):
            waiting.join(HANG_S)
    plane.release()
