"""`meshctl doctor [RECIPE]`: examines this machine as `launch` does. With a recipe, checks whether `launch`
would start it here."""

from __future__ import annotations

import json
import shutil
import sys

from meshctl.cli.doctor_run import Interrupted, run_paths
from meshctl.cli.load import Launchable, Unreadable, plan_of, resolve_source
from meshctl.cli.output import has_color, problem_of_format, refuse, write
from meshctl.cli.requirements import needs_of, requirements_of
from meshctl.diagnostics import RecipeError
from meshctl.diagnostics.health import Check, as_data, tally
from meshctl.engines.checks.machine import examine
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.engine import CannotStart, engine_named
from meshctl.run.directory import Start
from meshctl.text.english import counted
from meshctl.text.redaction import command_line, redact
from meshctl.view.reports.health import table

REFUSED, INTERRUPTED = 4, 130
NO_TERMINAL, WIDEST = 80, 120
"""Columns."""


def doctor(recipe: str, overrides: list[str], format: str, run: bool = False) -> int:
    """Prints the checks, with `run` also those of all paths between workers. Returns the exit code: that of
    `validate` for a wrong recipe, 4 if a check has failed, else 0."""
    if problem := problem_of_format(format):
        return refuse(problem)
    code, ready, checks = (0, None, ()) if not recipe else prepared(recipe, overrides)
    try:
        checks = (*examine(requirements_of(ready, needs_of(ready)) if ready else Requirements()), *checks)
        if run:
            if sys.stderr.isatty():
                print("trying all paths between workers, about 20 seconds", file=sys.stderr, flush=True)
            checks += run_paths()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except Interrupted as stopped:
        print(file=sys.stderr)
        return stopped.code
    show(checks, format)
    return code or (REFUSED if tally(checks)["failure"] else 0)


def prepared(recipe: str, overrides: list[str]) -> tuple[int, Launchable | None, tuple[Check, ...]]:
    """Returns the exit code of `validate` for the recipe, the recipe if it is correct, and the checks about
    it."""
    again = f"meshctl validate {command_line([recipe, *overrides])}"
    try:
        name, held = resolve_source(recipe)
        ready = plan_of(name, overrides, held)
    except Unreadable as wrong:
        return 3, None, (Check("recipe", "text", "failure", redact(str(wrong)), again),)
    except RecipeError as wrong:
        errors = len(wrong.report.errors)
        found = f"{recipe} has {counted(errors, 'error')}: {wrong.report.errors[0].message}" + (
            " ..." if errors > 1 else ""
        )
        return 1, None, (Check("recipe", "text", "failure", redact(found), again),)
    plan = ready.plan
    found = f"{plan.name}: {counted(len(plan.groups), 'group')}, {counted(plan.job_size, 'worker')}"
    return 0, ready, (Check("recipe", "text", "ok", found), preflight(ready))


def preflight(ready: Launchable) -> Check:
    """Returns the result of the engine's preflight, which `launch` runs before it starts a process."""
    try:
        engine_named().preflight(ready.plan, Start(ready.path))
    except CannotStart as refused:
        remedy = "change the recipe, or launch it on another machine"
        return Check("recipe", "start", "failure", redact(str(refused)), remedy)
    return Check("recipe", "start", "ok", "`launch` would start it here")


def show(checks: tuple[Check, ...], format: str) -> None:
    if format == "json":
        write(json.dumps(as_data(checks), indent=2) + "\n", sys.stdout)
        return
    columns = shutil.get_terminal_size((NO_TERMINAL, 24)).columns if sys.stdout.isatty() else NO_TERMINAL
    write(table(checks, width=min(WIDEST, columns), color=has_color(sys.stdout)), sys.stdout)
