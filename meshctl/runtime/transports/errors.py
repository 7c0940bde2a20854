"""Errors of the data plane."""

from __future__ import annotations


class PeerLost(ConnectionError):
    """A peer has ended or never connected. The fault is elsewhere: this process is a victim."""

    def __init__(self, how: str, job_rank: int | None = None, route: str = "") -> None:
        """`how` names the peer and says what happened to it. `job_rank` is the peer's, and `route` is the
        name of the route on which this process waits for it; each only where it is known."""
        super().__init__(f"{how}, and `{route}` waits for it" if route else how)
        self.how, self.job_rank = how, job_rank


class ConnectError(ConnectionError):
    """Workers cannot connect as they were started. The message says what to change."""


class ProtocolError(ValueError):
    """A message violates the wire protocol."""


class OutOfMemory(Exception):
    """There is no memory for a frame. The message names its route."""


class BuffersHeld(Exception):
    """A receiver keeps all buffers that were leased to it and returns none."""


class SentMemoryWritten(ValueError):
    """An endpoint has written into memory that its consumers read."""
