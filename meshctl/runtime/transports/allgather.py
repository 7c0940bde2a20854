"""An all-gather of rows over any transport, in a number of rounds that grows with the logarithm of the
ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost


def allgather(data_plane: DataPlane, job_ranks: Sequence[int], me: int, tag: int, row: Any) -> list[Any]:
    """Returns the rows (plain data, tensors, bytes) of all `job_ranks`, in their order. All of them call it;
    `me` is the caller's index.

    Bruck's algorithm: in each round a rank sends all rows that it has to the rank `distance` before it. No
    rank ends a call before every rank has begun it, so at most two calls are in flight and the tag needs no
    credits.
    """
    data_plane.reserve(tag, 0)
    count = len(job_ranks)
    rows, distance = [row], 1
    while distance < count:
        sent = rows[: min(distance, count - distance)]
        data_plane.send(job_ranks[(me - distance) % count], tag, Frame(sent))
        source = job_ranks[(me + distance) % count]
        received = data_plane.receive_value(source, tag)
        if not isinstance(received, list) or len(received) != len(sent):
            raise PeerLost(f"{data_plane.name_of(source)} sent what are not the rows of {len(sent)} ranks")
        rows += received
        distance *= 2
    return [rows[(index - me) % count] for index in range(count)]
