"""MC505, MC506, MC508 and MC105: checks `args` against the constructor of the class that `_target_` names."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Fix
from meshctl.recipe.code.classes import Class
from meshctl.recipe.code.signatures import Hint, Signature
from meshctl.recipe.compose.yaml_tree import Node, leaves, plain
from meshctl.recipe.fields import COMPONENT
from meshctl.recipe.fixes import renamed
from meshctl.recipe.foreign_words import foreign_help
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.scalars import (
    NO_VALUE,
    as_whole,
    found_instead,
    integer_hint,
    quoted,
    reference_hint,
    rewritten,
)
from meshctl.text.english import listed, nearest

YAML_1_1_BOOLEANS = ("yes", "no", "on", "off", "y", "n")
"""Words that YAML 1.1 may read as true and false."""


def _constructors(facts: Facts) -> Iterator[tuple[str, Class, Signature]]:
    """Yields (component, class, constructor) for each component with a known constructor and readable
    `args`."""
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
            span = facts.key("components", name, "args", key)
            fixes = renamed(span, key, free) if len(unknown) == 1 else ()
            message = f"`{found.target}` has no argument `{key}`"
            yield Diagnostic(
                "MC505", message, span, help=_known_parameters(key, constructor, free), fixes=fixes
            )
        if missing and not unknown and (given or not _has_args_in_group(facts, name)):
            span = facts.key("components", name, "args")
            help = "add it under `args`" if len(missing) == 1 else "add them under `args`"
            nameless = [one for one in missing if one not in constructor.keywords]
            if nameless:
                help = f"`args` are given by name: {listed(nameless)} must not stand before a `/`"
            yield Diagnostic("MC506", f"`{found.target}` needs {listed(missing)}", span, help=help)


def _has_args_in_group(facts: Facts, component: str) -> bool:
    """Returns whether an `args` of the component's group was reported, which may be meant for the
    component."""
    group = facts.recipe.components[component].group
    return not facts.read.is_known("groups", group, "args") and facts.read.is_known("groups", group)


def _known_parameters(key: str, constructor: Signature, free: list[str]) -> str:
    if key in COMPONENT.by_key:
        return f"`{key}` is a key of the component: it goes beside `args`"
    if help := foreign_help(key, frozenset(free)):
        return help
    if near := nearest(key, free):
        return f"did you mean `{near}`?"
    if key in constructor.required:
        return f"`args` are given by name: `{key}` must not stand before a `/`"
    if not constructor.keywords:
        return "its constructor has no arguments"
    if len(constructor.keywords) == 1:
        return f"its only argument is `{constructor.keywords[0]}`"
    return f"its arguments are {listed(constructor.keywords)}"


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
    message = f"{what} must be {hint.described}, {found_instead(node)}"
    if node.target is None:
        help, fixes = _meant(node, hint) or form, _fixes(node, hint)
        yield Diagnostic("MC508", message, node.span, (), help, fixes=fixes)
    else:
        yield Diagnostic("MC508", message, node.span, (node.target.with_word("this is its value"),))


def _meant(node: Node, hint: Hint) -> str:
    if "text" in hint.kinds and isinstance(node.value, (bool, int, float)):
        return f'quote it: "{node.written}"'
    if hint.words and isinstance(node.value, str) and (near := nearest(node.value, map(str, hint.words))):
        return f"did you mean `{near}`?"
    if isinstance(node.value, str) and node.value.lower() in NO_VALUE:
        return "write null" if "null" in hint.described else "leave it out for its default"
    return reference_hint(node) or (integer_hint(node) if "int" in hint.kinds else "")


def _fixes(node: Node, hint: Hint) -> tuple[Fix, ...]:
    if hint.kinds == {"text"} and isinstance(node.value, (bool, int, float)):
        return quoted(node)
    return as_whole(node, -(10**15), 10**15) if "int" in hint.kinds else ()


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
            fixes = rewritten(node, read) if node.written.islower() else ()
            yield Diagnostic("MC105", message, node.span, (), help, "warning", fixes)


RULES = (arguments_exist, argument_types_fit, booleans_are_explicit)
