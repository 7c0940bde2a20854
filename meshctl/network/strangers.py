"""Connections whose peer has not proved that it has the token of the run: how long each of them may stay, and
how many of each host were dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sized
from typing import Protocol, TypeVar

from meshctl.network.connection import Connection

STRANGERS_MAX = 256
"""Maximum number of peers that authenticate at the same time."""
STRANGER_S, CROWDED_S = 10.0, 1.0
"""Time limits for a peer to authenticate: usually, and while `STRANGERS_MAX` do."""
HOSTS_MAX = 64
"""The most hosts that are counted by themselves."""
OTHERS = "other hosts"


class Arrived(Protocol):
    """A peer that has connected."""

    connection: Connection
    began: float


Peer = TypeVar("Peer", bound=Arrived)


def is_crowded(peers: Sized) -> bool:
    """Returns whether no further peer may begin to authenticate."""
    return len(peers) >= STRANGERS_MAX


def overdue(peers: Collection[Peer], now: float) -> list[Peer]:
    """Returns the peers, of those that have not authenticated, that are to be dropped. Where it is crowded,
    the host that has most of them makes room."""
    late = [one for one in peers if now - one.began > STRANGER_S]
    if late or not is_crowded(peers):
        return late
    [(crowd, _)] = Counter(one.connection.peer_host for one in peers).most_common(1)
    return [one for one in peers if one.connection.peer_host == crowd and now - one.began > CROWDED_S]


class Strangers(Counter[str]):
    """Host -> the number of its connections that were dropped."""

    def note(self, host: str, count: int = 1) -> None:
        self[host if host in self or len(self) < HOSTS_MAX else OTHERS] += count

    def note_all(self, found: Mapping[str, int]) -> None:
        for host, count in found.items():
            self.note(str(host), int(count))
