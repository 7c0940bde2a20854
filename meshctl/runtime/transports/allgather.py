"""An all-gather of bytes over any transport, in a number of rounds that grows with the logarithm of the
ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost

MAX_DIRECT = 4
"""So many ranks, at most, send their rows to each other in one round: its messages overlap, while a further
round waits for the one before it."""


def allgather(data_plane: DataPlane, job_ranks: Sequence[int], me: int, tag: int, row: bytes) -> list[bytes]:
    """Returns the rows of all `job_ranks`, in their order. All of them call it; `me` is the caller's index.

    Among many ranks this is Bruck's algorithm: in each round a rank sends all rows that it has to the rank
    `distance` before it. No rank ends a call before every rank has begun it, so at most two calls are in
    flight and the tag needs no credits.
    """
    data_plane.reserve(tag, 0)
    if len(job_ranks) <= MAX_DIRECT:
        return _exchanged(data_plane, job_ranks, me, tag, row)
    count = len(job_ranks)
    rows, distance = [row], 1
    while distance < count:
        sent = rows[: min(distance, count - distance)]
        data_plane.send_bytes(job_ranks[(me - distance) % count], tag, msgpack.packb(sent))
        source = job_ranks[(me + distance) % count]
        rows += _rows_in(data_plane.receive_bytes(source, tag), len(sent), data_plane.name_of(source))
        distance *= 2
    return [rows[(index - me) % count] for index in range(count)]


def _exchanged(data_plane: DataPlane, job_ranks: Sequence[int], me: int, tag: int, row: bytes) -> list[bytes]:
    """Sends the row to every other rank, and returns the rows of all."""
    for number, other in enumerate(job_ranks):
        if number != me:
            data_plane.send_bytes(other, tag, row)
    return [
        row if number == me else data_plane.receive_bytes(other, tag)
        for number, other in enumerate(job_ranks)
    ]


def _rows_in(data: bytes, count: int, sender: str) -> list[bytes]:
    """Returns the rows of a message. Raises `PeerLost` for other bytes."""
    try:
        rows = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        rows = None
    if not isinstance(rows, list) or len(rows) != count or not all(isinstance(row, bytes) for row in rows):
        raise PeerLost(f"{sender} sent what are not the rows of {count} ranks")
    return rows
