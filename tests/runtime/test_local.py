"""Frames between real processes of one node: each byte as it was written, nobody else's memory touched, nothing left open or waiting."""

from __future__ import annotations

import fcntl
import gc
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.mesh import DeviceMesh
from meshctl.routes import Dispatch, Route
from meshctl.runtime.batch import Batch, Ragged
from meshctl.runtime.channel import Channel, Party
from meshctl.runtime.transports import SLOTS, Held, PeerLost, Transport, local
from meshctl.runtime.transports.arena import GRAIN
from meshctl.runtime.transports.local import HELD, INLINE, Address, Local
from tests.runtime.hostile_world import Impostor, Worker, World, files_open

pytestmark = pytest.mark.slow
SIZES = [1, 63, INLINE - 1, INLINE, INLINE + 1, GRAIN - 1, GRAIN, GRAIN + 1, 5 * GRAIN + 3, INLINE + 1, 40 * GRAIN, 1, GRAIN]
LANE, BACK = 5, 6


def pattern(nbytes: int, seed: int) -> Tensor:
    return (torch.arange(nbytes) * 7 + seed * 13).to(torch.uint8)


def give(worker: Worker, to: Sequence[int], frame: Tensor, lane: int = LANE) -> None:
    loan = worker.transport.lend(to, lane, len(frame))
    loan.frame.copy_(frame)
    worker.transport.deliver(loan)


# Bytes


@pytest.mark.parametrize("takers", [1, 3])
def test_frames_of_all_sizes_come_as_they_were_to_all_who_get_them(takers: int) -> None:
    steps = len(SIZES) * 3

    def giver(worker: Worker) -> int:
        for step in range(steps):
            give(worker, range(1, 1 + takers), pattern(SIZES[step % len(SIZES)], step))
        worker.transport.close()
        return worker.local.nbytes

    def taker(worker: Worker) -> bool:
        kept: deque[tuple[int, Tensor]] = deque(maxlen=3)  # a frame stays as it is while the next ones come
        for step in range(steps):
            kept.append((step, worker.transport.receive(0, LANE)))
            assert all(torch.equal(frame, pattern(SIZES[number % len(SIZES)], number)) for number, frame in kept)
        kept.clear()
        worker.transport.close()
        return True

    with World(giver, *[taker] * takers) as world:
        assert world.gave(*range(1, 1 + takers)) == [True] * takers


@pytest.mark.parametrize("nbytes", [INLINE + 1, GRAIN])
def test_a_write_into_a_frame_that_was_received_ends_the_writer_and_no_other(nbytes: int) -> None:
    def giver(worker: Worker) -> None:
        give(worker, (1, 2), pattern(nbytes, 0))
        worker.hear()

    def vandal(worker: Worker) -> None:
        frame = worker.transport.receive(0, LANE)
        worker.say("reads")
        frame[len(frame) // 2] = 1

    def reader(worker: Worker) -> bool:
        frame = worker.transport.receive(0, LANE)
        worker.hear()
        return torch.equal(frame, pattern(nbytes, 0))

    with World(giver, vandal, reader) as world:
        assert world.hear(1) == "reads"
        assert world.status(1) == -signal.SIGSEGV
        world.tell(2)
        assert world.gave(2) == [True]


def test_a_receiver_that_gives_nothing_back_is_named_and_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SOON", 0.01)

    def giver(worker: Worker) -> list[Any]:
        try:
            for step in range(100):
                give(worker, (1,), pattern(GRAIN, step))
        except Held as held:
            return [str(held), worker.local.nbytes <= 2 * GRAIN * (SLOTS + HELD + 1)]
        return []

    def keeper(worker: Worker) -> None:
        kept = []
        while True:
            kept.append(worker.transport.receive(0, LANE))

    with World(giver, keeper) as world:
        assert world.gave(0) == [[f"place 1 still holds {SLOTS + HELD} of them", True]]


def test_several_write_one_frame_also_where_a_writer_is_one_of_those_who_get_it() -> None:
    nbytes, part = 3 * GRAIN, GRAIN
    takers = (1, 2, 3)  # 1 writes, too

    def teller(worker: Worker) -> bool:
        for step in range(20):
            loan = worker.transport.lend(takers, LANE, nbytes)
            for writer in (1, 4):
                worker.transport.invite(loan, writer, BACK)
            loan.frame[:part] = pattern(part, step)
            worker.transport.deliver(loan)
        return True

    def writer(index: int) -> Callable[[Worker], bool]:
        def work(worker: Worker) -> bool:
            for step in range(20):
                frame = worker.transport.receive(0, BACK)
                frame[index * part : (index + 1) * part] = pattern(part, step + index)
                for place in takers:
                    give(worker, (place,), torch.zeros(1, dtype=torch.uint8), LANE + 2 + index)
                if worker.place in takers:
                    assert right(worker, step)
            return True

        return work

    def right(worker: Worker, step: int) -> bool:
        frame = worker.transport.receive(0, LANE)
        for place, index in ((1, 1), (4, 2)):
            worker.transport.receive(place, LANE + 2 + index)
        return all(torch.equal(frame[index * part : (index + 1) * part], pattern(part, step + index)) for index in range(3))

    def taker(worker: Worker) -> bool:
        return all(right(worker, step) for step in range(20))

    with World(teller, writer(1), taker, taker, writer(2)) as world:
        assert world.gave() == [True] * 5


# Flow


def test_credits_bound_what_is_under_way_and_each_lane_has_its_own() -> None:
    def giver(worker: Worker) -> None:
        for lane in (LANE, BACK):
            for number in range(3 if lane == LANE else 2):
                give(worker, (1,), pattern(GRAIN, number), lane)
                worker.say([lane, number])
        give(worker, (1,), pattern(GRAIN, 9))
        worker.say("more")

    def taker(worker: Worker) -> None:
        worker.hear()
        worker.transport.receive(0, LANE)
        worker.hear()

    with World(giver, taker, slots={LANE: 3}) as world:
        said = [world.hear(0) for _ in range(5)]
        assert said == [[LANE, 0], [LANE, 1], [LANE, 2], [BACK, 0], [BACK, 1]]
        world._lines[0].settimeout(0.3)
        with pytest.raises(TimeoutError):
            world.hear(0)
        world._lines[0].settimeout(30)
        world.tell(1)
        assert world.hear(0) == "more"


def test_a_block_comes_back_after_the_last_derived_view_on_every_replica() -> None:
    def giver(worker: Worker) -> list[int]:
        numbers = []
        for _ in range(4):
            loan = worker.transport.lend((1, 2), LANE, GRAIN)
            numbers.append(loan.kept.number)
            worker.transport.deliver(loan)
            del loan
            worker.hear()
            worker.look()
        return numbers

    def taker(worker: Worker) -> None:
        first = worker.transport.receive(0, LANE)
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
    assert numbers[1] != numbers[0] and numbers[2] == numbers[1], "the first block is held, the second came back"


def test_the_garbage_collector_may_run_in_the_middle_of_anything() -> None:
    steps = 80

    class Keeper:
        def __init__(self, frame: Tensor) -> None:
            self.frame, self.me = frame, self

    def giver(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            give(worker, (0, 1), pattern(SIZES[step % len(SIZES)], step))
            own = worker.transport.receive(0, LANE)
            assert torch.equal(own, pattern(SIZES[step % len(SIZES)], step))
            Keeper(own)
            Keeper(worker.transport.receive(1, BACK))
        worker.transport.close()
        return worker.local.nbytes == 0

    def taker(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            frame = worker.transport.receive(0, LANE)
            assert torch.equal(frame, pattern(SIZES[step % len(SIZES)], step))
            Keeper(frame)
            give(worker, (0,), pattern(INLINE + 1 + step, step), BACK)
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
            assert worker.transport.receive(0, LANE).tolist() == [number % 251]
        worker.say("got all")
        if worker.place == 2:
            assert torch.equal(worker.transport.receive(0, BACK), pattern(GRAIN, 0))
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
            assert worker.transport.receive(1, BACK).tolist() == [step]
        return True

    def taker(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                assert worker.transport.receive(0, LANE).tolist() == [number % 251]
            give(worker, (0,), torch.tensor([step], dtype=torch.uint8), BACK)
        return True

    with World(giver, taker, slots={LANE: count}) as world:
        assert world.gave() == [True, True]


def test_nothing_stays_open_and_nothing_has_a_name() -> None:
    before = sorted(os.listdir("/dev/shm"))

    def steps(worker: Worker, first: int, count: int) -> None:
        for step in range(first, first + count):
            nbytes = 1 + step % 50 * 3000 + step * 40
            if worker.place:
                frame = worker.transport.receive(0, LANE)
                assert frame[-1] == step % 251
                give(worker, (0,), frame[:1].clone(), BACK)
            else:
                give(worker, (1,), torch.full((nbytes,), step % 251, dtype=torch.uint8))
                worker.transport.receive(1, BACK)

    def work(worker: Worker) -> list[int]:
        fresh = files_open()
        steps(worker, 0, 60)
        opened = files_open()
        steps(worker, 60, 500)
        gc.collect()
        assert len(files_open()) <= len(opened), (opened, files_open())
        worker.transport.close()
        gc.collect()
        left = files_open()
        for one in fresh:
            if one in left:
                left.remove(one)
        return left

    with World(work, work) as world:
        assert world.gave() == [[], []]
        assert sorted(os.listdir("/dev/shm")) == before


# Ends


def leaving(frames: int, reads: bool) -> Callable[[Worker], None]:
    """A peer that says some frames and goodbye, and is gone; with what place 0 said unread, unless it reads."""

    def work(worker: Worker) -> None:
        address = worker.local._peers[0]
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
        got = [int(worker.transport.receive(1, LANE)[0])]
        if not reads:
            worker.local._say(worker.local._from[1], Impostor.CREDIT, LANE)  # stays unread: its end comes as a reset
        worker.say("took one")
        if late:
            worker.hear()
        got += [int(worker.transport.receive(1, LANE)[0]) for _ in range(frames - 1)]
        with pytest.raises(PeerLost, match="place 1 has ended"):
            worker.transport.receive(1, LANE)
        worker.transport.close()
        return got

    with World(taker, leaving(frames, reads=False)) as world:
        assert world.hear(0) == "took one"
        world.tell(1)
        assert world.status(1) == 0
        if late:
            world.tell(0)
        assert world.gave(0) == [list(range(frames))]


def test_a_peer_that_died_before_it_was_met_is_named() -> None:
    def taker(worker: Worker) -> None:
        worker.hear()
        late = Transport(0, {})
        Local(late, "token").meet({1: worker.local._peers[1]})
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
            frame = worker.transport.receive(0, LANE)
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
    sends, hears = local._sent, local._heard

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

    local._sent, local._heard = sent, heard  # type: ignore[method-assign]


def ragged_batch(rank: int) -> Batch:
    """So much, and so uneven, that both speakers write every part together."""
    lengths = [500 + 1000 * ((7 * row + rank) % 5) for row in range(16)]
    return Batch({"tokens": Ragged.of([torch.full((length,), length) for length in lengths])}, ids=torch.arange(rank * 16, rank * 16 + 16))


def channel_of(worker: Worker) -> Channel:
    """From places 0 and 1 to 2 and 3, balanced by tokens."""
    mesh = DeviceMesh.from_sizes(dp_size=2)
    return Channel(Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens")), Party(mesh, 0), Party(mesh, 2), worker.transport, 0)


def at_work(place: int, victim: int, messages: int) -> Callable[[Worker], int]:
    """A worker that gives or takes on and on; the victim dies after so many messages, and who has lost a peer ends, too."""

    def steps(channel: Channel) -> None:
        for _ in range(10_000):
            if place < 2:
                channel.give(ragged_batch(place), 16, place)
            else:
                tokens = channel.take(place - 2).value["tokens"]
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


# Messages that no peer sends


@contextmanager
def met() -> Iterator[tuple[Transport, Impostor]]:
    """A place of this process, and the peer that it knows as place 1."""
    transport = Transport(0, {LANE: 2})
    local = Local(transport, "token")
    local.meet({0: local.address, 1: Address(b"", os.getpid())})
    impostor = Impostor(local.address)
    try:
        yield transport, impostor
    finally:
        impostor.close()
        local._let_go()
        assert transport._watch
        os.close(transport._watch._bell)


def hears(transport: Transport) -> str:
    """Reads all there is; what the transport says of its peer then."""
    assert transport._watch
    for _ in range(6):
        transport._watch.look(0)
    for box in transport._inbox.values():
        for frame in box:
            if isinstance(frame, torch.Tensor):
                frame.sum()
    return str(transport._lost or "")


whats = st.integers(0, 9) | st.just(255)
sizes = st.sampled_from([0, 1, -1, 64, INLINE, GRAIN - 1, GRAIN, GRAIN + 1, 2**31, 2**62, 2**63 - 1, -(2**63)])
lanes = st.sampled_from([LANE, 0, -1, 2**31 - 1, -(2**31)])
kinds = st.sampled_from(["none", "sealed", "sealed", "open", "pipe"])
messages = st.tuples(st.builds(Impostor.HEAD.pack, whats, lanes, st.integers(0, 2) | sizes, sizes, sizes), st.binary(max_size=80), kinds)


def file_of(kind: str) -> list[int]:
    if kind == "none":
        return []
    if kind == "pipe":
        return list(os.pipe())
    file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, GRAIN)
    if kind == "sealed":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return [file]


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(messages, min_size=1, max_size=5), st.integers(0, 120))
def test_a_malformed_message_is_an_error_that_names_the_peer_and_nothing_else(said: list[tuple[bytes, bytes, str]], cut: int) -> None:
    before = files_open()
    with met() as (transport, impostor):
        for head, more, kind in said:
            files = file_of(kind)
            with suppress(OSError):  # it was hung up on
                impostor.send((head + more)[: cut or None] or b"x", files)
            for file in files:
                os.close(file)
            assert hears(transport) == "" or hears(transport).startswith("place 1 ")
    transport._inbox.clear()
    assert files_open() == before


@pytest.mark.parametrize("token", ["", "tokem", "token2"])
def test_who_does_not_know_the_token_is_not_heard_and_disturbs_nobody(token: str) -> None:
    with met() as (transport, impostor):
        stranger = Impostor(transport.way(1).address, token=token)  # type: ignore[attr-defined]
        stranger.frame(LANE, b"evil")
        impostor.frame(LANE, b"good")
        assert hears(transport) == "" and [*transport._inbox[1, LANE]] == [b"good"]
        with pytest.raises(ConnectionError):
            stranger.frame(LANE, b"evil")
        stranger.close()


def test_a_second_connection_in_the_name_of_a_place_is_refused() -> None:
    with met() as (transport, impostor):
        impostor.frame(LANE, b"good")
        assert hears(transport) == ""
        other = Impostor(transport.way(1).address)  # type: ignore[attr-defined]
        other.frame(LANE, b"evil")
        assert hears(transport) == "" and len(transport._inbox[1, LANE]) == 1
        other.close()
