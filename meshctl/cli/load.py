"""What every command begins with: a recipe, or the folder of a run, read, checked and placed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshctl.diagnostics import Diagnostic, RecipeError, Report
from meshctl.plan.model import Plan
from meshctl.recipe.folders import files, is_dir, is_file
from meshctl.run import RunDir


class Unreadable(Exception):
    """There is no recipe to check: no such file, or no YAML. Exit code 3."""

    def __init__(self, report: Report) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in report.diagnostics))
        self.report = report


@dataclass(frozen=True)
class Ready:
    """A recipe without errors."""

    plan: Plan
    composed: str
    """The text of `recipe.yaml`."""
    path: tuple[str, ...]
    """Where its code is found, before what is installed: the recipe's folder, then the working directory."""
    report: Report
    """Warnings and notes."""
    resume: RunDir | None = None
    """The run that is to be continued."""


def plan_of(recipe: str, overrides: list[str]) -> Ready:
    """Raises `RecipeError` where the recipe has errors, `Unreadable` where there is none."""
    from meshctl.plan.resolve import resolve
    from meshctl.recipe.load import load

    run = _run_of(recipe)
    path = _path_of(run) if run else ()
    loaded = load(run.recipe if run else recipe, overrides, Path.cwd(), path=path)
    if not loaded.readable:
        raise Unreadable(loaded.report)
    if loaded.report.errors:
        raise RecipeError(loaded.report)
    return Ready(resolve(loaded.recipe, loaded.endpoints), loaded.composed, loaded.path, loaded.report, run)


def _path_of(run: RunDir) -> tuple[str, ...]:
    try:
        return run.read_start().path
    except ValueError as error:
        raise Unreadable(Report((Diagnostic("MC001", str(error)),))) from None


def _run_of(recipe: str) -> RunDir | None:
    """The run whose folder this is; none for a file."""
    folder = Path(recipe)
    if not is_dir(folder):
        return None
    run = RunDir(folder.resolve())
    missing = [path.name for path in (run.recipe, run.plan, folder / "start.json") if not is_file(path)]
    if missing:
        recipes = [path.name for path in files(folder, ".yaml", ".yml")]
        help = f"name a recipe in it, like `{folder / recipes[0]}`" if recipes else "name a recipe, or the folder of a run (runs/NAME/TIME)"
        message = f"`{recipe}` is a folder and no run: it has no {', '.join(missing)}"
        raise Unreadable(Report((Diagnostic("MC001", message, help=help),)))
    return run
