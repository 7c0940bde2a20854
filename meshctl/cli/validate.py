"""`meshctl validate RECIPE [OVERRIDES]`: every mistake at once, each at its line and column; nothing is started."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from meshctl.cli.load import Ready, Unreadable, plan_of
from meshctl.diagnostics import RecipeError, Report
from meshctl.recipe.words import counted
from meshctl.view.reports.text import text


def checked(recipe: str, overrides: list[str], out: TextIO | None = None) -> int:
    """Prints what there is to say; the exit code."""
    out = out or sys.stdout
    try:
        ready = plan_of(recipe, overrides)
    except Unreadable as unreadable:
        draw(unreadable.report, out)
        return 3
    except RecipeError as error:
        draw(error.report, out)
        errors = len(error.report.errors)
        print(f"\n{recipe}: {counted(errors, 'error')}", file=out)
        return 1
    if ready.report.diagnostics:
        draw(ready.report, out)
        print(file=out)
    print(summary(ready), file=out)
    return 0


def draw(report: Report, out: TextIO) -> None:
    print(text(report, colour=coloured(out)), file=out)


def coloured(out: TextIO) -> bool:
    """A terminal that does not ask for none."""
    return out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def summary(ready: Ready) -> str:
    """ok: grpo: 3 groups, 5 workers, 4 components, 6 stages (plan 1f2e...)."""
    plan = ready.plan
    counts = [counted(len(plan.groups), "group"), counted(plan.places, "worker")]
    if plan.components:
        counts += [counted(len(plan.components), "component"), counted(len(plan.stages), "stage")]
    return f"ok: {plan.name}: {', '.join(counts)}; plan {plan.digest}"
