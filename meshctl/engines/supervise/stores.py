"""The stores of a run that the supervisor serves.

control    for everything that can steer or end the run; clients must have the token of the run
torch      torch's TCPStore, for the process groups of a run on several nodes only: it has no authentication.
           On one node their stores are files (`engines.node.scratch`)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from torch.distributed import TCPStore

from meshctl.engines.engine import CannotStart
from meshctl.engines.node.rendezvous import serve
from meshctl.network import addresses
from meshctl.network.control_store import StoreClient
from meshctl.network.store_server import StoreServer

BACKLOG = 1024
"""Connections that may wait on a socket."""


def listen(host: str, port: int = 0) -> socket.socket:
    """Opens a socket on a port, or on one that the system chooses. Raises `CannotStart` if it cannot be
    had."""
    try:
        return addresses.listen(host, port, BACKLOG)
    except OSError as error:
        what = f"port {port}" if port else "no port"
        can = "cannot be opened" if port else "can be opened"
        raise CannotStart(f"{what} {can} on {host}: {os.strerror(error.errno or 0)}") from error


class Stores:
    def __init__(self, host: str, has_torch_store: bool = True) -> None:
        """Opens the sockets. Clients may connect before `serve`, because the backlog holds them. Raises
        `CannotStart`."""
        self._control, self._torch = listen(host), listen(host) if has_torch_store else None
        self.torch_address = addresses.joined(host, self._torch.getsockname()[1]) if self._torch else ""
        """HOST:PORT of the store of torch; empty without one."""
        self._control_address = addresses.joined(host, self._control.getsockname()[1])
        self._torch_store: TCPStore | None = None
        self._server: StoreServer | None = None
        self._client: StoreClient | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the stores, by what they are."""
        found = {"the control store": self._control_address}
        return found | ({"the store of torch": self.torch_address} if self._torch else {})

    def serve(self, token: str) -> StoreClient:
        """Starts the threads of the stores. Returns the supervisor's connection to the control store."""
        self._torch_store = serve(self._torch) if self._torch else None
        self._server = StoreServer(self._control, token)
        self._client = StoreClient(self._control_address, token)
        return self._client

    def dropped(self) -> Mapping[str, int]:
        """Returns the connections to the control store that were dropped, by host."""
        return dict(self._server.dropped) if self._server else {}

    def close(self) -> None:
        self._torch_store = None
        if self._client:
            self._client.close()
        if self._server:
            self._server.close()
