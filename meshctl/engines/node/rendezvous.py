"""The rendezvous of the agents of one group, on the head's store, with plain values only.

The plan knows the members, so there is nothing to negotiate: each agent registers and waits for the others,
with a short limit. The c10d rendezvous of torch unpickles what it finds in an unauthenticated store; this one
reads ASCII and JSON.

A components' group makes its WORLD on the head's store itself. For a program, the agent of the group's first
node opens a store of its own, on loopback or on the address by which it reaches the head, and publishes its
port: `MASTER_ADDR`, `MASTER_PORT` and TORCHELASTIC_USE_AGENT_STORE then make `init_process_group()` in
anybody's script meet there.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

JOIN_S = 60.0
"""Seconds that all nodes of a group have to join."""
STORE_LIMIT = timedelta(seconds=60)


def connect(head: str) -> TCPStore:
    """Returns a client of the head's store at HOST:PORT."""
    host, _, port = head.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=STORE_LIMIT)


def serve(listener: socket.socket) -> TCPStore:
    """Returns a store on a socket that listens already, and thus on one address; torch alone would listen on
    every interface."""
    host, port = listener.getsockname()
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_LIMIT,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )


@dataclass(frozen=True)
class Meeting:
    """Where the agents of a group meet in an attempt."""

    head: str
    """HOST:PORT of the head's store."""
    attempt: int
    group: str
    nodes: tuple[int, ...]
    """The nodes of the group, in the order of their ranks."""
    node: int
    """The node of this agent."""


class PlannedRendezvous(RendezvousHandler):
    """The rendezvous of the nodes on which the plan places a group."""

    def __init__(self, meeting: Meeting, store: TCPStore, own_store: bool) -> None:
        """`own_store`: the group's `MASTER_ADDR` is a store that its first agent opens, not the head's."""
        self._meeting, self._own_store = meeting, own_store
        self._store: Store = PrefixStore(f"run/{meeting.attempt}/rdzv/{meeting.group}", store)
        self._serving: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        if self._own_store and self._meeting.node == self._meeting.nodes[0]:
            self._serve_group()
        self._store.set(f"here/{self._meeting.node}", "")
        self._wait_for_all()
        host, port = (
            json.loads(self._store.get("master")) if self._own_store else self._meeting.head.rsplit(":", 1)
        )
        return RendezvousInfo(
            self._store,
            self._meeting.nodes.index(self._meeting.node),
            len(self._meeting.nodes),
            RendezvousStoreInfo(host, int(port)),
        )

    def _serve_group(self) -> None:
        """Opens the group's own store and publishes its address, before this node registers."""
        listener = socket.create_server((_address_towards(self._meeting.head), 0), backlog=512)
        self._store.set("master", json.dumps(listener.getsockname()[:2]))
        self._serving = serve(listener)

    def _wait_for_all(self) -> None:
        """Waits in small sleeps, since the wait of the store itself handles no signal."""
        end = time.monotonic() + JOIN_S
        while missing := [node for node in self._meeting.nodes if not self._store.check([f"here/{node}"])]:
            if time.monotonic() > end:
                names = ", ".join(map(str, missing))
                raise RendezvousTimeoutError(
                    f"group {self._meeting.group}: no agent of node {names} within {JOIN_S:.0f} s at "
                    f"{self._meeting.head}"
                )
            time.sleep(0.02)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "meshctl"

    def get_run_id(self) -> str:
        return f"{self._meeting.group}-{self._meeting.attempt}"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._serving = None
        return True


def _address_towards(head: str) -> str:
    """Returns this host's own address on the way to the head: loopback where both are on one node."""
    host, _, port = head.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        address: str = probe.getsockname()[0]
    return address
