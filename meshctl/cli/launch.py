"""`meshctl launch`: load, check, resolve, start, follow, sum up."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from meshctl.cli.load import Ready, Unreadable, plan_of
from meshctl.cli.output import silence, why, write
from meshctl.cli.parallel_start import aside
from meshctl.cli.replay import Asked, Misused, alone, refuse_alone
from meshctl.cli.stdin_source import given
from meshctl.cli.validate import USAGE, draw
from meshctl.diagnostics import RecipeError, Report
from meshctl.engines import local
from meshctl.engines.node.worker_env import CannotStart
from meshctl.engines.supervise import attempt
from meshctl.engines.supervise.attempt import Attempt, RunHeld
from meshctl.engines.supervise.head import Head, Outcome, Signals
from meshctl.plan.model import Group, Plan
from meshctl.run.directory import RunDir, Start
from meshctl.text.english import counted
from meshctl.text.redaction import command_line

REFUSED = 4


def launch(
    recipe: str,
    overrides: list[str],
    dry_run: bool,
    asked: Asked = Asked(),
    on_begin: Callable[[RunDir], None] | None = None,
) -> int:
    """Returns the exit code. `on_begin` is called with the run directory before anything is started."""
    if dry_run:
        code, ready = prepare(recipe, overrides, asked)
        if ready:
            write(f"{dry(ready)}\n", sys.stdout)
        return code
    ready = handed_back(aside(lambda: handed(*prepare(recipe, overrides, asked)), import_torch))
    steps, saved = ready.plan.run.steps, ready.resume.saved() if ready.resume else 0
    if ready.resume and 0 < steps <= saved:
        print(
            f"{ready.resume.path}: nothing is left to do, its last checkpoint is of step {saved} of {steps}"
        )
        return 0
    try:
        held = attempt.begin(ready.plan, ready.composed, ready.path, ready.resume)
        if ready.start.only:
            held.run.write_start(replace(ready.start, attempt=held.start.attempt))
        held.run.forget_recorded(int(held.start.resume.rpartition("step-")[2] or 0))
    except RunHeld as error:
        return refuse(error)
    except OSError as error:
        return refuse(f"the run directory cannot be written: {why(error)}: {error.filename}")
    if on_begin:
        on_begin(held.run)
    return run(ready, held)


def prepare(recipe: str, overrides: list[str], asked: Asked = Asked()) -> tuple[int, Ready | None]:
    """Loads, checks and resolves, and compares with the machine; says what is wrong."""
    notes = list[str]()
    try:
        name, held = given(recipe)
        ready = plan_of(name, overrides, held)
        if asked:
            ready, notes = alone(ready, asked)
        refuse_alone(ready)
        local.preflight(ready.plan, Start(ready.path))
    except (RecipeError, Unreadable) as error:
        draw(error.report, sys.stderr)
        return 1 if isinstance(error, RecipeError) else 3, None
    except Misused as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE, None
    except CannotStart as error:
        return refuse(error), None
    if ready.report.diagnostics:
        draw(ready.report, sys.stderr)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return 0, ready


def refuse(error: object) -> int:
    print(f"error: {error}", file=sys.stderr)
    return REFUSED


def handed(code: int, ready: Ready | None) -> tuple[int, str]:
    """What was prepared, as text for the process that starts it."""
    if ready is None:
        return code, ""
    run = str(ready.resume.path) if ready.resume else ""
    return code, json.dumps([ready.plan.to_json(), ready.composed, ready.path, run, asdict(ready.start)])


def handed_back(text: str) -> Ready:
    plan, composed, path, run, said = json.loads(text)
    start = Start(**{**said, "path": tuple(path)})
    return Ready(
        Plan.from_json(plan), composed, tuple(path), Report(), RunDir(Path(run)) if run else None, start=start
    )


def import_torch() -> None:
    import_module("meshctl.runtime.worker")
    import_module("meshctl.engines.node.agent")


def run(ready: Ready, held: Attempt) -> int:
    from torch.distributed import PrefixStore

    from meshctl.engines.node.preload import preload
    from meshctl.run.shutdown import Proposer
    from meshctl.runtime.worker import main
    from meshctl.view.live import for_terminal
    from meshctl.view.live.summary import summary

    plan = ready.plan
    with Signals().heard() as signals:
        preload(plan, ready.path)
        processes, store = local.start(plan, held.run, main, [held.lock])
        try:
            ours = PrefixStore(f"run/{held.start.attempt}", store)
            places = [
                place for place in range(plan.places) if plan.group(plan.at_place(place)[0]).program is None
            ]
            proposer = Proposer(PrefixStore("ending", ours), places)
            if ready.resume and not held.start.resume:
                print(f"{held.run.path} has no checkpoint: it starts from the beginning", flush=True)
            view = for_terminal(plan, held.run, sys.stdout)
            with closing(view):
                outcome = Head(
                    plan, held.run, ours, proposer, processes, view, signals, held.follower, held.fold
                ).follow()
        finally:
            local.close(processes)
    try:
        print(summary(plan, held.run), end="", flush=True)
        tell(outcome)
    except OSError:  # whoever watched may have gone
        silence(sys.stdout)
    return outcome.code


def tell(outcome: Outcome) -> None:
    """The first cause, once, with where to read on."""
    if cause := outcome.cause:
        print(f"error: {cause.line}", file=sys.stderr)
        if cause.traceback:
            print(cause.traceback.rstrip(), file=sys.stderr)
        if cause.log:
            print(f"log: {cause.log}", file=sys.stderr)


def dry(ready: Ready) -> str:
    """What would be started."""
    plan = ready.plan
    run = ready.resume or RunDir(Path(plan.run.dir).resolve() / plan.name / "TIME")
    lines = [
        f"{plan.name}: {counted(len(plan.groups), 'group')}, {counted(plan.places, 'worker')}; plan {plan.digest}",
        "",
    ]
    for group in plan.groups:
        work = _work(plan, group, ready.secrets.written)
        lines.append(f"  {group.name}: {group.workers} x {group.device_type}{_devices(group)}, {work}")
    lines += ["", *(shlex.join(command.argv) for command in local.commands(plan, run, f"{local.HOST}:PORT"))]
    return "\n".join(lines)


def _devices(group: Group) -> str:
    runs = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in group.devices]
    return f", devices {', '.join(runs)}" if runs else ""


def _work(plan: Plan, group: Group, secrets: Sequence[str]) -> str:
    if group.program:
        return f"program {command_line(group.program.argv, secrets)}"
    return "components " + ", ".join(component.name for component in plan.components_of(group.name))
