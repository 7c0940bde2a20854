"""The checks of a worker in each call of an endpoint, and those of `run.checks: all`.

`Borrowed` finds endpoints that write into what they receive. A received batch is borrowed: others may read
the same memory. Large columns are in read-only pages, where a write ends the process. After each call, writes
into all other columns are found:

    tensors     torch counts the writes into a tensor and into its views; for writes by other means, such as
                numpy, the bytes of a tensor of up to 512 KiB are compared with a copy, and samples of the
                bytes of a larger one
    lists       a list must contain the same objects as before

With `run.checks: all`, digests take the place of copies and samples. They find writes by any means and at
every size: also into the items of a list, into values that are no batches, and by a producer that goes on
writing to memory which it has returned.

`PeerCheck`, with `run.checks: all`, finds peers of a data rank that return other values. Where one rank
represents the others of its data rank (`collect`), the values of its tp, cp and ulysses peers are dropped.
They must be equal, so the representative sends its own to each peer, and the peer compares. The ranks of
earlier pipeline stages are left out, because they often have no value. Numbers may differ by as much as in
`torch.testing.assert_close`. A logged number that differs, such as a time, causes only a warning.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from operator import is_
from typing import Any

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan, Stage
from meshctl.run.events import Journal
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.errors import StageError
from meshctl.runtime.loop_context import LoopContext
from meshctl.runtime.metrics.stage_metrics import scalars
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.routes.inputs import Arguments
from meshctl.runtime.routes.weights import checksum
from meshctl.runtime.transports.buffers.frames import FrameError, not_sent, pack
from meshctl.runtime.transports.buffers.memcpy import is_plain
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.user_modes import collect_mode, dispatch_mode, execute_mode
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import producer_set

COPY_MAX_BYTES = 1 << 19
"""Maximum size of a tensor whose bytes are all compared. A copy of this size takes about 15 microseconds."""
SAMPLES, SAMPLE_BYTES = 64, 64
"""The number of samples of a larger tensor, the first and the last bytes among them, and the size of each."""
NO_VERSION = -1
"""The version of a tensor that was made in inference mode, where torch does not count."""
PYTHON_TOLERANCE = (1.3e-6, 1e-5)
"""The relative and the absolute tolerance of Python's floats, which are mostly read from float32 tensors."""
MAX_SHOWN = 60
"""The most characters of a value in a message."""
IDS = "the ids"
Difference = tuple[str, str, str]
"""The part of two values that differs, and how it is shown in the first and in the second one."""


class Borrowed:
    """The arguments of a call, as they were before it."""

    def __init__(
        self,
        endpoint: str,
        is_read_only: Callable[[Tensor], bool] = lambda tensor: False,
        has_digests: bool = False,
    ) -> None:
        """`endpoint` is COMPONENT.METHOD. `is_read_only` returns whether a tensor is in memory of another
        process that this process cannot write. With `has_digests`, digests are compared."""
        self._endpoint, self._is_read_only, self._has_digests = endpoint, is_read_only, has_digests
        self._parts: list[tuple[str, Any, Any, Any]] = []
        """Place and value, with its state: the count of writes or the items, and what its bytes were."""

    def begin(self, arguments: Arguments) -> None:
        """Keeps the state of the arguments before a call."""
        self._parts = [(place, part, *self._state(part)) for place, part in self._parts_of(arguments)]

    def end(self, arguments: Arguments) -> None:
        """Raises `StageError` if a value was written during the call."""
        parts, self._parts = self._parts, []
        for place, part, writes, content in parts:
            now, content_now = self._state(part)
            if isinstance(part, list):
                is_same = len(part) == len(writes) and all(map(is_, part, writes))
            else:
                is_same = writes == now
            if is_same and content == content_now:
                continue
            if is_same and isinstance(part, Tensor) and self._is_read_only(part):
                raise StageError(
                    f"the producer of {place} wrote into it while `{self._endpoint}` read it: memory that an "
                    "endpoint has returned belongs to its consumers"
                )
            raise StageError(
                f"`{self._endpoint}` wrote into {place}, which is borrowed: clone() it before you change it"
            )

    def _parts_of(self, arguments: Arguments) -> Iterator[tuple[str, Any]]:
        given = [("the input", value) for value in arguments.positional]
        given += [(f"the input `{name}`", value) for name, value in arguments.named.items()]
        for place, value in given:
            if isinstance(value, Batch):
                for name, column in value.columns.items():
                    parts = (column.values, column.offsets) if isinstance(column, Ragged) else (column,)
                    yield from ((f"column `{name}`", part) for part in parts)
            elif self._has_digests:
                yield place, value

    def _state(self, part: Any) -> tuple[Any, Any]:
        """Returns torch's count of writes into a tensor, or the items of a list; and a digest, or of a tensor
        in host memory its bytes or samples of them."""
        writes: Any = part.copy() if isinstance(part, list) else None
        if isinstance(part, Tensor):
            writes = NO_VERSION if part.is_inference() else part._version
        if self._has_digests:
            return writes, digest_of(part)
        if not isinstance(part, Tensor) or not is_plain(part):
            return writes, None
        address, nbytes = part.data_ptr(), part.nbytes
        if nbytes <= COPY_MAX_BYTES:
            return writes, ctypes.string_at(address, nbytes)
        last = nbytes - SAMPLE_BYTES
        starts = [address + last * number // (SAMPLES - 1) for number in range(SAMPLES)]
        return writes, [ctypes.string_at(start, SAMPLE_BYTES) for start in starts]


def digest_of(value: Any) -> int | str:
    """Returns a digest of a received value; equal values have equal digests."""
    if isinstance(value, Tensor):
        return checksum(value.detach())
    try:
        return zlib.crc32(pack(value))
    except FrameError as error:  # an object that no route carries was put into it
        return str(error)


# Peers


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
    events: Journal
    _warned: set[str] = field(default_factory=set)
    """The logged names for which a difference has been reported."""

    @classmethod
    def of(cls, stage: Stage, context: LoopContext) -> PeerCheck | None:
        """Returns the check of a stage on this rank; None if no value is compared."""
        placed = context.plan.component(stage.component)
        mesh, rank = placed.mesh, context.rank
        representative = mesh.representative(mesh.data_rank(rank))
        producers = producer_set(collect_mode(stage.collect), execute_mode(stage.execute))
        modes = [dispatch_mode(given.dispatch.mode) for given in stage.inputs]
        have_one_input = all(mode.is_by_data_rank or not mode.cuts_samples for mode in modes)
        is_joint = execute_mode(stage.execute).is_joint
        if not is_joint or not have_one_input or producers.index_of(mesh, representative) is None:
            return None
        peers = [
            other
            for other in range(mesh.world_size)
            if producers.index_of(mesh, other) is None and _place(mesh, other) == _place(mesh, representative)
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
        own_value = parts_of(value if is_sent else scalars(value))
        if self.representative == self.transport.job_rank:
            for peer in self.peers:
                frame = self.transport.frame((peer,), [step, own_value, dict(logged)])
                self.transport.send(peer, self.tag, frame)
            return
        _, theirs, their_log = self.transport.receive_value(self.representative, self.tag)
        counted, own = map(self.transport.name_of, (self.representative, self.transport.job_rank))
        for name in sorted((their_log.keys() & logged.keys()) - self._warned):
            if not _are_equal(their_log[name], logged[name]):
                self._warned.add(name)
                values = [
                    _shown(each[0] if len(each) == 1 else each) for each in (their_log[name], logged[name])
                ]
                facts = {"metric": name, "counted": counted, "values": values}
                self.events.write("differs", step=step, stage=self.stage, **facts)
        if difference := difference_of(theirs, own_value):
            what, first, second = difference
            raise StageError(
                f"the peers of a data rank must return the same value: {what} is {first} on {counted} and "
                f"{second} on {own}"
            )


def _place(mesh: DeviceMesh, rank: int) -> tuple[int, int]:
    return mesh.data_rank(rank), mesh.dim_rank(rank, "pp")


def parts_of(value: Any, name: str = "") -> dict[str, Any]:
    """Returns the parts of a value by their names, in a form that a frame takes."""
    match value:
        case Batch():
            columns = {f"column `{key}`": column for key, column in value.columns.items()}
            parts = {"the number of samples": len(value), IDS: value.ids, **columns}
            return {what: _plain(part) for what, part in parts.items()}
        case Mapping():
            found: dict[str, Any] = {}
            for key, item in value.items():
                found |= parts_of(item, f"{name}.{key}" if name else str(key))
            return found
    return {f"`{name}`" if name else "the value": _plain(value)}


def _plain(value: Any) -> Any:
    """Returns a value in a form that a frame takes: tensors in host memory, and other objects by type."""
    match value:
        case Tensor():
            return type(value).__name__ if not_sent(value) else value.detach().cpu()
        case Ragged():
            return [_plain(value[row]) for row in range(len(value))]
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str() | bytes():
            return value
    return type(value).__name__


def difference_of(first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference | None:
    """Returns the first difference between the parts of two values, or None if they are equal."""
    for what in dict.fromkeys((*first, *second)):
        if what not in first or what not in second:
            one, other = (_shown(parts[what]) if what in parts else "missing" for parts in (first, second))
            return what, one, other
        one, other = first[what], second[what]
        if _are_equal(one, other):
            continue
        if all(isinstance(part, list) or (isinstance(part, Tensor) and part.ndim) for part in (one, other)):
            for row, (here, there) in enumerate(zip(one, other, strict=False)):
                if len(one) == len(other) and not _are_equal(here, there):
                    place = f"row {row} of {what}"
                    if what.startswith("column"):
                        place = f"{what} of sample {'.'.join(map(str, first[IDS][row].tolist()))}"
                    return place, _shown(here), _shown(there)
        return what, _shown(one), _shown(other)
    return None


def _are_equal(first: Any, second: Any) -> bool:
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_are_equal(first[key], second[key]) for key in first)
    if type(first) is not type(second) or not isinstance(first, (Tensor, float)):
        return not isinstance(first, Tensor) and not isinstance(second, Tensor) and bool(first == second)
    relative, absolute = PYTHON_TOLERANCE if isinstance(first, float) else (None, None)
    try:
        torch.testing.assert_close(first, second, rtol=relative, atol=absolute, equal_nan=True)
    except AssertionError:
        return False
    return True


def _shown(value: Any) -> str:
    text = str(value.tolist()) if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
