"""`meshctl validate RECIPE... [OVERRIDES]`: reports every mistake with its line and column. It starts
nothing.

    validate a.yaml b.yaml run.steps=7     several recipes, with the overrides for each; the worst exit code
    validate -                             standard input, treated like a file in the working directory
    validate --fix a.yaml                  first applies the fixes that have one safe answer (`cli/fix.py`)

Findings are printed on stdout, and the changes of `--fix` on stderr. If `--fix` is used with standard input,
the fixed text is printed on stdout and the findings on stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from meshctl import __version__
from meshctl.cli.load import Launchable, Unreadable, check, resolve_source
from meshctl.cli.output import WHEN, check_format, has_color, refuse, write
from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe.compose.folders import is_file
from meshctl.text.english import counted, listed
from meshctl.view.reports import FORMATS, STDIN, Checked, Findings
from meshctl.view.reports.text import text


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    format: str = ""
    """Empty for `text`, or `github` under GitHub Actions."""
    strict: bool = False
    fix: bool = False
    color: str = "auto"
    data: bool = False
    """True if every row of the ready-made sources is encoded."""

    @property
    def report_format(self) -> str:
        return self.format or ("github" if os.environ.get("GITHUB_ACTIONS") == "true" else "text")


def validate(arguments: Sequence[str], options: Options) -> int:
    """Prints the findings of all recipes and returns the exit code."""
    recipes = [argument for argument in dict.fromkeys(arguments) if not is_override_argument(argument)]
    overrides = [argument for argument in arguments if is_override_argument(argument)]
    if not recipes:
        are = "is an override" if len(overrides) == 1 else "are overrides"
        return refuse(f"no recipe is given; {listed(overrides)} {are}")
    check_format(options.report_format, FORMATS)
    if options.color not in WHEN:
        return refuse(f"`--color` must be {listed(WHEN, 'or')}, not `{options.color}`")
    found = tuple(check_recipe(recipe, overrides, options, len(recipes) > 1) for recipe in recipes)
    out = sys.stderr if options.fix and "-" in recipes else sys.stdout
    return report(found, options, out)


def is_override_argument(argument: str) -> bool:
    is_recipe = argument.endswith((".yaml", ".yml")) and is_file(Path(argument))  # such as `lr=1.yaml`
    return ("=" in argument or argument.startswith(("~", "+"))) and not is_recipe


# One recipe


def check_recipe(recipe: str, overrides: list[str], options: Options, is_one_of_many: bool) -> Checked:
    """Returns the findings of a recipe. If `is_one_of_many`, the summary begins with the recipe's name."""
    try:
        name, held = resolve_source(recipe)
    except Unreadable as unreadable:
        return Checked(STDIN, 3, unreadable.report, f"{STDIN}: cannot be read")
    fixed: tuple[Diagnostic, ...] = ()
    if options.fix:
        from meshctl.cli.fix import fix

        result, fixed = fix(name, lambda held: check(name, overrides, held), held)
    else:
        result = check(name, overrides, held)
    found = Checked(name, result.code, result.report, "", facts(result.launchable), fixed)
    if result.launchable is None:
        return replace(found, summary=f"{name}: {_failure(found, options)}")
    if options.data:
        found = _with_data(found, result.launchable)
        if found.code:
            return replace(found, summary=f"{name}: {_failure(found, options)}")
    if options.strict and (warnings := found.count("warning")):
        line = f"{name}: {counted(warnings, 'warning')}; --strict treats warnings as errors"
        return replace(found, code=1, summary=line)
    values, before = found.plan, f"{name}: " * is_one_of_many
    counts = [counted(int(values[key]), key.removesuffix("s")) for key in values if key.endswith("s")]
    line = f"{before}ok: {values['name']}: {', '.join(counts)}; plan {values['digest']}"
    read = "; each row was encoded, without code of yours" if options.data else ""
    return replace(found, summary=f"{line}{read}")


def _with_data(found: Checked, launchable: Launchable) -> Checked:
    """Adds the findings about the rows of sources."""
    report = Report((*found.report.diagnostics, *data_findings(launchable)), found.report.sources)
    return replace(found, report=report, code=1 if report.errors else found.code)


def _failure(found: Checked, options: Options) -> str:
    """Returns the numbers of findings, and of those that `--fix` can fix."""
    if found.code in (3, 70):
        text = "cannot be read" if found.code == 3 else "a bug in meshctl"
    else:
        counts = [(found.count(severity), severity) for severity in ("error", "warning")]
        text = ", ".join(counted(count, severity) for count, severity in counts if count)
    fixable = sum(bool(one.fixes) for one in found.report.diagnostics)
    if options.fix or not fixable:
        return text
    if fixable < len(found.report.diagnostics):
        return f"{text}; --fix can change {fixable}"
    return f"{text}; --fix can change {'all' if fixable > 1 else 'it'}"


def facts(launchable: Launchable | None) -> dict[str, str | int]:
    """Returns name, digest and numbers of parts of a plan; empty if there is no plan."""
    if launchable is None:
        return {}
    plan = launchable.plan
    found: dict[str, str | int] = {"name": plan.name, "digest": plan.digest}
    found |= {"groups": len(plan.groups), "workers": plan.job_size}
    if plan.components:
        found |= {"components": len(plan.components), "stages": len(plan.stages)}
    return found


# `--data`: every row of the ready-made sources is encoded, in one child process for each interpreter. No code
# of the user runs.

ROOM = "meshctl.data."
COMMAND = ("-P", "-m", "meshctl.data.examination")


def data_findings(launchable: Launchable) -> Iterator[Diagnostic]:
    """Yields a diagnostic for each source with rows that cannot be used, or that is not examined."""
    from meshctl.engines.node.worker_env import server_python
    from meshctl.runtime.instantiate import TargetError, resolved

    facts, requests = launchable.facts, dict[str, dict[str, Any]]()
    if facts is None:
        return
    for component in launchable.plan.components:
        shipped = facts.declares(component.name).shipped
        if not shipped.suffixes:
            continue
        try:
            if not component.target.startswith(ROOM):
                raise TargetError(f"`{component.target}` is not imported")
            args = {key: resolved(value, key, "") for key, value in component.args.items()}
        except TargetError as error:
            message = f"the rows of `{component.name}` are not examined: {error}"
            yield Diagnostic("MC449", message, facts.value("components", component.name), severity="note")
            continue
        python = server_python(launchable.plan.group(component.group), launchable.path)
        one = {"class": component.target.removeprefix(ROOM), "args": args}
        requests.setdefault(python, {})[component.name] = one
    for python, sources in requests.items():
        for name, answer in _answers(python, launchable.path, sources).items():
            span = facts.value("components", name, "args", "path")
            if failure := answer["failure"]:
                yield Diagnostic("MC447", f"the rows of `{name}` cannot be read: {failure}", span)
            if not answer["bad"]:
                continue
            skips = launchable.plan.component(name).args.get("bad_rows") == "skip"
            message = f"{answer['bad']} of {counted(answer['rows'], 'row')} of `{name}` cannot be used"
            first, left = answer["first"], answer["bad"] - len(answer["first"])
            help = "\n".join([*first, *[f"and {left} more"] * (left > 0)])
            found = Diagnostic("MC447", message, span, help=help)
            yield replace(found, severity="warning") if skips else found


def _answers(python: str, path: tuple[str, ...], sources: dict[str, Any]) -> dict[str, Any]:
    request = json.dumps({"path": path, "sources": sources})
    done = subprocess.run([python, *COMMAND], input=request, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {name: {"rows": 0, "bad": 0, "first": [], "failure": f"{python}: {last}"} for name in sources}
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


# All recipes


def report(found: tuple[Checked, ...], options: Options, out: TextIO) -> int:
    """Prints the findings in the format of the options and returns the exit code."""
    format, color = options.report_format, has_color(out, options.color)
    findings = Findings(found, __version__ if format in ("json", "sarif") else "", color, folder(), explained)
    draw: Callable[[Findings], str] = import_module(f"meshctl.view.reports.{format}").draw
    write(draw(findings), out)
    return findings.code


def folder(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the path of the working directory relative to the checkout, for GitHub's annotations."""
    if environ.get("GITHUB_ACTIONS") != "true" or not environ.get("GITHUB_WORKSPACE"):
        return ""
    here = os.path.relpath(Path.cwd(), environ["GITHUB_WORKSPACE"])
    return "" if here.startswith(".") else here


def explained(code: str) -> str:
    """Returns the page of a code, which begins with its title, or an empty string if the code has none."""
    from meshctl.diagnostics.codes import page

    try:
        found = page(code)
    except FileNotFoundError:
        return ""
    return "\n\n".join([found.title, *(piece for piece in found.why.pieces if isinstance(piece, str))])


def draw(report: Report, out: TextIO) -> None:
    """Prints a report as text, for other commands."""
    print(text(report, color=has_color(out)), file=out)
