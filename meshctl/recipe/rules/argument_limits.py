"""MC457 to MC459: checks a component against the ranges, the exclusions and the devices that its class
declares.

A class declares `RANGES = {"args.top_p": "> 0, <= 1"}` for numbers, and in `EXCLUDES` the arguments that must
not be set together. `DEVICES` states the most devices of a worker, and arguments that need a type of device.
A value that is known at the launch only, such as that of an environment variable, is
checked by the constructor.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, plain
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, listed


def numbers_are_in_range(facts: Facts) -> Iterator[Diagnostic]:
    """Each number is in the range that the class declares. A value to which other arguments refer is reported
    once, in its own place if it is an argument."""
    found = [
        (component, path, range, node)
        for component in facts.recipe.components
        for path, range in facts.declares(component).ranges.items()
        if (node := _given(facts, component, path)) is not None and not range.has(plain(node))
    ]
    reported: set[Span] = set()
    for component, path, range, node in sorted(found, key=lambda one: one[-1].target is not None):
        place = node.target or node.span
        if place not in reported:
            reported.add(place)
            message = (
                f"`{'.'.join(path[1:])}` of `{component}` is {plain(node)}; it must be {range.described}"
            )
            seconds = (place.with_word("this is its value"),) if node.target else ()
            yield Diagnostic("MC457", message, node.span, seconds, _help(facts, component, path))


def _help(facts: Facts, component: str, path: KeyPath) -> str:
    """Returns the value that an argument has if it is left out."""
    found = facts.class_of(component)
    defaults = found.constructor.defaults if found and found.constructor and len(path) == 2 else {}
    if path[-1] not in defaults:
        return ""
    default = defaults[path[-1]]
    return f"leave it out for {'the default' if default is None else f'the default, {default}'}"


def arguments_do_not_exclude_each_other(facts: Facts) -> Iterator[Diagnostic]:
    """No two arguments are set that exclude each other."""
    for component in facts.recipe.components:
        for path, others in facts.declares(component).excludes.items():
            node = _given(facts, component, path)
            for other in others if node is not None and plain(node) else ():
                second = _given(facts, component, other)
                if node is not None and second is not None and plain(second):
                    names = [".".join(one[1:]) for one in (path, other)]
                    message = f"{listed(names)} of `{component}` exclude each other"
                    seconds = (second.span.with_word(f"`{names[1]}` is set"),)
                    yield Diagnostic("MC458", message, node.span, seconds, "leave one of them out")


def group_has_supported_devices(facts: Facts) -> Iterator[Diagnostic]:
    """The group of a component has devices that the class and the arguments support."""
    for name, component in facts.recipe.components.items():
        group, supported = facts.recipe.groups.get(component.group), facts.declares(name).devices
        if group is None or not facts.is_valid("groups", group.name):
            continue
        owner = (facts.value("components", name, "group").with_word(f"`{name}` is on `{group.name}`"),)
        most, each = supported.per_worker, group.gpus_per_worker
        if most is not None and each > most:
            message = (
                f"`{name}` uses {counted(most, 'device')} in each worker; one of `{group.name}` has {each}"
            )
            help = f"write `gpus_per_worker: {most}`; a large model is split by `parallel`"
            span = facts.value("groups", group.name, "gpus_per_worker")
            yield Diagnostic("MC459", message, span, owner, help)
        for path, kinds in supported.types.items():
            node = _given(facts, name, path)
            if node is not None and plain(node) and group.device_type and group.device_type not in kinds:
                needs = f"`{'.'.join(path[1:])}` of `{name}` needs {' or '.join(kinds)}"
                message = f"{needs}, and the devices of `{group.name}` are {group.device_type}"
                yield Diagnostic("MC459", message, node.span, owner, "leave it out")


def _given(facts: Facts, component: str, path: KeyPath) -> Node | None:
    return facts.argument(component, path) if facts.is_valid("components", component, *path) else None


RULES = (numbers_are_in_range, arguments_do_not_exclude_each_other, group_has_supported_devices)
