"""An all-gather of bytes over any transport, in a number of rounds that grows with the logarithm of the
ranks."""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost

MAX_DIRECT = 4
"""The largest number of ranks among which each rank sends its row directly to all others, in one round. More
ranks need several rounds, and each round waits for the one before it."""


def allgather(data_plane: DataPlane, job_ranks: Sequence[int], me: int, tag: int, row: bytes) -> list[bytes]:
    """Returns the rows of all `job_ranks`, in their order. All of them call it; `me` is the caller's index.

    Among many ranks this is Bruck's algorithm: in each round a rank sends all rows that it has to the rank
    `distance` before it. No rank ends a call before every rank has begun it, so at most two calls are in
    flight and the tag needs no credits.
    """
    data_plane.reserve(tag, 0)
    count = len(job_ranks)
    if count <= MAX_DIRECT:
        others = [other for other in job_ranks if other != job_ranks[me]]
        for other in others:
            data_plane.send(other, tag, Frame([row]))
        received = {other: _received(data_plane, other, tag, 1)[0] for other in others}
        return [received.get(other, row) for other in job_ranks]
    rows, distance = [row], 1
    while distance < count:
        sent = rows[: min(distance, count - distance)]
        data_plane.send(job_ranks[(me - distance) % count], tag, Frame(sent))
        rows += _received(data_plane, job_ranks[(me + distance) % count], tag, len(sent))
        distance *= 2
    return [rows[(index - me) % count] for index in range(count)]


def _received(data_plane: DataPlane, source: int, tag: int, count: int) -> list[bytes]:
    """Returns the rows that a peer sends. Raises `PeerLost` for anything else."""
    rows = data_plane.receive_value(source, tag)
    if not isinstance(rows, list) or len(rows) != count or not all(isinstance(row, bytes) for row in rows):
        sender = data_plane.name_of(source)
        raise PeerLost(f"{sender} sent a table without the rows of {count} ranks")
    return rows
