"""MC50x: components and the classes that their `_target_` names, read as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.classes import Class, Code, NoClass, NotFound, Unread
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import did_you_mean, listed

SHOWN = 4
"""So many more places of one mistake are shown."""


def known_group(facts: Facts) -> Iterator[Diagnostic]:
    for name, component in facts.recipe.components.items():
        if (
            component.group
            and not facts.names("groups", component.group)
            and facts.right("components", name, "group")
        ):
            help = did_you_mean(component.group, facts.recipe.groups)
            span = facts.value("components", name, "group")
            message = f"component `{name}` runs on the group `{component.group}`, which there is not"
            yield Diagnostic(
                "MC500", message, span, help=help, fixes=renamed(span, component.group, facts.recipe.groups)
            )


def known_class(facts: Facts) -> Iterator[Diagnostic]:
    """`_target_` leads to a class that derives from Component. A module that is missing is said once, with
    all who name it."""
    absent: dict[str, list[str]] = {}
    for name, found in facts.classes.items():
        if isinstance(found, NotFound) and not found.has_module:
            absent.setdefault(_missing(facts.recipe.components[name].target, found), []).append(name)
    for message, (first, *others) in absent.items():
        target, found = facts.recipe.components[first].target, facts.classes[first]
        says = tuple(
            facts.value("components", other, "_target_").with_word("and here") for other in others[:SHOWN]
        )
        help = _where(facts, target, found) if isinstance(found, NotFound) else ""
        yield Diagnostic("MC501", message, facts.value("components", first, "_target_"), says, help)
    for name, found in facts.classes.items():
        span = facts.value("components", name, "_target_")
        target = facts.recipe.components[name].target
        if isinstance(found, NotFound):
            if found.has_module:
                yield Diagnostic("MC502", _missing(target, found), span, help=_where(facts, target, found))
        elif isinstance(found, Unread):
            message = f"`{target}` cannot be {'imported' if found.broken else 'checked'}: {found.why}"
            yield (
                Diagnostic("MC507", message, span)
                if found.broken
                else Diagnostic("MC504", message, span, severity="note")
            )
        elif isinstance(found, NoClass):
            yield Diagnostic(
                "MC503",
                f"`{target}` is {found.what}, not a class",
                span,
                help="name a class that derives from meshctl.Component",
            )
        elif found.unwritten:
            message = f"`{target}` is abstract: {listed(found.unwritten)} {'is' if len(found.unwritten) == 1 else 'are'} not written"
            yield Diagnostic("MC509", message, span, help="name a class that derives from it and writes them")
        elif found.is_component is False:
            what = (
                f"derives from {found.foreign_base}, and not from"
                if found.foreign_base
                else "does not derive from"
            )
            help = (
                "write a Component that has one" if found.foreign_base else "derive it from meshctl.Component"
            )
            yield Diagnostic("MC503", f"`{target}` {what} meshctl.Component", span, help=help)
        elif found.is_component is None:
            message = f"`{target}` cannot be checked: a base of it is not on the path as source"
            yield Diagnostic("MC504", message, span, severity="note")


def _missing(target: str, found: NotFound) -> str:
    if found.has_module:
        return f"the module `{found.module}` has no class `{target.rpartition('.')[2]}`"
    return f"there is no module `{found.module}`"


def _where(facts: Facts, target: str, found: NotFound) -> str:
    if found.has_module and target.endswith(".py"):
        return f"name a class of it: {listed(f'{found.module}.{name}' for name in found.names)}"
    if not found.has_module and _is_class(facts.code, target.rpartition(".")[0]):
        return f"did you mean `{target.rpartition('.')[0]}`?"
    if found.has_module:
        return did_you_mean(target.rpartition(".")[2], found.names)
    encoding = sys.getfilesystemencoding()
    if not _is_sayable(target, encoding):
        return f"names of files are {encoding} here, which has not all its letters: set PYTHONUTF8=1, for the run too"
    return f"looked in {listed(facts.code.own)}, and among what is installed"


def _is_sayable(name: str, encoding: str) -> bool:
    try:
        return bool(name.encode(encoding))
    except UnicodeEncodeError:
        return False


def _is_class(code: Code, target: str) -> bool:
    found = code.find(target) if "." in target else None
    return isinstance(found, Class) and found.is_component is not False


RULES = (known_group, known_class)
