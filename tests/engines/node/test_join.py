"""How long a node process waits for a head that it cannot reach."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from meshctl.engines.connection import join
from meshctl.engines.engine import CannotStart
from meshctl.network.addresses import joined


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a listener whose backlog is full, so that the kernel does not answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        yield joined(*address)
        for one in waiting:
            one.close()


def test_a_head_that_does_not_answer_is_named_within_the_limit(silent: str) -> None:
    with pytest.raises(
        CannotStart, match=rf"node 3 cannot reach the head at {silent} within \d s: it does not answer"
    ):
        join(silent, 3, "token", limit_s=2.0)
