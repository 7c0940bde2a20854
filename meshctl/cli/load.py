"""The first step of every command: reads a recipe or a run directory, checks the recipe, and resolves its
plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshctl.cli.output import bug
from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, RecipeError, Report
from meshctl.recipe.compose.folders import is_dir, is_file, real
from meshctl.recipe.compose.yaml_reader import MAX_BYTES
from meshctl.recipe.secrets import Secrets
from meshctl.run.checkpoints import WholeCheckpoint
from meshctl.run.directory import RunDir, Start
from meshctl.text.english import listed
from meshctl.view.reports import STDIN

if TYPE_CHECKING:
    from meshctl.engines.checks.requirements import Needs
    from meshctl.plan.model import Plan
    from meshctl.recipe.load import Loaded
    from meshctl.recipe.rules import Facts


Held = Mapping[str, bytes]
"""Real path -> bytes that are used in place of the file."""
NOTHING: Held = MappingProxyType({})
TO_START = ("MC620", "MC622")
"""Codes of options that an engine needs to start a run, and not to show one."""


class Unreadable(Exception):
    """The recipe cannot be read: the file does not exist, or it is not valid YAML. Exit code 3."""

    def __init__(self, report: Report) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in report.diagnostics))
        self.report = report


@dataclass(frozen=True)
class Launchable:
    """A recipe without errors, and its plan."""

    plan: Plan
    composed: str
    """The text of `recipe.yaml`."""
    path: tuple[str, ...]
    """The first folders of the import path: the recipe's folder, then the working directory."""
    report: Report
    """Warnings and notes."""
    resume: RunDir | None = None
    """The run to continue."""
    whole: WholeCheckpoint = WholeCheckpoint()
    """The checkpoint of that run from which it continues."""
    secrets: Secrets = Secrets()
    """The parts of the recipe that are redacted in output."""
    facts: Facts | None = None
    """Facts about the recipe that its plan does not contain."""
    start: Start = Start(())
    """The engine; for a run of one group also the group, and the recordings that it reads."""
    needs: Needs | None = None
    """The needs of the recipe on each node; None if they were not computed."""


def plan_of(recipe: str, overrides: list[str], held: Held = NOTHING, is_draft: bool = False) -> Launchable:
    """Reads, checks and resolves a recipe or a run directory. `held` maps real paths to bytes that are used
    in place of the files. A draft lacks what only a start needs. Raises `RecipeError` if the recipe has
    errors and `Unreadable` if it cannot be read."""
    loaded, run = load_recipe(recipe, overrides, held)
    if not loaded.readable:
        raise Unreadable(loaded.report)
    found = loaded.report.diagnostics
    if is_draft:
        found = tuple(replace(one, severity="warning") if one.code in TO_START else one for one in found)
    report = Report(found, loaded.report.sources)
    if report.errors:
        raise RecipeError(report)
    from meshctl.plan.resolve import resolve  # imported here, as a report of errors does not need it

    samplers = loaded.facts.samplers if loaded.facts else {}
    plan = resolve(loaded.recipe, loaded.endpoints, samplers)
    start = Start((), engine=loaded.recipe.engine)
    return Launchable(
        plan,
        loaded.composed,
        loaded.path,
        report,
        run,
        secrets=loaded.secrets,
        facts=loaded.facts,
        start=start,
    )


def load_recipe(recipe: str, overrides: list[str], held: Held = NOTHING) -> tuple[Loaded, RunDir | None]:
    """Returns the readable part of a recipe, even with errors, and the run if `recipe` is a run directory.
    Raises `Unreadable` for another folder."""
    from meshctl.recipe.load import load

    run = _run_of(recipe)
    try:
        path = run.read_start().path if run else ()
    except ValueError as error:
        raise Unreadable(Report((Diagnostic("MC001", str(error)),))) from None
    return load(run.recipe if run else recipe, overrides, Path.cwd(), path=path, held=held), run


@dataclass(frozen=True)
class CheckResult:
    """The result of reading, checking and resolving a recipe."""

    code: int
    """The exit code: 0, 1 for errors, 3 for no recipe, 70 for a bug."""
    report: Report
    launchable: Launchable | None = None


def check(recipe: str, overrides: list[str], held: Held = NOTHING) -> CheckResult:
    """Reads, checks and resolves a recipe like `plan_of`, but returns errors instead of raising them, so that
    an unreadable recipe or a bug does not hide the findings of other recipes."""
    try:
        launchable = plan_of(recipe, overrides, held)
    except Unreadable as unreadable:
        return CheckResult(3, unreadable.report)
    except RecipeError as error:
        return CheckResult(1, error.report)
    except Exception as error:  # as in `main`, any other exception is a bug in meshctl
        diagnostic = Diagnostic("MC900", f"a bug in meshctl: {type(error).__name__}")
        return CheckResult(bug(error), Report((diagnostic,)))
    return CheckResult(0, launchable.report, launchable)


def _run_of(recipe: str) -> RunDir | None:
    if not recipe.strip():
        raise Unreadable(Report((Diagnostic("MC001", "the name of the recipe is empty"),)))
    folder = Path(recipe)
    if not is_dir(folder):
        return None
    run = RunDir(folder.resolve())
    needed = (run.recipe, run.plan, run.start)
    missing = [path.name for path in needed if path.is_symlink() or not is_file(path)]
    if not missing:
        return run
    help = "give a recipe, or the folder of a run (runs/NAME/TIME)"
    message = f"`{recipe}` is a folder but not a run: it has no {listed(missing, 'or')}"
    raise Unreadable(Report((Diagnostic("MC001", message, help=help),)))


def resolve_source(recipe: str) -> tuple[str, Held]:
    """Returns a recipe's path, and its text if it comes from standard input. Raises `Unreadable`."""
    return (STDIN, {real(Path.cwd() / STDIN): _standard_input()}) if recipe == "-" else (recipe, NOTHING)


def _standard_input() -> bytes:
    """Reads standard input, up to one byte more than the maximum size of a recipe."""
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) or b""
    except (AttributeError, ValueError):
        why = "standard input is closed"
    except OSError as error:
        why = f"cannot read standard input: {(error.strerror or 'it failed').lower()}"
    raise Unreadable(Report((Diagnostic("MC001", why),)))
