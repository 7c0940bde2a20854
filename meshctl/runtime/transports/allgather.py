"""An all-gather of bytes over any transport, in a number of rounds that grows with the logarithm of the
ranks."""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.data_plane import DataPlane


def allgather(data_plane: DataPlane, job_ranks: Sequence[int], me: int, tag: int, row: bytes) -> list[bytes]:
    """Returns the rows of all `job_ranks`, in their order. All of them call it; `me` is the caller's index.

    This is Bruck's algorithm: in each round a rank sends all rows that it has to the rank `distance` before
    it. No rank ends a call before every rank has begun it, so at most two calls are in flight and the tag
    needs no credits.
    """
    data_plane.reserve(tag, 0)
    count, rows, distance = len(job_ranks), [row], 1
    while distance < count:
        sent = rows[: min(distance, count - distance)]
        data_plane.send(job_ranks[(me - distance) % count], tag, Frame(sent))
        rows += data_plane.receive_value(job_ranks[(me + distance) % count], tag)
        distance *= 2
    return [rows[(index - me) % count] for index in range(count)]
