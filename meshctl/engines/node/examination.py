"""The examination of a node, in a child of its node process: a disk or a driver that does not answer must not
keep the node process from its connection to the head.

The child writes the fields of `NodeFacts` to a pipe, as one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from meshctl.engines.checks import on_node
from meshctl.engines.checks.requirements import Needs
from meshctl.engines.node import forkserver, process_setup, termination
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir

TITLE = "meshctl-check"


class Examination:
    """The pipe of the child process that examines this node. The node process reaps the child."""

    def __init__(
        self, run: RunDir, node: int, needs: Needs, nonce: str, ports: Mapping[str, str], log: str
    ) -> None:
        """Forks the child. Its output goes to the file `log`. The other arguments are those of
        `on_node.examine`."""
        self._reader, writer = os.pipe()
        self._received = b""
        parent = os.getpid()
        forkserver.flush()
        with forkserver.blocked_signals():
            if not os.fork():
                _become(partial(_facts, run, node, needs, nonce, ports), writer, parent, log)
        os.close(writer)

    def fileno(self) -> int:
        return self._reader

    def receive(self) -> dict[str, Any] | None:
        """Returns the facts, and closes the pipe; None while they are incomplete. To be called when the pipe
        is readable."""
        data = os.read(self._reader, 1 << 16)
        self._received += data
        if data:
            return None
        os.close(self._reader)
        try:
            found: dict[str, Any] = json.loads(self._received)
        except ValueError:
            return on_node.failed(ChildProcessError("the process that examines the node has ended"))
        return found


def _become(measure: Callable[[], dict[str, Any]], writer: int, parent: int, log: str) -> NoReturn:
    """Examines the node in a forked copy of the node process. Never returns."""
    code = 1
    try:
        os.setsid()
        forkserver.default_signals()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        termination.die_with(parent, signal.SIGKILL)
        process_setup.set_title(TITLE)
        forkserver.redirect_to_file(log)
        process_setup.close_files([writer])
        with open(writer, "wb", closefd=False) as pipe:
            pipe.write(json.dumps(measure()).encode())
        code = 0
    finally:
        forkserver.leave(code)


def _facts(run: RunDir, node: int, needs: Needs, nonce: str, ports: Mapping[str, str]) -> dict[str, Any]:
    try:
        return on_node.examine(Plan.read(run.plan), run, run.read_start(), node, needs, nonce, ports)
    except Exception as error:  # a bug in a check prevents no launch
        return on_node.failed(error)
