"""MC442: notes that the libraries of a component are not installed, or too old.

A class declares `EXTRA = "hf"`, the extra of meshctl that installs its libraries. The module of a function
that an argument names may declare one, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.package import (
    install_command,
    missing_libraries,
    outdated_libraries,
)
from meshctl.recipe.code.extras import extras_of
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import listed


def extras_are_installed(facts: Facts) -> Iterator[Diagnostic]:
    """The libraries of each extra are installed. Each extra is reported once, with all components that need
    it. Nothing is known of an interpreter that is on another machine."""
    users: dict[tuple[str, str], list[str]] = {}
    for name, component in facts.recipe.components.items():
        interpreter = facts.group_code.interpreters.get(component.group)
        if interpreter and not interpreter.folders:
            continue  # MC322 reports an interpreter whose packages are not known
        path = interpreter.path if interpreter else ""
        for extra in extras_of(facts.code_of(name), facts.declares(name), component.args):
            users.setdefault((extra, path), []).append(name)
    for (extra, path), names in users.items():
        yield from _missing(facts, extra, path, names)


def _missing(facts: Facts, extra: str, path: str, names: list[str]) -> Iterator[Diagnostic]:
    """Reports the libraries of an extra that an interpreter lacks, or that are too old. `path` is empty for
    the launcher's."""
    folders = facts.code_of(names[0]).installed if path else None
    missing = missing_libraries(extra, folders)
    span = facts.value("components", names[0], "_target_")
    needs = f"{listed(names)} {'needs' if len(names) == 1 else 'need'}"
    if missing is None:
        message = f"{needs} the extra `{extra}`, which this version of meshctl does not have"
        yield Diagnostic("MC442", message, span, severity="note")
        return
    where = f"for {path}" if path else "here"
    help = install_command(extra, path)
    if missing:
        message = f"{needs} {listed(missing)}, not installed {where}"
        yield Diagnostic("MC442", message, span, help=help, severity="note")
    elif outdated := outdated_libraries(extra, folders):
        message = f"{needs} {listed(outdated)}"
        yield Diagnostic("MC442", message, span, help=help, severity="note")


RULES = (extras_are_installed,)
