"""`meshctl validate RECIPE... [OVERRIDES]`: every mistake at once, each at its line and column; nothing is
started.

    validate a.yaml b.yaml run.steps=7     several recipes, the overrides for each of them; the worst exit
                                           code
    validate -                             standard input, as if it were a file in the working directory
    validate --fix a.yaml                  first changes what has one safe answer (`cli/fix.py`)

The findings are the output: they go to stdout. What `--fix` did is told on stderr; where it fixes standard
input, the text goes to stdout and the findings to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TextIO

from meshctl.cli.color import WHEN, coloured
from meshctl.cli.load import Looked, Ready, Unreadable, look
from meshctl.cli.output import write
from meshctl.cli.stdin_source import given
from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe.compose.folders import is_file
from meshctl.text.english import counted, listed
from meshctl.text.redaction import hidden
from meshctl.view.reports import FORMATS, STDIN, Checked, Findings
from meshctl.view.reports.text import shown, text

USAGE = 2


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    format: str = ""
    """Empty for text, or where GitHub's actions run, for their annotations."""
    strict: bool = False
    fix: bool = False
    color: str = "auto"

    @property
    def written_in(self) -> str:
        return self.format or ("github" if os.environ.get("GITHUB_ACTIONS") == "true" else "text")


def validate(arguments: Sequence[str], asked: Asked) -> int:
    """Prints what there is to say of all recipes; the exit code."""
    recipes, overrides = parted(arguments)
    if wrong := misused(recipes, overrides, asked):
        print(f"error: {shown(hidden(wrong))}", file=sys.stderr)
        return USAGE
    found = tuple(of_recipe(recipe, overrides, asked, named=len(recipes) > 1) for recipe in recipes)
    out = sys.stderr if asked.fix and "-" in recipes else sys.stdout
    return tell(found, asked, out)


def checked(recipe: str, overrides: list[str], out: TextIO | None = None) -> int:
    """One recipe as text; the exit code."""
    return tell((of_recipe(recipe, overrides, Asked()),), Asked("text"), out or sys.stdout)


def parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The recipes and the overrides among the arguments; a file may well be called `lr=1.yaml`."""
    recipes = [argument for argument in dict.fromkeys(arguments) if not overrides_it(argument)]
    return recipes, [argument for argument in arguments if overrides_it(argument)]


def overrides_it(argument: str) -> bool:
    is_recipe = argument.endswith((".yaml", ".yml")) and is_file(Path(argument))
    return ("=" in argument or argument.startswith(("~", "+"))) and not is_recipe


def misused(recipes: Sequence[str], overrides: Sequence[str], asked: Asked) -> str:
    if not recipes:
        return f"no recipe is named; {listed(overrides)} {'is an override' if len(overrides) == 1 else 'are overrides'}"
    if asked.format and asked.format not in FORMATS:
        return f"there is no format `{asked.format}`; there are {listed(FORMATS)}"
    if asked.color not in WHEN:
        return f"`--color` is {listed(WHEN, 'or')}, not `{asked.color}`"
    return ""


# One recipe


def of_recipe(recipe: str, overrides: list[str], asked: Asked, named: bool = False) -> Checked:
    """What there is to say of a recipe; `named` in its summary too, since there are others."""
    try:
        name, held = given(recipe)
    except Unreadable as unreadable:
        return Checked(STDIN, 3, unreadable.report, f"{STDIN}: cannot be read")
    if asked.fix:
        from meshctl.cli.fix import fix

        looked, fixed = fix(name, lambda held: look(name, overrides, held), held)
    else:
        looked, fixed = look(name, overrides, held), ()
    return summed_up(name, looked, asked, named, fixed)


def summed_up(name: str, looked: Looked, asked: Asked, named: bool, fixed: tuple[Diagnostic, ...]) -> Checked:
    one = Checked(name, looked.code, looked.report, "", facts(looked.ready) if looked.ready else {}, fixed)
    if looked.ready:
        strict = asked.strict and one.count("warning") > 0
        said = (
            f"{name}: {counted(one.count('warning'), 'warning')}; --strict lets none pass"
            if strict
            else summary(looked.ready)
        )
        said = f"{name}: {said}" if named and not strict else said
        return replace(one, code=int(strict), summary=said)
    said = "cannot be read" if looked.code == 3 else "a bug in meshctl" if looked.code == 70 else _counts(one)
    fixable = sum(bool(found.fixes) for found in one.report.diagnostics)
    more = f"; --fix can change {fixable if fixable < len(one.report.diagnostics) else 'all' if fixable > 1 else 'it'}"
    return replace(one, summary=f"{name}: {said}{more if fixable and not asked.fix else ''}")


def _counts(one: Checked) -> str:
    counts = [(one.count(severity), severity) for severity in ("error", "warning")]
    return ", ".join(counted(count, severity) for count, severity in counts if count)


def summary(ready: Ready) -> str:
    """ok: grpo: 3 groups, 5 workers, 4 components, 6 stages; plan 1f2e..."""
    said = facts(ready)
    counts = [
        counted(int(said[key]), key.removesuffix("s"))
        for key in ("groups", "workers", "components", "stages")
        if key in said
    ]
    return f"ok: {said['name']}: {', '.join(counts)}; plan {said['digest']}"


def facts(ready: Ready) -> dict[str, str | int]:
    plan = ready.plan
    said: dict[str, str | int] = {
        "name": plan.name,
        "digest": plan.digest,
        "groups": len(plan.groups),
        "workers": plan.places,
    }
    return said | (
        {"components": len(plan.components), "stages": len(plan.stages)} if plan.components else {}
    )


# All of them


def tell(found: tuple[Checked, ...], asked: Asked, out: TextIO) -> int:
    """Prints them in the format that is asked for; the exit code."""
    format = asked.written_in
    colour = coloured(out, asked.color)
    findings = Findings(found, version() if format in ("json", "sarif") else "", colour, folder(), explained)
    draw: Callable[[Findings], str] = import_module(f"meshctl.view.reports.{format}").draw
    write(draw(findings), out)
    return findings.code


def folder(environ: Mapping[str, str] = os.environ) -> str:
    """The working directory, as seen from the checkout that GitHub shows the findings in."""
    if environ.get("GITHUB_ACTIONS") != "true" or not environ.get("GITHUB_WORKSPACE"):
        return ""
    here = os.path.relpath(Path.cwd(), environ["GITHUB_WORKSPACE"])
    return "" if here.startswith(".") else here


@cache
def version() -> str:
    from importlib.metadata import version

    return version("meshctl")


def explained(code: str) -> str:
    """What `meshctl explain` says of a code, its title first; nothing of one that has no page."""
    from meshctl.diagnostics.codes import page

    try:
        found = page(code)
    except FileNotFoundError:
        return ""
    return "\n\n".join([found.title, *(piece for piece in found.why.pieces if isinstance(piece, str))])


# What other commands show


def draw(report: Report, out: TextIO) -> None:
    print(text(report, colour=coloured(out)), file=out)
