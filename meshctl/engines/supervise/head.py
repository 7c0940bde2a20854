"""The head follows one attempt: it reads the events, computes the rows of metrics, publishes checkpoints,
ends the attempt, and finds the first cause of a failure.

    outcome = Head(session, attempt).follow()          # the exit code, and the first cause if there is one

The head writes these events to `events/launcher.jsonl`:

| event | value |
| --- | --- |
| `launched` | `{"attempt": n, "digest": of the plan, "workers": {GROUP: n}}`: the attempt begins |
| `resumed` | the same, with `{"path": the checkpoint}`, where the run continues from `step` |
| `restarted` | `{"attempt": n, "cause": why the last one failed, "left": restarts}`, going on after `step` |
| `restarted` | the same, with `{"group": NAME, "generation": n}`: this group restarts alone |
| | and, where groups change their size, `{"sizes": {GROUP: [workers before, after]}}` |
| `stopping` | `{"reason": why}`: an orderly end was requested, or the attempt is ended after a failure |
| `checkpoint` | `{"path": folder}`: all workers have saved `step`, and `latest` points to it |
| `warning` | `{"text": one line}` |
| `download` | `{"node": n, "model": NAME, "received": bytes, "total": bytes}`, once a second |
| `clock` | `{"node": n, "offset": s, "error": s, "at": s}` with `run.trace`: how far its clock is ahead |
| `stall` | `{"workers": [GROUP:RANK], "seconds": s, "text": [lines]}`: these workers hold up the run |
| `stall` | `{"advanced": [GROUP:RANK], ...}`, without `workers`: these no longer do |
| `fault` | the death of an agent or of a node process |
| `over` | `{"code": exit code, "reason": the cause, the signal, or the end of the data}`, by the supervisor |

At an orderly end (a signal, a component's `stop`, `run.stop`), every worker finishes the agreed last step and
saves. A second signal ends the attempt at once, and so does the end of `plan.run.grace` seconds after the
first one. After a failure, all processes get SIGTERM, and SIGKILL `GRACE_S` seconds later. Services
get SIGTERM when all other groups have ended.

A metric that is not finite (`run.on_nan: stop`) also ends the attempt after an agreed step, but as failed:
without a last checkpoint and without the stages at the end. A checkpoint is published when the metrics of its
step are judged, so `latest` never points to the step of the wrong number or to a later step.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from meshctl.engines.checks.on_node import Problem
from meshctl.engines.engine import Exited, groups_on, nodes_of
from meshctl.engines.forwarding import ForwardedEvents
from meshctl.engines.node.termination import name_of
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import POLL_S, Cause, Causes, Priority
from meshctl.engines.supervise.checkpoints import Checkpoints
from meshctl.engines.supervise.collective_check import CollectiveCheck
from meshctl.engines.supervise.elastic import NodeChanges, sizes_of
from meshctl.engines.supervise.ending import Ending, ForcedEnd, OrderlyEnd
from meshctl.engines.supervise.examination import Examined, NodeLost, Refused
from meshctl.engines.supervise.judge import Judge
from meshctl.engines.supervise.nodes import Report
from meshctl.engines.supervise.restarts import GroupRestart
from meshctl.engines.supervise.session import FAILED, UNFIT, Outcome, Session
from meshctl.engines.supervise.stalls import StallWatch, StoppedWatch
from meshctl.engines.supervise.watches import Clocks, Note, Stragglers, Watch
from meshctl.network.connection import Message
from meshctl.plan.resizing import Device
from meshctl.run.event_folding import EventFolding
from meshctl.run.events import Event
from meshctl.run.metrics import rows_of
from meshctl.run.progress import Record
from meshctl.run.shutdown import StopRequest
from meshctl.text.english import in_units, in_words

QUIET_POLL_S = 0.1
"""Seconds between two polls while no worker has failed and no step is being agreed. A signal, and a message
of a node, such as that of a failed worker, begin a poll at once."""
FREQUENT = ("progress", "clock")
"""Types of messages that do not begin a poll."""
EXIT_S = 1.0
"""Seconds from the end of the connection of a killed node process to its exit, at most, on a busy machine."""
RECORDS_S = 2.5
"""Seconds in which the progress records of workers that stand have certainly arrived."""


class Head:
    def __init__(self, session: Session, attempt: Attempt) -> None:
        plan = attempt.plan
        self._session, self._attempt, self._plan = session, attempt, plan
        self._nodes, self._signals = session.nodes, session.signals
        store = session.control.under(f"run/{attempt.start.attempt}/")
        self._orderly = OrderlyEnd(plan, store, session.journal)
        self._forced = ForcedEnd(session.nodes, session.handle)
        self._ending = Ending.NONE
        services = {group.name for group in plan.groups if group.program and group.program.service}
        self._services = frozenset(services) if len(services) < len(plan.groups) else frozenset[str]()
        self._causes = Causes(plan, attempt.run.log, self._services)
        self._collectives = CollectiveCheck(plan, attempt.step or 0)
        self._watches = self._made_watches()
        self._abort_seen = math.inf
        """The time at which the head learned first that a worker has aborted inside a collective."""
        self._workers = sum(group.workers for group in plan.groups if group.program is None)
        self._serving = {
            group.name: group.workers for group in plan.groups if group.name not in self._services
        }
        """Group -> number of its workers that have not exited. Without services."""
        self._folding = EventFolding(attempt.run)
        self._forwarded = ForwardedEvents(attempt.run)
        self._judge = Judge(plan.run, rows_of(attempt.run.metrics))
        self._checkpoints = Checkpoints(attempt, self._judge, session.journal, session.nodes.prune)
        self._is_ready = self._is_released = False
        """True if a worker was ready for its first step, and if services were asked to end."""
        self._cause: Cause | None = None
        self._changes = NodeChanges(
            session.elastic, session.nodes, session.handle, attempt, self._orderly, self._forced
        )
        self._own_nodes = frozenset(nodes_of(plan))
        self._missing = set[Device]()
        self._groups = GroupRestart(
            attempt, session.nodes, store, session.journal, session.restarts, self._forget
        )
        self._reports: list[Report] = []
        """The reports of nodes that are not handled yet."""

    def _made_watches(self) -> list[Watch]:
        """Returns all watches, that of this process first."""
        session, attempt, orderly = self._session, self._attempt, self._orderly
        stopped = StoppedWatch(self._plan.run.patience, self._nodes.local_pids)
        stalls = StallWatch(
            self._plan,
            self._nodes.ask_stacks,
            attempt.run.stalls,
            lambda: orderly.is_agreeing,
            is_suspended=bool(attempt.start.debug),
            has_stopped=lambda: stopped.has_any,
        )
        watches = [session.watch, session.files, self._collectives, stalls, Stragglers(), Clocks()]
        return watches if attempt.start.debug else [stopped, *watches]

    def follow(self) -> Outcome:
        """Begins the attempt and follows it until none of its processes runs. Returns the outcome."""
        start, plan = self._attempt.start, self._plan
        self._write("launched", attempt=start.attempt, digest=plan.digest, workers=sizes_of(plan))
        if self._attempt.step is not None:
            self._write("resumed", step=self._attempt.step, path=start.resume)
        self._warn(filter(None, [self._attempt.warning]))
        self._session.observers.on_attempt(start.attempt, self._attempt.step)
        self._nodes.begin(self._message(), {node: groups_on(plan, node) for node in self._own_nodes})
        while self._nodes.running:
            self._poll()
            self._end_in_order()
            self._end_services()
            self._end_by_force()
            self._groups.poll(time.monotonic(), self._message(), self._orderly.words)
            is_quiet = not (self._causes.has_fault or self._orderly.is_deciding or self._forced.has_begun)
            self._wait(QUIET_POLL_S if is_quiet else POLL_S)
        self._poll()
        files = self._session.handle.files()
        if files and self._nodes.lost and self._causes.has_fault and not self._forced.has_begun:
            self._signals.wait(files, EXIT_S)  # for the exit of a lost node process, which is the cause
        self._poll()  # classifies exits that the last poll has read
        outcome = self._outcome()
        self._warn(self._judge.warnings_at_end() if outcome.code == 0 else ())
        self._poll()  # observers see the warnings
        return outcome

    def _wait(self, seconds: float) -> None:
        """Waits for at most `seconds`. A signal, the end of a process, and reports of nodes end the wait;
        progress and clocks, of which many nodes send many, do not."""
        until, of_nodes = time.monotonic() + seconds, {self._nodes.fileno()}
        files = {*self._session.handle.files(), *of_nodes}
        while self._nodes.running and all(
            isinstance(one, dict) and one["type"] in FREQUENT for one in self._reports
        ):
            left_s = until - time.monotonic()
            if left_s <= 0 or self._signals.wait(files, left_s) - of_nodes:
                return
            self._reports += self._nodes.poll()

    def _message(self) -> dict[str, Any]:
        return {
            "type": "attempt",
            "number": self._attempt.start.attempt,
            "store": self._session.store_address if len(self._own_nodes) > 1 else "",
            "control": self._session.control.address,
            "plan": self._plan.to_json(),
            "is_elastic": self._session.elastic.is_allowed,
            "start": json.loads(json.dumps(asdict(self._attempt.start))),
        }

    # Reading events

    def _poll(self) -> None:
        now = time.monotonic()
        self._poll_watches(self._watches[:1], now)  # this process itself: its deaths follow
        self._poll_exits()
        reports, self._reports = [*self._reports, *self._nodes.poll()], []
        for report in reports:
            self._on_report(report, now)
        for event in self._attempt.follower.in_order():
            self._session.observers.on_event(event)
            self._causes.add(event)
            self._note(event)
            for watch in self._watches:
                watch.add(event, now)
            for row in self._attempt.fold.add(event):
                if self._collectives.allows(row["step"]):
                    self._session.observers.on_row(row)
                    self._judge.add(row, self._attempt.fold.not_finite())
                    self._checkpoints.on_row(row["step"])
        self._folding.poll(now, self._attempt.follower)
        if not self._forced.has_begun:
            self._poll_watches(self._watches, now)
        self._causes.end_poll(now)
        self._warn(self._judge.warnings())
        self._checkpoints.publish(self._is_right)
        self._changes.poll(self._checkpoints.newest, now)

    def _poll_watches(self, watches: Iterable[Watch], now: float) -> None:
        """Writes and records what the watches have found."""
        for watch in watches:
            for found in watch.poll(now):
                if isinstance(found, Note):
                    self._write(found.name, step=found.step, **found.value)
                    continue
                self._record(found.cause, step=found.step)
                self._ending |= Ending.WRONG if found.is_wrong else Ending.NONE

    def _poll_exits(self) -> None:
        """Handles the node processes that have ended. One of a lost node, which the head has started again,
        ends no attempt."""
        for exited in self._session.handle.poll():
            if exited.node is None or exited.node in self._own_nodes:
                if exited.reason and exited.node is not None and not self._nodes.has_joined(exited.node):
                    self._note_unfit()
                self._on_exit(exited)
            if exited.node is not None:
                self._nodes.drop(exited.node)

    def _note_unfit(self) -> None:
        if not self._forced.has_begun:
            self._ending |= Ending.UNFIT

    def _on_report(self, report: Report, now: float) -> None:
        match report:
            case NodeLost(_, reason, is_unfit):
                if is_unfit:
                    self._note_unfit()
                self._on_lost(reason)
            case Refused(_, reason, remedy):
                self._warn([f"{reason}; the run goes on without it; {remedy}"])
            case Examined(problems):
                self._on_examined(problems)
            case message:
                self._on_message(message)
                for watch in self._watches:
                    watch.receive(message, now)

    def _on_message(self, message: Message) -> None:
        """Handles a message of a node that is not for the watches alone."""
        match message:
            case {"type": "exited", "node": node, "group": group, "code": code}:
                log = str(self._attempt.run.log(group, f"agent-{node}"))
                where = f" on {self._nodes.named(node)}" if len(self._own_nodes) > 1 else ""
                self._on_exit(Exited(f"the agent of {group}{where}", code, log, group=group))
            case {"type": "devices", "node": node, "has_begun": has_begun, "own": own, "missing": missing}:
                own, missing = [tuple(one) for one in own], [tuple(one) for one in missing]
                if has_begun:
                    self._changes.on_devices(own, missing)
                else:
                    self._missing.update(missing)
                    names = [f"{kind} device {number}" for kind, number in sorted(missing)]
                    self._on_lost(f"node {node} lacks {in_words(names)}")
            case {"type": "download", "node": node, "name": name, "received": received, "total": total}:
                self._write("download", node=node, model=name, received=received, total=total)
            case {"type": "progress", "workers": workers}:
                for group, rank, record, _ in workers:
                    self._causes.place(group, rank, Record.of_message(record))
            case {"type": "events", "who": who, "lines": lines}:
                self._forwarded.add(who, lines)
            case {"type": "stop", "node": node, "signal": number} if not self._signals.first:
                goes_on = self._changes.on_stop(node, time.monotonic())
                what = "goes on without it" if goes_on else "ends"
                name = signal.Signals(number).name
                self._warn([f"node {node} has received {name} from its scheduler: the run {what}"])
                if not goes_on:
                    self._signals.receive(number)

    def _on_examined(self, problems: Sequence[Problem]) -> None:
        """Ends the attempt if a node cannot run it. Otherwise the problems are warnings."""
        failures = [one for one in problems if one.is_failure]
        self._warn(f"{one.text}; {one.remedy}" for one in problems if not one.is_failure)
        if failures and not self._forced.has_begun:
            self._note_unfit()
            first, *others = failures
            lines = [_help(first), *(f"error: {one.text}\n{_help(one)}" for one in others)]
            self._record(Cause(Priority.OWN, first.text, traceback="\n".join(lines)))

    def _on_exit(self, exited: Exited) -> None:
        was_released = self._is_released and exited.group in self._services
        if self._forced.has_begun or was_released or (exited.code == 0 and exited.group):
            return
        priority = Priority.OWN if exited.code < 0 else Priority.ECHO if exited.group else Priority.NODE
        error = exited.reason or f"{exited.what}: {name_of(exited.code)}"
        self._record(Cause(priority, error, log=exited.log, about=exited.group))

    def _on_lost(self, reason: str) -> None:
        if not self._forced.has_begun:
            self._record(Cause(Priority.NODE, reason))

    def _record(self, cause: Cause, step: int | None = None) -> None:
        """Writes and notes a fault that this process has found."""
        lost = cause.priority is not Priority.OWN
        self._write("fault", step=step, error=cause.line, traceback=cause.traceback, lost=lost)
        self._causes.record(cause)

    def _forget(self, group: str) -> None:
        self._causes.forget(group)
        for watch in self._watches:
            watch.forget(group)
        self._serving[group] = self._plan.group(group).workers

    def _note(self, event: Event) -> None:
        self._groups.add(event)
        if event.name == "ready":
            self._is_ready = True
            self._orderly.on_ready(event)
        elif event.name in ("saved", "unsaved"):
            self._checkpoints.add(event)
        elif event.name == "uncounted":
            self._judge.note_uncounted(event)
        elif event.name == "differs":
            self._judge.note_difference(event)
        elif event.name == "exited" and event.group in self._serving:
            self._serving[event.group] -= 1
            if not any(self._serving.values()):
                self._causes.release_services()

    def _is_right(self, step: int) -> bool:
        """Returns whether the metrics of a step are complete and make no failure of it."""
        is_right = self._judge.is_right(step) and self._collectives.allows(step)
        return step <= self._attempt.fold.last and is_right

    # Ending the attempt

    def _end_in_order(self) -> None:
        if self._forced.has_begun:
            return
        if self._signals.first and Ending.SIGNAL not in self._ending:
            self._stop_within_grace(Ending.SIGNAL, self._signals.first.name)
        elif not self._ending & (Ending.SIGNAL | Ending.TIME_LIMIT) and self._session.is_over():
            limit = in_units(self._plan.run.time_limit)
            self._stop_within_grace(Ending.TIME_LIMIT, f"`run.time_limit` of {limit} is over")
        self._orderly.poll()
        if self._judge.fault and Ending.METRIC not in self._ending:
            self._ending |= Ending.METRIC
            self._orderly.stop(StopRequest(self._fault_line(self._judge.fault), has_failed=True))
        elif self._judge.stop and not self._orderly.is_asked:
            self._orderly.stop(StopRequest(self._judge.stop), is_reason=False)
        is_due = self._attempt.has_ended_step and self._checkpoints.is_due(
            time.monotonic(), self._signals.take_save_request()
        )
        if is_due:
            self._orderly.save()

    def _stop_within_grace(self, ending: Ending, reason: str) -> None:
        """Requests an orderly end, which is forced at the end of `run.grace`; at once before step 1."""
        self._ending |= ending
        self._orderly.stop(StopRequest(reason))
        if self._is_ready or not self._workers:
            self._forced.begin_at(time.monotonic() + self._plan.run.grace, notice_s=0.0)
        else:
            self._forced.begin_at(0.0)

    def _fault_line(self, text: str) -> str:
        """Returns the text about a metric that is not finite, and what can be continued from."""
        if self._plan.run.checkpoint is None:
            return text
        newest = self._checkpoints.newest
        saved = f"the newest checkpoint is of step {newest}" if newest else "there is no checkpoint"
        return f"{text}; {saved}"

    def _after_wrong_metric(self, cause: Cause | None) -> Cause | None:
        """Returns the cause of a failure. A metric that is not finite comes before the failure of a worker in
        the same step or a later one, which may follow from it; both are named."""
        pending = self._attempt.fold.pending_not_finite()
        wrong = self._judge.first_wrong(pending, cause.step if cause else None)
        if not wrong:
            return cause
        if cause is None:
            return Cause(Priority.OWN, self._fault_line(wrong))
        line = self._fault_line(f"{wrong}; then {cause.line}")
        return Cause(Priority.OWN, line, traceback=cause.traceback, log=cause.log)

    def _end_services(self) -> None:
        """Sends SIGTERM to services once the agents of all other groups have ended."""
        running = self._nodes.running_groups
        if running and running <= self._services and not self._is_released and not self._forced.has_begun:
            self._is_released = True
            self._causes.release_services()
            self._nodes.signal(signal.SIGTERM, sorted(self._services))

    def _end_by_force(self) -> None:
        now = time.monotonic()
        explain = self._session.files.explain
        is_going = self._cause is None and not self._forced.has_begun
        if is_going and (cause := explain(self._settled(now))):
            is_lasting = self._ending & (Ending.METRIC | Ending.WRONG | Ending.UNFIT)
            if is_lasting or not self._groups.takes(cause, self._causes.groups, now):
                self._cause = cause
                self._write("stopping", reason=cause.line)
                self._forced.begin_at(now)
        if self._signals.count > 1:
            self._forced.kill(now)
        self._forced.poll(now)

    def _settled(self, now: float) -> Cause | None:
        """Returns the first cause once it is known. The abort of a worker inside a collective, by which gloo
        reports a message of another size, waits for the records of its peers."""
        cause = self._causes.settled
        if cause is None or cause.priority is not Priority.CODE or cause.rank is None:
            return cause
        if not self._collectives.is_inside(cause.group, cause.rank):
            return cause
        self._abort_seen = min(self._abort_seen, now)
        return cause if now - self._abort_seen > RECORDS_S else None

    def _outcome(self) -> Outcome:
        first = self._signals.first
        if (reason := self._changes.reason) and not first:
            back, left = self._changes.back, self._changes.leaving
            return Outcome(FAILED, None, reason, True, is_restartable=back is None, left=left, back=back)
        explain = self._session.files.explain
        cause = self._cause or (None if self._forced.has_begun else explain(self._causes.best))
        if found := self._after_wrong_metric(cause):
            is_unfit = Ending.UNFIT in self._ending
            can_succeed = found is cause and not is_unfit and Ending.WRONG not in self._ending
            has_begun = self._is_ready or not self._workers
            code, missing = UNFIT if is_unfit else FAILED, frozenset(self._missing)
            left = self._changes.leaving
            return Outcome(code, found, found.line, has_begun, can_succeed, missing, left)
        if lost := self._checkpoints.lost_end or self._unsaved_end():
            return Outcome(FAILED, Cause(Priority.OWN, lost), lost)
        if first:
            why = self._session.handle.explain(first)
            return Outcome(self._signals.code, None, f"{first.name}: {why}" if why else first.name)
        if late := self._late_end():
            return Outcome(FAILED, late, late.line)
        return Outcome(0, None, self._orderly.reason(self._judge.stop))

    def _unsaved_end(self) -> str:
        """Returns why the last checkpoint is missing if the run was asked to end, the end was forced, and its
        directory cannot be written: workers could not report it."""
        is_asked = self._signals.count == 1 or Ending.TIME_LIMIT in self._ending
        if self._plan.run.checkpoint is None or not (is_asked and self._is_ready and self._forced.has_begun):
            return ""
        problem = self._session.files.problem()
        return f"the last checkpoint could not be written: {problem}" if problem else ""

    def _late_end(self) -> Cause | None:
        """Returns the cause of the failure if `run.time_limit` was over and the end had to be forced: steps
        are lost. An attempt that had not begun a step has lost nothing if there is a checkpoint."""
        if (
            Ending.TIME_LIMIT not in self._ending
            or not self._forced.has_begun
            or (self._checkpoints.newest is not None and not self._is_ready)
        ):
            return None
        limit, grace = in_units(self._plan.run.time_limit), in_units(self._plan.run.grace)
        if not self._is_ready and self._workers:
            return Cause(Priority.OWN, f"`run.time_limit` of {limit} was over before step 1")
        return Cause(Priority.OWN, f"the run did not end within {grace} (`run.grace`) after its `time_limit`")

    def _warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._write("warning", text=text)

    def _write(self, name: str, *, step: int | None = None, **value: Any) -> None:
        """Writes an event. Observers receive it at the next reading of the events."""
        self._session.journal.write(name, step=step, **value)


def _help(problem: Problem) -> str:
    return f"  = help: {problem.remedy}"
