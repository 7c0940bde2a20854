"""The objects that all attempts of a run share, and the result of an attempt."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.engine import Handle, Job
from meshctl.engines.supervise.cause import Cause
from meshctl.engines.supervise.disk_watch import LauncherWatch, RunFiles
from meshctl.engines.supervise.elastic import Elastic, Present
from meshctl.engines.supervise.nodes import Nodes
from meshctl.engines.supervise.restarts import Restarts
from meshctl.engines.supervise.signals import Signals
from meshctl.network.control_store import StoreClient
from meshctl.plan.resizing import Device
from meshctl.run.events import Event, Journal, Observer

CLOSED = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a closed terminal or pipe. They cause no warning."""


class Observers:
    """Calls several observers, isolated so that an error in one of them does not affect the run. One that
    raises an exception is not called again."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def on_attempt(self, number: int, step: int | None) -> None:
        self._call(lambda observer: observer.on_attempt(number, step))

    def on_event(self, event: Event) -> None:
        self._call(lambda observer: observer.on_event(event))

    def on_row(self, row: Mapping[str, Any]) -> None:
        self._call(lambda observer: observer.on_row(row))

    def on_end(self, code: int, reason: str) -> None:
        self._call(lambda observer: observer.on_end(code, reason))

    def _call(self, method: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                method(observer)
            except Exception as error:  # no error of an observer may end the run
                self._observers.remove(observer)
                if isinstance(error, OSError) and error.errno in CLOSED:
                    continue
                text = str(error)
                if isinstance(error, OSError) and error.filename:
                    text = f"{error.strerror}: {error.filename}"
                line = f"warning: {type(observer).__name__} is stopped: {type(error).__name__}: {text}"
                with suppress(OSError):  # stderr is closed
                    print(line, file=sys.stderr, flush=True)


FAILED, UNFIT = 5, 4
"""Exit codes of a run that has failed, and of one that the environment refuses."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run or of an attempt."""

    code: int
    cause: Cause | None = None
    reason: str = ""
    """The cause in one line, or the name of the signal. For a successful run, the reason of its end; empty if
    it has run all of its `steps`."""
    has_begun: bool = False
    """True if a worker was ready for its first step."""
    is_restartable: bool = False
    """True if another attempt may succeed: the cause is a death, the loss of a peer or node, or an
    exception."""
    missing: frozenset[Device] = frozenset()
    """The devices that nodes lacked when the attempt was to begin."""
    left: frozenset[int] = frozenset()
    """The nodes that their scheduler ends."""
    back: Present | None = None
    """The nodes and devices that can be used again, if the attempt has ended for a larger one; else None."""


@dataclass(frozen=True)
class Session:
    """The objects that all attempts of a run share."""

    job: Job
    handle: Handle
    nodes: Nodes
    store_address: str
    """HOST:PORT of the store of torch's process groups; empty for a plan on one node."""
    control: StoreClient
    """The supervisor's connection to the control store."""
    journal: Journal
    files: RunFiles
    observers: Observers
    signals: Signals
    watch: LauncherWatch
    is_over: Callable[[], bool]
    """Returns whether `run.time_limit` is over."""
    elastic: Elastic
    restarts: Restarts
