"""MC50x: components and the classes that their `_target_` names, read as text."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code import Class, NotFound, Unread
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.words import did_you_mean, listed, nearest


def known_group(facts: Facts) -> Iterator[Diagnostic]:
    for name, component in facts.recipe.components.items():
        if component.group and not facts.names("groups", component.group) and facts.right("components", name, "group"):
            help = did_you_mean(component.group, facts.recipe.groups)
            span = facts.value("components", name, "group")
            yield Diagnostic("MC500", f"component `{name}` runs on the group `{component.group}`, which there is not", span, help=help)


def known_class(facts: Facts) -> Iterator[Diagnostic]:
    """`_target_` leads to a class that derives from Component."""
    for name, found in facts.classes.items():
        span = facts.value("components", name, "_target_")
        target = facts.recipe.components[name].target
        if isinstance(found, NotFound):
            yield Diagnostic("MC502" if found.has_module else "MC501", _missing(target, found), span, help=_where(facts, target, found))
        elif isinstance(found, Unread):
            message = f"`{target}` cannot be {'imported' if found.broken else 'checked'}: {found.why}"
            yield Diagnostic("MC507", message, span) if found.broken else Diagnostic("MC504", message, span, severity="note")
        elif found.is_component is False:
            help = "derive it from meshctl.Component"
            yield Diagnostic("MC503", f"`{target}` is not a Component", span, help=help)
        elif found.is_component is None:
            message = f"`{target}` cannot be checked: a base of it is not on the path as source"
            yield Diagnostic("MC504", message, span, severity="note")


def _missing(target: str, found: NotFound) -> str:
    if found.has_module:
        return f"the module `{found.module}` has no class `{target.rpartition('.')[2]}`"
    return f"there is no module `{found.module}`"


def _where(facts: Facts, target: str, found: NotFound) -> str:
    if found.has_module:
        return did_you_mean(target.rpartition(".")[2], found.names)
    return f"looked in {listed(facts.code.own)}, and among what is installed"


def known_arguments(facts: Facts) -> Iterator[Diagnostic]:
    """`args` are what the constructor takes."""
    for name, found in facts.classes.items():
        if (
            not isinstance(found, Class)
            or found.constructor is None
            or found.is_component is False
            or not facts.right("components", name, "args")
        ):
            continue
        given, takes = facts.recipe.components[name].args, found.constructor
        for key in given:
            if key not in takes.parameters and not takes.takes_any:
                left = [parameter for parameter in takes.parameters if parameter not in given]
                help = f"did you mean `{near}`?" if (near := nearest(key, left)) else _takes(takes.parameters)
                yield Diagnostic(
                    "MC505", f"`{found.target}` takes no argument `{key}`", facts.key("components", name, "args", key), help=help
                )
        unknown = not takes.takes_any and any(key not in takes.parameters for key in given)
        missing = [parameter for parameter in takes.required if parameter not in given]
        if missing and not unknown:
            span = facts.key("components", name, "args")
            yield Diagnostic("MC506", f"`{found.target}` needs {listed(missing)}", span, help="say it below `args`")


def _takes(parameters: tuple[str, ...]) -> str:
    return f"it takes {listed(parameters)}" if parameters else "its constructor takes none"


RULES = (known_group, known_class, known_arguments)
