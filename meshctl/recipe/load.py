"""Loads a recipe without executing anything. Each pass takes the result of the one before, and reports all
mistakes that it finds:

    compose   files and overrides -> one tree, in which each value knows its place    compose/composition.py
    correct   keys in a wrong place -> keys in the right place                        mistakes.py
    resolve   `${...}` -> values                                                      compose/interpolation.py
    read      the tree -> a `Recipe`, by the table of keys in `fields.py`             reader.py
    check     the `Recipe` and the code that it names -> diagnostics                  rules/

    loaded = load("grpo.yaml", ["run.steps=7"], cwd)
    loaded.report        all diagnostics; without errors, `plan.resolve(loaded.recipe, loaded.endpoints)`
                         cannot fail
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Report, Span
from meshctl.hub_cache import hub_cache
from meshctl.recipe.compose import interpolation, yaml_scalars
from meshctl.recipe.compose.composition import Composed, compose
from meshctl.recipe.compose.folders import config_folders, real
from meshctl.recipe.compose.yaml_tree import Node, is_override, of_plain, plain, put
from meshctl.recipe.field_types import is_run_name
from meshctl.recipe.fixes import keep_safe
from meshctl.recipe.model import Recipe
from meshctl.recipe.reader import read
from meshctl.recipe.secrets import RecordingEnviron, Secrets, redact_report, secrets_of, warnings

if TYPE_CHECKING:
    from meshctl.recipe.code.classes import Endpoint
    from meshctl.recipe.rules import Facts

Endpoints = Mapping[str, Mapping[str, "Endpoint"]]
"""Component -> method -> endpoint. Components whose code could not be read are missing."""
NOT_INCLUDED = {"MC201", "MC202", "MC205", "MC208", "MC211"}
"""Codes of diagnostics about a file that could not be included."""
DEV = Path("/dev")
PLAN = re.compile(r'\s*\{\s*"format":\s*\d+,\s*"digest":\s*"')
"""The beginning of a plan file."""


@dataclass(frozen=True)
class Loaded:
    recipe: Recipe
    report: Report
    composed: str
    """The recipe as one YAML text, with interpolations as written."""
    path: tuple[str, ...]
    """Folders of the recipe's code, searched before installed packages."""
    endpoints: Endpoints
    readable: bool = True
    """False if the file does not exist or is not valid YAML."""
    tree: Node | None = None
    """The tree of `composed`, with the place of each readable value."""
    facts: Facts | None = None
    secrets: Secrets = Secrets()
    """The values that are redacted in output."""


def load(
    recipe: str | Path,
    overrides: Sequence[str],
    cwd: Path,
    *,
    path: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    detect: Callable[[], str] | None = None,
    held: Mapping[str, bytes] = MappingProxyType({}),
) -> Loaded:
    """Reads and checks a recipe.

    `path` lists the recipe's import folders; if it is empty, these are the recipe's folder and `cwd`.
    `detect` returns the device type of this machine. `held` maps real paths to bytes that are used in place
    of the files.
    """
    file = Path(recipe)
    home = (cwd / file).parent
    folders = tuple(dict.fromkeys(path or (real(home), real(cwd))))
    composed = compose(
        cwd / file if not file.is_absolute() else file, overrides, cwd, config_folders(home, folders), held
    )
    name, lines = next(iter(composed.sources), ("", ()))
    if PLAN.match("\n".join(lines[:4])):
        message, help = f"`{name}` is a plan, not a recipe", "use its recipe, or the folder of its run"
        found = (Diagnostic("MC001", message, Span(name, 1, 1), help=help),)
        composed = replace(composed, tree=Node({}, composed.tree.span), found=found)
    environment = RecordingEnviron(environ)
    if composed.unreadable:
        secrets = secrets_of(composed.tree, composed.sources, environment)
        report = _reported(Report(composed.found, composed.sources), None, secrets)
        return Loaded(Recipe(), report, "", folders, {}, readable=False, tree=composed.tree, secrets=secrets)
    return _checked(composed, file.stem, folders, environment, detect or detected)


def _checked(
    composed: Composed,
    stem: str,
    folders: tuple[str, ...],
    environment: RecordingEnviron,
    detect: Callable[[], str],
) -> Loaded:
    """Corrects, resolves, reads and checks a composed recipe. `stem` is the name of its file without the
    suffix."""
    # Imported here, because an unreadable file is refused without the rules.
    from meshctl.recipe.code.classes import group_code
    from meshctl.recipe.mistakes import correct
    from meshctl.recipe.rules import Facts, check

    corrected = correct(composed.tree)
    tree = _completed(corrected.tree, stem, detect)
    resolved, unresolved = interpolation.resolve(tree, environment, yaml_scalars.scalar, corrected.wrong)
    result = read(resolved, stem, corrected.wrong)
    # The environment's own mapping, because what is read from `environment` is redacted in reports.
    pythons = {name: group.python for name, group in result.recipe.groups.items()}
    code = group_code(pythons, folders, sys.path, environment.environ)
    facts = Facts(result, resolved, code, hub_cache(environment.environ))
    found = [*corrected.found, *unresolved, *result.found, *check(facts)]
    # What users see is the composed recipe as they wrote it.
    tree = _completed(composed.tree, stem, detect)
    secrets = secrets_of(tree, composed.sources, environment)
    known = _known(composed.found, [*found, *warnings(tree, secrets)])
    report = Report((*composed.found, *known), (*composed.sources, *facts.sources))
    return Loaded(
        result.recipe,
        _reported(report, composed.tree, secrets),
        yaml_scalars.dump(plain(tree)),
        folders,
        facts.endpoints(),
        tree=tree,
        facts=facts,
        secrets=secrets,
    )


def _reported(report: Report, tree: Node | None, secrets: Secrets) -> Report:
    """Returns a report in order, with safe edits only, and without secrets."""
    return redact_report(_in_order(keep_safe(report, tree)), secrets)


def detected() -> str:
    """Returns the device type of this machine. Loads no library. That of AMD's driver is also cuda in torch,
    if it has a compute device."""
    if sys.platform == "darwin":
        return "mps"
    has_rocm = (DEV / "kfd").exists() and any((DEV / "dri").glob("renderD*"))
    if (DEV / "nvidiactl").exists() or has_rocm:
        return "cuda"
    return "npu" if (DEV / "davinci_manager").exists() else "cpu"


def _completed(tree: Node, stem: str, detect: Callable[[], str]) -> Node:
    """Returns the tree with a name and device types where the recipe leaves them out. The name comes from the
    file name, and device types from this machine."""
    if tree.get("name") is None and is_run_name(stem):
        tree = put(
            tree, ("name",), replace(of_plain(stem, tree.span, tree.span), inferred_from="the file's name")
        )
    groups = tree.get("groups")
    for name, group in groups.items() if groups else ():
        if group.is_mapping and group.get("device_type") is None:
            span = group.key or group.span
            made = replace(of_plain(detect(), span, span), inferred_from="this machine's")
            tree = put(tree, ("groups", name, "device_type"), made)
    return tree


def _known(found: Sequence[Diagnostic], more: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Yields the diagnostics that are certain. If a file could not be included, values may be missing because
    of it, so diagnostics about missing values are left out."""
    partial = any(
        one.code in NOT_INCLUDED and one.primary and not is_override(one.primary.file) for one in found
    )
    return (one for one in more if not (partial and one.missing))


def _in_order(report: Report) -> Report:
    """Returns the report without repeated diagnostics, ordered by file, line and column. Diagnostics about
    overrides come last."""
    files = {file: number for number, (file, _) in enumerate(report.sources)}

    def place(found: Diagnostic) -> tuple[int, int, int]:
        span = found.primary
        return (files.get(span.file, -1), span.line, span.column) if span else (-1, 0, 0)

    return replace(report, diagnostics=tuple(sorted(dict.fromkeys(report.diagnostics), key=place)))
