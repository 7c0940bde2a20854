"""The table of a step, which consumers receive from the leader of their part: the headers of all producers,
and behind them the parts, where these are sent.

Parts that follow from the numbers of samples alone are not sent, as they are mostly those of the step before.
Other parts depend on the samples themselves, such as balanced ones. Computing these takes longer than reading
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from meshctl.runtime.routes.header import ProducerHeader, decode, is_consistent
from meshctl.topology.samples import Run

MAX_RUNS_SENT = 1 << 10
"""Parts of more runs in all are not sent."""
Parts = Sequence[Sequence[Run]]


def are_few(parts: Parts) -> bool:
    """Returns whether parts are few enough to be sent."""
    return sum(map(len, parts)) <= MAX_RUNS_SENT


def encode_parts(parts: Parts) -> bytes:
    encoded: bytes = msgpack.packb(parts)
    return encoded


def decode_table(
    table: Any, producers: int, parts: int
) -> tuple[Sequence[ProducerHeader], Sequence[Sequence[Run]] | None] | None:
    """Returns the headers of all producers, and the runs of each part where the parts are sent. Returns None
    for any other table."""
    if not isinstance(table, list) or not producers <= len(table) <= producers + 1:
        return None
    headers = [header for row in table[:producers] if (header := decode(row)) is not None]
    if len(headers) != producers or not is_consistent(headers):
        return None
    if len(table) == producers:
        return headers, None
    found = _decode_parts(table[producers], [header.sample_count for header in headers])
    return (headers, found) if found is not None and len(found) == parts else None


def _decode_parts(row: Any, counts: Sequence[int]) -> list[list[Run]] | None:
    """Returns the runs of each part, or None if the bytes are anything else. `counts` are the producers'
    numbers of samples."""
    try:
        parts = msgpack.unpackb(row)
    except (TypeError, ValueError, msgpack.UnpackException):
        return None
    if not isinstance(parts, list):
        return None
    for part in parts:
        if not isinstance(part, list) or not all(_is_run(run, counts) for run in part):
            return None
    return [[Run(*run) for run in part] for part in parts]


def _is_run(run: Any, counts: Sequence[int]) -> bool:
    match run:
        case [int(producer), int(start), int(stop)]:
            return 0 <= producer < len(counts) and 0 <= start < stop <= counts[producer]
    return False
