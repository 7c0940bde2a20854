"""The rendezvous of the agents of one group, through a store of torch, with plain values only.

The plan lists the members, so nothing is negotiated: each agent registers and waits for the others, with a
time limit. It replaces torch's c10d rendezvous, which unpickles values from an unauthenticated store; this
one reads ASCII and JSON.

The store of an attempt on several nodes is the head's. That of an attempt on one node is a file of the group
in the scratch folder: the head's would ask nobody on the machine for a token.

For a program, the agent on the group's first node opens another store, on loopback or on the address by which
it reaches the head, and publishes its address. `MASTER_ADDR`, `MASTER_PORT` and TORCHELASTIC_USE_AGENT_STORE
then make `init_process_group()` of any script use that store. A group of components is given
its process group.
"""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta

from torch.distributed import FileStore, PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from meshctl.dataclass import dataclass
from meshctl.network import addresses
from meshctl.network.addresses import with_short_lookups

JOIN_S = 60.0
"""Time limit for all nodes of a group to join."""
STORE_LIMIT = timedelta(seconds=60)


def connect(meeting: Meeting) -> Store:
    """Returns a client of the store in which the agents of a group meet."""
    if meeting.is_on_one_node:
        store = FileStore(f"{meeting.store}/{meeting.prefix.replace('/', '-')}", -1)
        store.set_timeout(STORE_LIMIT)
        return store
    host, port = meeting.address
    return with_short_lookups(
        lambda: TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=STORE_LIMIT)
    )


def serve(listener: socket.socket) -> TCPStore:
    """Returns a store that accepts connections on `listener`, which is bound to one address. By itself, torch
    would listen on every interface."""
    host, port = listener.getsockname()[:2]
    return with_short_lookups(
        lambda: TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=STORE_LIMIT,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )
    )


@dataclass(frozen=True)
class Meeting:
    """The parameters of the rendezvous of one group in one attempt."""

    store: str
    """HOST:PORT of the head's store; in an attempt on one node, the folder of its stores."""
    attempt: int
    group: str
    nodes: tuple[int, ...]
    """The nodes of the group, in the order of their ranks."""
    node: int
    """The node of this agent."""
    generation: int = 0
    """The number of times that the group has restarted alone in this attempt."""

    @property
    def prefix(self) -> str:
        """The prefix of its keys in the store."""
        end = f"/{self.generation}" if self.generation else ""
        return f"run/{self.attempt}/rdzv/{self.group}{end}"

    @property
    def is_on_one_node(self) -> bool:
        return self.store.startswith("/")

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of the store; port 0 for a file."""
        return ("127.0.0.1", 0) if self.is_on_one_node else addresses.split(self.store)


class PlannedRendezvous(RendezvousHandler):
    """The rendezvous of the nodes on which the plan places a group."""

    def __init__(self, meeting: Meeting, store: Store, own_store: bool) -> None:
        """`own_store`: whether the agent of the group's first node opens the store at `MASTER_ADDR`."""
        self._meeting, self._own_store = meeting, own_store
        self._store: Store = PrefixStore(meeting.prefix, store)
        self._serving: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        if self._own_store and self._meeting.node == self._meeting.nodes[0]:
            self._serve_group()
        self._store.set(f"here/{self._meeting.node}", "")
        self._wait_for_all()
        host, port = json.loads(self._store.get("master")) if self._own_store else self._meeting.address
        return RendezvousInfo(
            self._store,
            self._meeting.nodes.index(self._meeting.node),
            len(self._meeting.nodes),
            RendezvousStoreInfo(host, int(port)),
        )

    def _serve_group(self) -> None:
        """Opens the group's own store and publishes its address. Called before this node registers."""
        listener = addresses.listen(addresses.address_towards(*self._meeting.address))
        self._store.set("master", json.dumps(listener.getsockname()[:2]))
        self._serving = serve(listener)

    def _wait_for_all(self) -> None:
        """Polls the store, because a signal would not interrupt the store's own wait."""
        end = time.monotonic() + JOIN_S
        while missing := [node for node in self._meeting.nodes if not self._store.check([f"here/{node}"])]:
            if time.monotonic() > end:
                names = ", ".join(map(str, missing))
                raise RendezvousTimeoutError(
                    f"group {self._meeting.group}: no agent of node {names} within {JOIN_S:.0f} s at "
                    f"{self._meeting.store}"
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
