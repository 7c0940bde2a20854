"""The connections between node processes: two watches in this process, with times that the test states."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from meshctl.engines.node.peer_watch import CALL_S, REACH_S, PeerWatch, Unreachable
from meshctl.network.addresses import split

LEASE_S = 15.0
Watch = Callable[..., PeerWatch]


@pytest.fixture
def watch() -> Iterator[Watch]:
    made: list[PeerWatch] = []

    def make(node: int, token: str = "token") -> PeerWatch:
        made.append(PeerWatch(node, "127.0.0.1", token, LEASE_S))
        return made[-1]

    yield make
    for one in made:
        one.close()


def exchange(*watches: PeerWatch, now: float = 0.0, rounds: int = 10**9) -> list[list[Unreachable | None]]:
    """Polls watches at one time of theirs, until all of them have reported something, or for some rounds: one
    passes what is sent on, since the kernel delivers it on loopback before the call that sends it returns."""
    found: list[list[Unreachable | None]] = [[] for _ in watches]
    while rounds and not all(found):
        rounds -= 1
        for number, one in enumerate(watches):
            found[number] += one.poll(now)
        reading = [file for one in watches for file in one.reading]
        select.select(reading, [file for one in watches for file in one.writing], [], 0.02)
    return found


def test_nodes_reach_each_other_in_every_round(watch: Watch) -> None:
    one, two = watch(1), watch(2)
    for attempt in (0, 1):
        one.begin(attempt, {2: two.address}, 0.0)
        two.begin(attempt, {1: one.address}, 0.0)
        assert exchange(one, two) == [[None], [None]]
    assert not one.strangers and not two.strangers


def test_a_node_alone_reaches_all_of_its_peers(watch: Watch) -> None:
    one = watch(1)
    one.begin(0, {}, 0.0)
    assert exchange(one) == [[None]]


def test_a_peer_that_refuses_or_does_not_answer_is_named(watch: Watch) -> None:
    one, two = watch(1), watch(2)
    one.begin(0, {2: two.address}, 0.0)
    two.close()
    assert exchange(one, rounds=20) == [[]]
    [[found]] = exchange(one, now=REACH_S + 1)
    assert found == Unreachable(2, two.address, REACH_S + 1, "connection refused")
    assert exchange(one, now=REACH_S + 9, rounds=20) == [[]]  # it is reported once


def test_silence_in_a_run_is_named_after_the_lease_and_a_late_process_blames_nobody(watch: Watch) -> None:
    one, two = watch(1), watch(2)
    one.begin(0, {2: two.address}, 0.0)
    two.begin(0, {1: one.address}, 0.0)
    exchange(one, two)
    assert [*one.poll(LEASE_S - 1)] == []
    assert [*one.poll(LEASE_S + 1, True)] == []  # this process was stopped
    [found] = one.poll(2 * LEASE_S + 2)
    assert found and (found.peer, found.problem) == (2, "it does not answer")


def test_a_call_is_made_anew_before_the_limit(watch: Watch) -> None:
    """A connection whose packets were lost waits for its kernel; a new one goes through at once."""
    one, two = watch(1), watch(2)
    one.begin(0, {2: two.address}, 0.0)
    exchange(one, two, rounds=20)
    first = one.reading[1]
    late = CALL_S + 4.0
    assert [*one.poll(late)] == []
    assert first not in one.reading
    assert exchange(one, two, now=late, rounds=20)[0] == []
    assert [*one.poll(late + LEASE_S - 1)] == []  # it was seen at `late`


def test_another_token_and_another_node_are_refused_and_counted(watch: Watch) -> None:
    one, two = watch(1, "right"), watch(2, "wrong")
    one.begin(0, {2: two.address}, 0.0)
    exchange(one, two, rounds=20)
    [[found], _] = exchange(one, two, now=REACH_S + 1, rounds=20)
    assert found and found.problem == "something else answers there, without the token of the run"
    assert two.strangers
    three = watch(3, "right")
    three.begin(0, {4: one.address}, 0.0)
    exchange(one, three, rounds=20)
    assert one.strangers


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95\x10\n", b'{"to": 1}\n{"proof": "guessed"}\n', b"." * 99999],
)
def test_a_stranger_is_dropped_and_counted(watch: Watch, words: bytes) -> None:
    one = watch(1)
    with socket.create_connection(split(one.address)) as stranger:
        stranger.sendall(words)
        exchange(one, rounds=20)
        assert one.strangers == {"127.0.0.1": 1}
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass


def test_it_listens_on_the_given_address_only(watch: Watch) -> None:
    _, port = split(watch(1).address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
