"""The report of a stall as text: the workers that hold up the run, the chain of waits, and the stacks.

stalled for 10 s: train:1 is in stage metrics, step 12 and waits for nobody
  rollout:0 waits for train:0: free slot of `rollouts -> metrics`
  train:0 waits for train:1: `all_reduce sum` at parts.py:31
  train:1, innermost frame first:
    parts.py:14 in update
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from meshctl.engines.node.stacks import ProcessState
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.stalls import Stall, main_thread
from meshctl.engines.supervise.wait_graph import Worker, name_of
from meshctl.engines.supervise.waits import doing_of, names_of, stage_of
from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan

FRAMES_MAX = 8
"""Maximum number of frames that a report shows of a worker."""
CHAIN_MAX = 6
"""Maximum number of waits that a report shows."""
STACKS_MAX = 2
"""Maximum number of workers whose stacks a report shows."""
PRESSURE_MIN = 10.0
"""Percentage of the time from which on a report mentions that a machine waits for memory or disks."""
GB = 1e9

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
_RUNTIME = f"{PACKAGE_DIR}/runtime/"
_BACKGROUND = f"{_RUNTIME}background.py"
"""The file that runs a thread beside training, and waits for it."""
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/")
_OUTER = re.compile(r"\(meshctl/runtime/(call|worker)\.py")
"""A line of py-spy whose frame calls a component."""
_CALLER = (f"{PACKAGE_DIR}/runtime/call.py", f"{PACKAGE_DIR}/runtime/worker.py")
"""The files that call a component: frames outside of them are not the user's."""


class Frame(NamedTuple):
    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.name}"


def report_of(plan: Plan, stall: Stall) -> list[str]:
    """Returns the lines of a report for a terminal."""
    lines = [f"stalled for {stall.seconds:.0f} s: {_end_text(plan, stall)}"]
    shown = stall.chain[-CHAIN_MAX:]
    if len(stall.chain) > len(shown):
        lines.append(f"  {len(stall.chain) - len(shown)} more wait for these:")
    lines += [f"  {_wait_text(stall, worker, target)}" for worker, target in shown]
    if is_circle(stall):
        lines += [f"  {name_of(worker)}: {doing_of(plan, stall.known, worker)}" for worker in stall.workers]
    for worker in stall.workers[:STACKS_MAX]:
        state = stall.states.get(worker, ProcessState())
        if worker == stall.workers[0] or not is_circle(stall):
            lines += [f"  {line}" for line in _state_lines(worker, state)]
    return lines


def _end_text(plan: Plan, stall: Stall) -> str:
    first = stall.workers[0]
    names, where = names_of(stall.workers), doing_of(plan, stall.known, first)
    verb = "is" if len(stall.workers) == 1 else "are"
    if is_stopped(stall):
        return f"{name_of(first)} is stopped (SIGSTOP) in {where}"
    if is_circle(stall):
        return f"{names} wait for each other"
    others = [wait for worker, wait in stall.waits.items() if worker not in stall.workers and wait.workers]
    waits = " and waits for nobody" if others and verb == "is" else ""
    return f"{names} {verb} in {where}{waits}"


def is_stopped(stall: Stall) -> bool:
    """Returns whether the first worker of a stall is stopped, whatever its record says."""
    return stall.states.get(stall.workers[0], ProcessState()).is_stopped


def is_circle(stall: Stall) -> bool:
    return any(stall.waits[worker].workers for worker in stall.workers)


def _wait_text(stall: Stall, worker: Worker, target: Worker) -> str:
    wait = stall.waits[worker]
    others = len(wait.workers) - 1
    more = f" and {others} more" if others else ""
    return f"{name_of(worker)} waits for {name_of(target)}{more}: {wait.what}"


def _state_lines(worker: Worker, state: ProcessState) -> Iterator[str]:
    name = name_of(worker)
    if state.is_stopped:
        yield f"{name} is stopped; `kill -CONT {state.pid}` continues it"
    elif state.state == "D":
        waits_in = f" in `{state.waits_in}`" if state.waits_in else ""
        what = f"the disk of {state.file}" if state.file else "a disk or a device"
        yield f"{name} waits for {what}{waits_in} (state D)"
    if state.swapped_bytes:
        yield f"{name} has {state.swapped_bytes / GB:.1f} GB in swap"
    for what, percent in (("memory (swapping)", state.memory_pressure), ("disks", state.disk_pressure)):
        if percent >= PRESSURE_MIN:
            yield f"all tasks of its machine waited for {what} in {percent:.0f} % of the last 10 s"
    yield from state.devices
    frames = frames_of(state)
    if frames:
        yield f"{name}, innermost frame first:"
    yield from (f"  {frame}" for frame in frames[:FRAMES_MAX])


def frames_of(state: ProcessState) -> Sequence[str]:
    """Returns the frames of the user's code in the main thread, or in the thread for which it waits,
    innermost first, and then the innermost frame of a library. Without such frames, returns the frames of
    meshctl."""
    if not state.stack:
        return native_frames(state.native)
    lines = _shown_thread(state.stack)
    found = [Frame(**match.groupdict()) for line in lines if (match := _FRAME.match(line))]
    end = next((number for number, frame in enumerate(found) if frame.file in _CALLER), len(found))
    own = [frame for frame in found[:end] if not frame.file.startswith(_RUNTIME)]
    users = [frame for frame in own if not _LIBRARY.search(frame.file)]
    if not users:
        return [str(frame) for frame in own or found[: FRAMES_MAX // 2]]
    inner = [f"(inside, {own[0]})"] if own[0] not in users else []
    return [str(frame) for frame in users[: FRAMES_MAX - 1]] + inner


def _shown_thread(stack: str) -> Sequence[str]:
    """Returns the lines of the main thread, or, if it waits for an asynchronous checkpoint, the lines of the
    thread that writes it."""
    main = main_thread(stack)
    if not any(_BACKGROUND in line for line in main):
        return main
    others = (text.splitlines()[1:] for text in stack.partition("Current thread")[0].split("Thread 0x"))
    return next((lines for lines in others if any(_BACKGROUND in line for line in lines)), main)


def native_frames(text: str) -> Sequence[str]:
    """Returns the frames of the main thread in py-spy's report, innermost first."""
    _, found, rest = text.partition('"MainThread"\n')
    lines = rest.splitlines() if found else []
    outer = (
        number for number, line in enumerate(lines) if _OUTER.search(line) or not line.startswith("    ")
    )
    end = next(outer, len(lines))
    return [line.strip() for line in lines[:end]]


def cause_of(plan: Plan, stall: Stall, log: str) -> Cause:
    """Returns a stall that has exceeded the patience as the cause of the end of the run. `log` is the log
    of all stacks."""
    group, rank = stall.workers[0]
    record = stall.known.records[group, rank]
    stage = stage_of(plan, record)
    is_own = stage is not None and stage.patience is not None
    key = f"pipeline.{stage.name}.patience" if stage is not None and is_own else "run.patience"
    error = f"it has not advanced for {stall.seconds:.0f} s (`{key}`)"
    if is_stopped(stall):
        error = f"it is stopped (SIGSTOP) and has not advanced for {stall.seconds:.0f} s (`{key}`)"
    elif is_circle(stall):
        error = f"{names_of(stall.workers)} have waited for each other for {stall.seconds:.0f} s (`{key}`)"
    return Cause(
        Priority.OWN,
        error,
        group,
        rank,
        stage.name if stage else "",
        record.step or None,
        doing="" if stage else doing_of(plan, stall.known, (group, rank)),
        traceback="\n".join(report_of(plan, stall)),
        log=log,
    )


def log_stall(path: Path, lines: Iterable[str]) -> None:
    """Appends a report with all stacks to a log."""
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(time.strftime("%Y-%m-%d %H:%M:%S\n") + "\n".join(lines) + "\n\n")


def stacks_of(stall: Stall) -> Iterator[str]:
    """Yields all that is known about the workers of a stall, for a log."""
    for worker, state in stall.states.items():
        waits_in = f", in `{state.waits_in}`" if state.waits_in else ""
        yield f"{name_of(worker)}: pid {state.pid}, state {state.state or 'unknown'}{waits_in}"
        yield from filter(None, (state.stack, state.native))
