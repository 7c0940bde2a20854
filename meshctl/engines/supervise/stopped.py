"""Agents and node processes that are stopped (SIGSTOP): they end nothing and report nothing, while their
workers may go on.

    watch = StoppedWatch(patience_s, report_s)
    watch.note(node, [("the agent of train", pid), ...])       # by the node, each time that they change
    watch.poll(now, {node: pid of the node process}, last)     # the lines of reports
    watch.take_expired()                                       # once: the reason for the end of the run

A node process reports its agents and fork servers. The supervisor looks at node processes itself, if they are
on its machine; on another one, the lease ends a node that is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from meshctl.engines.node.stacks import is_stopped
from meshctl.engines.supervise.stalls import JUMP_S

POLL_S = 1.0
"""Seconds between two looks at node processes."""

UNKNOWN_S = 2.0
"""Maximum number of seconds between the stop of a process and the poll that notices it, on a busy machine."""

Process = tuple[int, str, int]
"""Node, name in messages and pid."""


class StoppedWatch:
    def __init__(
        self, patience_s: float, report_s: float, is_stopped: Callable[[int], bool] = is_stopped
    ) -> None:
        """`patience_s` is `run.patience`; 0 for no limit. A process is reported after `report_s`."""
        self._patience_s, self._report_s = patience_s or math.inf, report_s
        self._is_stopped = is_stopped
        self._since: dict[Process, float] = {}
        """A stopped process -> the time since which it is known to be stopped."""
        self._reported: set[Process] = set()
        self._noted: dict[int, set[Process]] = {}
        """Node -> its last report."""
        self._polled = -math.inf
        self._expired: list[str] = []
        self._is_over = False
        """True if a stopped process has ended the run."""

    @property
    def has_any(self) -> bool:
        """True if a process is stopped now."""
        return bool(self._since)

    def note(self, node: int, processes: Iterable[tuple[str, int]]) -> None:
        """Notes the stopped agents and fork servers of a node."""
        self._noted[node] = {(node, what, pid) for what, pid in processes}

    def poll(self, now: float, node_pids: Mapping[int, int], advanced: float) -> list[str]:
        """Returns a line for each process that has been stopped for too long, once. `node_pids` are the
        node processes on this machine, `advanced` is when a worker has last advanced."""
        if now - self._polled < POLL_S:
            return []
        if now - self._polled > JUMP_S:  # this process was itself stopped
            self._since.clear()
        self._polled = now
        stopped = {process for noted in self._noted.values() for process in noted}
        stopped |= {
            (node, "the fork server" if len(node_pids) == 1 else f"the node process of node {node}", pid)
            for node, pid in node_pids.items()
            if self._is_stopped(pid)
        }
        self._since = {process: self._since.get(process, now) for process in stopped}
        self._reported &= stopped
        due = [
            process
            for process, since in sorted(self._since.items())
            if now - since >= self._report_s - UNKNOWN_S and process not in self._reported
        ]
        self._reported.update(due)
        self._expire(now, advanced)
        return [
            f"stalled for {now - self._since[process] + POLL_S:.0f} s: {process[1]} is stopped (SIGSTOP); "
            f"`kill -CONT {process[2]}` continues it"
            for process in due
        ]

    def _expire(self, now: float, advanced: float) -> None:
        """Ends the run if a process is stopped and no worker advances."""
        for (_, what, _), since in self._since.items():
            if now - max(since, advanced) >= self._patience_s and not self._is_over:
                self._is_over = True
                advanced_text = f"no worker has advanced for {self._patience_s:.0f} s (`run.patience`)"
                self._expired.append(f"{what} is stopped (SIGSTOP), and {advanced_text}")

    def take_expired(self) -> str:
        """Returns why the run ends, at the first call after the patience was exceeded; empty otherwise."""
        return self._expired.pop() if self._expired else ""
