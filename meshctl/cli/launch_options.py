"""The options of `launch` that change a plan, or name workers of it.

`--only GROUP --replay ROUTE=DIR` reduces a plan to one group, which reads recordings instead of the output of
other groups.

    ROUTE     a route from another group into this one, `SOURCE -> TARGET`, or SOURCE for all routes from that
              stage
    DIR       a run directory with a recording of it, or a recording: RUN, RUN/recorded or RUN/recorded/SOURCE

`--debug GROUP:RANK` gives a worker the launcher's terminal as its standard streams, so that `breakpoint()`
works in it. Ctrl-C interrupts this worker instead of the run. All time limits of the run are disabled.

Wrong options raise `Refusal`, exit code 2; recordings that are missing raise `CannotStart`, 4.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from sys import maxsize
from types import FrameType

from meshctl.cli.load import Launchable
from meshctl.cli.output import Refusal, why
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.plan.subset import covered, incoming, only
from meshctl.recipe.compose.folders import is_dir
from meshctl.run.directory import Recorded, Start
from meshctl.run.events import Event, Observer
from meshctl.run.logs import workers_named
from meshctl.run.reading import DAMAGED, decoded, opened
from meshctl.text.english import counted, did_you_mean, listed
from meshctl.topology.modes import Route

HEADER_BYTES_MAX = 1 << 26


def narrow_to_group(
    ready: Launchable, group: str | None, replay: Sequence[str]
) -> tuple[Launchable, list[str]]:
    """Returns the recipe with only one group, as a new run, and notes for the user. Raises `Refusal` and
    `CannotStart`."""
    plan = ready.plan
    if group is None:
        raise Refusal("--replay needs --only GROUP, the group to run")
    if group not in (names := [group.name for group in plan.groups]):
        raise Refusal(f"group `{group}` does not exist; {did_you_mean(group, names)}")
    folders = _folders(plan, group, replay)
    left = only(plan, group, folders)
    if left.missing:
        lacking = listed(route.name for route in left.missing)
        raise Refusal(f"group `{group}` takes {lacking} from other groups: give --replay ROUTE=DIR")
    recorded = {name: _recording_of(folder, route) for name, (route, folder) in folders.items()}
    start, last = _steps(plan, recorded)
    steps = min(last, plan.run.steps or last)
    if recorded and start >= steps:
        raise CannotStart(
            f"the recordings begin at step {start + 1}, but the run has {counted(plan.run.steps, 'step')}"
        )
    placed = replace(left.plan, run=replace(left.plan.run, steps=steps)) if recorded else left.plan
    facts = Start(
        ready.path, only=group, replay={name: str(one.path) for name, one in recorded.items()}, after=start
    )
    data = [route for route in plan.routes if route.kind == "data"]
    away = [route for route in data if plan.ends_of(route)[0] == group != plan.ends_of(route)[1]]
    notes = {
        "what it sends to others is dropped": [route.name for route in away],
        "no weights are synced with others": left.skipped,
        "blocks with stages of others do not run": left.left_out,
    }
    return replace(ready, plan=placed, resume=None, start=facts), [
        f"group `{group}` runs alone; {note}: {listed(names)}" for note, names in notes.items() if names
    ]


def refuse_alone(ready: Launchable) -> None:
    """Raises `Refusal` for a run of one group, which cannot be continued with all groups."""
    if ready.resume and (group := ready.resume.read_start().only):
        raise Refusal(
            f"{ready.resume.path} is a run of group `{group}` alone: launch it again with --only and --replay"
        )


# Selecting recordings


def _folders(plan: Plan, group: str, words: Sequence[str]) -> dict[str, tuple[Route, Path]]:
    """Returns route name -> (route, folder that the option names for it)."""
    taken = incoming(plan, group)
    found: dict[str, tuple[Route, Path]] = {}
    for word in words:
        name, equals, folder = (part.strip() for part in word.partition("="))
        if not equals or not name or not folder:
            raise Refusal(f"--replay must be ROUTE=DIR, not `{word}`")
        routes = [route for route in taken if name in (route.name, route.source)]
        if not routes:
            options = dict.fromkeys(word for route in taken for word in (route.name, route.source))
            known = did_you_mean(name, options) or f"group `{group}` takes nothing from others"
            raise Refusal(f"no route `{name}` comes from another group; {known}")
        for route in routes:
            if route.name in found:
                raise Refusal(f"--replay names route `{route.name}` twice")
            found[route.name] = route, Path(folder)
    return found


def _recording_of(folder: Path, route: Route) -> Recorded:
    """Returns the recording of a route's source. Raises `CannotStart`."""
    if not is_dir(folder):
        raise CannotStart(f"`{route.name}` cannot be replayed: folder {folder} does not exist")
    try:
        for path in (folder / "recorded" / route.source, folder / route.source, folder):
            if (recorded := Recorded(path.resolve())).folders():
                return recorded
    except OSError as error:
        problem = f"{folder} cannot be read: {why(error)}"
        raise CannotStart(f"`{route.name}` cannot be replayed: {problem}") from None
    help = f"start the run to be replayed with run.record=[{route.source}]"
    raise CannotStart(f"{folder} has no recording of `{route.source}`: {help}")


def _steps(plan: Plan, recorded: Mapping[str, Recorded]) -> tuple[int, int]:
    """Returns (step before the first that can be replayed, last step that can be replayed). Raises
    `CannotStart`."""
    steps = {name: one.steps() for name, one in recorded.items()}
    for name, one in recorded.items():
        if not steps[name]:
            raise CannotStart(
                f"the recording of `{name}` in {one.path} has no step that all producers have written"
            )
        route = next(route for route in plan.routes if route.name == name)
        if (collect := _header_of(one.files(steps[name][0])[0]).get("collect")) != route.collect:
            was = f"`{route.source}` was recorded with collect: {collect}"
            problem = f"{was}, but the recipe has {route.collect}"
            raise CannotStart(f"`{name}` cannot be replayed from {one.path}: {problem}")
    found = covered(plan, steps)
    for name, gaps in found.lacking.items():
        lacking = ", ".join(map(str, gaps[:5])) + f" and {len(gaps) - 5} more" * (len(gaps) > 5)
        where = f"the recording of `{name}` in {recorded[name].path}"
        raise CannotStart(f"{where} lacks step{'s' * (len(gaps) > 1)} {lacking}")
    if recorded and found.last <= found.after:
        raise CannotStart(f"the recordings of {listed(recorded)} have no step in common")
    return found.after, found.last


def _header_of(file: Path) -> dict[str, str]:
    try:
        with opened(file, maxsize) as data:
            length = int.from_bytes(data.read(8), "little")
            head = decoded(data.read(min(length, HEADER_BYTES_MAX)).decode())
        return {str(key): str(value) for key, value in head["__metadata__"].items()}
    except (OSError, *DAMAGED):
        raise CannotStart(f"{file} is not a recording: it has no header of one") from None


# Workers that options name

NEVER_S = 30 * 24 * 3600.0
"""The grace period of a run that is debugged."""


def check_workers(plan: Plan, option: str, names: Sequence[str]) -> None:
    """Raises `Refusal` unless each name is a GROUP or GROUP:RANK of the plan."""
    try:
        workers_named({group.name: group.workers for group in plan.groups}, names)
    except ValueError as error:
        raise Refusal(f"{option}: {error}") from None


def with_debugging(ready: Launchable, name: str) -> Launchable:
    """Returns the recipe with this process's terminal for one worker, and without time limits.

    Raises `Refusal` if the worker does not exist, and `CannotStart` if this process has no terminal.
    """
    check_workers(ready.plan, "--debug", [name])
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        raise CannotStart("--debug needs a terminal as standard input and output")
    worker = name if ":" in name else f"{name}:0"
    limitless = replace(ready.plan.run, patience=0.0, grace=NEVER_S)
    start = replace(ready.start, debug=worker, terminal=os.ttyname(sys.stdin.fileno()))
    return replace(ready, plan=replace(ready.plan, run=limitless), start=start)


class DebuggedWorker(Observer):
    """An observer that records the process of the debugged worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._pid = 0

    def on_attempt(self, number: int, step: int | None) -> None:
        self._pid = 0

    def on_event(self, event: Event) -> None:
        if f"{event.group}:{event.rank}" == self._worker and event.name in ("started", "exited"):
            self._pid = int(event.value["pid"]) if event.name == "started" else 0

    def on_end(self, code: int, reason: str) -> None:
        self._pid = 0

    @contextmanager
    def interrupted_by(self, otherwise: Callable[[int, FrameType | None], object]) -> Iterator[None]:
        """Context manager that sends each Ctrl-C to the debugged worker while it runs, and restores the
        terminal at the end. `otherwise` handles a Ctrl-C when the worker does not run."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            if not self._pid:
                otherwise(number, frame)
                return
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)

        mode = termios.tcgetattr(sys.stdin.fileno())
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, mode)
