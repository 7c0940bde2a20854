"""A local user without the token of a run can neither read the run's agreements nor steer or end the run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import gettempdir

import pytest
from processes import LONG, Launch, Start, family, plan_of, written
from torch.distributed import TCPStore

from meshctl.network.control_store import StoreClient, StoreLost
from meshctl.plan.model import Cluster
from tests.cli.small_launch import RECIPE

KEYS = {
    "stop": "stranger",
    "ending/asked/0": json.dumps({"reason": "stranger", "ended": 2}),
    "ending/asks": "1",
    "ending/word/0": json.dumps(["last", 1]),
    "ending/word/1": json.dumps(["over", 0]),
    "ending/left/0": "",
    "ending/begun/0": "1",
    "ending/given/batch/1": "false",
}
"""Keys that would end a run if a worker or the supervisor read them."""


def test_a_stranger_does_not_end_a_run(launch: Launch, tmp_path: Path) -> None:
    """It writes all keys into the store that whoever reaches the head can write: that of torch's process groups."""
    plan = replace(plan_of(tmp_path, ("one", 2), steps=0), cluster=Cluster(nodes=2))
    run = launch(plan, "forever").ready(2)
    host, _, port = run.events("ready")[0].value["head"].partition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=30))
    for key, value in KEYS.items():
        store.set(f"run/0/{key}", value)
    with pytest.raises(StoreLost, match="does not have the token"):
        StoreClient(run.events("ready")[0].value["control"], "guessed")
    last = run.last_step()
    run.wait_for_step(last + 20)
    run.send(signal.SIGTERM)
    assert run.end() == 143, run.output()
    assert not [event for event in run.events("stopping") if "stranger" in event.value["reason"]]


HELLO, ANSWER_BYTES = struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 7), 4
"""The first bytes of a client of TCPStore, and the size of the answer of its server."""
NOBODY = 65534


def open_files(pid: int) -> set[str]:
    """Returns what a process and its descendants have open."""
    found = set[str]()
    for file in [file for one in family(pid) for file in Path(f"/proc/{one}/fd").iterdir()]:
        with suppress(FileNotFoundError):  # it was closed
            found.add(os.readlink(file))
    return found


def listening(files: Iterable[str]) -> list[int]:
    """Returns the TCP ports of the sockets among open files that listen."""
    inodes = {file.removeprefix("socket:[").rstrip("]") for file in files}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def is_store(port: int) -> bool:
    """Returns whether a port answers as torch's TCPStore does. Others answer with JSON, close, or are silent."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(0.3)
        try:
            sock.sendall(HELLO)
            return len(sock.recv(64)) == ANSWER_BYTES
        except OSError:
            return False


def as_nobody(look: Callable[[], object]) -> object:
    """Returns what another user of the machine sees."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(look()).encode())
        except BaseException as error:
            os.write(writer, json.dumps(repr(error)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as file:
        return json.load(file)


def opened(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths if os.access(path, os.R_OK) or os.access(path, os.W_OK)]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reaches_no_store_of_torch_of_a_run_on_one_node(tmp_path: Path, start: Start) -> None:
    running = start(written(tmp_path, RECIPE), "launch", "recipe.yaml", *LONG)
    running.until("^step [1-9]")
    files = open_files(running.pid)
    [scratch] = {file for file in files if re.fullmatch(f"{gettempdir()}/meshctl-[0-9a-f]{{16}}", file)}
    ports, stores = listening(files), [*Path(scratch).iterdir()]
    assert ports and len(stores) == 4  # of two groups, each for its workers and for its agent
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert as_nobody(lambda: is_store(server.port)) is True
    assert as_nobody(lambda: [port for port in ports if is_store(port)]) == []
    assert as_nobody(lambda: opened([Path(os.devnull), *stores])) == [os.devnull]


def test_a_run_directory_is_its_owners(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 1)))
    assert run.end() == 0, run.output()
    assert stat.S_IMODE(run.run.path.stat().st_mode) == 0o700


def test_a_run_directory_that_is_deleted_ends_the_run(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), steps=0), "forever").ready(2)
    path = run.run.path
    moved = path.rename(path.with_name("moved"))  # its workers may make a folder of this name again
    shutil.rmtree(moved)
    assert run.end() == 5
    assert f"error: the run directory {path} was deleted" in run.output()
