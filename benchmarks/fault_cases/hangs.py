"""Workers and processes that hang, and slow ones."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from benchmarks.fault_cases.case import FORK_SERVER, Case, Measured, Place, Running

REPORT_S = 10.0
"""The bar for the report of a stall."""


def reported(place: Place, run: Running, moment: float, *texts: str) -> Measured:
    """Measures the first report of a stall, which must contain `texts`, and ends the run."""
    run.until(lambda: bool(run.events("stall")), "a report of a stall", 90.0)
    seconds = time.monotonic() - moment
    shown = "\n".join(run.events("stall")[0]["value"]["text"])
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGTERM)
    code = run.end()
    gone = run.gone_after(time.monotonic()) < 3.0 * place.slack
    ok = seconds <= REPORT_S * place.slack and all(text in shown for text in texts) and code == 130 and gone
    first = next((line.strip() for line in shown.splitlines() if any(text in line for text in texts)), shown)
    return Measured(f"{seconds:.1f} s: {first}", ok)


def stopped(place: Place, title: str, *texts: str) -> Measured:
    run = place.running()
    pid = run.pid_of(title)
    moment = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    return reported(place, run, moment, *texts)


def hangs(place: Place, act: str, *texts: str) -> Measured:
    run = place.launch(fault=f"two:1 5 {act}")
    run.wait_for("two:1", "5")
    return reported(place, run, time.monotonic(), "two:1 is in stage update, step 5", *texts)


def hangs_in_setup(place: Place) -> Measured:
    run = place.launch(fault="two:1 setup hold")
    run.wait_for("two:1", "setup")
    moment = time.monotonic()
    run.until(lambda: bool(run.events("stall")), "a report of a stall", 100.0)
    seconds = time.monotonic() - moment
    shown = "\n".join(run.events("stall")[0]["value"]["text"])
    run.process.send_signal(signal.SIGTERM)
    code = run.end()
    ok = seconds <= 62.5 * place.slack and "two:1" in shown and "in hold" in shown and code == 143
    return Measured(f"{seconds:.1f} s: {shown.splitlines()[0]}", ok)


def skipped_collective(place: Place) -> Measured:
    run = place.launch(fault="two:1 5 skip")
    run.wait_for("two:1", "5")
    return place.died(run, time.monotonic(), "`learner` (ranks 0, 1) differ in step 5", limit=10.0)


def out_of_patience(place: Place) -> Measured:
    """`run.patience: 4` ends the run within one grace."""
    run = place.launch("run.patience=4", fault="two:1 5 loop")
    run.wait_for("two:1", "5")
    moment = time.monotonic()
    # The report comes after 10 s, and the end not before it.
    return place.died(
        run, moment, "two:1 failed in stage update, step 5", "not advanced", limit=4.0 + 2.0 + 2.5
    )


def slow_rank(place: Place) -> Measured:
    run = place.launch("run.steps=400", fault="two:1 always slow")
    code = run.end(200.0)
    texts = [str(text) for event in run.events("warning") for text in lines_of(event)]
    named = next((text for text in texts if "two:1" in text), "nobody is named as slow")
    return Measured(f"exit {code}: {named}", code == 0 and "two:1" in named)


def lines_of(event: dict[str, Any]) -> list[str]:
    text = event["value"].get("text", "")
    return text if isinstance(text, list) else [text]


BAR = "named in 10 s, with its stack"
CASES = [
    Case(
        6, "SIGSTOP of a worker", "named in 10 s", lambda place: stopped(place, "two:1", "two:1 is stopped")
    ),
    Case(
        6,
        "SIGSTOP of an agent",
        "named in 10 s",
        lambda place: stopped(place, "mesh two/0", "the agent of two is stopped"),
    ),
    Case(
        6,
        "SIGSTOP of the node process",
        "named in 10 s",
        lambda place: stopped(place, FORK_SERVER, "the fork server is stopped"),
    ),
    Case(6, "an endpoint sleeps", BAR, lambda place: hangs(place, "hold", "in hold")),
    Case(6, "an endpoint loops", BAR, lambda place: hangs(place, "loop", "in loop")),
    Case(6, "a rank skips a collective", "named in 10 s", skipped_collective),
    Case(
        6,
        "an endpoint loops, with `run.patience: 4`",
        "exit 5 after 4 s and the grace; the error names the worker",
        out_of_patience,
    ),
    Case(6, "setup hangs", "named in 60 s, with its stack", hangs_in_setup),
    Case(16, "a rank ten times slower", "a warning names the rank; exit 0", slow_rank),
]
