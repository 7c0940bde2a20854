"""How the agents of one group meet: a torchelastic rendezvous on the launcher's store, with plain values
only.

The plan knows the members, so there is nothing to negotiate: each agent says that it is there and waits,
shortly, for the others. torch's own c10d rendezvous unpickles what it finds in an unauthenticated store; this
one reads ASCII and JSON.

A components' group makes its WORLD on the launcher's store itself. For a program, the agent of the group's
first node opens a store of its own, on loopback or on the address by which it reaches the launcher, and tells
its port: `MASTER_ADDR`, `MASTER_PORT` and TORCHELASTIC_USE_AGENT_STORE then make `init_process_group()` in
anybody's script meet there.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

JOIN_TIMEOUT = 60.0
"""Seconds for all nodes of a group to come."""
STORE_TIMEOUT = timedelta(seconds=60)


def connect(head: str) -> TCPStore:
    """A client of the launcher's store at HOST:PORT."""
    host, _, port = head.rpartition(":")
    return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT)


def serve(listener: socket.socket) -> TCPStore:
    """A store on a socket that listens already, so that it listens there only; torch alone would take every
    interface."""
    host, port = listener.getsockname()
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
        use_libuv=True,
    )


class PlannedRendezvous(RendezvousHandler):
    """Of the nodes on which the plan places a group."""

    def __init__(
        self,
        head: str,
        store: TCPStore,
        attempt: int,
        group: str,
        nodes: Sequence[int],
        node: int,
        own_store: bool,
    ) -> None:
        """`own_store`: the group's `MASTER_ADDR` is a store that its first agent opens, not the launcher's."""
        self._head, self._attempt, self._group = head, attempt, group
        self._nodes, self._node, self._own_store = tuple(nodes), node, own_store
        self._store: Store = PrefixStore(f"run/{attempt}/rdzv/{group}", store)
        self._serving: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        if self._own_store and self._node == self._nodes[0]:
            self._serve_group()
        self._store.set(f"here/{self._node}", "")
        self._wait_for_all()
        host, port = json.loads(self._store.get("master")) if self._own_store else self._head.rsplit(":", 1)
        return RendezvousInfo(
            self._store, self._nodes.index(self._node), len(self._nodes), RendezvousStoreInfo(host, int(port))
        )

    def _serve_group(self) -> None:
        """Opens the group's own store and says where, before this node says that it is there."""
        listener = socket.create_server((_address_towards(self._head), 0), backlog=512)
        self._store.set("master", json.dumps(listener.getsockname()[:2]))
        self._serving = serve(listener)

    def _wait_for_all(self) -> None:
        """In small sleeps and not in the store's own wait, where no signal would be heard."""
        end = time.monotonic() + JOIN_TIMEOUT
        while missing := [node for node in self._nodes if not self._store.check([f"here/{node}"])]:
            if time.monotonic() > end:
                names = ", ".join(map(str, missing))
                raise RendezvousTimeoutError(
                    f"group {self._group}: no agent of node {names} within {JOIN_TIMEOUT:.0f} s at {self._head}"
                )
            time.sleep(0.02)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "meshctl"

    def get_run_id(self) -> str:
        return f"{self._group}-{self._attempt}"

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
    """This host's own address on the way to the launcher: loopback where both are on one node."""
    host, _, port = head.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        address: str = probe.getsockname()[0]
    return address
