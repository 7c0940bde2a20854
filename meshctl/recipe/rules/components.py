"""MC50x: components, and the classes that their `_target_` names, read as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.code.classes import Class, Code, Found, NoClass, NotFound
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.compose.folders import files
from meshctl.recipe.fixes import meant, renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import did_you_mean, listed, nearest

READY_MADE = ("meshctl.components", "meshctl.data", "meshctl.hf", "meshctl.rewards", "meshctl.vllm")
"""The modules of ready-made components."""
MAX_SECONDS = 4
"""Maximum number of further places of one mistake that are shown."""


def module_exists(facts: Facts) -> Iterator[Diagnostic]:
    """The module of each `_target_` exists. A missing module is reported once, with all components that name
    it."""
    users: dict[str, list[str]] = {}
    for name, found in facts.classes.items():
        is_standard = _is_standard(facts.code_of(name), facts.recipe.components[name].target)
        if isinstance(found, NotFound) and not found.has_module and not is_standard:
            users.setdefault(found.module, []).append(name)
    for module, (first, *others) in users.items():
        spans = [facts.value("components", other, "_target_") for other in others[:MAX_SECONDS]]
        help = _where_to_look(facts, first)
        span = facts.value("components", first, "_target_")
        seconds = tuple(s.with_word("and here") for s in spans)
        fixes = tuple(fix for name in (first, *others) for fix in _retargeted(facts, name))
        message = f"module `{module}` was not found"
        if _is_component_class(facts.code_of(first), module):
            message, help = f"`{module}` is a class, not a module", f"write `{module}`"
        yield Diagnostic("MC501", message, span, seconds, help, fixes=fixes)


def _retargeted(facts: Facts, component: str) -> tuple[Fix, ...]:
    """Returns the edit of a `_target_` whose module is misspelt; empty if it is not clear what was meant."""
    target = facts.recipe.components[component].target
    owner, _, name = target.rpartition(".")
    module = meant(owner, _modules(facts))
    found = facts.code_of(component).find(f"{module}.{name}") if module else None
    right = meant(name, found.names) if isinstance(found, NotFound) else name
    if not isinstance(found, (Class, NotFound)) or not right:
        return ()
    return (Fix(facts.value("components", component, "_target_"), target, f"{module}.{right}"),)


def _where_to_look(facts: Facts, component: str) -> str:
    target = facts.recipe.components[component].target
    owner, encoding = target.rpartition(".")[0], sys.getfilesystemencoding()
    if near := nearest(owner, _modules(facts)):
        name = target.rpartition(".")[2]
        found = facts.code_of(component).find(f"{near}.{name}")
        right = nearest(name, found.names) if isinstance(found, NotFound) else ""
        return f"did you mean `{near}.{right or name}`?"
    if not _is_encodable(target, encoding):
        return (
            f"file names are encoded as {encoding} here, which lacks some of its letters: set PYTHONUTF8=1, "
            "also for the run"
        )
    interpreter = facts.group_code.interpreters.get(facts.recipe.components[component].group)
    packages = f"the packages of {interpreter.path}" if interpreter else "the installed packages"
    return f"searched in {listed(facts.code.own)} and {packages}"


def _modules(facts: Facts) -> list[str]:
    """Returns the modules in the recipe's folder, those of other components that were found, and those of
    ready-made components."""
    found = {one.target.rpartition(".")[0] for one in facts.classes.values() if isinstance(one, Class)}
    own = (path.stem for folder in facts.code.own for path in files(Path(folder), ".py"))
    return sorted({*found, *own, *READY_MADE})


def _is_encodable(name: str, encoding: str) -> bool:
    try:
        return bool(name.encode(encoding))
    except UnicodeEncodeError:
        return False


def _is_component_class(code: Code, target: str) -> bool:
    found = code.find(target) if "." in target else None
    return isinstance(found, Class) and found.is_component is not False


def class_is_component(facts: Facts) -> Iterator[Diagnostic]:
    """`_target_` names a class that derives from `Component` and is not abstract. A file that is not valid
    Python is reported once."""
    reported = set[str]()
    for name, found in facts.classes.items():
        if isinstance(found, Unread) and found.broken:
            if found.why in reported:
                continue
            reported.add(found.why)
        target, span = facts.recipe.components[name].target, facts.value("components", name, "_target_")
        code = facts.code_of(name)
        diagnostic = _of_standard_library(code, target, span) or _diagnostic_of(code, target, found, span)
        if diagnostic is not None:
            yield diagnostic


def _is_standard(code: Code, target: str) -> bool:
    return target.partition(".")[0] in sys.stdlib_module_names and code.is_library(target)


def _of_standard_library(code: Code, target: str, span: Span) -> Diagnostic | None:
    if not _is_standard(code, target):
        return None
    message = f"`{target}` is in Python's standard library and is not a component"
    return Diagnostic("MC503", message, span, help="use a class that derives from meshctl.Component")


def _ready_made(code: Code, name: str) -> str:
    """Returns a help text that names the ready-made component of a name; empty if there is none."""
    paths = (f"{module}.{name}" for module in READY_MADE)
    return next((f"did you mean `{path}`?" for path in paths if isinstance(code.find(path), Class)), "")


def _diagnostic_of(code: Code, target: str, found: Found, span: Span) -> Diagnostic | None:
    match found:
        case NotFound(has_module=True):
            name = target.rpartition(".")[2]
            help = did_you_mean(name, found.names) or _ready_made(code, name)
            if target.endswith(".py"):
                help = f"use one of its classes: {listed(f'{found.module}.{one}' for one in found.names)}"
            fixes = renamed(span, name, found.names, before=f"{found.module}.")
            message = f"module `{found.module}` has no class `{name}`"
            return Diagnostic("MC502", message, span, help=help, fixes=fixes)
        case Unread(broken=True):
            return Diagnostic("MC507", f"`{target}` cannot be imported: {found.why}", span)
        case Unread():
            message = f"`{target}` cannot be checked: {found.why}"
            return Diagnostic("MC504", message, span, severity="note")
        case NoClass():
            help = "use a class that derives from meshctl.Component"
            return Diagnostic("MC503", f"`{target}` is {found.what}, not a class", span, help=help)
        case Class():
            return _diagnostic_of_class(target, found, span)
    return None


def _diagnostic_of_class(target: str, found: Class, span: Span) -> Diagnostic | None:
    if found.abstract_methods:
        are = "is" if len(found.abstract_methods) == 1 else "are"
        message = f"`{target}` is abstract: {listed(found.abstract_methods)} {are} not implemented"
        return Diagnostic("MC509", message, span, help="use a class that derives from it and implements them")
    if found.is_component is None:
        message = f"`{target}` cannot be checked: the source of one of its base classes was not found"
        return Diagnostic("MC504", message, span, severity="note")
    if found.is_component:
        return None
    if found.foreign_base:
        message = f"`{target}` derives from {found.foreign_base}, not from meshctl.Component"
        return Diagnostic("MC503", message, span, help="write a Component that contains one")
    message = f"`{target}` does not derive from meshctl.Component"
    return Diagnostic("MC503", message, span, help="derive it from meshctl.Component")


STATE_METHODS = ("state_dict", "load_state_dict")


def state_is_loaded(facts: Facts) -> Iterator[Diagnostic]:
    """A component whose state is in checkpoints has both methods of state, or none."""
    if facts.recipe.run.checkpoint is None:
        return
    for name, component in facts.recipe.components.items():
        found = facts.class_of(name)
        if found is None or not found.is_complete or component.frozen:
            continue
        offered = [method for method in STATE_METHODS if method in found.methods]
        if len(offered) != 1:
            continue
        [absent] = {*STATE_METHODS} - {*offered}
        span = facts.value("components", name, "_target_")
        message = f"`{component.target}` has `{offered[0]}` and no `{absent}`"
        help = f"define `{absent}` as well, or write `frozen: true` if `{name}` has no state"
        yield Diagnostic("MC529", message, span, help=help)


def values_are_not_hidden(facts: Facts) -> Iterator[Diagnostic]:
    """No endpoint has the name of a value of `Component`, such as `step`, that its class uses."""
    reported: set[str] = set()
    for name, found in facts.classes.items():
        if not isinstance(found, Class) or not found.is_component or found.target in reported:
            continue
        reported.add(found.target)
        for value in sorted(found.hidden_values & found.endpoints.keys()):
            message = f"`{found.target}` uses the value `self.{value}`, which its endpoint `{value}` hides"
            help = "give the endpoint another name"
            span = facts.value("components", name, "_target_")
            yield Diagnostic("MC578", message, span, help=help, severity="warning")


RULES = (module_exists, class_is_component, state_is_loaded, values_are_not_hidden)
