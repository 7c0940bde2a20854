"""The progress record: the position of a worker, in 8 KiB of shared memory that its node process reads.

    words (int64)   activity, attempt, step, visit, pass, stage, since (float64), route, peer,
                    collective, since when it runs (float64)
    texts           the call site and the operation of the collective that runs, or ran last
    table           for each process group of a component: its key, the number of the collectives that this
                    rank has called in it since its last `step` event, and the digests after the last ones

The worker writes with plain stores, without a lock and without a system call. A record that has not changed
between two polls of the reader is consistent, and its worker "stands". The pass is the number of passes of
`repeat` blocks that the worker has begun. `route` and `peer` name what the worker waits for. 0 means none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, field
from enum import IntEnum
from typing import Any

from meshctl.dataclass import dataclass

VARIABLE = "MESHCTL_PROGRESS"
"""The environment variable of a worker: `DESCRIPTOR:NUMBER` of the shared memory and of the record in it."""
RECORD_BYTES = 8192

ACTIVITY, ATTEMPT, STEP, VISIT, PASS, STAGE, SINCE, ROUTE, PEER, COLLECTIVE, CALLED = range(11)
"""Indices of the words."""
SITE, OPERATION, TABLE = slice(128, 320), slice(320, 384), 512
KEY_BYTES, DIGESTS = 120, 16
ROW_BYTES = KEY_BYTES + 8 + 8 * DIGESTS
"""A row: the key, the count, and the digests of the last `DIGESTS` calls, each at its number modulo that."""
ROWS = (RECORD_BYTES - TABLE) // ROW_BYTES
"""Maximum number of process groups in a record. Others are left out."""


class Activity(IntEnum):
    STARTING = 0
    BETWEEN_STEPS = 1
    RECEIVING = 2
    """The worker waits for the inputs of a stage."""
    CALLING = 3
    """The endpoint of a stage runs."""
    SENDING = 4
    SYNCING = 5
    SAVING = 6
    CLOSING = 7
    """A component's `close` runs."""


@dataclass(frozen=True)
class Calls:
    """The collectives of one rank in one process group, numbered from 1."""

    count: int = 0
    digests: tuple[int, ...] = ()
    """The digests after the last calls, the newest last. A digest covers all operations up to that call in
    their order, each with its dtype and, if equal ones are required, its shape."""

    def first_difference(self, other: Calls) -> int:
        """Returns the number of the first call that is known to differ; 0 if there is none. A call that the
        other rank has not made yet does not count."""
        own, theirs = self._by_number, other._by_number
        return min((number for number in own.keys() & theirs if own[number] != theirs[number]), default=0)

    @property
    def _by_number(self) -> dict[int, int]:
        return dict(enumerate(self.digests, self.count - len(self.digests) + 1))


@dataclass(frozen=True)
class Record:
    """A progress record, decoded."""

    activity: int = Activity.STARTING
    attempt: int = 0
    step: int = 0
    visit: int = 0
    """The number of `step` events that the worker has written for `step`. It is more than 0 at the end of a
    run, where stages run after the last step."""
    repeat_pass: int = 0
    """The number of passes of `repeat` blocks that the worker has begun in this attempt."""
    stage: int = -1
    """The index of the stage in the plan; -1 outside of stages."""
    since: float = 0.0
    """The start of the activity, in seconds of the node's monotonic clock."""
    route: int = -1
    """The index in the plan of the route on which the worker waits for a peer. Routes at the end of a run
    continue the numbers; -1 for none."""
    peer: int = -1
    """The job rank for which the worker waits; its own one if it waits for several; -1 for none."""
    collective: str = ""
    """The key of the process group whose collective runs; empty if none does."""
    collective_since: float = 0.0
    site: str = ""
    operation: str = ""
    calls: Mapping[str, Calls] = field(default_factory=dict)
    """Key of a process group -> the collectives since the last `step` event."""

    def to_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Record:
        calls = {key: Calls(one["count"], tuple(one["digests"])) for key, one in message["calls"].items()}
        return cls(**{**message, "calls": calls})


def decode(data: bytes) -> Record:
    words, seconds = struct.unpack_from("11q", data), struct.unpack_from("11d", data)
    keys, calls = list[str](), dict[str, Calls]()
    for offset in range(TABLE, TABLE + ROWS * ROW_BYTES, ROW_BYTES):
        key = text_of(data[offset : offset + KEY_BYTES])
        if not key:
            break
        keys.append(key)
        calls[key] = _calls(*struct.unpack_from(f"{1 + DIGESTS}q", data, offset + KEY_BYTES))
    running = words[COLLECTIVE]
    return Record(
        activity=words[ACTIVITY],
        attempt=words[ATTEMPT],
        step=words[STEP],
        visit=words[VISIT],
        repeat_pass=words[PASS],
        stage=words[STAGE] - 1,
        since=seconds[SINCE],
        route=words[ROUTE] - 1,
        peer=words[PEER] - 1,
        collective=keys[running - 1] if 0 < running <= len(keys) else "",
        collective_since=seconds[CALLED],
        site=text_of(data[SITE]),
        operation=text_of(data[OPERATION]),
        calls={key: value for key, value in calls.items() if value.count},
    )


def _calls(count: int, *digests: int) -> Calls:
    first = max(1, count - DIGESTS + 1)
    return Calls(count, tuple(digests[number % DIGESTS] for number in range(first, count + 1)))


def text_of(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def padded(text: str, size: int) -> bytes:
    """Returns the end of a text, encoded and padded to `size` bytes."""
    return text.encode()[-size:].ljust(size, b"\0")
