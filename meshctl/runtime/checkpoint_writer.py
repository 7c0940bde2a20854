"""Writes this rank's part of each checkpoint, and reports it to the supervisor.

    save(step)      the state is copied, or written
    beside          with `run.checkpoint.async`, a thread writes the copy to the run directory

At most one checkpoint is in flight: the next one waits for it, and so does the end of the run. The thread of
an asynchronous checkpoint communicates over a process group of its own, because training uses the others at
the same time.

A checkpoint that cannot be written, for example on a full disk, does not end the run: the rank reports
`unsaved` with the path and the reason in place of `saved`, and goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshctl.plan.model import Checkpoint
from meshctl.run.checkpoints import describe
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal
from meshctl.run.progress import Activity
from meshctl.runtime import checkpoint
from meshctl.runtime.collectives.collective import RUNNING, Collective
from meshctl.runtime.loop_context import TakePosition
from meshctl.runtime.progress import Progress
from meshctl.runtime.state.tree import StateTree
from meshctl.topology.mesh import DeviceMesh

POLL_S = 1.0
"""Seconds after which a waiting worker looks whether the files in flight have grown."""
StateOf = Callable[[], object]
"""Returns the state of a component."""
State = tuple[str, StateTree, DeviceMesh]
"""A component's name, its state taken apart, and its mesh."""


class CheckpointWriter:
    def __init__(
        self,
        run: RunDir,
        group: str,
        rank: int,
        states: Mapping[str, tuple[StateOf, DeviceMesh]],
        events: Journal,
        options: Checkpoint,
        progress: Progress,
    ) -> None:
        """`states` maps each component with state to its state and its mesh, which knows this rank. With
        `options.is_async` it is a collective call of all ranks of the group."""
        self._run, self._group, self._rank, self._states, self._events = run, group, rank, states, events
        self._staging = Staging() if options.is_async else None
        self._world: Collective | None = None  # of all ranks, over a process group of its own
        if options.is_async and dist.is_initialized() and (size := dist.get_world_size()) > 1:
            self._world = Collective(range(size), rank, dist.new_group(backend="gloo", timeout=RUNNING))
        self._progress, self._trace = progress, progress.trace
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._folder = Path()
        """The folder of the checkpoint in flight, or of the last one."""

    def wait(self) -> None:
        """Waits until no checkpoint is in flight. While its files grow, this is no stall. Raises what its
        thread has raised."""
        known = -1
        writing, self._writing = self._writing, None
        while writing and not wait([writing], POLL_S).done:
            size = 0
            for path in self._partial_files():
                with suppress(OSError):
                    size += path.stat().st_size
            if size != known:
                self._progress.enter(Activity.SAVING, -1, time.perf_counter())
            known = size
        if writing:
            writing.result()

    def _partial_files(self) -> Iterator[Path]:
        for name in self._states:
            yield from self._folder.glob(f"{name}/__{self._rank}_*")

    def save(self, step: int, given: Mapping[str, int], takes: Mapping[str, TakePosition]) -> None:
        """Saves this rank's part of the checkpoint of a step, or begins to. `given` is source -> the number
        of samples that it has produced, for the sources of this group, and `takes` has the passes of its
        take blocks. It is a collective call of all ranks of the group."""
        self.wait()
        begin, self._folder = time.perf_counter(), self._run.checkpoint(step)
        states = (
            (name, StateTree.of(name, state_of()), mesh) for name, (state_of, mesh) in self._states.items()
        )
        write = partial(self._write_and_report, step, given, takes, begin)
        if self._staging:
            copies = [(name, self._staging.copy(name, tree), mesh) for name, tree, mesh in states]
            self._events.write("saving", step=step, seconds=time.perf_counter() - begin)
            self._writing = self._thread.submit(write, copies)
        else:
            write(states)

    def _write_and_report(
        self,
        step: int,
        given: Mapping[str, int],
        takes: Mapping[str, TakePosition],
        begin: float,
        states: Iterable[State],
    ) -> None:
        """Writes the files of this rank. It is a collective call of all ranks of the group: after a failure
        the rank still takes part in the collectives of the other components."""
        folder, span, files, failures = self._folder, self._trace.span, list[Path](), list[str]()
        described: dict[str, Any] = {}

        @contextmanager
        def noting(path: Path) -> Iterator[None]:
            try:
                yield
            except (OSError, dcp.CheckpointException) as error:
                failures.append(reason_of(error, path))

        for name, tree, mesh in states:
            with noting(folder / name), span("checkpoint", f"write {name} of step {step}"):
                files += checkpoint.save(folder, name, tree, mesh, self._world)
        with noting(folder):
            files += checkpoint.save_ready(folder, self._rank, takes)
            if not self._rank:
                files += checkpoint.save_position(folder, self._group, given, takes)
        if not failures:
            with noting(folder), span("checkpoint", f"digests of step {step}"):
                described = describe(folder, files)
        if failures:
            # on a full disk the event about the failure needs the space of the files of this rank
            for path in (*files, *self._partial_files()):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            self._events.write("unsaved", step=step, error=failures[0])
        else:
            seconds = time.perf_counter() - begin
            self._events.write("saved", step=step, seconds=seconds, files=described)


class Staging:
    """The copies of the last checkpoint in CPU memory, one for each tensor of each state.

    The memory is used again for the next checkpoint, because new memory costs more than the copy. Where there
    is CUDA it is pinned, so that devices copy at the full speed of their bus.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Tensor] = {}
        """The component, and the name of a tensor in its state -> its copy."""

    def copy(self, component: str, tree: StateTree) -> StateTree:
        """Returns a copy of a state, which the next call overwrites. Of sharded tensors it has the shards of
        this rank. It waits until devices have copied."""
        tensors = {name: self._copied((component, name), value) for name, value in tree.tensors.items()}
        sharded = {name: self._shard((component, name), value) for name, value in tree.sharded.items()}
        for owner, name in [*self._buffers]:
            if owner == component and name not in tensors and name not in sharded:
                del self._buffers[owner, name]
        for device in {value.device for value in (*tree.tensors.values(), *tree.sharded.values())}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        return StateTree(tree.document, tensors, sharded)

    def _copied(self, key: tuple[str, str], value: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            is_pinned = value.device.type == "cuda"
            buffer = torch.empty(value.shape, dtype=value.dtype, pin_memory=is_pinned)
            self._buffers[key] = buffer
        return buffer.copy_(value, non_blocking=True)

    def _shard(self, key: tuple[str, str], value: Tensor) -> Tensor:
        """Returns a copy of the shard of this rank. Of a subclass other than DTensor the copy stays on its
        device, because only the class knows its parts."""
        sharded = value.detach()
        local = sharded.to_local() if isinstance(sharded, DTensor) else sharded
        if type(local) is not Tensor or not isinstance(sharded, DTensor):
            return torch.clone(sharded)
        make: Any = DTensor  # `from_local` would copy the shard back to the device of the mesh
        copy: Tensor = make(self._copied(key, local), sharded._spec, requires_grad=False)
        return copy


def reason_of(error: BaseException, path: Path) -> str:
    """Returns the path that could not be written, and why, in one line."""
    if isinstance(error, dcp.CheckpointException):
        failures = [failure for failure, *_ in error.failures.values()]
        return reason_of(next((one for one in failures if isinstance(one, OSError)), failures[0]), path)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or path}: {error.strerror}"
    line = (str(error) or type(error).__name__).splitlines()[0]
    if "inline_container" in line:  # what torch's writer raises in place of the error of the disk
        free = shutil.disk_usage(path).free
        line = f"a file could not be written to its end ({free:,} bytes are free on its disk)"
    return f"{path}: {line}"
