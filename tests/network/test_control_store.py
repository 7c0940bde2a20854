"""The control store: torch's semantics, for clients that have the token of the run."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

from meshctl.engines.supervise.store_server import StoreServer
from meshctl.network.control_store import StoreClient, StoreLost, StoreTimeout
from tests.hang import HANG_S

TOKEN = "the token"
SOON, LATER = timedelta(seconds=0.05), timedelta(seconds=HANG_S)


@pytest.fixture
def server() -> Iterator[tuple[StoreServer, str]]:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    made = StoreServer(listener, TOKEN)
    yield made, address
    made.close()


Connect = Callable[..., StoreClient]


@pytest.fixture
def connect(server: tuple[StoreServer, str]) -> Iterator[Connect]:
    with ExitStack() as clients:
        yield lambda prefix="": clients.enter_context(closing(StoreClient(server[1], TOKEN, prefix)))


def test_values_are_shared_by_the_clients_of_a_prefix(connect: Connect) -> None:
    one, two = connect("run/0/"), connect().under("run/").under("0/")
    other = connect("run/1/")
    one.set("a", "1")
    assert two.get("a") == b"1" and two.check(["a"]) and not other.check(["a"])
    assert [one.add("n", 2), two.add("n", 3), two.get("n")] == [2, 5, b"5"]
    assert [one.compare_set("t", "", "x"), two.compare_set("t", "", "y")] == [b"x", b"x"]
    assert two.compare_set("t", "x", "y") == b"y"
    assert one.multi_get(["t", "a"]) == [b"y", b"1"]
    assert one.delete_key("a") and not two.delete_key("a") and not one.check(["a", "t"])


def test_a_request_waits_for_all_of_its_keys(connect: Connect) -> None:
    one, two = connect(), connect()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(two.wait, ["a", "b"], LATER)
        getting = pool.submit(connect().multi_get, ["b", "a"])
        one.set("a", "1")
        with pytest.raises(StoreTimeout, match="the keys b were not set"):
            one.wait(["a", "b"][1:], SOON)
        assert not waiting.done()
        one.set("b", "2")
        waiting.result()
        assert getting.result() == [b"2", b"1"]


def test_a_client_that_gave_up_asks_again(connect: Connect) -> None:
    one, two = connect(), connect()
    for _ in range(2):
        with pytest.raises(StoreTimeout):
            one.wait(["a"], SOON)
    two.set("a", "x" * 300_000)
    assert len(one.get("a")) == 300_000
    one.wait(["a"], SOON)


def test_without_the_token_nothing_is_read_or_written(
    server: tuple[StoreServer, str], connect: Connect
) -> None:
    address = server[1]
    with pytest.raises(StoreLost, match="does not have the token"):
        StoreClient(address, "another token")
    host, port = address.split(":")
    requests: list[object] = [
        {"op": "set", "key": "ended", "value": "1"},
        {"nonce": "n"},
        [],
        {"proof": 1},
    ]
    for request in requests:
        with closing(socket.create_connection((host, int(port)), timeout=HANG_S)) as stranger:
            stranger.sendall(
                json.dumps(request).encode() + b"\n" + b'{"op": "set", "key": "a", "value": ""}\n'
            )
            while stranger.recv(4096):
                pass
    assert not connect().check(["ended"])
    assert not connect().check(["a"])


def test_a_client_that_leaves_is_forgotten(connect: Connect) -> None:
    leaving, other = connect(), connect()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connect().wait, ["a"], LATER)
        with pytest.raises(StoreTimeout):
            leaving.wait(["a"], SOON)
        leaving.close()
        other.set("a", "1")
        waiting.result()


def test_the_end_of_the_server_ends_its_clients(server: tuple[StoreServer, str], connect: Connect) -> None:
    made, _ = server
    client = connect()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait, ["a"], LATER)
        connect().set("b", "")
        made.close()
        with pytest.raises(StoreLost):
            waiting.result()


def test_a_server_that_is_not_there_cannot_be_reached() -> None:
    with socket.socket() as deaf:  # it is bound, so that nobody else takes the port
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(StoreLost, match="cannot be reached"):
            StoreClient(f"127.0.0.1:{deaf.getsockname()[1]}", TOKEN)
