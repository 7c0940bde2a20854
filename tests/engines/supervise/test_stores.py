"""The sockets of a supervisor."""

from __future__ import annotations

import errno
import socket

import pytest

from meshctl.engines.engine import CannotStart
from meshctl.engines.supervise.supervisor import listen


def test_a_machine_without_free_ports_refuses_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EADDRINUSE, "Address already in use (while attempting to bind)")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(CannotStart, match=r"^no port can be opened on 127\.0\.0\.1: Address already in use$"):
        listen("127.0.0.1")
