"""Peers on the same node that leave, are stopped or die."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest
import torch

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes import negotiation, sync_plan, weights
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.runtime.hostile_world import (
    BACK,
    SIZES,
    TAG,
    Impostor,
    Worker,
    World,
    pattern,
    send_frame,
)

pytestmark = pytest.mark.slow


# Ends


def leaving(frames: int, reads: bool) -> Callable[[Worker], None]:
    """A peer that sends some frames and goodbye, and exits. It leaves the messages of job rank 0 unread
    unless `reads` is set."""

    def work(worker: Worker) -> None:
        address = worker.local.address_of(0)
        impostor = Impostor(address)
        for number in range(frames):
            impostor.frame(TAG, bytes([number]))
        assert impostor.receive()[0] == Impostor.CREDIT
        impostor.send_message(Impostor.GOODBYE)
        worker.receive()
        if reads:
            for _ in range(frames - 1):
                impostor.receive()
        os._exit(0)

    return work


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_frames_of_a_peer_that_has_ended_in_order_are_still_received(reads: bool, late: bool) -> None:
    frames = 6

    def consumer(worker: Worker) -> list[int]:
        got = [int(worker.transport.receive(1, TAG).frame[0])]
        if not reads:
            worker.local.credit(1, TAG)  # stays unread: its end comes as a reset
        worker.report("took one")
        if late:
            worker.receive()
        got += [int(worker.transport.receive(1, TAG).frame[0]) for _ in range(frames - 1)]
        with pytest.raises(PeerLost, match="job rank 1 has ended"):
            worker.transport.receive(1, TAG)
        worker.transport.close()
        return got

    with World(consumer, leaving(frames, reads=False), slots={TAG: frames}) as world:
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
        LocalTransport(late, "token").connect({1: worker.local.address_of(1)})
        late.receive(1, TAG)

    with World(consumer, lambda worker: None) as world:
        world.kill(1)
        world.status(1)
        world.notify(0)
        assert world.ends(0)[:2] == ["PeerLost", "job rank 1 is gone"]


def test_an_unread_connection_receives_goodbye_at_the_end() -> None:
    """Its frame belongs to the step in which a stream has ended."""

    def producer(worker: Worker) -> bool:
        send_frame(worker, (1,), pattern(10, 0))
        worker.report("sent")
        worker.transport.close()
        return True

    def closer(worker: Worker) -> bool:
        worker.receive()
        worker.transport.close()
        return True

    with World(producer, closer) as world:
        assert world.receive(0) == "sent"
        world.notify(1)
        assert world.results() == [True, True]


@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("has_left", [True, False])
def test_a_peer_that_has_left_without_reading_is_not_lost(is_connected: bool, has_left: bool) -> None:
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

    with World(sender, quitter, has_left=lambda job_rank: has_left) as world:
        if is_connected:
            assert world.receive(0) == "sent"
        world.notify(1)
        assert world.status(1) == 0
        world.notify(0)
        if has_left:
            assert world.results(0) == [True]
        else:
            assert world.ends(0)[:2] == ["PeerLost", "job rank 1 is gone"]


def test_a_waiting_peer_learns_which_peer_the_other_has_lost() -> None:
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

    with World(dies, between, last, route_of="lane {}".format) as world:
        assert world.receive(1) == "given"
        world.kill(0)
        assert world.ends(1)[:2] == ["PeerLost", f"job rank 0 is gone, and `lane {TAG}` waits for it"]
        assert world.ends(2)[:2] == [
            "PeerLost",
            f"job rank 0 is lost, as job rank 1 reported, and `lane {BACK}` waits for it",
        ]


def test_a_stopped_peer_goes_on() -> None:
    steps = 2000

    def producer(worker: Worker) -> bool:
        for step in range(steps):
            send_frame(worker, (1,), pattern(SIZES[step % 8], step))
            if step == 10:
                worker.report("begun")
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        for step in range(steps):
            frame = worker.transport.receive(0, TAG).frame
            assert step % 50 or torch.equal(frame, pattern(SIZES[step % 8], step))
        worker.transport.close()
        return True

    with World(producer, consumer) as world:
        assert world.receive(0) == "begun"
        for job_rank in (0, 1):
            world.kill(job_rank, signal.SIGSTOP)
            time.sleep(0.2)
            world.kill(job_rank, signal.SIGCONT)
        assert world.results() == [True, True]


# Deaths


def dies_after(worker: Worker, messages: int) -> None:
    """Kills this process between two messages, after it has sent or received this many."""
    local, left = worker.local, [messages]
    transmit, dispatch = local.send_queue.transmit, local.dispatch

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def sent(*args: object) -> bool:
        count()
        return transmit(*args)  # type: ignore[arg-type]

    def dispatched(*args: object) -> None:
        dispatch(*args)  # type: ignore[arg-type]
        count()

    local.send_queue.transmit, local.dispatch = sent, dispatched  # type: ignore[method-assign]


def ragged_batch(rank: int) -> Batch:
    """Returns a batch that is so large and uneven that both producers write every part into a shared
    frame."""
    lengths = [500 + 1000 * ((7 * row + rank) % 5) for row in range(16)]
    return Batch(
        {"tokens": Ragged.of([torch.full((length,), length) for length in lengths])},
        ids=torch.arange(rank * 16, rank * 16 + 16),
    )


def small_batch(rank: int) -> Batch:
    return Batch({"tokens": torch.full((16, 4), rank)}, ids=torch.arange(rank * 16, rank * 16 + 16))


def channel_of(worker: Worker, dispatch: Dispatch) -> Channel:
    """Returns a channel from job ranks 0 and 1 to 2 and 3."""
    mesh = DeviceMesh.from_sizes(dp_size=2)
    sides = RouteSide(mesh, 0, group="a"), RouteSide(mesh, 2, group="b")
    return Channel(RouteContext(Route("a -> b", "a", "b", dispatch=dispatch), *sides, worker.transport))


def steady(job_rank: int, victim: int, steps: int) -> Callable[[Worker], int]:
    """A worker of a route of small batches. The victim dies after some steps, and workers that lose a peer end
    too."""

    def work(worker: Worker) -> int:
        channel = channel_of(worker, Dispatch())
        try:
            for step in range(10_000):
                if job_rank == victim and step == steps:
                    os.kill(os.getpid(), signal.SIGKILL)
                if job_rank < 2:
                    channel.send(small_batch(job_rank), step, 16)
                else:
                    assert bool((channel.receive(step).value["tokens"] == job_rank - 2).all())
        except PeerLost as lost:
            worker.report(["PeerLost", str(lost), time.monotonic()])
            os._exit(1)
        return 0

    return work


def at_work(job_rank: int, victim: int, messages: int) -> Callable[[Worker], int]:
    """A worker that sends or receives endlessly. The victim dies after some messages, and workers that lose a
    peer end too."""

    def steps(channel: Channel) -> None:
        for step in range(10_000):
            if job_rank < 2:
                channel.send(ragged_batch(job_rank), step, 16)
            else:
                tokens = channel.receive(step).value["tokens"]
                assert all(len(row) == int(row[0]) == int(row[-1]) for row in tokens.rows())

    def work(worker: Worker) -> int:
        if job_rank == victim:
            dies_after(worker, messages)
        try:
            steps(channel_of(worker, Dispatch(balance="tokens")))
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
    messages = random.Random(100 * victim + seed).randrange(seed * 8, seed * 8 + 8)
    with World(*[at_work(job_rank, victim, messages) for job_rank in range(4)]) as world:
        assert world.status(victim) == -signal.SIGKILL
        ends = {job_rank: world.ends(job_rank) for job_rank in range(4) if job_rank != victim}
        ended = {victim: 0.0, **{job_rank: when for job_rank, (_, _, when) in ends.items()}}
        for job_rank, (kind, text, when) in ends.items():
            assert kind == "PeerLost" and text.endswith(" is gone"), (messages, ends)
            named = int(text.split()[2])  # who does not wait for the victim itself hears of one that did
            assert ended[named] < when and named != job_rank, (messages, ends)
        assert f"job rank {victim} is gone" in [text for _, text, _ in ends.values()]


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
@pytest.mark.parametrize("steps", [0, 5])
def test_a_death_between_steps_ends_all_who_wait(victim: int, steps: int) -> None:
    with World(*[steady(job_rank, victim, steps) for job_rank in range(4)]) as world:
        assert world.status(victim) == -signal.SIGKILL
        for job_rank in set(range(4)) - {victim}:
            kind, text, _ = world.ends(job_rank)
            assert kind == "PeerLost" and text.endswith(" is gone")


# Weights


@pytest.mark.parametrize("early", [True, False])
def test_a_sync_of_many_buckets_waits_for_a_late_consumer(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Two producers with a lag, which may be ahead by more frames than a tag has slots at first. With
    `early`, one sends before the consumer knows the number of buckets."""
    monkeypatch.setattr(weights, "MAX_BUCKET_BYTES", GRAIN)
    monkeypatch.setattr(sync_plan, "MAX_JOINED_BYTES", GRAIN)
    held = {f"w{number}": torch.full((4 * GRAIN // 8,), float(number)) for number in range(4)}
    lag = 1
    steps = 5

    def channel_of(worker: Worker) -> WeightChannel:
        sides = RouteSide(DeviceMesh.from_sizes(dp_size=2), 0), RouteSide(DeviceMesh.from_sizes(), 2)
        context = RouteContext(Route("s", "s", "s", kind="weights"), *sides, worker.transport)
        if worker.job_rank == 2:
            return WeightChannel(context, None, lambda: {}, lag=lag)
        return WeightChannel(context, lambda: held, None, lag=lag)

    def producer(worker: Worker) -> bool:
        channel = channel_of(worker)
        if (
            worker.job_rank == 0 and early
        ):  # announces the buckets to the consumer; the other producer continues
            send = negotiation._send
            monkeypatch.setattr(negotiation, "_send", lambda *words: (worker.receive(), send(*words)))
        for step in range(steps):
            if not step:
                channel.open(0)
            channel.send({name: tensor + step for name, tensor in held.items()}, step)
            if step == lag:
                worker.report("ahead")
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        channel = channel_of(worker)
        channel.open(0)
        worker.receive()
        worker.poll()
        for step in range(steps):
            channel.send(None, step)
            while channel.due(step + lag * (step == steps - 1)):
                received = channel.receive(step)
                for name, tensor in received.value:
                    assert torch.equal(tensor, held[name] + received.sent_step)
        worker.transport.close()
        return True

    with World(producer, producer, consumer) as world:
        if early:
            assert world.receive(1) == "ahead"
            time.sleep(0.2)
            world.notify(0)
        world.notify(2)
        assert world.results(2) == [True]
