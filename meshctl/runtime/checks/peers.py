"""`run.checks: all`: whether the ranks of a data rank return the same value and log the same numbers.

Where one rank represents the others of its data rank (`collect`), the values of its tp, cp and ulysses peers
are dropped. They must be equal, so the representative sends its own to each peer, and the peer compares. The
ranks of earlier pipeline stages are left out, because they often have no value. Numbers may differ by as much
as in `torch.testing.assert_close`. A logged number that differs, such as a time, causes only a warning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan, Stage
from meshctl.run.events import EventLog
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.errors import StageError
from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.metrics.scalars import scalars
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.transports.buffers.frames import not_sent
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.user_modes import collect_mode, dispatch_mode, execute_mode
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import producer_set

TOLERANCES = {torch.float64: (1e-7, 1e-7), torch.float32: (1.3e-6, 1e-5), torch.float16: (1e-3, 1e-5)}
"""dtype -> relative and absolute tolerance, as in `torch.testing.assert_close`."""
TOLERANCE = (1.6e-2, 1e-5)
"""The tolerances of dtypes with fewer bits."""
PYTHON_TOLERANCE = (1.3e-6, 1e-5)
"""The tolerances of Python's floats, which are mostly read from float32 tensors."""
MAX_SHOWN = 60
"""The most characters of a value in a message."""
NO_VALUE = "missing"


class Difference(NamedTuple):
    """A difference of two values."""

    what: str
    first: str
    second: str


def first_tag(plan: Plan) -> int:
    """Returns the tag of the first stage; the others follow in the order of the plan. Each route has tags for
    the steps, and others for the end of the run."""
    return 2 * len(plan.routes) * TAGS_PER_ROUTE


@dataclass(frozen=True)
class PeerCheck:
    """Compares the value of a stage with those of the peers of this rank."""

    stage: str
    transport: DataPlane
    tag: int
    representative: int
    """The job rank whose value is taken."""
    peers: Sequence[int]
    """The job ranks that compare their values with it."""
    events: EventLog
    _warned: set[str] = field(default_factory=set)
    """The logged names for which a difference has been reported."""

    @classmethod
    def of(cls, stage: Stage, context: LoopContext) -> PeerCheck | None:
        """Returns the check of a stage on this rank; None if no value is compared."""
        placed = context.plan.component(stage.component)
        mesh, rank = placed.mesh, context.rank
        if not _are_compared(stage):
            return None
        representative = mesh.representative(mesh.data_rank(rank))
        producers = producer_set(collect_mode(stage.collect), execute_mode(stage.execute))
        if producers.index_of(mesh, representative) is None:
            return None
        peers = [
            other
            for other in range(mesh.world_size)
            if producers.index_of(mesh, other) is None and _are_alike(mesh, other, representative)
        ]
        if not peers or rank not in (representative, *peers):
            return None
        first = context.plan.group(placed.group).first_job_rank
        tag = first_tag(context.plan) + context.plan.stages.index(stage)
        job_ranks = [first + peer for peer in peers]
        return cls(stage.name, context.transport, tag, first + representative, job_ranks, context.events)

    def compare(self, value: Any, logged: Mapping[str, list[float]], step: int, *, is_sent: bool) -> None:
        """Compares this rank's value of a step. Where it is sent to no stage, only its numbers count. Raises
        `StageError` for values that differ, and `PeerLost`. Numbers in `logged` that differ
        are reported as an event."""
        shown = _plain(value) if is_sent else scalars(value)
        if self.representative == self.transport.job_rank:
            for peer in self.peers:
                frame = self.transport.frame((peer,), [step, shown, dict(logged)])
                self.transport.send(peer, self.tag, frame)
            return
        _, theirs, their_log = self.transport.receive_value(self.representative, self.tag)
        self._compare_logged(their_log, logged, step)
        if difference := difference_of(theirs, shown):
            name, own = map(self.transport.name_of, (self.representative, self.transport.job_rank))
            what, first, second = difference
            raise StageError(
                f"the peers of a data rank must return the same value: {what} is {first} on {name} and "
                f"{second} on {own}"
            )

    def _compare_logged(
        self, theirs: Mapping[str, list[float]], own: Mapping[str, list[float]], step: int
    ) -> None:
        for name in sorted((theirs.keys() & own.keys()) - self._warned):
            if not _are_equal(theirs[name], own[name]):
                self._warned.add(name)
                shown = [_shown(each[0] if len(each) == 1 else each) for each in (theirs[name], own[name])]
                counted = self.transport.name_of(self.representative)
                self.events.write(
                    "differs", step=step, stage=self.stage, metric=name, counted=counted, values=shown
                )


def _are_compared(stage: Stage) -> bool:
    """Returns whether all peers of a data rank are called, and with the same input."""
    modes = [dispatch_mode(given.dispatch.mode) for given in stage.inputs]
    is_joint = execute_mode(stage.execute).is_joint
    return is_joint and all(mode.is_by_data_rank or not mode.cuts_samples for mode in modes)


def _are_alike(mesh: DeviceMesh, rank: int, other: int) -> bool:
    return mesh.data_rank(rank) == mesh.data_rank(other) and mesh.dim_rank(rank, "pp") == mesh.dim_rank(
        other, "pp"
    )


def _plain(value: Any) -> Any:
    """Returns a value in a form that a frame takes: tensors in host memory, and other objects by type."""
    match value:
        case Tensor():
            return type(value).__name__ if not_sent(value) else value.detach().cpu()
        case Ragged():
            return Ragged(_plain(value.values), _plain(value.offsets))
        case Batch():
            columns = {name: _plain(column) for name, column in value.columns.items()}
            return Batch(columns, ids=value.known_ids)
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str() | bytes():
            return value
    return type(value).__name__


def difference_of(first: Any, second: Any, what: str = "the value") -> Difference | None:
    """Returns the first difference of two values, or None if they are equal."""
    if isinstance(first, Batch) and isinstance(second, Batch):
        return _batch_difference(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return _mapping_difference(first, second, what)
    if _are_equal(first, second):
        return None
    return Difference(what, _shown(first), _shown(second))


def _mapping_difference(first: Mapping[str, Any], second: Mapping[str, Any], what: str) -> Difference | None:
    for key in dict.fromkeys((*first, *second)):
        item = f"`{key}`" if what == "the value" else f"{what[:-1]}.{key}`"
        if key not in first or key not in second:
            shown = [_shown(value[key]) if key in value else NO_VALUE for value in (first, second)]
            return Difference(item, *shown)
        if difference := difference_of(first[key], second[key], item):
            return difference
    return None


def _batch_difference(first: Batch, second: Batch) -> Difference | None:
    if len(first) != len(second):
        return Difference("the number of samples", str(len(first)), str(len(second)))
    if not torch.equal(first.ids, second.ids):
        ids = [[_id_text(batch, row) for row in range(len(batch))] for batch in (first, second)]
        row = next(row for row, pair in enumerate(zip(*ids, strict=True)) if pair[0] != pair[1])
        return Difference(f"the id of row {row}", ids[0][row], ids[1][row])
    for name in dict.fromkeys((*first.names, *second.names)):
        if name not in first or name not in second:
            shown = ["there" if name in batch else NO_VALUE for batch in (first, second)]
            return Difference(f"column `{name}`", *shown)
        differing = _differing_row(first[name], second[name])
        if differing is not None:
            what = f"column `{name}` of sample {_id_text(first, differing)}"
            return Difference(what, _shown(first[name][differing]), _shown(second[name][differing]))
    return None


def _differing_row(first: Any, second: Any) -> int | None:
    """Returns the first row in which two columns of the same length differ, or None."""
    are_tensors = isinstance(first, Tensor) and isinstance(second, Tensor)
    if are_tensors and _are_equal(first, second):
        return None
    rows = range(len(first))
    return next((row for row in rows if not _are_equal(first[row], second[row])), None)


def _id_text(batch: Batch, row: int) -> str:
    return ".".join(map(str, batch.ids[row].tolist()))


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _are_tensors_equal(first, second)
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return False
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    if isinstance(first, float) and isinstance(second, float):
        relative, absolute = PYTHON_TOLERANCE
        are_both_nan = math.isnan(first) and math.isnan(second)
        return are_both_nan or math.isclose(first, second, rel_tol=relative, abs_tol=absolute)
    return bool(first == second)


def _are_tensors_equal(first: Tensor, second: Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if not first.dtype.is_floating_point:
        return torch.equal(first, second)
    relative, absolute = TOLERANCES.get(first.dtype, TOLERANCE)
    return torch.allclose(first.double(), second.double(), rtol=relative, atol=absolute, equal_nan=True)


def _shown(value: Any) -> str:
    if isinstance(value, Batch):
        return f"a batch of {len(value)} samples"
    text = str(value.tolist()) if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
