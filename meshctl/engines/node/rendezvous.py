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

from meshctl.engines.node.worker_env import AgentJob
from meshctl.network import addresses
from meshctl.network.addresses import with_short_lookups

JOIN_S = 60.0
"""Time limit for all nodes of a group to join."""
STORE_LIMIT = timedelta(seconds=60)


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


class PlannedRendezvous(RendezvousHandler):
    """The rendezvous of the nodes on which the plan places a group."""

    def __init__(self, job: AgentJob) -> None:
        """Connects to the store in which the agents of the group meet. For a program, the agent of its first
        node opens the store at `MASTER_ADDR`."""
        self._job, self._nodes = job, job.plan.nodes_of(job.name)
        self._serving: TCPStore | None = None
        generation, place = job.generations.get(job.name, 0), job.stores.torch
        prefix = f"run/{job.start.attempt}/rdzv/{job.name}" + (f"/{generation}" if generation else "")
        store: Store
        if place.startswith("/"):  # the folder of the stores of an attempt on one node
            self._address = "127.0.0.1", 0
            store = FileStore(f"{place}/{prefix.replace('/', '-')}", -1)
            store.set_timeout(STORE_LIMIT)
        else:
            self._address = host, port = addresses.split(place)
            store = with_short_lookups(
                lambda: TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=STORE_LIMIT)
            )
        self._store: Store = PrefixStore(prefix, store)

    def next_rendezvous(self) -> RendezvousInfo:
        program, node = self._job.group.program, self._job.node
        if program and node == self._nodes[0]:
            listener = addresses.listen(addresses.address_towards(*self._address))
            self._store.set("master", json.dumps(listener.getsockname()[:2]))
            self._serving = serve(listener)
        self._store.set(f"here/{node}", "")
        self._wait_for_all()
        host, port = json.loads(self._store.get("master")) if program else self._address
        place = RendezvousStoreInfo(host, int(port))
        return RendezvousInfo(self._store, self._nodes.index(node), len(self._nodes), place)

    def _wait_for_all(self) -> None:
        """Polls the store, because a signal would not interrupt the store's own wait."""
        end = time.monotonic() + JOIN_S
        while missing := [node for node in self._nodes if not self._store.check([f"here/{node}"])]:
            if time.monotonic() > end:
                names, place = ", ".join(map(str, missing)), self._job.stores.torch
                who = f"no agent of node {names} within {JOIN_S:.0f} s at {place}"
                raise RendezvousTimeoutError(f"group {self._job.name}: {who}")
            time.sleep(0.02)

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "meshctl"

    def get_run_id(self) -> str:
        return f"{self._job.name}-{self._job.start.attempt}"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._serving = None
        return True
