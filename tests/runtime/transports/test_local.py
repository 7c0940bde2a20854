"""Frames between real processes of one node: each byte as it was written, nobody else's memory touched,
nothing left open or waiting."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes import negotiation, sync_plan
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.routes.weights import WeightChannel
from meshctl.runtime.transports.buffers import buffer_pool
from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, MAX_HELD
from meshctl.runtime.transports.data_plane import SLOTS, Context, DataPlane
from meshctl.runtime.transports.errors import BuffersHeld, PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.runtime.hostile_world import BACK, LANE, SIZES, Impostor, Worker, World, files_open, give, pattern

pytestmark = pytest.mark.slow


# Bytes


@pytest.mark.parametrize("takers", [1, 3])
def test_frames_of_all_sizes_come_as_they_were_to_all_who_get_them(takers: int) -> None:
    steps = len(SIZES) * 3

    def giver(worker: Worker) -> int:
        for step in range(steps):
            give(worker, range(1, 1 + takers), pattern(SIZES[step % len(SIZES)], step))
        worker.transport.close()
        return worker.local.pool.stats().nbytes

    def taker(worker: Worker) -> bool:
        kept: deque[tuple[int, Tensor]] = deque(maxlen=3)  # a frame stays as it is while the next ones come
        for step in range(steps):
            kept.append((step, worker.transport.receive(0, LANE).frame))
            assert all(
                torch.equal(frame, pattern(SIZES[number % len(SIZES)], number)) for number, frame in kept
            )
        kept.clear()
        worker.transport.close()
        return True

    with World(giver, *[taker] * takers) as world:
        assert world.gave(*range(1, 1 + takers)) == [True] * takers


@pytest.mark.parametrize("nbytes", [INLINE_MAX + 1, GRAIN])
def test_a_write_into_a_frame_that_was_received_ends_the_writer_and_no_other(nbytes: int) -> None:
    def giver(worker: Worker) -> None:
        give(worker, (1, 2), pattern(nbytes, 0))
        worker.hear()

    def vandal(worker: Worker) -> None:
        frame = worker.transport.receive(0, LANE).frame
        worker.say("reads")
        frame[len(frame) // 2] = 1

    def reader(worker: Worker) -> bool:
        frame = worker.transport.receive(0, LANE).frame
        worker.hear()
        return torch.equal(frame, pattern(nbytes, 0))

    with World(giver, vandal, reader) as world:
        assert world.hear(1) == "reads"
        assert world.status(1) == -signal.SIGSEGV
        world.tell(2)
        assert world.gave(2) == [True]


def test_a_receiver_that_gives_nothing_back_is_named_and_memory_stays_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer_pool, "RETURN_WAIT_S", 0.01)

    def giver(worker: Worker) -> list[Any]:
        try:
            for step in range(100):
                give(worker, (1,), pattern(GRAIN, step))
        except BuffersHeld as held:
            return [str(held), worker.local.pool.stats().nbytes <= 2 * GRAIN * (SLOTS + MAX_HELD + 1)]
        return []

    def keeper(worker: Worker) -> None:
        kept = []
        while True:
            kept.append(worker.transport.receive(0, LANE).frame)

    with World(giver, keeper) as world:
        assert world.gave(0) == [[f"place 1 still holds {SLOTS + MAX_HELD} of what it was lent", True]]


def test_several_write_one_frame_also_where_a_writer_is_one_of_those_who_get_it() -> None:
    nbytes, part = 3 * GRAIN, GRAIN
    takers = (1, 2, 3)  # 1 writes, too

    def teller(worker: Worker) -> bool:
        for step in range(20):
            lease = worker.transport.lease(takers, LANE, nbytes)
            for writer in (1, 4):
                worker.transport.invite(lease, writer, BACK)
            lease.frame[:part] = pattern(part, step)
            worker.transport.deliver(lease)
        return True

    def writer(index: int) -> Callable[[Worker], bool]:
        def work(worker: Worker) -> bool:
            for step in range(20):
                frame = worker.transport.receive(0, BACK).frame
                frame[index * part : (index + 1) * part] = pattern(part, step + index)
                for place in takers:
                    give(worker, (place,), torch.zeros(1, dtype=torch.uint8), LANE + 2 + index)
                if worker.place in takers:
                    assert right(worker, step)
            return True

        return work

    def right(worker: Worker, step: int) -> bool:
        frame = worker.transport.receive(0, LANE).frame
        for place, index in ((1, 1), (4, 2)):
            worker.transport.receive(place, LANE + 2 + index)
        return all(
            torch.equal(frame[index * part : (index + 1) * part], pattern(part, step + index))
            for index in range(3)
        )

    def taker(worker: Worker) -> bool:
        return all(right(worker, step) for step in range(20))

    with World(teller, writer(1), taker, taker, writer(2)) as world:
        assert world.gave() == [True] * 5


# Flow


def test_credits_bound_what_is_under_way_and_each_lane_has_its_own() -> None:
    def giver(worker: Worker) -> None:
        for tag in (LANE, BACK):
            for number in range(3 if tag == LANE else 2):
                give(worker, (1,), pattern(GRAIN, number), tag)
                worker.say([tag, number])
        give(worker, (1,), pattern(GRAIN, 9))
        worker.say("more")

    def taker(worker: Worker) -> None:
        worker.hear()
        worker.transport.receive(0, LANE)
        worker.hear()

    with World(giver, taker, slots={LANE: 3}) as world:
        said = [world.hear(0) for _ in range(5)]
        assert said == [[LANE, 0], [LANE, 1], [LANE, 2], [BACK, 0], [BACK, 1]]
        assert world.is_silent(0, 0.3)
        world.tell(1)
        assert world.hear(0) == "more"


def test_a_block_comes_back_after_the_last_derived_view_on_every_replica() -> None:
    def giver(worker: Worker) -> list[int]:
        numbers = []
        for _ in range(4):
            lease = worker.transport.lease((1, 2), LANE, GRAIN)
            numbers.append(lease.state.block.number)
            worker.transport.deliver(lease)
            del lease
            worker.hear()
            worker.look()
        return numbers

    def taker(worker: Worker) -> None:
        first = worker.transport.receive(0, LANE).frame
        view, array = first[3:5], first.numpy()[7:]
        del first
        worker.say("took")
        for kept in (view, array, None):
            worker.hear()
            if kept is None:
                box = [view, array]
                del view, array
                thread = threading.Thread(target=box.clear)
                thread.start()
                thread.join()
            worker.transport.receive(0, LANE)
            worker.say("took")

    def plain(worker: Worker) -> None:
        for _ in range(4):
            worker.transport.receive(0, LANE)

    with World(giver, taker, plain) as world:
        for step in range(4):
            assert world.hear(1) == "took"
            world.tell(0)
            if step < 3:
                time.sleep(0.1)
                world.tell(1)
        [numbers] = world.gave(0)
    assert numbers[1] != numbers[0] and numbers[2] == numbers[1], (
        "the first block is held, the second came back"
    )


def test_the_garbage_collector_may_run_in_the_middle_of_anything() -> None:
    steps = 80

    class Keeper:
        def __init__(self, frame: Tensor) -> None:
            self.frame, self.me = frame, self

    def giver(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            give(worker, (0, 1), pattern(SIZES[step % len(SIZES)], step))
            own = worker.transport.receive(0, LANE).frame
            assert torch.equal(own, pattern(SIZES[step % len(SIZES)], step))
            Keeper(own)
            Keeper(worker.transport.receive(1, BACK).frame)
        worker.transport.close()
        return worker.local.pool.stats().nbytes == 0

    def taker(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            frame = worker.transport.receive(0, LANE).frame
            assert torch.equal(frame, pattern(SIZES[step % len(SIZES)], step))
            Keeper(frame)
            give(worker, (0,), pattern(INLINE_MAX + 1 + step, step), BACK)
        worker.transport.close()
        return True

    with World(giver, taker) as world:
        assert world.gave() == [True, True]


def test_a_peer_that_does_not_read_stops_neither_who_sends_to_it_nor_the_frames_of_others() -> None:
    count = 10_000

    def giver(worker: Worker) -> float:
        begin = time.monotonic()
        for number in range(count):
            give(worker, (1,), torch.tensor([number % 251], dtype=torch.uint8))
        took = time.monotonic() - begin
        worker.say("sent to 1")
        for number in range(count):
            give(worker, (2,), torch.tensor([number % 251], dtype=torch.uint8))
        give(worker, (2,), pattern(GRAIN, 0), BACK)
        worker.say("sent to 2")
        worker.transport.close()
        return took

    def taker(worker: Worker) -> bool:
        worker.hear()
        for number in range(count):
            assert worker.transport.receive(0, LANE).frame.tolist() == [number % 251]
        worker.say("got all")
        if worker.place == 2:
            assert torch.equal(worker.transport.receive(0, BACK).frame, pattern(GRAIN, 0))
        worker.transport.close()
        return True

    with World(giver, taker, taker, slots={LANE: count}) as world:
        assert [world.hear(0), world.hear(0)] == ["sent to 1", "sent to 2"]
        world.tell(2)  # while 1 still reads nothing
        assert world.hear(2) == "got all"
        world.tell(1)
        assert world.hear(1) == "got all"
        world.gave()


def test_what_is_said_while_a_backlog_is_sent_is_not_forgotten() -> None:
    """Views die, and are given back, on one thread while another sends what a full socket did not take."""
    steps, count = 10, 3000

    def giver(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                give(worker, (1,), torch.tensor([number % 251], dtype=torch.uint8))
            assert worker.transport.receive(1, BACK).frame.tolist() == [step]
        return True

    def taker(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                assert worker.transport.receive(0, LANE).frame.tolist() == [number % 251]
            give(worker, (0,), torch.tensor([step], dtype=torch.uint8), BACK)
        return True

    with World(giver, taker, slots={LANE: count}) as world:
        assert world.gave() == [True, True]


def names_in_memory() -> set[str]:
    """The named shared memory of this machine, except a browser's, which another test may run meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(".")}


def test_nothing_stays_open_and_nothing_has_a_name() -> None:
    before = names_in_memory()

    def steps(worker: Worker, count: int) -> None:
        for step in range(count):
            nbytes = 1 + step % 50 * 3000 + step * 40
            if worker.place:
                frame = worker.transport.receive(0, LANE).frame
                assert frame[-1] == step % 251
                give(worker, (0,), frame[:1].clone(), BACK)
            else:
                give(worker, (1,), torch.full((nbytes,), step % 251, dtype=torch.uint8))
                worker.transport.receive(1, BACK)

    def work(worker: Worker) -> list[int]:
        fresh = files_open()
        steps(worker, 560)
        gc.collect()
        # of both lanes, as many blocks as a slow machine may ever need, ours and those of the other; their
        # sockets, too
        assert len(files_open()) - len(fresh) <= 4 * (SLOTS + MAX_HELD), files_open()
        worker.transport.close()
        gc.collect()
        left = files_open()
        for one in fresh:
            if one in left:
                left.remove(one)
        return left

    with World(work, work) as world:
        assert world.gave() == [[], []]
        assert names_in_memory() <= before


# Ends


def leaving(frames: int, reads: bool) -> Callable[[Worker], None]:
    """A peer that says some frames and goodbye, and is gone; with what place 0 said unread, unless it reads."""

    def work(worker: Worker) -> None:
        address = worker.local.address_of(0)
        impostor = Impostor(address)
        for number in range(frames):
            impostor.frame(LANE, bytes([number]))
        assert impostor.hear()[0] == Impostor.CREDIT
        impostor.say(Impostor.GOODBYE)
        worker.hear()
        if reads:
            for _ in range(frames - 1):
                impostor.hear()
        os._exit(0)

    return work


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_frames_of_a_peer_that_has_ended_in_order_are_still_received(reads: bool, late: bool) -> None:
    frames = 6

    def taker(worker: Worker) -> list[int]:
        got = [int(worker.transport.receive(1, LANE).frame[0])]
        if not reads:
            worker.local.credit(1, LANE)  # stays unread: its end comes as a reset
        worker.say("took one")
        if late:
            worker.hear()
        got += [int(worker.transport.receive(1, LANE).frame[0]) for _ in range(frames - 1)]
        with pytest.raises(PeerLost, match="place 1 has ended"):
            worker.transport.receive(1, LANE)
        worker.transport.close()
        return got

    with World(taker, leaving(frames, reads=False), slots={LANE: frames}) as world:
        assert world.hear(0) == "took one"
        world.tell(1)
        assert world.status(1) == 0
        if late:
            world.tell(0)
        assert world.gave(0) == [list(range(frames))]


def test_a_peer_that_died_before_it_was_met_is_named() -> None:
    def taker(worker: Worker) -> None:
        worker.hear()
        late = DataPlane(Context(0))
        LocalTransport(late, "token").connect({1: worker.local.address_of(1)})
        late.receive(1, LANE)

    with World(taker, lambda worker: None) as world:
        world.kill(1)
        world.status(1)
        world.tell(0)
        assert world.ends(0)[:2] == ["PeerLost", "place 1 is gone"]


def test_who_connected_and_was_not_heard_before_the_end_hears_goodbye() -> None:
    """Its frame belongs to a step that the other's end of the run dropped."""

    def giver(worker: Worker) -> bool:
        give(worker, (1,), pattern(10, 0))
        worker.say("sent")
        worker.transport.close()
        return True

    def closer(worker: Worker) -> bool:
        worker.hear()
        worker.transport.close()
        return True

    with World(giver, closer) as world:
        assert world.hear(0) == "sent"
        world.tell(1)
        assert world.gave() == [True, True]


def test_who_waits_for_one_that_has_lost_a_peer_hears_who_that_is() -> None:
    """Places wait in a chain: 2 for 1, which waits for 0; only 1 has a connection to 0."""

    def dies(worker: Worker) -> None:
        give(worker, (1,), pattern(10, 0))
        worker.hear()

    def between(worker: Worker) -> None:
        worker.transport.receive(0, LANE)
        give(worker, (2,), pattern(10, 0))
        worker.say("given")
        try:
            worker.transport.receive(0, LANE)
        except PeerLost as lost:
            worker.transport.announce_loss(lost)
            raise

    def last(worker: Worker) -> None:
        worker.transport.receive(1, BACK - 1)
        worker.transport.receive(1, BACK)

    with World(dies, between, last, route_of="lane {}".format) as world:
        assert world.hear(1) == "given"
        world.kill(0)
        assert world.ends(1)[:2] == ["PeerLost", f"place 0 is gone, and `lane {LANE}` waits for it"]
        assert world.ends(2)[:2] == [
            "PeerLost",
            f"place 0 is lost, as place 1 says, and `lane {BACK}` waits for it",
        ]


def test_a_stopped_peer_goes_on() -> None:
    steps = 2000

    def giver(worker: Worker) -> bool:
        for step in range(steps):
            give(worker, (1,), pattern(SIZES[step % 8], step))
            if step == 10:
                worker.say("begun")
        worker.transport.close()
        return True

    def taker(worker: Worker) -> bool:
        for step in range(steps):
            frame = worker.transport.receive(0, LANE).frame
            assert step % 50 or torch.equal(frame, pattern(SIZES[step % 8], step))
        worker.transport.close()
        return True

    with World(giver, taker) as world:
        assert world.hear(0) == "begun"
        for place in (0, 1):
            world.kill(place, signal.SIGSTOP)
            time.sleep(0.2)
            world.kill(place, signal.SIGCONT)
        assert world.gave() == [True, True]


# Deaths


def dies_after(worker: Worker, messages: int) -> None:
    """Has this process killed between two messages: it sends or hears so many."""
    local, left = worker.local, [messages]
    sends, hears = local.send_queue.transmit, local.dispatch

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def sent(*args: object) -> bool:
        count()
        return sends(*args)  # type: ignore[arg-type]

    def heard(*args: object) -> None:
        hears(*args)  # type: ignore[arg-type]
        count()

    local.send_queue.transmit, local.dispatch = sent, heard  # type: ignore[method-assign]


def ragged_batch(rank: int) -> Batch:
    """So much, and so uneven, that both speakers write every part together."""
    lengths = [500 + 1000 * ((7 * row + rank) % 5) for row in range(16)]
    return Batch(
        {"tokens": Ragged.of([torch.full((length,), length) for length in lengths])},
        ids=torch.arange(rank * 16, rank * 16 + 16),
    )


def channel_of(worker: Worker) -> Channel:
    """From places 0 and 1 to 2 and 3, balanced by tokens."""
    mesh = DeviceMesh.from_sizes(dp_size=2)
    route = Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens"))
    return Channel(RouteContext(route, RouteSide(mesh, 0), RouteSide(mesh, 2), worker.transport))


def at_work(place: int, victim: int, messages: int) -> Callable[[Worker], int]:
    """A worker that gives or takes on and on; the victim dies after so many messages, and who has lost a peer
    ends, too."""

    def steps(channel: Channel) -> None:
        for step in range(10_000):
            if place < 2:
                channel.send(ragged_batch(place), step, 16)
            else:
                tokens = channel.receive(step).value["tokens"]
                assert all(len(row) == int(row[0]) == int(row[-1]) for row in tokens.rows())

    def work(worker: Worker) -> int:
        if place == victim:
            dies_after(worker, messages)
        try:
            steps(channel_of(worker))
        except PeerLost as lost:
            worker.say(["PeerLost", str(lost), time.monotonic()])
            os._exit(1)
        return 0

    return work


@pytest.mark.parametrize("victim", [0, 1, 2, 3], ids=["teller", "writer", "taker", "other taker"])
@pytest.mark.parametrize("seed", range(6))
def test_a_death_between_any_two_messages_ends_all_who_wait_within_a_second(victim: int, seed: int) -> None:
    messages = random.Random(100 * victim + seed).randrange(seed * 8, seed * 8 + 8)
    with World(*[at_work(place, victim, messages) for place in range(4)]) as world:
        assert world.status(victim) == -signal.SIGKILL
        died = time.monotonic()
        ends = {place: world.ends(place) for place in range(4) if place != victim}
        ended = {victim: 0.0, **{place: when for place, (_, _, when) in ends.items()}}
        for place, (kind, text, when) in ends.items():
            assert kind == "PeerLost" and text.endswith(" is gone"), (messages, ends)
            named = int(text.split()[1])  # who does not wait for the victim itself hears of one that did
            assert ended[named] < when < died + 1 and named != place, (messages, ends)
        assert f"place {victim} is gone" in [text for _, text, _ in ends.values()]


# Weights


@pytest.mark.parametrize("early", [True, False])
def test_a_sync_of_many_buckets_waits_for_a_taker_that_is_late(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Two givers, with a lag: they may be ahead by more than a lane has at first. `early`: one gives before
    the taker knows how much."""
    monkeypatch.setattr(sync_plan, "MAX_BUCKET_BYTES", GRAIN)
    monkeypatch.setattr(sync_plan, "MAX_JOINED_BYTES", GRAIN)
    held = {f"w{number}": torch.full((4 * GRAIN // 8,), float(number)) for number in range(4)}
    lag = 1
    steps = 5

    def channel_of(worker: Worker) -> WeightChannel:
        sides = RouteSide(DeviceMesh.from_sizes(dp_size=2), 0), RouteSide(DeviceMesh.from_sizes(), 2)
        context = RouteContext(Route("s", "s", "s", kind="weights"), *sides, worker.transport)
        if worker.place == 2:
            return WeightChannel(context, None, lambda: {}, lag=lag)
        return WeightChannel(context, lambda: held, None, lag=lag)

    def giver(worker: Worker) -> bool:
        channel = channel_of(worker)
        if worker.place == 0 and early:  # it tells the taker what there is; the other one goes on
            send = negotiation._send
            monkeypatch.setattr(negotiation, "_send", lambda *words: (worker.hear(), send(*words)))
        for step in range(steps):
            if not step:
                channel.open(0)
            channel.send({name: tensor + step for name, tensor in held.items()}, step)
            if step == lag:
                worker.say("ahead")
        worker.transport.close()
        return True

    def taker(worker: Worker) -> bool:
        channel = channel_of(worker)
        channel.open(0)
        worker.hear()
        worker.look()
        for step in range(steps):
            channel.send(None, step)
            while channel.due(step + lag * (step == steps - 1)):
                received = channel.receive(step)
                for name, tensor in received.value:
                    assert torch.equal(tensor, held[name] + received.sent_step)
        worker.transport.close()
        return True

    with World(giver, giver, taker) as world:
        if early:
            assert world.hear(1) == "ahead"
            time.sleep(0.2)
            world.tell(0)
        world.tell(2)
        assert world.gave(2) == [True]
