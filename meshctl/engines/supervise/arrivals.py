"""The peers that have connected to the head and have not authenticated yet.

    arrivals = Arrivals(listener, epoll, make_handshake)
    arrivals.accept()                                # the listener is readable
    for number, connection in arrivals.receive(file): ...     # a peer has authenticated
    arrivals.expire(now)

A peer that does not authenticate in time is dropped and counted.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

from meshctl.engines.connection import Handshake
from meshctl.network.connection import Connection, ProtocolError
from meshctl.network.strangers import Strangers, is_crowded, overdue


class Arrivals:
    def __init__(
        self,
        listener: socket.socket,
        epoll: select.epoll,
        handshake: Callable[[Connection], Handshake],
    ) -> None:
        """`handshake` makes the head's side of the authentication of a connection."""
        listener.setblocking(False)
        self._listener, self._epoll, self._handshake = listener, epoll, handshake
        self._epoll.register(listener, select.EPOLLIN)
        self._is_accepting = True
        self._strangers: dict[int, Handshake] = {}
        """File -> the handshake of the peer that has it."""
        self.dropped = Strangers()
        """The connections that were dropped."""

    def accept(self) -> None:
        """Accepts peers until `STRANGERS_MAX` authenticate. Further ones wait in the listener's queue."""
        while not is_crowded(self._strangers):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(sock)
            self._strangers[connection.fileno()] = self._handshake(connection)
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._is_accepting = False
        self._epoll.unregister(self._listener)

    def __contains__(self, file: int) -> bool:
        return file in self._strangers

    def receive(self, file: int) -> Iterator[tuple[int, Connection]]:
        """Goes on with the authentication of the peer with a file. Yields its node and its connection once it
        has authenticated."""
        stranger = self._strangers[file]
        connection = stranger.connection
        try:
            has_proved = any(stranger.accepts(message) for message in connection.receive())
        except ProtocolError:
            has_proved = False
            connection.is_broken = True
        if has_proved:
            self._forget(file)
            yield stranger.node, connection
        elif stranger.is_refused:
            self._drop(file)
        elif connection.is_closed:
            self._forget(file)

    def expire(self, now: float) -> None:
        """Drops the peers that have not authenticated in time."""
        for one in overdue(self._strangers.values(), now):
            self._drop(one.connection.fileno())

    def _drop(self, file: int) -> None:
        connection = self._strangers[file].connection
        self.dropped.note(connection.peer_host)
        connection.close()
        self._forget(file)

    def _forget(self, file: int) -> None:
        """Forgets a peer that has authenticated or has ended, so that another one can."""
        del self._strangers[file]
        if not self._is_accepting:
            self._is_accepting = True
            self._epoll.register(self._listener, select.EPOLLIN)

    def close(self) -> None:
        self._listener.close()
        for stranger in self._strangers.values():
            stranger.connection.close()
