"""MC322: notes about the interpreters that groups name with `python`.

They depend on the machine, so they are not errors here. `launch` refuses to start with such an interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from meshctl import __version__
from meshctl.diagnostics import Diagnostic
from meshctl.package import install_command, namesake, reinstall_command, version_in
from meshctl.recipe.compose.folders import is_file
from meshctl.recipe.rules.facts import Facts

if TYPE_CHECKING:
    from meshctl.recipe.code.interpreters import Interpreter

READ_HERE = "its components are read from the launcher's packages; `launch` needs the interpreter"


def interpreters_exist(facts: Facts) -> Iterator[Diagnostic]:
    """The interpreter of each group is on this machine and has meshctl in this version."""
    for name, interpreter in facts.group_code.interpreters.items():
        has_components = bool(facts.recipe.components_of(name))
        problem, help = _problem(interpreter, has_components)
        if problem and facts.is_valid("groups", name, "python"):
            message = f"the interpreter {interpreter.path} of group `{name}` {problem}"
            span = facts.value("groups", name, "python")
            yield Diagnostic("MC322", message, span, help=help, severity="note")


def _problem(interpreter: Interpreter, has_components: bool) -> tuple[str, str]:
    """Returns the problem, as the end of a sentence, and the help; empty if there is no problem."""
    if interpreter.problem or not has_components:
        return interpreter.problem, READ_HERE if has_components else ""
    if not interpreter.folders:
        return "has no folder of packages beside it", READ_HERE
    packages = (Path(folder, "meshctl") for folder in interpreter.folders)
    package = next((one for one in packages if is_file(one / "__init__.py")), None)
    if package is None:
        return "has no meshctl", install_command(python=interpreter.path)
    if (have := version_in(package)) == __version__:
        return "", ""
    if other := namesake(interpreter.folders):
        return f"has {other}", reinstall_command(interpreter.path)
    found = f"meshctl {have or 'of an unknown version'}"
    return f"has {found}, and this is {__version__}", install_command(python=interpreter.path)


RULES = (interpreters_exist,)
