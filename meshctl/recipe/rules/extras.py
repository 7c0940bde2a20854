"""MC442: notes that the libraries of a component are not installed.

A class declares `EXTRA = "hf"`, the extra of meshctl that installs its libraries.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.package import install_command, missing_libraries
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import listed


def extras_are_installed(facts: Facts) -> Iterator[Diagnostic]:
    """The libraries of each extra are installed. Each extra is reported once, with all components that need
    it."""
    users: dict[str, list[str]] = {}
    for name in facts.recipe.components:
        if extra := facts.declares(name).extra:
            users.setdefault(extra, []).append(name)
    for extra, names in users.items():
        missing = missing_libraries(extra)
        span = facts.value("components", names[0], "_target_")
        needs = f"{listed(names)} {'needs' if len(names) == 1 else 'need'}"
        if missing is None:
            message = f"{needs} the extra `{extra}`, which this version of meshctl does not have"
            yield Diagnostic("MC442", message, span, severity="note")
        elif missing:
            message = f"{needs} {listed(missing)}, not installed here"
            yield Diagnostic("MC442", message, span, help=install_command(extra), severity="note")


RULES = (extras_are_installed,)
