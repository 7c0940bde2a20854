"""MC105, MC453, MC457 to MC459, MC462, MC463, MC505 to MC508 and MC579: checks `args` against the constructor
of the class that `_target_` names, and against the limits that the class declares.

The limits of ready-made classes, and the tables with the names that an argument can have, are in the
`checks.py` of their rooms. An argument is a name, or a mapping whose keys are names. A name with dots is the
dotted path of the user's own function or class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from meshctl.argument_limits import ALWAYS, NO_FACTS, UNKNOWN, Problem
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.code.classes import Class
from meshctl.recipe.code.signatures import Hint, Signature
from meshctl.recipe.code.tables import names_in, wrong_path
from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node, leaves, plain
from meshctl.recipe.fields import COMPONENT
from meshctl.recipe.fixes import renamed
from meshctl.recipe.mistakes import foreign_help
from meshctl.recipe.model import Component
from meshctl.recipe.rules.facts import Facts, named_by
from meshctl.recipe.scalars import found_instead, quoted, reference_hint, yaml_hint
from meshctl.text.english import counted, did_you_mean, listed, nearest

YAML_1_1_BOOLEANS = ("yes", "no", "on", "off", "y", "n")
"""Words that YAML 1.1 may read as true and false."""


def _constructors(facts: Facts) -> Iterator[tuple[str, Class, Signature]]:
    for name, found in facts.classes.items():
        if not isinstance(found, Class) or found.constructor is None or found.is_component is False:
            continue
        if facts.is_valid("components", name, "args"):
            yield name, found, found.constructor


def arguments_exist(facts: Facts) -> Iterator[Diagnostic]:
    """`args` names only parameters of the constructor, and all parameters without a default."""
    for name, found, constructor in _constructors(facts):
        given = facts.recipe.components[name].args
        unknown = [key for key in given if key not in constructor.keywords and not constructor.has_kwargs]
        missing = [parameter for parameter in constructor.required if parameter not in given]
        free = [parameter for parameter in constructor.keywords if parameter not in given]
        for key in unknown:
            span, help = facts.key("components", name, "args", key), foreign_help(key, frozenset(free))
            if key in COMPONENT.by_key:
                help = f"`{key}` is a key of the component: it goes beside `args`"
            help = help or did_you_mean(key, free) or "its constructor has no further arguments"
            fixes = renamed(span, key, free) if len(unknown) == 1 else ()
            message = f"`{found.target}` has no argument `{key}`"
            yield Diagnostic("MC505", message, span, help=help, fixes=fixes)
        # An `args` of the component's group that was reported may be meant for the component.
        group, read = facts.recipe.components[name].group, facts.read
        is_in_group = not read.is_known("groups", group, "args") and read.is_known("groups", group)
        if missing and not unknown and (given or not is_in_group):
            span = facts.key("components", name, "args")
            help = "add it under `args`" if len(missing) == 1 else "add them under `args`"
            yield Diagnostic("MC506", f"`{found.target}` needs {listed(missing)}", span, help=help)


def argument_types_fit(facts: Facts) -> Iterator[Diagnostic]:
    """Values in `args` have the types of the constructor's annotations, if these are simple."""
    for name, found, constructor in _constructors(facts):
        for key, hint in constructor.hints.items():
            node = facts.node("components", name, "args", key)
            if node is None or node.from_environment:
                continue
            if not node.target or all(other.primary != node.target for other in facts.read.found):
                form = foreign_help(key, frozenset({key}))
                yield from wrong_type(node, hint, f"`{key}` of `{found.target}`", form)


def wrong_type(node: Node, hint: Hint, what: str, form: str = "") -> Iterator[Diagnostic]:
    """Yields a diagnostic if a value does not fit an annotation. `what` names the argument, and `form` is
    help with an example."""
    if hint.takes(plain(node)):
        return
    message, value, help = f"{what} must be {hint.described}, {found_instead(node)}", node.value, ""
    if node.target is not None:
        yield Diagnostic("MC508", message, node.span, (node.target.with_word("this is its value"),))
        return
    if hint.words and isinstance(value, str) and (near := nearest(value, map(str, hint.words))):
        help = f"did you mean `{near}`?"
    help = help or yaml_hint(node, "text" if "text" in hint.kinds else "") or form
    fixes = quoted(node) if hint.kinds == {"text"} else ()
    yield Diagnostic("MC508", message, node.span, (), help, fixes=fixes)


def booleans_are_explicit(facts: Facts) -> Iterator[Diagnostic]:
    """No text in `args` is a boolean in YAML 1.1, unless the annotation of its parameter makes the meaning
    clear."""
    annotated = {name: constructor.hints for name, _, constructor in _constructors(facts)}
    for name in facts.recipe.components:
        arguments = facts.node("components", name, "args")
        if arguments is None or not facts.is_valid("components", name, "args"):
            continue
        for path, node in leaves(arguments):
            is_word = isinstance(node.value, bool) and node.written.lower() in YAML_1_1_BOOLEANS
            if not is_word or (path and path[0] in annotated.get(name, ())):
                continue
            read = str(node.value).lower()
            message = f"`{'.'.join(path)}` is written {node.written}, which YAML 1.1 reads as {read}"
            help = f'write {read}, or quote it: "{node.written}"'
            yield Diagnostic("MC105", message, node.span, (), help, "warning")


MAPPINGS = ("lora", "schedule")
"""The arguments with tables of keys, whose values are mappings."""


def names_exist(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """An argument names an entry of its table."""
    declared, code = facts.declares(component.name), facts.code_of(component.name)
    tables = {**declared.shipped.choices, **dict.fromkeys(declared.shipped.dotted, "")}
    for argument, table in tables.items():
        path = ("args", *argument.split("."))
        is_own = path[1] in declared.own_arguments or not facts.is_valid("components", component.name, *path)
        for name, span in () if is_own else given_names(facts, component.name, path):
            names, fixes, help = names_in(code, table) if table else [], tuple[Fix, ...](), ""
            if "." in name and (last := name.removeprefix("torch.")) in names:
                message = f"`{argument}` is `{name}`, and takes a name without `torch`"
                help = f"write `{last}`"
            elif "." in name and (wrong := wrong_path(code, name)):
                reason, word, options = wrong
                message, help = f"`{argument}` is `{name}`, and {reason}", did_you_mean(word, options)
            elif "." not in name and names and name not in names:
                message, help = f"`{argument}` is `{name}`, which does not exist", did_you_mean(name, names)
                fixes = renamed(span, name, names)
            elif "." not in name and not table:
                message = f"`{argument}` is `{name}`"
                help = f"write the dotted path of a function: FILE.{name}"
            else:
                continue
            yield Diagnostic("MC453", message, span, help=help, fixes=fixes)


def given_names(facts: Facts, component: str, path: KeyPath) -> Iterator[tuple[str, Span]]:
    """Yields the names in an argument, each with its place: a text, or the keys of a mapping. A text in place
    of a mapping with declared keys has no names."""
    mapping = facts.argument(component, path)
    if mapping is not None and mapping.is_mapping:
        yield from ((name, value.key or value.span) for name, value in mapping.items())
    elif path[-1] not in MAPPINGS and (node := named_by(facts, component, path)):
        yield node.value, node.span


def arguments_are_within_limits(facts: Facts) -> Iterator[Diagnostic]:
    """Ready-made classes accept their arguments. A value to which other arguments refer is reported once, in
    its own place if it is an argument."""
    found = [
        (name, problem, node)
        for name, kind, constructor in _constructors(facts)
        if kind.declares.shipped is not NO_FACTS
        for problem in kind.declares.shipped.problems(_arguments(facts, name, constructor))
        if (node := _place_of(facts, name, problem)) is not None
    ]
    reported: set[tuple[str, Span]] = set()
    for name, problem, node in sorted(found, key=lambda one: one[-1].target is not None):
        identity = problem.code, node.target or node.span
        if identity not in reported or problem.code != "MC457":
            reported.add(identity)
            yield _of_problem(facts, name, problem, node)


def _arguments(facts: Facts, component: str, constructor: Signature) -> dict[str, Any]:
    """Returns the arguments of a constructor with its defaults. Those that are unknown before the launch are
    `UNKNOWN`."""
    node, own = facts.node("components", component, "args"), facts.declares(component).own_arguments
    given = _known(node) if node is not None and node.is_mapping else {}
    arguments = {**dict.fromkeys(constructor.keywords, UNKNOWN), **constructor.defaults, **given}
    return {**arguments, **dict.fromkeys(own, UNKNOWN)}


def _known(node: Node) -> Any:
    if node.from_environment or node.is_interpolated or node.value == MISSING:
        return UNKNOWN
    if node.is_mapping:
        return {key: _known(value) for key, value in node.items()}
    return [_known(one) for one in node.value] if node.is_list else node.value


def _place_of(facts: Facts, component: str, problem: Problem) -> Node | None:
    """Returns the value about which a problem is; None if it is not in the recipe, or reported as wrong."""
    path = ("components", component, "args", *filter(None, problem.argument.split(".")))
    node = facts.node(*path) or (facts.node("components", component) if problem.argument == ALWAYS else None)
    if node is None or not facts.is_valid(*path):
        return None
    items = node.value if node.is_list else ()
    return next((one for one in items if _known(one) == problem.value), node)


def _of_problem(facts: Facts, component: str, problem: Problem, node: Node) -> Diagnostic:
    path, help = ("components", component, "args"), problem.help
    of = f"{problem.subject} of `{component}`" if problem.subject else f"`{component}`"
    span, seconds = node.span, tuple[Span, ...]()
    others = [(one, given) for one in problem.others if (given := facts.node(*path, *one.split(".")))]
    if problem.code == "MC457":
        seconds = (node.target.with_word("this is its value"),) if node.target else ()
        found = facts.class_of(component)
        defaults = found.constructor.defaults if found and found.constructor else {}
        if problem.argument in defaults:
            default = defaults[problem.argument]
            help = f"leave it out for the default{'' if default is None else f', {default}'}"
    elif problem.code == "MC458":
        seconds = tuple(given.span.with_word(f"`{one}` is set") for one, given in others)
    elif problem.code == "MC462":
        seconds = tuple(given.span.with_word(f"this is {given.written}") for _, given in others)
        span = facts.key(*path) if problem.argument == ALWAYS else span
    else:
        span = node.key or span
    return Diagnostic(problem.code, f"{of} {problem.rest}", span, seconds, help)


def group_has_supported_devices(facts: Facts) -> Iterator[Diagnostic]:
    """The group of a component has devices that the class and the arguments support."""
    for name, found, _ in _constructors(facts):
        group, shipped = facts.group_of(facts.recipe.components[name]), found.declares.shipped
        if group is None or not facts.is_valid("groups", group.name):
            continue
        owner = (facts.value("components", name, "group").with_word(f"`{name}` is on `{group.name}`"),)
        most, each = shipped.devices_per_worker, group.gpus_per_worker
        if most is not None and each > most:
            uses = f"`{name}` uses {counted(most, 'device')} in each worker"
            message = f"{uses}; one of `{group.name}` has {each}"
            help = f"write `gpus_per_worker: {most}`; a large model is split by `parallel`"
            span = facts.value("groups", group.name, "gpus_per_worker")
            yield Diagnostic("MC459", message, span, owner, help)
        for argument, kinds in shipped.device_types.items():
            node = facts.argument(name, ("args", argument))
            if node is not None and plain(node) and group.device_type and group.device_type not in kinds:
                needs = f"`{argument}` of `{name}` needs {' or '.join(kinds)}"
                message = f"{needs}, and the devices of `{group.name}` are {group.device_type}"
                yield Diagnostic("MC459", message, node.span, owner, "leave it out")


VARIABLE = re.compile(r"\$([A-Z][A-Z0-9_]*)(/.*)?")
"""A variable of a shell, such as `$DATA` or `$HOME/data`."""
HOME = re.compile("~(/|$)")


def texts_are_literal(facts: Facts) -> Iterator[Diagnostic]:
    """No text that is passed on as it is written looks like a variable or a reference."""
    reported = set()
    places = [("components", name, "args") for name in facts.recipe.components]
    places += [("groups", name, key) for key in ("args", "env") for name in facts.recipe.groups]
    valid = [node for place in places if (node := facts.node(*place)) and facts.is_valid(*place)]
    for node in (leaf for one in valid for _, leaf in leaves(one)):
        span = node.target or node.span
        if span in reported or node.from_environment or not isinstance(node.value, str):
            continue
        if found := _looks_replaced(facts, node):
            reported.add(span)
            yield Diagnostic("MC579", found[0], span, help=found[1], severity="warning")


def _looks_replaced(facts: Facts, node: Node) -> tuple[str, str] | None:
    """Returns (message, help) for a text that is probably not meant as it is written."""
    text = node.value
    if found := VARIABLE.fullmatch(text):
        right = f"${{oc.env:{found[1]}}}{found[2] or ''}"
        return f"`{text}` is passed on as it is: no shell replaces it", f'write "{right}"'
    if HOME.match(text):
        return f"`{text}` is passed on as it is: nothing replaces `~`", f'write "${{oc.env:HOME}}{text[1:]}"'
    reference = reference_hint(node).removeprefix("write ")
    keys = tuple(reference.strip("${}").split("."))
    if len(keys) > 1 and facts.tree.at(keys) is not None:
        return f"`{text}` is not an interpolation", f'write "{reference}"'
    return None
