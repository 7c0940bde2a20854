"""MC505, MC506, MC508 and MC105: what `args` say, against the constructor of the class that `_target_` names."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Fix
from meshctl.recipe.code.classes import Class
from meshctl.recipe.code.signatures import Hint, Signature
from meshctl.recipe.compose.yaml_tree import Node, leaves, plain
from meshctl.recipe.field_reader import integer_hint
from meshctl.recipe.fixes import as_whole, quoted, renamed, rewritten
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import listed, nearest

LOOKS = ("yes", "no", "on", "off", "y", "n")
"""Words that YAML 1.1 may read as true and false."""


def known_arguments(facts: Facts) -> Iterator[Diagnostic]:
    """`args` are what the constructor takes."""
    for name, found, takes in _constructors(facts):
        given = facts.recipe.components[name].args
        unknown = [key for key in given if key not in takes.by_name and not takes.any_name]
        for key in unknown:
            left = [parameter for parameter in takes.by_name if parameter not in given]
            help = f"did you mean `{near}`?" if (near := nearest(key, left)) else _takes(takes.by_name)
            span = facts.key("components", name, "args", key)
            fixes = renamed(span, key, left) if len(unknown) == 1 else ()
            yield Diagnostic(
                "MC505", f"`{found.target}` takes no argument `{key}`", span, help=help, fixes=fixes
            )
        missing = [parameter for parameter in takes.required if parameter not in given]
        if missing and not unknown:
            nameless = [parameter for parameter in missing if parameter not in takes.by_name]
            help = (
                f"`args` are given by name: {listed(nameless)} must not be before a `/`"
                if nameless
                else "say it below `args`"
            )
            yield Diagnostic(
                "MC506",
                f"`{found.target}` needs {listed(missing)}",
                facts.key("components", name, "args"),
                help=help,
            )


def _constructors(facts: Facts) -> Iterator[tuple[str, Class, Signature]]:
    """The components whose constructor is known, and whose `args` are read."""
    for name, found in facts.classes.items():
        if (
            isinstance(found, Class)
            and found.constructor
            and found.is_component is not False
            and facts.right("components", name, "args")
        ):
            yield name, found, found.constructor


def _takes(parameters: tuple[str, ...]) -> str:
    return f"it takes {listed(parameters)}" if parameters else "its constructor takes none"


def right_types(facts: Facts) -> Iterator[Diagnostic]:
    """What stands in `args` is what the constructor's annotations say, where they say it simply."""
    for name, found, takes in _constructors(facts):
        for key, hint in takes.hints.items():
            node = facts.written.node("components", name, "args", key)
            if node is None or node.from_environment or hint.takes(plain(node)) or _said(facts, node):
                continue
            message = f"`{key}` of `{found.target}` is {hint.described}, {_kind(node)}"
            seconds = (node.target.with_word("this is its value"),) if node.target else ()
            help = "" if node.target else _meant(node, hint)
            yield Diagnostic(
                "MC508",
                message,
                node.span,
                seconds,
                help,
                fixes=_fixes(node, hint) if not node.target else (),
            )


def _said(facts: Facts, node: Node) -> bool:
    """Whether something was said already where its value comes from."""
    return node.target is not None and any(found.primary == node.target for found in facts.read.found)


def _kind(node: Node) -> str:
    if node.is_mapping or node.is_list:
        return f"here is a {'mapping' if node.is_mapping else 'list'}"
    if node.value is None:
        return "here is nothing"
    return (
        f"here is the text `{node.value[:60]}`"
        if isinstance(node.value, str)
        else f"here is {(node.written or str(node.value))[:60]}"
    )


def _meant(node: Node, hint: Hint) -> str:
    if "text" in hint.kinds and isinstance(node.value, (bool, int, float)):
        return f'quote it: "{node.written}"'
    if hint.words and isinstance(node.value, str) and (near := nearest(node.value, map(str, hint.words))):
        return f"did you mean `{near}`?"
    return integer_hint(node) if "int" in hint.kinds else ""


def _fixes(node: Node, hint: Hint) -> tuple[Fix, ...]:
    if hint.kinds == {"text"} and isinstance(node.value, (bool, int, float)):
        return quoted(node)
    return as_whole(node, -(10**15), 10**15) if "int" in hint.kinds else ()


def meant_booleans(facts: Facts) -> Iterator[Diagnostic]:
    """`yes` and `NO` in `args` are text that YAML 1.1 reads as booleans, unless a boolean is what is wanted."""
    takes = {name: signature.hints for name, _, signature in _constructors(facts)}
    for name in facts.recipe.components:
        arguments = facts.written.node("components", name, "args")
        for path, node in (
            leaves(arguments) if arguments is not None and facts.right("components", name, "args") else ()
        ):
            if (
                not isinstance(node.value, bool)
                or node.written.lower() not in LOOKS
                or (path and path[0] in takes.get(name, ()))
            ):
                continue
            read = str(node.value).lower()
            message = f"`{'.'.join(path)}` is written {node.written}, which YAML 1.1 reads as {read}"
            help = f'write {read}, or quote it: "{node.written}"'
            yield Diagnostic(
                "MC105",
                message,
                node.span,
                (),
                help,
                "warning",
                rewritten(node, read) if node.written.islower() else (),
            )


RULES = (known_arguments, right_types, meant_booleans)
