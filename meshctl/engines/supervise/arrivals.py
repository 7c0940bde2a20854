"""The peers that have connected to a listener and have not proved yet that they have the token of the run.

    arrivals = Arrivals(listener, epoll, make_peer)
    arrivals.accept()                                # the listener is readable
    for peer in arrivals.receive(file): ...          # one has authenticated
    arrivals.expire(now)

A peer that does not authenticate in time is dropped. Where it is crowded, the host that has the most of them
makes room.
"""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from meshctl.engines.connection import Handshake
from meshctl.network.connection import Connection, ProtocolError

STRANGERS_MAX = 256
"""Maximum number of peers that authenticate at the same time."""
STRANGER_S, CROWDED_S = 10.0, 1.0
"""Time limits for a peer to authenticate: usually, and for those of the crowd."""


def crowd_of(hosts: Iterable[str]) -> str | None:
    """Returns the host that has the most of `STRANGERS_MAX` peers; None while there are fewer. `hosts` are
    those of all peers that authenticate."""
    counts = Counter(hosts)
    return counts.most_common(1)[0][0] if counts.total() >= STRANGERS_MAX else None


class Arrivals:
    def __init__(
        self,
        listener: socket.socket,
        epoll: select.epoll,
        make_peer: Callable[[Connection], Handshake],
    ) -> None:
        """`make_peer` makes this side of the authentication of a connection."""
        listener.setblocking(False)
        self._listener, self._epoll, self._make_peer = listener, epoll, make_peer
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._is_accepting = True
        self._strangers: dict[int, Handshake] = {}
        """File -> the peer that has it."""

    def accept(self) -> None:
        """Accepts peers until `STRANGERS_MAX` authenticate. Further ones wait in the listener's queue."""
        while len(self._strangers) < STRANGERS_MAX:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            connection = Connection(sock)
            self._strangers[connection.fileno()] = self._make_peer(connection)
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._is_accepting = False
        self._epoll.unregister(self._listener.fileno())

    def __contains__(self, file: int) -> bool:
        return file in self._strangers

    def receive(self, file: int) -> Iterator[Handshake]:
        """Goes on with the authentication of the peer with a file. Yields the peer once it has
        authenticated."""
        stranger = self._strangers[file]
        try:
            has_proved = any(stranger.accepts(message) for message in stranger.connection.receive())
        except ProtocolError:
            has_proved = False
            stranger.connection.close()
        if has_proved:
            self._forget(file)
            yield stranger
        elif stranger.connection.is_closed:
            self._forget(file)

    def expire(self, now: float) -> None:
        """Drops the peers that have not authenticated in time."""
        crowd = crowd_of(one.connection.peer_host for one in self._strangers.values())
        for file, one in list(self._strangers.items()):
            if now - one.began > (CROWDED_S if one.connection.peer_host == crowd else STRANGER_S):
                one.connection.close()
                self._forget(file)

    def _forget(self, file: int) -> None:
        """Forgets a peer that has authenticated or has ended, so that another one can."""
        del self._strangers[file]
        if not self._is_accepting:
            self._is_accepting = True
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        self._listener.close()
        for stranger in self._strangers.values():
            stranger.connection.close()
