"""`meshctl launch RECIPE --only GROUP --replay ROUTE=DIR`: reduces a plan to one group, which reads
recordings instead of the output of other groups.

    ROUTE     a route from another group into this one, `SOURCE -> TARGET`, or SOURCE for all routes from that
              stage
    DIR       a run directory with a recording of it, or a recording: RUN, RUN/recorded or RUN/recorded/SOURCE

Wrong options raise `Misused`, exit code 2; recordings that are missing raise `CannotStart`, 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import maxsize

from meshctl.cli.load import Launchable
from meshctl.cli.output import why
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.plan.subset import Alone, covered, incoming, only
from meshctl.recipe.compose.folders import is_dir
from meshctl.run.directory import Recorded, Start
from meshctl.run.reading import decoded, opened
from meshctl.text.english import counted, did_you_mean, listed
from meshctl.topology.modes import Route

HEADER_BYTES_MAX = 1 << 26


class Misused(Exception):
    """The options contradict each other or the recipe. Exit code 2."""


def narrow_to_group(
    ready: Launchable, group: str | None, replay: Sequence[str]
) -> tuple[Launchable, list[str]]:
    """Returns the recipe with only one group, as a new run, and notes for the user. Raises `Misused` and
    `CannotStart`."""
    plan = ready.plan
    if group is None:
        raise Misused("--replay needs --only GROUP, the group to run")
    if group not in (names := [group.name for group in plan.groups]):
        raise Misused(f"group `{group}` does not exist; {did_you_mean(group, names)}")
    folders = _folders(plan, group, replay)
    left = only(plan, group, folders)
    if left.missing:
        lacking = listed(route.name for route in left.missing)
        each = "it" if len(left.missing) == 1 else "each"
        raise Misused(
            f"group `{group}` takes {lacking} from other groups: give --replay ROUTE=DIR for {each}"
        )
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
    return replace(ready, plan=placed, resume=None, start=facts), list(_notes(plan, group, left))


def refuse_alone(ready: Launchable) -> None:
    """Raises `Misused` for a run of one group, which cannot be continued with all groups."""
    if ready.resume and (group := ready.resume.read_start().only):
        raise Misused(
            f"{ready.resume.path} is a run of group `{group}` alone: launch it again with --only and --replay"
        )


def _notes(plan: Plan, group: str, left: Alone) -> Iterator[str]:
    away = [
        route
        for route in plan.routes
        if route.kind == "data" and plan.group_of(plan.stage(route.source)) == group
    ]
    if dropped := [route.name for route in away if plan.group_of(plan.stage(route.target)) != group]:
        yield f"group `{group}` runs alone; what it sends to others is dropped: {listed(dropped)}"
    if left.skipped:
        yield f"group `{group}` runs alone; no weights are synced with others: {listed(left.skipped)}"
    if left.left_out:
        yield f"group `{group}` runs alone; blocks with stages of others do not run: {listed(left.left_out)}"


# Selecting recordings


def _folders(plan: Plan, group: str, words: Sequence[str]) -> dict[str, tuple[Route, Path]]:
    """Returns route name -> (route, folder that the option names for it)."""
    taken = incoming(plan, group)
    found: dict[str, tuple[Route, Path]] = {}
    for word in words:
        name, equals, folder = (part.strip() for part in word.partition("="))
        if not equals or not name or not folder:
            raise Misused(f"--replay must be ROUTE=DIR, not `{word}`")
        routes = [route for route in taken if name in (route.name, route.source)]
        if not routes:
            raise Misused(_unknown_route(plan, group, name, taken))
        for route in routes:
            if route.name in found:
                raise Misused(f"--replay names route `{route.name}` twice")
            found[route.name] = route, Path(folder)
    return found


def _unknown_route(plan: Plan, group: str, name: str, taken: Sequence[Route]) -> str:
    options = [word for route in taken for word in (route.name, route.source)]
    known = any(name in (route.name, route.source) for route in plan.routes)
    problem = f"`{name}` does not come from another group" if known else f"route `{name}` does not exist"
    help = (
        did_you_mean("" if known else name, dict.fromkeys(options))
        or f"group `{group}` takes nothing from others"
    )
    return f"{problem}; {help}"


def _recording_of(folder: Path, route: Route) -> Recorded:
    """Returns the recording of a route's source. Raises `CannotStart`."""
    if not is_dir(folder):
        raise CannotStart(f"`{route.name}` cannot be replayed: folder {folder} does not exist")
    try:
        return _recorded(folder, route)
    except OSError as error:
        raise CannotStart(
            f"`{route.name}` cannot be replayed: {folder} cannot be read: {why(error)}"
        ) from None


def _recorded(folder: Path, route: Route) -> Recorded:
    for path in (folder / "recorded" / route.source, folder / route.source, folder):
        if (recorded := Recorded(path.resolve())).folders():
            return recorded
    inside = folder / "recorded" if (folder / "recorded").is_dir() else folder
    there = sorted(path.name for path in inside.iterdir() if Recorded(path).folders())
    raise CannotStart(
        f"{folder} has no recording of `{route.source}`"
        + (
            f", only of {listed(there)}"
            if there
            else f": start the run to be replayed with run.record=[{route.source}]"
        )
    )


def _steps(plan: Plan, recorded: Mapping[str, Recorded]) -> tuple[int, int]:
    """Returns (step before the first that can be replayed, last step that can be replayed). Raises
    `CannotStart`."""
    steps = {name: one.steps() for name, one in recorded.items()}
    for name, one in recorded.items():
        if not steps[name]:
            raise CannotStart(
                f"the recording of `{name}` in {one.path} has no step that all producers have written"
            )
        _compare(plan, name, one, steps[name][0])
    found = covered(plan, steps)
    for name, gaps in found.lacking.items():
        raise CannotStart(
            f"the recording of `{name}` in {recorded[name].path} lacks step{'s' * (len(gaps) > 1)} "
            f"{_listed_steps(gaps)}"
        )
    if recorded and found.last <= found.after:
        raise CannotStart(f"the recordings of {listed(recorded)} have no step in common")
    return found.after, found.last


def _listed_steps(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:5]))
    return f"{shown} and {len(steps) - 5} more" if len(steps) > 5 else shown


def _compare(plan: Plan, name: str, recorded: Recorded, step: int) -> None:
    """Raises `CannotStart` if the header of a recording contradicts the recipe."""
    route = next(route for route in plan.routes if route.name == name)
    file = recorded.files(step)[0]
    collect = _header_of(file).get("collect")
    if collect != route.collect:
        problem = f"`{route.source}` was recorded with collect: {collect}, but the recipe has {route.collect}"
        raise CannotStart(f"`{name}` cannot be replayed from {recorded.path}: {problem}")


def _header_of(file: Path) -> dict[str, str]:
    try:
        with opened(file, maxsize) as data:
            length = int.from_bytes(data.read(8), "little")
            head = decoded(data.read(min(length, HEADER_BYTES_MAX)).decode())
        return {str(key): str(value) for key, value in head["__metadata__"].items()}
    except OSError as error:
        raise CannotStart(f"{file} cannot be read: {why(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CannotStart(
            f"{file} is not a recording: it does not begin with the header of a recording"
        ) from None
