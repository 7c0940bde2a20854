"""`meshctl stop` ends a run in order, or asks it for a checkpoint, and `meshctl restart` continues it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout

from meshctl.cli.jobs import JobTarget, job_of, job_state
from meshctl.cli.output import REFUSED, Refusal, check_format, write
from meshctl.run.launcher import Launcher
from meshctl.view.live.seen_run import SeenRun, plan_of_run
from meshctl.view.live.summary import ending

POLL_S = 0.2
FAILED = 5
NOT_BEGUN = (1, 2, 3, REFUSED)
"""The exit codes of a launch that was refused before the run began."""
ORDER = [signal.SIGINT, signal.SIGTERM]
"""The signals that request an orderly end, and then the end at once."""


def stop(word: str, is_now: bool, checkpoint: bool, folder: str, format: str) -> int:
    """Returns 0 once the run has ended as it was asked to, or had ended before, and 5 if it has failed. With
    `checkpoint` the run writes a checkpoint and goes on."""
    check_format(format)
    if is_now and checkpoint:
        raise Refusal("--now ends the run, and --checkpoint lets it go on: give one of them")
    seen = SeenRun.named(word, folder, job_state)
    if checkpoint:
        return _save(seen, format)
    was_live = seen.is_live
    seen = stopped(seen, is_now)
    text = ending(seen.state)
    _print(seen, text if was_live else f"{seen.name} was not running: {text}", format)
    return FAILED if was_live and seen.condition in ("failed", "lost") else 0


def stopped(seen: SeenRun, is_now: bool = False) -> SeenRun:
    """Ends a run if it goes on, waits until it has ended, and returns it then. Raises `Refusal`."""
    if not seen.is_live:
        return seen
    launcher = _launcher_of(seen)
    # Two equal signals would count as one, and a launcher that a script has started ignores SIGINT.
    signals = [signal.SIGTERM, signal.SIGUSR2] if launcher.ignores(signal.SIGINT) else ORDER
    unsent = signals if is_now else signals[:1]
    if not is_now:
        print(f"{seen.name} stops after a step on which its workers agree", file=sys.stderr)
    while True:
        # A run that stops already, in which a further signal would end it at once, may also begin again.
        if is_now or seen.condition != "stopping":
            for number in unsent:
                _send(launcher, number, seen)
            unsent = []
        if launcher.wait(POLL_S):
            return seen.again()
        seen = seen.again() if unsent else seen


def _save(seen: SeenRun, format: str) -> int:
    """Asks for a checkpoint, and waits until it is published. Raises `Refusal`."""
    if not seen.is_live:
        raise Refusal(f"{seen.name} is not running: {ending(seen.state)}", REFUSED)
    if seen.plan.run.checkpoint is None:
        raise Refusal(f"the recipe of {seen.name} has no `run.checkpoint`", REFUSED)
    launcher, before = _launcher_of(seen), seen.run.saved()
    _send(launcher, signal.SIGUSR1, seen)
    while seen.run.saved() == before:
        if launcher.wait(POLL_S):
            break
    seen = seen.again()
    if (saved := seen.run.saved()) == before:
        raise Refusal(f"{seen.name} has ended before it wrote a checkpoint: {ending(seen.state)}", REFUSED)
    _print(seen, f"{seen.name}: checkpoint of step {saved}: {seen.run.checkpoint(saved)}", format)
    return 0


def _launcher_of(seen: SeenRun) -> Launcher | JobTarget:
    """Returns the process to signal. Raises `Refusal`."""
    if seen.job and (job := job_of(seen.run)):
        return JobTarget(seen.run, job)
    launcher = seen.launcher
    if launcher is None:
        raise Refusal(f"{seen.name} was launched by an earlier version: send SIGINT to its launcher", REFUSED)
    if not launcher.is_here:
        raise Refusal(
            f"the launcher of {seen.name} is process {launcher.pid} on {launcher.host}: call this there",
            REFUSED,
        )
    return launcher


def _send(launcher: Launcher | JobTarget, number: signal.Signals, seen: SeenRun) -> None:
    try:
        launcher.send(number)
    except PermissionError:
        raise Refusal(f"the launcher of {seen.name} is another user's", REFUSED) from None
    except OSError as error:
        raise Refusal(str(error), REFUSED) from None


def _print(seen: SeenRun, text: str, format: str) -> None:
    write(f"{text}\n" if format == "text" else json.dumps(seen.to_data(), indent=2) + "\n", sys.stdout)


def restart(word: str, overrides: Sequence[str], folder: str, is_detached: bool, format: str = "text") -> int:
    """Ends a run if it goes on, and continues it from its last checkpoint. Returns the exit code of the run.
    With the format `json`, stdout has the state of the run at its end, or at its beginning in the background,
    and what `launch` prints is on stderr."""
    check_format(format)
    seen = stopped(SeenRun.named(word, folder, job_state))
    from meshctl.cli.launch import Options as LaunchOptions
    from meshctl.cli.launch import launch

    with redirect_stdout(sys.stderr) if format == "json" else nullcontext():
        code = launch(str(seen.run.path), list(overrides), LaunchOptions(is_detached=is_detached))
    if format == "json" and code not in NOT_BEGUN:
        _print(SeenRun.of(seen.run, plan_of_run(seen.run), job_state), "", format)
    return code
