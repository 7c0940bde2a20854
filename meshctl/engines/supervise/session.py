"""The objects that all attempts of a run share, and the result of an attempt."""

from __future__ import annotations

from collections.abc import Callable

from meshctl.dataclass import dataclass
from meshctl.engines.engine import Handle, Job
from meshctl.engines.supervise.cause import Cause
from meshctl.engines.supervise.elastic import Elastic, Present
from meshctl.engines.supervise.launcher_watch import LauncherWatch
from meshctl.engines.supervise.nodes import Nodes
from meshctl.engines.supervise.observers import Observers
from meshctl.engines.supervise.restarts import Restarts
from meshctl.engines.supervise.run_files import RunFiles
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.stranger_watch import StrangerWatch
from meshctl.network.control_store import StoreClient
from meshctl.plan.resizing import Device
from meshctl.run.events import Journal

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
    strangers: StrangerWatch
    elastic: Elastic
    restarts: Restarts
