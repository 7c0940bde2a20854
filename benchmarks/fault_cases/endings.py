"""Requests to end: signals, a closed terminal, the time limit, and workers that do not end."""

from __future__ import annotations

import os
import pty
import signal
import time
from contextlib import suppress
from functools import partial

from benchmarks.fault_cases.case import Case, Failed, Measured, Place, Running

LONG_STEP = "two:1 always stubborn"


def signalled(place: Place, number: signal.Signals, code: int) -> Measured:
    run = place.running()
    moment = time.monotonic()
    run.process.send_signal(number)
    return ended_in_order(place, run, moment, code)


def ended_in_order(place: Place, run: Running, moment: float, code: int) -> Measured:
    """Measures an end after an agreed last step with a checkpoint."""
    seconds, found = run.gone_after(moment), run.end()
    last = max(run.rows)
    ok = found == code and run.saved == last and seconds <= 3.0 * place.slack and not place.litter()
    return Measured(f"{seconds:.1f} s, exit {found}, checkpoint of step {run.saved} of {last}", ok)


def signalled_twice(place: Place) -> Measured:
    run = place.launch("run.grace=1000", fault="two:1 5 stubborn")
    run.wait_for("two:1", "5")
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: bool(run.events("stopping")), "the first signal")
    time.sleep(0.3)
    moment = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    return over(place, run, moment, 130, 3.0)


def over(place: Place, run: Running, moment: float, code: int, limit: float) -> Measured:
    seconds, found = run.gone_after(moment), run.end()
    ok = found == code and seconds <= limit * place.slack and not place.litter()
    return Measured(f"{seconds:.1f} s, exit {found}", ok)


def asked_for_checkpoint(place: Place) -> Measured:
    run = place.launch("run.checkpoint.every=1000000")
    run.wait_for_step(5)
    run.process.send_signal(signal.SIGUSR1)
    moment = time.monotonic()
    run.until(lambda: bool(run.events("checkpoint")), "a checkpoint", 30.0)
    seconds = time.monotonic() - moment
    saved = run.events("checkpoint")[0]["step"]
    run.wait_for_step(saved + 5)
    run.process.send_signal(signal.SIGTERM)
    code = run.end()
    text = f"checkpoint of step {saved} after {seconds:.1f} s, and on; then exit {code}"
    return Measured(text, code == 143)


def closed_terminal(place: Place) -> Measured:
    """Closes the terminal of a run that is its session's foreground process."""
    terminal, theirs = pty.openpty()
    run = place.launch(
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=lambda: own(0)
    )
    os.close(theirs)
    try:
        read_until_step(run, terminal, 5)
    finally:
        os.close(terminal)
    return ended_in_order(place, run, time.monotonic(), 129)


def own(descriptor: int) -> None:
    """Makes a terminal the controlling one of this session."""
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def read_until_step(run: Running, terminal: int, step: int) -> bytes:
    """Reads what a run writes to a terminal, as a terminal does, until it has made some steps."""
    os.set_blocking(terminal, False)
    shown, end = b"", time.monotonic() + 60.0
    while not any(event["step"] >= step for event in run.events("step")):
        time.sleep(0.02)
        with suppress(BlockingIOError):
            shown += os.read(terminal, 1 << 16)
        if time.monotonic() > end or run.process.poll() is not None:
            raise Failed(f"the run made no step: {shown.decode(errors='replace')[-200:]}")
    return shown


def timed_out(place: Place) -> Measured:
    run = place.launch("run.time_limit=6s")
    run.until(lambda: bool(run.events("stopping")), "the time limit")
    return ended_in_order(place, run, time.monotonic(), 0)


def grace_is_over(place: Place, code: int, *words: str) -> Measured:
    """Measures the end of a run with a worker in an endless step, which ignores SIGTERM."""
    run = place.launch(*words, fault="two:1 5 stubborn")
    run.wait_for("two:1", "5")
    if not words:
        run.process.send_signal(signal.SIGTERM)
    run.until(lambda: bool(run.events("stopping")), "the request")
    return over(place, run, time.monotonic(), code, 2.0 + 1.0)


def peer_has_failed(place: Place) -> Measured:
    """Kills a worker whose peer ignores SIGTERM. The grace of a failure is that of `termination.GRACE_S`."""
    run = place.launch(fault="two:1 5 stubborn")
    run.wait_for("two:1", "5")
    moment = time.monotonic()
    run.kill("two:0")
    return place.died(run, moment, "two:0 failed", "SIGKILL", limit=2.0 + 1.0)


IN_ORDER = "exit {} in 3 s, with a checkpoint of the last step"
CASES = [
    Case(4, "SIGTERM", IN_ORDER.format(143), partial(signalled, number=signal.SIGTERM, code=143)),
    Case(4, "SIGINT", IN_ORDER.format(130), partial(signalled, number=signal.SIGINT, code=130)),
    Case(4, "SIGINT twice in a long step", "exit 130 in 3 s", signalled_twice),
    Case(4, "SIGHUP", IN_ORDER.format(129), partial(signalled, number=signal.SIGHUP, code=129)),
    Case(4, "the terminal is closed", IN_ORDER.format(129), closed_terminal),
    Case(4, "SIGUSR2", IN_ORDER.format(143), partial(signalled, number=signal.SIGUSR2, code=143)),
    Case(4, "SIGUSR1", "a checkpoint, and the run goes on", asked_for_checkpoint),
    Case(4, "the end of `run.time_limit`", IN_ORDER.format(0), timed_out),
    Case(5, "SIGTERM to the launcher", "exit 143 after the grace + 1 s", partial(grace_is_over, code=143)),
    Case(
        5,
        "the end of `run.time_limit`",
        "exit 5 after the grace + 1 s",
        lambda place: grace_is_over(place, 5, "run.time_limit=6s"),
    ),
    Case(
        5,
        "another worker was killed",
        "all gone after the grace + 1 s; the error names the other worker",
        peer_has_failed,
    ),
]
