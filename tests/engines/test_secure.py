"""`engine.NAME.secure`: a run of two nodes whose connections are those of TLS, and strangers at its sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from meshctl.network.addresses import split
from meshctl.network.sockets import sockets_of
from tests.command_server import Started
from tests.engines.test_commands import ENGINE, agents_of, folder, losses, processes

__all__ = ["folder", "processes"]
SECURE = "engine.commands.secure=true"


def speaks_tls(address: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sock = socket.create_connection(split(address), timeout=20)
    try:
        with context.wrap_socket(sock) as secured:
            return secured.version() == "TLSv1.3"
    except OSError:
        return False


@pytest.mark.slow
def test_a_secure_run_and_strangers_at_its_sockets(folder: Path, processes: list[Started]) -> None:
    launch = Started(
        folder, "launch", "recipe.yaml", *ENGINE, SECURE, "run.steps=400", "components.trainer.args.mood=slow"
    )
    processes.append(launch)
    head = launch.until(r"--node 1 --head (127.0.0.1:\d+)$")[1]
    [run] = folder.glob("runs/*/*")
    launch.until("set MESHCTL_TOKEN")
    token = (run / ".token").read_text().strip()
    assert speaks_tls(head)
    with socket.create_connection(split(head), timeout=20) as stranger:
        stranger.sendall(b'{"node": 0, "nonce": "1"}\n')
        stranger.settimeout(20)
        with suppress(ConnectionResetError):
            assert b"proof" not in stranger.recv(4096)
    processes += (agents := agents_of(run, folder))
    launch.until("^step 2")
    with pytest.raises(OSError), socket.create_connection(split(head), timeout=20) as stranger:
        sockets_of(token[::-1], True).client(stranger).recv(1)
    os.kill(launch.pid, signal.SIGINT)
    code, output = launch.end()
    assert code == 130, output
    assert [agent.end()[0] for agent in agents] == [0, 0]
    assert len(losses(run)) >= 2
    assert "without the token of this run w" in output and "dropped, from 127.0.0.1" in output
    start = json.loads((run / "start.json").read_text())
    assert start["engine"]["options"]["secure"] is True and token not in (run / "start.json").read_text()
