"""Processes that are killed."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.fault_cases.case import FORK_SERVER, Case, Measured, Place

BAR = "all gone in 3 s; the error names the process and SIGKILL"


def killed_at(place: Place, where: str, fault: str = "two:1 {} hold", steps: int = 1000000) -> Measured:
    """Kills two:1 while it is at a place."""
    run = place.launch(f"run.steps={steps}", fault=fault.format(where))
    run.wait_for("two:1", where)
    moment = time.monotonic()
    run.kill("two:1")
    return place.died(run, moment, "two:1 failed", "SIGKILL")


def killed_while_it_waits(place: Place, fault: str, group: str) -> Measured:
    """Kills two:1 while it waits for a worker that `fault` holds up."""
    run = place.launch(fault=f"two:1 import wait;{fault}")
    run.wait_for("two:1", "import")
    run.wait_for(f"{group}:0", fault.split()[1])
    time.sleep(2.5)  # two:1 goes on to its handshake, and waits there
    moment = time.monotonic()
    run.kill("two:1")
    return place.died(run, moment, "two:1 failed", "SIGKILL")


def killed_in_a_step(place: Place) -> Measured:
    run = place.running(23)
    moment = time.monotonic()
    run.kill("two:1")
    return place.died(run, moment, "two:1 failed", "SIGKILL")


def killed(place: Place, title: str, *texts: str) -> Measured:
    run = place.running()
    moment = time.monotonic()
    run.kill(title)
    return place.died(run, moment, *texts)


def killed_launcher(place: Place, is_early: bool) -> Measured:
    run = place.launch(fault="two:1 setup hold" if is_early else "")
    if is_early:
        run.wait_for("two:1", "setup")
    else:
        run.wait_for_step(5)
    moment = time.monotonic()
    run.process.kill()
    return place.died(run, moment, code=None)


CASES = [
    Case(1, "SIGKILL at import", BAR, partial(killed_at, where="import")),
    Case(
        1,
        "SIGKILL before rendezvous",
        BAR,
        partial(killed_while_it_waits, fault="two:0 import hold", group="two"),
    ),
    Case(1, "SIGKILL in setup", BAR, partial(killed_at, where="setup")),
    Case(
        1,
        "SIGKILL while routes are connected",
        BAR,
        partial(killed_while_it_waits, fault="one:0 setup hold", group="one"),
    ),
    Case(1, "SIGKILL in a step", BAR, killed_in_a_step),
    Case(1, "SIGKILL in a checkpoint", BAR, partial(killed_at, where="save")),
    Case(1, "SIGKILL at the end", BAR, partial(killed_at, where="close", steps=5)),
    Case(2, "SIGKILL of an agent", BAR, partial(killed, title="mesh two/0")),
    Case(2, "SIGKILL of the node process", BAR, partial(killed, title=FORK_SERVER)),
    Case(3, "SIGKILL in setup", "all gone in 3 s", partial(killed_launcher, is_early=True)),
    Case(3, "SIGKILL in a step", "all gone in 3 s", partial(killed_launcher, is_early=False)),
]
