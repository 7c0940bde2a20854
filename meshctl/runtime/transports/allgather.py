"""An all-gather of bytes over any transport, in a number of rounds that grows with the logarithm of the
ranks."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from meshctl.runtime.transports.buffers.memcpy import copy
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.transport import tensor_of

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
        own = job_ranks[me]
        if others := [other for other in job_ranks if other != own]:
            send_bytes(data_plane, others, tag, row)
        return [row if other == own else data_plane.receive_bytes(other, tag) for other in job_ranks]
    rows, distance = [row], 1
    while distance < count:
        sent = rows[: min(distance, count - distance)]
        send_bytes(data_plane, [job_ranks[(me - distance) % count]], tag, msgpack.packb(sent))
        source = job_ranks[(me + distance) % count]
        rows += _rows_in(data_plane.receive_bytes(source, tag), len(sent), data_plane.name_of(source))
        distance *= 2
    return [rows[(index - me) % count] for index in range(count)]


def send_bytes(data_plane: DataPlane, to: Sequence[int], tag: int, frame: bytes) -> None:
    """Sends bytes as a frame to some other job ranks. Raises what `DataPlane.lease` raises."""
    transport, *others = {*map(data_plane.transport_to, to)}
    if not others and len(frame) <= transport.inline_max:
        data_plane.send_inline(to, tag, frame)
        return
    for receiver in to:
        lease = data_plane.lease([receiver], tag, len(frame))
        copy(lease.frame, tensor_of(frame))
        data_plane.deliver(lease)


def _rows_in(data: bytes, count: int, sender: str) -> list[bytes]:
    """Returns the rows of a message. Raises `PeerLost` for other bytes."""
    try:
        rows = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        rows = None
    if not isinstance(rows, list) or len(rows) != count or not all(isinstance(row, bytes) for row in rows):
        raise PeerLost(f"{sender} sent a table without the rows of {count} ranks")
    return rows
