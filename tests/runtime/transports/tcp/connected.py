"""Transports over TCP of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.hang import HANG_S

TOKEN = "0123456789abcdef"


LARGE = torch.arange(1 << 20)
"""8 MiB, which is more than the socket of a stopped receiver buffers."""


Listen = Callable[[DataPlane], TcpTransport]


Worlds = Callable[[int], list[tuple[DataPlane, TcpTransport]]]


def close_all(transports: Sequence[DataPlane]) -> None:
    closing = [threading.Thread(target=transport.close, daemon=True) for transport in transports]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def error_of(waits: Callable[[], object]) -> str:
    """Returns the error message of a waiting call."""
    answers: list[str] = []

    def work() -> None:
        try:
            waits()
        except PeerLost as error:
            answers.append(str(error))

    in_thread(work).join(HANG_S)
    assert answers, "nobody told it anything"
    return answers[0]
