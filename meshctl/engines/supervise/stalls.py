"""Finds workers that do not advance, and ends a run that they hold up.

    watch = StallWatch(plan, nodes.ask_stacks, log, is_stopping)
    watch.add(event, now); watch.receive(message, now)
    for found in watch.poll(now): ...        # reports, and the reason of the end

A worker stands if its progress record does not change. A worker that waits for another one is not the stall.
The stall is the end of the chain of waits: a worker that waits for no other, or a circle of workers. It is
reported after ten seconds, or after three times the longest time of the stage, if that is later. It ends the
run after `run.patience`. If this process has itself been stopped, all limits start again. The report names
the workers that hold up the run, the chain of waits, and the stacks:

    stalled for 10 s: train:1 is in stage metrics, step 12 and waits for nobody
      rollout:0 waits for train:0: free slot of `rollouts -> metrics`
      train:0 waits for train:1: `all_reduce sum` at parts.py:31
      train:1, innermost frame first:
        parts.py:14 in update

Agents and node processes that are stopped (SIGSTOP) report nothing, while their workers may go on.
`StoppedWatch` names them, and no worker in their place.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.node.progress import ProcessState, is_stopped
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.waits import (
    Known,
    Wait,
    Worker,
    chain_to,
    doing_of,
    ends_of,
    name_of,
    names_of,
    stage_of,
    waits_of,
    workers_of,
)
from meshctl.engines.supervise.watches import Fault, Finding, Note, Watch
from meshctl.network.connection import Message
from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run.events import Event
from meshctl.run.progress import Activity, Record

LONGEST_TIMES = 3
"""A stage is expected to take at most this number of times its longest time so far."""
FIRST_STEP_TIMES = 6
"""The patience before the first step of a worker is over is this number of times that of the run."""
POLL_S = 0.2
"""Seconds between two searches for stalls."""
JUMP_S = 5.0
"""Seconds between two polls after which this process must have been stopped."""
ANSWER_S = 4.0
"""Time limit for the states and stacks of workers to arrive."""
STACKS_MAX = 8
"""Maximum number of workers of a stall whose stacks are asked for."""
ROUND_S = 1.0
"""Stalls that are reported together begin within this time."""
REPORT_S = 9.0
"""Seconds after which a stall is reported. The stacks, or the poll that finds a stopped process, take up to a
second more."""
STOPPED_S, LOOK_S = 7.0, 1.0
"""The same for an agent or a node process, and seconds between two looks at them."""
FIRST_STEP_S = 60.0
"""The same as `REPORT_S` before the first step of a worker is over."""


@dataclass(frozen=True)
class Stall:
    """Workers that hold up the run."""

    workers: tuple[Worker, ...]
    """The workers that wait for no other, or the members of a circle. The first is the likeliest cause."""
    seconds: float
    """The seconds for which `workers` have not advanced."""
    known: Known
    waits: Mapping[Worker, Wait]
    chain: Sequence[tuple[Worker, Worker]] = ()
    """Pairs of a worker and the worker that it waits for. The chains end at `workers`."""
    states: Mapping[Worker, ProcessState] = field(default_factory=dict)
    limit_s: float = 0.0
    """The patience that has expired; 0 for a report."""


@dataclass
class _Position:
    record: Record
    since: float


@dataclass
class _Open:
    """A stall whose states and stacks have been asked for."""

    workers: tuple[Worker, ...]
    since: float
    asked: float
    missing: set[Worker]
    limit_s: float = 0.0


class StallWatch(Watch):
    def __init__(
        self,
        plan: Plan,
        ask: Callable[[int, Sequence[tuple[str, int, int]]], None],
        log: Path,
        is_stopping: Callable[[], bool] = lambda: False,
        is_suspended: bool = False,
        has_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ask(node, [(group, rank, pid), ...])` requests states and stacks from a node. `log` is the file of
        reports with all stacks, and `is_stopping` returns whether the workers agree on a last step.
        `is_suspended`: no stall is ever found, because a worker is debugged. `has_stopped` returns whether a
        process that reports workers is stopped."""
        self._plan, self._ask, self._log, self._is_stopping = plan, ask, log, is_stopping
        self._is_suspended, self._has_stopped = is_suspended, has_stopped
        patience = [plan.run.patience, *(stage.patience for stage in plan.stages)]
        self._least_s = min([REPORT_S, *filter(None, patience)])
        """The shortest time for which a worker stands before anything is done about it."""
        self._positions: dict[Worker, _Position] = {}
        self._advanced: dict[Worker, float] = {}
        """Worker -> when its last event arrived."""
        self._phases: dict[Worker, str] = {}
        self._begun, self._done, self._exited = set[Worker](), set[Worker](), set[Worker]()
        self._steps: dict[Worker, int] = {}
        """Worker -> the number of steps that it has completed."""
        self._longest: dict[tuple[str, str], float] = {}
        """Group and stage -> the longest time that a rank has taken; the first step only counts as long as it
        is the only one."""
        self._pids: dict[Worker, int] = {}
        self._states: dict[Worker, ProcessState] = {}
        self._in_torch: dict[Worker, float] = {}
        """A worker whose stack ends in torch.distributed -> the time since which it stands."""
        self._open: _Open | None = None
        self._reported: set[tuple[Worker, float]] = set()
        """The workers that were reported, each with the time since which it stands."""
        self._polled = self._restarted = -math.inf
        self._now = 0.0
        self._is_over = False
        """True if a stall has ended the run, or a group that restarts."""

    # Input

    def add(self, event: Event, now: float) -> None:
        """Processes an event of a worker. Each one shows that the worker advances."""
        if event.rank is None:
            return
        worker = event.group, event.rank
        self._advanced[worker] = now
        match event.name:
            case "started":
                self._pids[worker] = int(event.value["pid"])
            case "phase":
                self._phases[worker] = str(event.value.get("phase", ""))
            case "ready":
                self._phases.pop(worker, None)
                self._begun.add(worker)
            case "step":
                self._end_step(worker, event)
            case "saved":
                self._note_time(worker, "", float(event.value.get("seconds", 0.0)))
            case "done":
                self._done.add(worker)
                if self._are_all_done:
                    self._restarted = now  # until then, those that are done have waited for the others
            case "exited":
                self._exited.add(worker)
                self._positions.pop(worker, None)

    def _end_step(self, worker: Worker, event: Event) -> None:
        count = self._steps[worker] = self._steps.get(worker, 0) + 1
        stages, waits = event.value.get("stages", {}), event.value.get("waits", {})
        if count == 2:  # the first step is often slow
            for stage in stages:
                self._longest.pop((worker[0], stage), None)
        for stage, seconds in stages.items():
            is_sync = any(one.name == stage and one.kind == "sync" for one in self._plan.stages)
            self._note_time(worker, stage, seconds + (waits.get(stage, 0.0) if is_sync else 0.0))

    def _note_time(self, worker: Worker, stage: str, seconds: float) -> None:
        key = worker[0], stage
        self._longest[key] = max(seconds, self._longest.get(key, 0.0))

    def forget(self, group: str) -> None:
        """Forgets the workers of a group, which restarts, and a stall of theirs that has ended them."""
        self._is_over = False
        workers = {worker for worker in workers_of(self._plan) if worker[0] == group}
        self._reported = {key for key in self._reported if key[0] not in workers}
        for known in (self._begun, self._done, self._exited):
            known -= workers
        for worker in workers:
            self._positions.pop(worker, None)
            self._phases.pop(worker, None)
            self._steps.pop(worker, None)

    def receive(self, message: Message, now: float) -> None:
        match message:
            case {"type": "progress", "workers": workers, "moved": moved}:
                for group, rank, record, seconds in workers:
                    if (group, rank) not in self._exited:
                        self._positions[group, rank] = _Position(Record.of_message(record), now - seconds)
                for group, rank in moved:
                    self._positions.pop((group, rank), None)
            case {"type": "stacks", "workers": workers}:
                for group, rank, state in workers:
                    self._states[group, rank] = ProcessState(**state)
                    if self._open:
                        self._open.missing.discard((group, rank))

    # Stalls

    def poll(self, now: float) -> Iterator[Finding]:
        if now - self._now > JUMP_S and self._now:
            self._restarted = now
        self._now = now
        if self._is_suspended or self._is_over:
            return
        yield from self._continued()
        if now - self._polled < POLL_S:
            return
        self._polled = now
        if self._open:
            yield from self._answered(self._open)
        elif any(self._age(worker) >= self._least_s for worker in self._positions):
            for end in self._ends(*self._situation()):
                if not self._open:
                    self._consider(end)

    def _continued(self) -> Iterator[Note]:
        """Yields the workers that were reported and have advanced since, once. After a stall has ended the
        run or a group, its workers no longer stand because they were killed."""
        for worker, since in list(self._reported):
            position = self._positions.get(worker)
            if position is None or position.since != since:
                self._reported.discard((worker, since))
                if worker not in self._exited:
                    name, seconds = name_of(worker), self._now - since
                    text = f"{name} advances again, after {seconds:.0f} s"
                    value = {"workers": [], "advanced": [name], "seconds": seconds, "text": [text]}
                    yield Note("stall", value)

    def _age(self, worker: Worker) -> float:
        """Returns the seconds for which a worker stands. They start again after a jump of the clock."""
        since = self._positions[worker].since
        return self._now - max(since, self._restarted, self._advanced.get(worker, -math.inf))

    @property
    def _are_all_done(self) -> bool:
        return self._done.issuperset(workers_of(self._plan))

    def _situation(self) -> tuple[Known, dict[Worker, Wait]]:
        records = {worker: position.record for worker, position in self._positions.items()}
        done, of_torch = self._done | self._exited, self._in_torch.items()
        in_torch = {one for one, since in of_torch if one in records and self._positions[one].since == since}
        known = Known(records, self._phases, self._begun, done, in_torch, self._is_stopping())
        waits = {
            worker: waits_of(self._plan, known, worker)
            for worker in records
            if self._are_all_done or worker not in self._done
        }
        return known, waits

    def _ends(self, known: Known, waits: Mapping[Worker, Wait]) -> list[tuple[Worker, ...]]:
        """Returns the ends of all chains whose workers stand. Workers that each wait for nobody in the same
        stage and step are one end, the oldest first; a circle begins with its newest worker."""
        found: dict[object, list[Worker]] = {}
        graph = {worker: wait.workers for worker, wait in waits.items()}
        for number, end in enumerate(ends_of(graph)):
            if not all(worker in waits for worker in end):
                continue
            record = known.records[end[0]]
            key = (end[0][0], record.step, record.stage, record.activity) if len(end) == 1 else number
            found.setdefault(key, []).extend(end)
        return [
            tuple(sorted(workers, key=self._age, reverse=not isinstance(key, int)))
            for key, workers in found.items()
        ]

    def _consider(self, end: tuple[Worker, ...]) -> None:
        """Asks for the states and stacks of workers that have exceeded a limit."""
        first = end[0]
        age, patience = self._age(first), self._patience(first)
        together = tuple(worker for worker in end if self._age(worker) >= age - ROUND_S)
        report_s = max(REPORT_S, LONGEST_TIMES * self._longest_of(first))
        is_reported = (first, self._positions[first].since) in self._reported
        if age >= patience:
            self._begin(together, patience)
        elif age >= (report_s if self._steps.get(first) else FIRST_STEP_S) and not is_reported:
            self._begin(together, 0.0)

    def _begin(self, workers: tuple[Worker, ...], limit_s: float) -> None:
        asked = [worker for worker in workers[:STACKS_MAX] if worker in self._pids]
        self._open = _Open(workers, self._now - self._age(workers[0]), self._now, set(asked), limit_s)
        by_node: dict[int, list[tuple[str, int, int]]] = {}
        for group, rank in asked:
            self._states.pop((group, rank), None)
            node = self._plan.node_of(group, rank)
            by_node.setdefault(node, []).append((group, rank, self._pids[group, rank]))
        for node, processes in by_node.items():
            self._ask(node, processes)

    def _patience(self, worker: Worker) -> float:
        """Returns the seconds after which a worker that stands ends the run. A stage that has taken longer
        before is given as much time as for a report."""
        record = self._positions[worker].record
        stage, patience = stage_of(self._plan, record), self._plan.run.patience
        if stage is not None and stage.patience is not None:
            patience = stage.patience
        if not patience:
            return math.inf
        if not self._steps.get(worker):
            return FIRST_STEP_TIMES * patience
        return max(patience, LONGEST_TIMES * self._longest_of(worker))

    def _longest_of(self, worker: Worker) -> float:
        record = self._positions[worker].record
        stage = stage_of(self._plan, record)
        if record.activity == Activity.SAVING:
            return self._longest.get((worker[0], ""), 0.0)
        return self._longest.get((worker[0], stage.name), 0.0) if stage else 0.0

    def _answered(self, asked: _Open) -> Iterator[Finding]:
        """Yields the stall for which states and stacks were asked, once they have arrived."""
        if asked.missing and self._now - asked.asked < ANSWER_S:
            return
        self._open = None
        known, waits = self._situation()
        workers = tuple(worker for worker in asked.workers if worker in waits)
        if not workers or self._age(workers[0]) < self._now - asked.asked:  # they advance again
            return
        states = (self._states.get(worker, ProcessState()).state for worker in workers)
        if self._has_stopped() and all(state in ("", "Z") for state in states):
            return  # these workers have ended, or are unknown
        if self._note_torch(workers, known.in_torch):
            return  # the next poll finds the workers that they wait for
        graph = {worker: wait.workers for worker, wait in waits.items()}
        workers = by_suspicion(workers, self._states, known)
        stall = Stall(
            workers,
            self._now - asked.since,
            known,
            waits,
            chain_to(graph, workers),
            {worker: self._states[worker] for worker in workers if worker in self._states},
            asked.limit_s,
        )
        text, stacks = report_of(self._plan, stall), stacks_of(stall)
        if asked.limit_s:
            self._is_over = True
            log_stall(self._log, stacks)
            yield Fault(cause_of(self._plan, stall, str(self._log)))
            return
        log_stall(self._log, [*text, *stacks])
        self._reported.update((worker, self._positions[worker].since) for worker in workers)
        value = {"workers": [*map(name_of, workers)], "seconds": stall.seconds, "text": text}
        yield Note("stall", value, known.records[workers[0]].step)

    def _note_torch(self, workers: Sequence[Worker], known: Collection[Worker]) -> bool:
        """Notes workers that wait in a collective of torch which is not in their records. Returns whether
        there are any that were not known."""
        found = [
            worker
            for worker in workers
            if worker not in known
            and worker in self._states
            and not (record := self._positions[worker].record).collective
            and record.peer < 0
            and is_in_torch_collective(self._states[worker].stack)
        ]
        self._in_torch.update((worker, self._positions[worker].since) for worker in found)
        return bool(found)


class StoppedWatch(Watch):
    """Finds stopped agents, which node processes report, and stopped node processes on this machine. On
    another one, the lease ends a node that is silent."""

    def __init__(self, patience_s: float, local_pids: Callable[[], Mapping[int, int]]) -> None:
        """`patience_s` is `run.patience`; 0 for no limit. `local_pids` returns, for the nodes on this
        machine, node -> the pid of its process."""
        self._patience_s, self._local_pids = patience_s or math.inf, local_pids
        self._agents: dict[int, list[tuple[str, int]]] = {}
        """Node -> the name and the pid of each stopped agent."""
        self._since: dict[tuple[str, int], float] = {}
        """A stopped process -> the time since which it is known to be stopped."""
        self._reported: set[tuple[str, int]] = set()
        self._advanced = self._polled = -math.inf
        """The times at which a worker has last advanced, and of the last look at processes."""

    @property
    def has_any(self) -> bool:
        return bool(self._since)

    def add(self, event: Event, now: float) -> None:
        if event.rank is not None:
            self._advanced = max(self._advanced, now)

    def receive(self, message: Message, now: float) -> None:
        if message["type"] == "stopped":
            self._agents[message["node"]] = [(what, pid) for what, pid in message["processes"]]

    def poll(self, now: float) -> Iterator[Finding]:
        if now - self._polled < LOOK_S:
            return
        if now - self._polled > JUMP_S:  # this process was itself stopped
            self._since.clear()
        self._polled, pids = now, self._local_pids()
        stopped = {agent for agents in self._agents.values() for agent in agents}
        for node, pid in pids.items():
            if is_stopped(pid):
                name = "the fork server" if len(pids) == 1 else f"the node process of node {node}"
                stopped.add((name, pid))
        self._since = {one: self._since.get(one, now) for one in stopped}
        self._reported &= stopped
        for (what, pid), since in self._since.items():
            if now - since >= STOPPED_S and (what, pid) not in self._reported:
                self._reported.add((what, pid))
                text = f"{what} is stopped (SIGSTOP); `kill -CONT {pid}` continues it"
                text = f"stalled for {now - since + LOOK_S:.0f} s: {text}"
                yield Note("stall", {"workers": [], "seconds": now - since, "text": [text]})
            if now - max(since, self._advanced) >= self._patience_s:
                self._advanced = math.inf  # it ends the run once
                advanced = f"no worker has advanced for {self._patience_s:.0f} s (`run.patience`)"
                yield Fault(Cause(Priority.OWN, f"{what} is stopped (SIGSTOP), and {advanced}"))


def by_suspicion(
    workers: Collection[Worker], states: Mapping[Worker, ProcessState], known: Known
) -> tuple[Worker, ...]:
    """Returns workers in another order: first those that are stopped, then those that wait for a device, then
    those in a collective which others have perhaps left out."""

    def suspicion(worker: Worker) -> int:
        state = states.get(worker, ProcessState())
        if state.is_stopped:
            return 0
        if state.state == "D":
            return 1
        is_in_collective = worker in known.in_torch or bool(known.records[worker].collective)
        return 2 if is_in_collective else 3

    return tuple(sorted(workers, key=suspicion))


def is_in_torch_collective(stack: str) -> bool:
    """Returns whether the innermost frame of the main thread is in torch.distributed. The main thread is the
    last in faulthandler's report."""
    frames = [line for line in main_thread(stack) if line.startswith("  File ")]
    return bool(frames) and "/torch/distributed/" in frames[0]


def main_thread(stack: str) -> Sequence[str]:
    """Returns the lines of the main thread in faulthandler's report, innermost first."""
    threads = stack.replace("Current thread", "Thread").split("Thread 0x")
    return threads[-1].splitlines()[1:]


FRAMES_MAX = 8
"""Maximum number of frames that a report shows of a worker."""
CHAIN_MAX = 6
"""Maximum number of waits that a report shows."""
SHOWN_MAX = 2
"""Maximum number of workers whose stacks a report shows."""

_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_RUNTIME = f"{PACKAGE_DIR}/runtime/"
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/")
_CALLER = (f"{_RUNTIME}call.py", f"{_RUNTIME}worker.py", f"{_RUNTIME}checkpoint_writer.py")
"""The files that call a component or torch's checkpoints: frames outside of them are not shown."""


def report_of(plan: Plan, stall: Stall) -> list[str]:
    """Returns the lines of a report for a terminal."""
    lines = [f"stalled for {stall.seconds:.0f} s: {_end_text(plan, stall)}"]
    shown = stall.chain[-CHAIN_MAX:]
    if len(stall.chain) > len(shown):
        lines.append(f"  {len(stall.chain) - len(shown)} more wait for these:")
    for worker, target in shown:
        wait = stall.waits[worker]
        more = f" and {len(wait.workers) - 1} more" if len(wait.workers) > 1 else ""
        lines.append(f"  {name_of(worker)} waits for {name_of(target)}{more}: {wait.what}")
    if is_circle(stall):
        lines += [f"  {name_of(worker)}: {doing_of(plan, stall.known, worker)}" for worker in stall.workers]
    for worker in stall.workers[:SHOWN_MAX]:
        state = stall.states.get(worker, ProcessState())
        if worker == stall.workers[0] or not is_circle(stall):
            lines += [f"  {line}" for line in _state_lines(worker, state)]
    return lines


def _end_text(plan: Plan, stall: Stall) -> str:
    first = stall.workers[0]
    names, where = names_of(stall.workers), doing_of(plan, stall.known, first)
    verb = "is" if len(stall.workers) == 1 else "are"
    if is_first_stopped(stall):
        return f"{name_of(first)} is stopped (SIGSTOP) in {where}"
    if is_circle(stall):
        return f"{names} wait for each other"
    others = [wait for worker, wait in stall.waits.items() if worker not in stall.workers and wait.workers]
    waits = " and waits for nobody" if others and verb == "is" else ""
    return f"{names} {verb} in {where}{waits}"


def is_first_stopped(stall: Stall) -> bool:
    """Returns whether the first worker of a stall is stopped, whatever its record says."""
    return stall.states.get(stall.workers[0], ProcessState()).is_stopped


def is_circle(stall: Stall) -> bool:
    return any(stall.waits[worker].workers for worker in stall.workers)


def _state_lines(worker: Worker, state: ProcessState) -> Iterator[str]:
    name = name_of(worker)
    if state.is_stopped:
        yield f"{name} is stopped; `kill -CONT {state.pid}` continues it"
    elif state.state == "D":
        waits_in = f" in `{state.waits_in}`" if state.waits_in else ""
        yield f"{name} waits for a disk or a device{waits_in} (state D)"
    frames = frames_of(state)
    if frames:
        yield f"{name}, innermost frame first:"
    yield from (f"  {frame}" for frame in frames[:FRAMES_MAX])


def frames_of(state: ProcessState) -> Sequence[str]:
    """Returns the frames of the user's code in the main thread, innermost first, and then the innermost frame
    of a library. Without such frames, returns the frames of meshctl."""
    if not state.stack:
        return []
    found = [match.groups() for line in main_thread(state.stack) if (match := _FRAME.match(line))]
    end = next((number for number, frame in enumerate(found) if frame[0] in _CALLER), len(found))
    own = [frame for frame in found[:end] if not frame[0].startswith(_RUNTIME)]
    users = [frame for frame in own if not _LIBRARY.search(frame[0])]
    texts = [
        "{}:{} in {}".format(*frame) for frame in users[: FRAMES_MAX - 1] or own or found[: FRAMES_MAX // 2]
    ]
    return [*texts, "(inside, {}:{} in {})".format(*own[0])] if users and own[0] not in users else texts


def cause_of(plan: Plan, stall: Stall, log: str) -> Cause:
    """Returns a stall that has exceeded the patience as the cause of the end of the run. `log` is the log
    of all stacks."""
    group, rank = stall.workers[0]
    record = stall.known.records[group, rank]
    stage = stage_of(plan, record)
    is_own = stage is not None and stage.patience is not None
    key = f"pipeline.{stage.name}.patience" if stage is not None and is_own else "run.patience"
    error = f"it has not advanced for {stall.seconds:.0f} s (`{key}`)"
    if is_first_stopped(stall):
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
        yield state.stack
