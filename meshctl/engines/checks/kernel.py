"""What the guard needs of the kernel: process descriptors, adopted orphans, death with the parent. Tried for
real, in a child.

And the clock, and whether Ctrl-C can be heard.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.probe import Answer, Probe, in_a_line
from meshctl.engines.node import guard
from meshctl.package import PACKAGE_DIR

SUBJECT = "kernel"
SECONDS = 20.0
PATIENCE = 5.0
"""Seconds for a signal to come."""
YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Facts:
    system: str = "Linux"
    release: str = ""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """By what was tried, why it does not work."""
    now: float = 0.0
    written: float = 0.0
    """When meshctl's own files were."""
    interrupt_ignored: bool = False


def begin() -> Probe:
    return Probe("meshctl.engines.checks.kernel:tries", [], SECONDS)


def tries() -> dict[str, str]:
    """In a child: what does not work, and why. It becomes a subreaper by this, and leaves no process behind."""
    found = {}
    for name, function in TRIED.items():
        try:
            function()
        except Exception as error:  # any of them is the answer
            found[name] = in_a_line(error)
    guard.kill_children()
    return found


def process_descriptor() -> None:
    """The launcher waits for processes and signals them by descriptors, which never mean another process."""
    child = _forked(signal.pause)
    descriptor = os.pidfd_open(child)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not select.select([descriptor], [], [], PATIENCE)[0]:
            raise OSError("a killed process was not told of")
    finally:
        os.close(descriptor)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def adopted_orphans() -> None:
    """A grandchild comes to the subreaper when its parent dies."""
    guard.adopt_orphans()
    reader, writer = os.pipe()

    def parent() -> None:
        grandchild = _forked(signal.pause)
        os.write(writer, str(grandchild).encode())

    os.waitpid(_forked(parent), 0)
    grandchild = int(os.read(reader, 32))
    for end in (reader, writer):
        os.close(end)
    try:
        if grandchild not in guard.children():
            raise OSError("an orphan was adopted by somebody else")
    finally:
        os.kill(grandchild, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(grandchild, 0)


def death_with_the_parent() -> None:
    """PR_SET_PDEATHSIG: a grandchild holds a pipe open; it closes when the child has died and taken it along."""
    reader, writer = os.pipe()
    ready, set_up = os.pipe()

    def parent() -> None:
        mine = os.getpid()

        def grandchild() -> None:
            guard.die_with(mine, signal.SIGKILL)
            os.write(set_up, b".")
            os.close(set_up)
            signal.pause()

        _forked(grandchild)
        os.read(ready, 1)

    child = _forked(parent)
    for end in (writer, set_up):
        os.close(end)
    os.waitpid(child, 0)
    gone = select.select([reader], [], [], PATIENCE)[0]
    for end in (reader, ready):
        os.close(end)
    if not gone:
        raise OSError("a process outlived its parent")


TRIED: Mapping[str, Callable[[], None]] = {
    "pidfd": process_descriptor,
    "subreaper": adopted_orphans,
    "death signal": death_with_the_parent,
}
WORKS = {
    "pidfd": "a process is signalled by its descriptor, and never another",
    "subreaper": "orphans come to the launcher",
    "death signal": "a process dies with its parent",
}


def _forked(function: Callable[[], object]) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        function()
        code = 0
    finally:
        os._exit(code)


def measure(answer: Answer) -> Facts:
    wrong = answer.said if answer.said is not None else dict.fromkeys(TRIED, answer.wrong)
    written = (PACKAGE_DIR / "__init__.py").stat().st_mtime
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return Facts(platform.system(), platform.release(), wrong, time.time(), written, ignored)


def judge(facts: Facts) -> Iterator[Check]:
    yield _system(facts)
    for name in TRIED if facts.system == "Linux" else ():
        if why := facts.wrong.get(name):
            remedy = (
                "Linux 5.4 or later has it; sandboxes such as gVisor and old seccomp profiles take it away"
            )
            yield Check(SUBJECT, name, "failure", why, remedy)
        else:
            yield Check(SUBJECT, name, "ok", WORKS[name])
    yield _clock(facts)
    if facts.interrupt_ignored:
        found = "the shell that started this ignores it, so a run would not hear it"
        yield Check(
            SUBJECT, "Ctrl-C", "warning", found, "start in the foreground, or end a run with kill -TERM"
        )


def _system(facts: Facts) -> Check:
    if facts.system != "Linux":
        remedy = "run it on Linux; validate, show-topology and init work here"
        return Check(SUBJECT, "system", "failure", f"{facts.system}: launch needs Linux", remedy)
    return Check(SUBJECT, "system", "ok", f"{facts.system} {facts.release}")


def _clock(facts: Facts) -> Check:
    remedy = "set it (timedatectl set-ntp true): run directories are named by it"
    if facts.now < facts.written - 3600:
        told = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts.now))
        return Check(SUBJECT, "clock", "warning", f"{told}: meshctl's own files are from later", remedy)
    if facts.now > facts.written + 20 * YEAR:
        return Check(
            SUBJECT,
            "clock",
            "warning",
            time.strftime("it says the year %Y", time.localtime(facts.now)),
            remedy,
        )
    return Check(SUBJECT, "clock", "ok", time.strftime("%Y-%m-%d %H:%M", time.localtime(facts.now)))
