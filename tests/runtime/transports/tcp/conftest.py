"""Worlds of TCP transports, all in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.runtime.transports.tcp.connected import TOKEN, Listen, Worlds


@pytest.fixture
def listen() -> Iterator[Listen]:
    """`listen(transport)`. The transport is closed at the end of the test."""
    made: list[TcpTransport] = []

    def make(transport: DataPlane) -> TcpTransport:
        made.append(TcpTransport(transport, TOKEN))
        return made[-1]

    yield make
    for way in made:
        way.release()


@pytest.fixture
def worlds(listen: Listen) -> Worlds:
    """`worlds(n)` returns the transports of job ranks 0 to n - 1 in this process."""

    def make(job_size: int) -> list[tuple[DataPlane, TcpTransport]]:
        transports = [DataPlane(Context(job_rank)) for job_rank in range(job_size)]
        ways = [listen(transport) for transport in transports]
        for way in ways:
            way.connect({job_rank: other.address for job_rank, other in enumerate(ways)})
        return list(zip(transports, ways, strict=True))

    return make
