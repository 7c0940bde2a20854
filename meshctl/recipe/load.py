"""A recipe's file -> everything that can be known of it without running anything: compose, resolve, read, check.

loaded = load("grpo.yaml", ["run.steps=7"], cwd)
loaded.report        all that is wrong; where it has no errors, `plan.resolve(loaded.recipe, loaded.endpoints)` cannot fail
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import meshctl
from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe import interpolation, text
from meshctl.recipe.code import Code, Endpoint
from meshctl.recipe.folders import is_dir, real
from meshctl.recipe.model import Recipe
from meshctl.recipe.nodes import Node, of_plain, plain, put
from meshctl.recipe.overrides import is_override
from meshctl.recipe.read import is_run_name, read
from meshctl.recipe.rules import Facts, check
from meshctl.recipe.source import compose
from meshctl.recipe.written import Written

Endpoints = Mapping[str, Mapping[str, Endpoint]]
"""Component -> method -> its decorator's words; those that could not be read are absent."""
NOT_INCLUDED = {"MC201", "MC202", "MC205", "MC208", "MC211"}
"""A file of the recipe could not be included."""
ABSENT = {"MC103", "MC212", "MC300", "MC305", "MC311", "MC402", "MC500", "MC510", "MC512", "MC530", "MC534", "MC540", "MC560"}
"""Something is missing, which may be in such a file."""


@dataclass(frozen=True)
class Loaded:
    recipe: Recipe
    report: Report
    composed: str
    """The recipe as one YAML text; interpolations stay as written."""
    path: tuple[str, ...]
    """Where its code is found, before what is installed."""
    endpoints: Endpoints
    readable: bool = True
    """False where there is no recipe to check: no such file, or no YAML."""


def load(
    recipe: str | Path,
    overrides: Sequence[str],
    cwd: Path,
    *,
    path: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    detect: Callable[[], str] | None = None,
) -> Loaded:
    """Reads and checks a recipe; `path` are its import folders where they are not its own folder and `cwd`."""
    file = Path(recipe)
    home = (cwd / file).parent
    folders = tuple(dict.fromkeys(path or (real(home), real(cwd))))
    composed = compose(cwd / file if not file.is_absolute() else file, overrides, cwd, config_folders(home, folders))
    report = Report(composed.found, composed.sources)
    if composed.unreadable:
        return Loaded(Recipe(), _in_order(report), "", folders, {}, readable=False)
    tree = _completed(composed.tree, file.stem, detect or detected)
    resolved, unresolved = interpolation.resolve(tree, environ, text.scalar)
    result = read(resolved, file.stem)
    facts = Facts(result, Written(resolved), Code(folders, sys.path))
    report = report.plus(_known(composed.found, [*unresolved, *result.found, *check(facts)]))
    return Loaded(result.recipe, _in_order(report), text.dump(plain(tree)), folders, facts.endpoints())


def config_folders(home: Path, path: Sequence[str]) -> list[Path]:
    """Where config groups are found: beside the recipe, in its folder (of a run: in that of its recipe), in meshctl."""
    own = [home, *(Path(folder) for folder in path[:1])]
    return [*(folder / "conf" for folder in own), *own, shipped()]


def shipped() -> Path:
    """The config groups of meshctl itself: in the package once installed, beside it in a checkout."""
    package = Path(str(meshctl.__file__)).parent
    inside = package / "conf"
    return inside if is_dir(inside) else package.parent / "conf"


def detected() -> str:
    """What this machine computes on, told without loading anything."""
    if sys.platform == "darwin":
        return "mps"
    if Path("/dev/nvidiactl").exists():
        return "cuda"
    return "npu" if Path("/dev/davinci_manager").exists() else "cpu"


def _completed(tree: Node, stem: str, detect: Callable[[], str]) -> Node:
    """Writes down what a recipe leaves to its file and machine, its name and device types: a plan is made of the composed recipe alone."""
    if tree.get("name") is None and is_run_name(stem):
        tree = put(tree, ("name",), of_plain(stem, tree.span, tree.span))
    groups = tree.get("groups")
    for name, group in groups.items() if groups else ():
        if group.is_mapping and group.get("device_type") is None:
            span = group.key or group.span
            tree = put(tree, ("groups", name, "device_type"), of_plain(detect(), span, span))
    return tree


def _known(found: Sequence[Diagnostic], more: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Where a part of the recipe could not be included, nothing can be said to be missing."""
    partial = any(one.code in NOT_INCLUDED and one.primary and not is_override(one.primary.file) for one in found)
    return (one for one in more if not (partial and one.code in ABSENT))


def _in_order(report: Report) -> Report:
    """Each once, in the order of the text: file by file, the command line last."""
    files = {file: number for number, (file, _) in enumerate(report.sources)}

    def place(found: Diagnostic) -> tuple[int, int, int]:
        span = found.primary
        return (files.get(span.file, -1), span.line, span.column) if span else (-1, 0, 0)

    return replace(report, diagnostics=tuple(sorted(dict.fromkeys(report.diagnostics), key=place)))
