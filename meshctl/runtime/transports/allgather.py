"""Everybody's row to everybody, over any transport, in a number of messages that grows with the logarithm of
their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.data_plane import PeerLost, Transport


def exchange(transport: Transport, places: Sequence[int], me: int, lane: int, row: Any) -> list[Any]:
    """The rows (plain data, tensors, bytes) of all `places`, in their order; all of them call it, `me` is
    this one's index.

    Bruck's algorithm: in each round a place passes all it has to the one that is `distance` before it. Nobody
    ends an exchange before everybody has begun it, so at most two of them are under way, and the lane needs
    no credits.
    """
    transport.reserve(lane, 0)
    rows, distance = [row], 1
    while distance < len(places):
        passed = rows[: min(distance, len(places) - distance)]
        transport.send(places[(me - distance) % len(places)], lane, Frame(passed))
        source = places[(me + distance) % len(places)]
        heard = transport.hear(source, lane)
        if not isinstance(heard, list) or len(heard) != len(passed):
            raise PeerLost(f"{transport.who(source)} sent what are not the rows of {len(passed)} places")
        rows += heard
        distance *= 2
    return [rows[(index - me) % len(places)] for index in range(len(places))]
