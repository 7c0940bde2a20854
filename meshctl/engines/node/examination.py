"""The examination of a node, in a child of its node process: a disk or a driver that does not answer must not
keep the node process from its connection to the head.

The child writes the fields of `NodeFacts` to a pipe, as one JSON object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from meshctl.engines.checks import on_node
from meshctl.engines.checks.requirements import Needs
from meshctl.engines.node import child, forkserver
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
                measure = partial(_facts, run, node, needs, nonce, ports)
                child.become(TITLE, parent, log, [writer], partial(_write_facts, measure, writer))
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


def _write_facts(measure: Callable[[], dict[str, Any]], writer: int) -> int:
    with open(writer, "wb", closefd=False) as pipe:
        pipe.write(json.dumps(measure()).encode())
    return 0


def _facts(run: RunDir, node: int, needs: Needs, nonce: str, ports: Mapping[str, str]) -> dict[str, Any]:
    try:
        return on_node.examine(Plan.read(run.plan), run, run.read_start(), node, needs, nonce, ports)
    except Exception as error:  # a bug in a check prevents no launch
        return on_node.failed(error)
