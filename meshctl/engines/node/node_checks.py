"""The checks of a node process: the examination of its node before an attempt, and a watch of the connections
to the other nodes.

    checks.obey(message)                             "examine" and "peers", messages of the head
    for message in checks.poll(ready, was_stopped): connection.send(message)
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

from meshctl.engines.checks.requirements import Needs
from meshctl.engines.node.examination import Examination
from meshctl.engines.node.peer_watch import PeerWatch
from meshctl.network.connection import Message
from meshctl.run.directory import RunDir


class NodeChecks:
    def __init__(self, run: RunDir, node: int, log: str, watch: PeerWatch) -> None:
        """`log` is the file of the output of the examination."""
        self._run, self._node, self._log, self._watch = run, node, log, watch
        self._examination: Examination | None = None

    def obey(self, message: Message) -> None:
        """Raises `LookupError`, `TypeError` and `ValueError` for a malformed message."""
        if message["type"] == "examine":
            needs = Needs(**message["needs"])
            ports = {str(what): str(address) for what, address in message["ports"].items()}
            self._examination = Examination(
                self._run, self._node, needs, str(message["nonce"]), ports, self._log
            )
        else:
            peers = {int(node): str(address) for node, address in message["peers"].items()}
            self._watch.begin(int(message["attempt"]), peers, time.monotonic())

    @property
    def reading(self) -> list[Any]:
        """The files that become readable when something is to be done."""
        return [*([self._examination] if self._examination else []), *self._watch.reading]

    @property
    def writing(self) -> list[Any]:
        """The files that become writable when something is to be done."""
        return self._watch.writing

    def poll(self, ready: Collection[Any], was_stopped: bool) -> Iterator[Message]:
        """Yields messages for the head. `ready` are the files that are readable or writable, and
        `was_stopped` is whether this process was itself stopped (SIGSTOP)."""
        if self._examination and self._examination in ready:
            facts = self._examination.receive()
            if facts is not None:
                self._examination = None
                address = self._watch.address
                yield {"type": "examined", "facts": facts, "address": address, "now": time.time()}
        if was_stopped or self._watch.is_due(time.monotonic(), ready):
            for found in self._watch.poll(time.monotonic(), was_stopped):
                report = {"type": "unreachable", **asdict(found)} if found else {"type": "reached"}
                yield {"attempt": self._watch.attempt, **report}

    @property
    def strangers(self) -> dict[str, int]:
        """The connections that this node has dropped, by host."""
        return dict(self._watch.strangers)

    def close(self) -> None:
        self._watch.close()
