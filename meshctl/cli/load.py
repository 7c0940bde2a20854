"""What every command begins with: a recipe, or the folder of a run, read, checked and placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshctl.cli.crash import bug
from meshctl.diagnostics import Diagnostic, RecipeError, Report
from meshctl.recipe.compose.folders import files, is_dir, is_file
from meshctl.recipe.secrets import Secrets
from meshctl.run.directory import RunDir, Start

if TYPE_CHECKING:
    from meshctl.plan.model import Plan
    from meshctl.recipe.load import Loaded


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
    secrets: Secrets = Secrets()
    """What of the recipe is not shown."""
    start: Start = Start(())
    """Where one group runs alone: which, and from what recordings."""


def plan_of(recipe: str, overrides: list[str], held: Mapping[str, bytes] = MappingProxyType({})) -> Ready:
    """Raises `RecipeError` where the recipe has errors, `Unreadable` where there is none.

    `held` is what is read in place of files, by their real paths.
    """
    loaded, run = loaded_of(recipe, overrides, held)
    if not loaded.readable:
        raise Unreadable(loaded.report)
    if loaded.report.errors:
        raise RecipeError(loaded.report)
    from meshctl.plan.resolve import resolve  # once there is something to place

    return Ready(
        resolve(loaded.recipe, loaded.endpoints),
        loaded.composed,
        loaded.path,
        loaded.report,
        run,
        loaded.secrets,
    )


def loaded_of(
    recipe: str, overrides: list[str], held: Mapping[str, bytes] = MappingProxyType({})
) -> tuple[Loaded, RunDir | None]:
    """What can be read, however wrong, and the run whose recipe it is. Raises `Unreadable` for a folder that
    is no run."""
    from meshctl.recipe.load import load

    run = _run_of(recipe)
    path = _path_of(run) if run else ()
    return load(run.recipe if run else recipe, overrides, Path.cwd(), path=path, held=held), run


@dataclass(frozen=True)
class Looked:
    """What one pass over a recipe comes to."""

    code: int
    """0, 1 it has errors, 3 there is none to check, 70 a bug."""
    report: Report
    ready: Ready | None = None


def look(recipe: str, overrides: list[str], held: Mapping[str, bytes] = MappingProxyType({})) -> Looked:
    """The same as `plan_of`, and nothing raised: where there are several recipes, one does not hide what is
    said of the others."""
    try:
        ready = plan_of(recipe, overrides, held)
    except Unreadable as unreadable:
        return Looked(3, unreadable.report)
    except RecipeError as error:
        return Looked(1, error.report)
    except Exception as error:  # as in `main`: whatever gets here is a bug
        return Looked(bug(error), Report((Diagnostic("MC900", f"a bug in meshctl: {type(error).__name__}"),)))
    return Looked(0, ready.report, ready)


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
        help = (
            f"name a recipe in it, like `{folder / recipes[0]}`"
            if recipes
            else "name a recipe, or the folder of a run (runs/NAME/TIME)"
        )
        message = f"`{recipe}` is a folder and no run: it has no {', '.join(missing)}"
        raise Unreadable(Report((Diagnostic("MC001", message, help=help),)))
    return run
