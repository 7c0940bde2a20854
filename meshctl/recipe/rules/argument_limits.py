"""MC457 to MC459, MC462 and MC463: checks a component against the limits that its class declares.

A class declares `RANGES = {"args.top_p": "> 0, <= 1"}` for numbers and texts, in `EXCLUDES` the arguments
that must not be set together, in `NEEDS` those that need another one, and in `RESERVED` the keys of a mapping
that the class sets itself. `DEVICES` states the most devices of a worker, and arguments that need a type of
device. A value that is known at the launch only, such as that of an environment variable, is checked by the
constructor.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.argument_limits import ALL
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, plain
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, listed


def values_are_in_range(facts: Facts) -> Iterator[Diagnostic]:
    """Each number and text is in the range that the class declares. A value to which other arguments refer is
    reported once, in its own place if it is an argument."""
    found = [
        (component, path, range, node)
        for component in facts.recipe.components
        for path, range in facts.declares(component).ranges.items()
        for node in _items(_given(facts, component, path))
        if not range.has(plain(node))
    ]
    reported: set[Span] = set()
    for component, path, range, node in sorted(found, key=lambda one: one[-1].target is not None):
        place = node.target or node.span
        if place not in reported:
            reported.add(place)
            value, needed = plain(node), f"it must be {range.described}"
            wrong = "an empty text" if isinstance(value, str) else f"{value}; {needed}"
            message = f"`{'.'.join(path[1:])}` of `{component}` is {wrong}"
            seconds = (place.with_word("this is its value"),) if node.target else ()
            yield Diagnostic("MC457", message, node.span, seconds, _help(facts, component, path))


def _items(node: Node | None) -> Iterator[Node]:
    """Yields a value, or the known items of a list."""
    if node is not None and node.is_list:
        yield from (one for one in node.value if not one.from_environment and not one.is_interpolated)
    elif node is not None:
        yield node


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


def arguments_have_what_they_need(facts: Facts) -> Iterator[Diagnostic]:
    """An argument that needs one of several others has at least one of them."""
    for component in facts.recipe.components:
        for path, others in facts.declares(component).needs.items():
            is_whole = path == (ALL,)
            node = facts.key("components", component, "args") if is_whole else None
            given = None if is_whole else _given(facts, component, path)
            if given is not None and plain(given):
                node = given.span
            if node is None or any(_may_be_set(facts, component, other) for other in others):
                continue
            names = listed([".".join(other[1:]) for other in others], "or")
            what = f"`{component}`" if is_whole else f"`{'.'.join(path[1:])}` of `{component}`"
            stated = [one for other in others if (one := _given(facts, component, other))]
            seconds = tuple(one.span.with_word(f"this is {one.written}") for one in stated)
            help = f"set {names}" if is_whole else f"set {names}, or leave out `{'.'.join(path[1:])}`"
            yield Diagnostic("MC462", f"{what} needs {names}", node, seconds, help)


def _may_be_set(facts: Facts, component: str, path: KeyPath) -> bool:
    """Returns whether an argument is set, by the recipe or by its default, or is unknown."""
    if facts.node("components", component, *path) is not None:
        node = _given(facts, component, path)
        return node is None or bool(plain(node))
    found = facts.class_of(component)
    if found is None or found.constructor is None or len(path) != 2:
        return True
    return bool(found.constructor.defaults.get(path[-1], True))


def keys_are_not_reserved(facts: Facts) -> Iterator[Diagnostic]:
    """A mapping of further arguments has no key that the class sets itself."""
    for component in facts.recipe.components:
        for path, keys in facts.declares(component).reserved.items():
            node = _given(facts, component, path)
            for key, value in node.items() if node is not None else ():
                if key in keys:
                    name = ".".join((*path[1:], key))
                    message = f"`{name}` of `{component}` follows from other arguments or from the mesh"
                    yield Diagnostic("MC463", message, value.key or value.span, help="leave it out")


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


RULES = (
    values_are_in_range,
    arguments_do_not_exclude_each_other,
    arguments_have_what_they_need,
    keys_are_not_reserved,
    group_has_supported_devices,
)
