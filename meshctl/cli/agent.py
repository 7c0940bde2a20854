"""`meshctl agent`: the node process of one node. Every engine except the local one starts this command."""

from __future__ import annotations

import json
import os
import signal
import socket
import tarfile
import time
from contextlib import suppress
from pathlib import Path

from meshctl.cli import without_collection
from meshctl.cli.output import REFUSED, refuse, why
from meshctl.engines.connection import CONNECT_S
from meshctl.engines.engine import groups_on
from meshctl.engines.shipping import begin_run
from meshctl.network.addresses import split
from meshctl.network.connection import TOKEN_VARIABLE
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import number_of
from meshctl.run.directory import RunDir
from meshctl.run.process import IN_JOB
from meshctl.run.reading import DAMAGED

QUIET = "TORCH_CPP_LOG_LEVEL", "ERROR"
"""torch reads this variable when it is imported. Otherwise each worker whose address has no name warns of
that."""
POLL_S = 0.2
"""Seconds between two reads of the address of the head, while it is awaited."""


def agent(
    path: Path,
    place: str,
    head: str,
    wait_s: float = 0.0,
    is_in_job: bool = False,
    shipped: str = "",
) -> int:
    """Runs the node process. Returns the exit code: 0 if all workers exited with 0, 1 if one did not, 2 if
    the plan has nothing to run on this node, 4 if the head cannot be reached or refuses. `place` is the
    number of the node or SET.INDEX, `head` is HOST:PORT, or empty for the address that the head has written,
    and `wait_s` the seconds to wait for a head. With `is_in_job`, the first signal of the scheduler is passed
    to the head. `shipped` is a folder with the archive of the recipe's folder, if the run directory is not
    shared."""
    try:
        path = begin_run(Path(shipped), path) if shipped else path
    except (OSError, tarfile.TarError, ValueError) as error:
        return refuse(f"the recipe's folder cannot be unpacked: {error}", REFUSED)
    run, token = RunDir.of_plan(path), os.environ.pop(TOKEN_VARIABLE, "")
    node, wrong = placed(path, place)
    if wrong:
        return refuse(wrong)
    try:
        split(head or "127.0.0.1:1")
    except ValueError:
        return refuse(f"--head must be HOST:PORT, not {head!r}")
    began = time.monotonic()
    head = head or published_head(run, wait_s)
    if not head:
        return refuse(f"no head has written its address to {run.head}: give it as --head HOST:PORT", 4)
    with suppress(OSError, ValueError):
        token = token or run.token.read_text(encoding="utf-8").strip()
    if not token:
        return refuse(f"the token of the run is neither in {TOKEN_VARIABLE} nor in {run.token}")
    os.environ.setdefault(*QUIET)
    if is_in_job:
        os.environ[IN_JOB] = "1"
    with without_collection():
        from meshctl.engines.node.node_process import NodeJob, serve
        from meshctl.engines.node.preload import preload
        from meshctl.engines.node.worker_env import groups_of
        from meshctl.runtime.worker import main

        plan, start = Plan.read(path), run.read_start()
        folders = start.path
        preload(plan, folders, groups_of(plan, folders))
    left = max(0.0, wait_s - (time.monotonic() - began))
    own = tuple(folders) if shipped else ()
    job = NodeJob(run, node, head, token, main, (), plan.digest, left, own)
    asks = (signal.SIGTERM, signal.SIGUSR2) if is_in_job else ()
    return serve(job, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP), asks)


def published_head(run: RunDir, wait_s: float) -> str:
    """Returns the address that the head of a run has written; empty if there is none within `wait_s`
    seconds."""
    until = time.monotonic() + wait_s
    while True:
        address, is_over = "", time.monotonic() >= until
        with suppress(OSError, *DAMAGED):
            found = json.loads(run.head.read_text(encoding="utf-8"))["address"]
            split(found)
            address = found
        if address and (is_over or _answers(address)):
            return address
        if is_over:
            return ""
        time.sleep(POLL_S)


def _answers(address: str) -> bool:
    """Returns whether something accepts connections at an address. A head that was killed has left its
    address."""
    try:
        socket.create_connection(split(address), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def placed(path: Path, place: str) -> tuple[int, str]:
    """Returns the number of the node, and the reason why the plan has nothing to run on it; empty if it
    has."""
    try:
        plan = Plan.read(path)
    except OSError as error:
        lost = "is the run directory on a shared file system?"
        return -1, f"the plan cannot be read: {why(error)}: {path}; {lost}"
    except (ValueError, KeyError, TypeError) as error:
        return -1, f"{path} is not a plan: {error}"
    try:
        node = number_of(place, plan)
    except ValueError as error:
        return -1, str(error)
    return node, "" if groups_on(plan, node) else f"the plan has no group on node {node}"
