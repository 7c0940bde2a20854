"""What the command line changes: Hydra's grammar, and what it does to a tree.

    k=v      sets a value that is there, or a key that recipes have        k={a: 1}   merges into a mapping; a
             layout is replaced
    +k=v     adds one that is not there                                    ++k=v      either
    ~k       deletes; ~k=v only if it is v                                 group@place=option   chooses a
             config

Reading and scalars are Hydra's own. Everything that is wrong is said, and the override passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose import yaml_tree
from meshctl.recipe.compose.grammar import wrong
from meshctl.recipe.compose.inside import placed
from meshctl.recipe.compose.yaml_tree import MISSING, Node
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import is_key, keys_below
from meshctl.recipe.suggestions import nearest_key

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MAX_OVERRIDES = 200


@dataclass(frozen=True)
class Given:
    """One override of the command line."""

    parsed: Override
    text: str
    file: str
    """`override 2`: in a diagnostic it is a file of one line."""
    is_choice: bool
    """Chooses an option of a config group; else it sets a value."""

    @property
    def key(self) -> Span:
        start = re.match(r"\s*(\+\+|\+|~)?\s*", self.text)
        column = start.end() if start else 0
        return Span(self.file, 1, column + 1, max(1, len(self.text[column:].partition("=")[0].rstrip())))

    def key_part(self, index: int) -> Span:
        """One part of a dotted key."""
        before = sum(len(part) + 1 for part in self.path[:index])
        return replace(self.key, column=self.key.column + before, width=len(self.path[index]))

    @property
    def value(self) -> Span:
        head, _, _ = self.text.partition("=")
        if not self.value_text:
            return self.key
        column = self.text.index(self.value_text, len(head) + 1)
        return Span(self.file, 1, column + 1, len(self.value_text))

    @property
    def value_text(self) -> str:
        return self.text.partition("=")[2].strip()

    @property
    def path(self) -> yaml_tree.Path:
        return tuple(self.parsed.key_or_group.split("."))

    @property
    def bare(self) -> str:
        """`group@package`, or the key, without what stands before it."""
        return self.parsed.get_key_element().lstrip("+~")

    @property
    def is_layout(self) -> bool:
        return self.is_choice and is_layout(self.parsed.package)

    def node(self) -> Node:
        value, whole = self.parsed.value(), self.value
        if isinstance(value, (dict, list)) and (
            node := placed(value, self.text, whole.column - 1, self.file)
        ):
            return replace(node, key=self.key)
        return replace(yaml_tree.of_plain(value, whole, self.key), written=self.value_text)


def is_layout(package: str | None) -> bool:
    """Whether what is mounted there is the one value of a component's `parallel`."""
    return re.fullmatch(r"(_global_\.)?components\.[^.]+\.parallel", package or "") is not None


def parsed(texts: Sequence[str], is_group: Callable[[str], bool], found: list[Diagnostic]) -> Iterator[Given]:
    """The overrides that can be understood."""
    if len(texts) > MAX_OVERRIDES:
        found.append(
            Diagnostic(
                "MC206", f"{len(texts)} overrides are more than {MAX_OVERRIDES}, put them into a recipe"
            )
        )
        return
    if not texts:
        return
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from meshctl.recipe.compose.foreign import FOREIGN

    parser = OverridesParser.create()
    for number, text in enumerate(texts, 1):
        file = file_of(number)
        try:
            override = parser.parse_rule(text, "override")
            value = None if override.is_sweep_override() else override.value()
        except FOREIGN as error:
            found.append(wrong(text, file, error))
            continue
        if _is_one_value(override, text, file, found):
            yield Given(override, text, file, is_group(override.key_or_group) and not isinstance(value, dict))


def file_of(number: int) -> str:
    return f"override {number}"


def is_override(file: str) -> bool:
    return re.fullmatch(r"override \d+", file) is not None


def _is_one_value(override: Override, text: str, file: str, found: list[Diagnostic]) -> bool:
    given = Given(override, text, file, False)
    if not all(override.key_or_group.split(".")):
        found.append(wrong(text, file))
    elif override.is_sweep_override():
        help = "one value here; quote it if the comma belongs to it: key='a,b', or a list: key=[1,2]"
        found.append(
            Diagnostic("MC207", f"`{given.value_text}` is a sweep of several values", given.value, help=help)
        )
    elif re.split(r"[./]", override.key_or_group)[0] == "hydra":
        found.append(Diagnostic("MC216", "an override does not configure Hydra itself", given.key))
    elif override.key_or_group.split(".")[0] == "defaults":
        help = "choose an option of a config group: layout@components.NAME.parallel=OPTION"
        found.append(
            Diagnostic("MC221", "an override does not change the defaults list", given.key, help=help)
        )
    else:
        return True
    return False


def applied(root: Node, given: Given, found: list[Diagnostic]) -> Node:
    """The tree with one value set, added or deleted."""
    if beyond := _unreachable(root, given):
        found.append(beyond)
        return root
    old, override = root.at(given.path), given.parsed
    if override.is_delete():
        return _deleted(root, given, old, found)
    new = given.node()
    forced = override.is_force_add()
    adds = override.is_add() and not forced
    if (
        adds
        and old is not None
        and old.value not in (None, MISSING)
        and not isinstance(new.value, (dict, list))
    ):
        help = f"`{given.bare}={given.value_text}` replaces it"
        plus = given.text.index("+")
        fixes = (Fix(Span(given.file, 1, plus + 1), "+", ""),)
        found.append(
            Diagnostic(
                "MC204",
                f"`{given.bare}` is there already",
                given.key,
                (old.span.with_word("here"),),
                help,
                fixes=fixes,
            )
        )
        return root
    if not adds and not forced and old is None and not is_key(given.path, root):
        found.append(_unknown(root, given))
        return root
    if old is not None and new.is_mapping and not is_layout(override.key_or_group):
        new = yaml_tree.merge(old, new)
    return yaml_tree.put(root, given.path, new)


def _unreachable(root: Node, given: Given) -> Diagnostic | None:
    """What is wrong where something on the way to the key cannot hold keys."""
    for length in range(1, len(given.path)):
        node = root.at(given.path[:length])
        where, key = ".".join(given.path[:length]), given.path[length]
        if node is None:
            return None
        if node.is_list and node.get(key) is None:
            return Diagnostic(
                "MC203", f"the list `{where}` has no item {key}", given.key_part(length), (node.span,)
            )
        if not node.is_list and not node.is_mapping and node.value is not None:
            help = f"give it whole: {where}={{{'.'.join(given.path[length:])}: {given.value_text}}}"
            says = node.span.with_word(f"`{where}`")
            return Diagnostic(
                "MC220", f"`{where}` is one value, it has no keys", given.key_part(length), (says,), help
            )
    return None


def _deleted(root: Node, given: Given, old: Node | None, found: list[Diagnostic]) -> Node:
    expected = given.parsed.value()
    if old is None:
        message, fixes = f"`{given.bare}` is not there to delete", _renamed(root, given)
        found.append(Diagnostic("MC209", message, given.key, help=_sibling(root, given), fixes=fixes))
    elif expected is not None and expected != yaml_tree.plain(old):
        message = f"`{given.bare}` is not {given.value_text}"
        found.append(Diagnostic("MC209", message, given.value, (old.span.with_word("it is this"),)))
    else:
        return yaml_tree.without(root, given.path)
    return root


def _unknown(root: Node, given: Given) -> Diagnostic:
    help = _sibling(root, given) or f"to add it, say +{given.text.strip()}"
    span = given.key_part(_depth(root, given) - 1)
    return Diagnostic(
        "MC203", f"`{given.bare}` is not in the recipe", span, help=help, fixes=_renamed(root, given)
    )


def _depth(root: Node, given: Given) -> int:
    """How many parts of the key lead to the first that is not there, nor could be."""
    unknown = [length for length in range(1, len(given.path) + 1) if root.at(given.path[:length]) is None]
    return next((length for length in unknown if not is_key(given.path[:length], root)), unknown[-1])


def _sibling(root: Node, given: Given) -> str:
    """The nearest key beside the first part that is not there."""
    depth, options = _depth(root, given), _siblings(root, given)
    meant = nearest_key(given.path[depth - 1], options)
    return (
        f"did you mean `{'.'.join((*given.path[: depth - 1], meant, *given.path[depth:]))}`?" if meant else ""
    )


def _siblings(root: Node, given: Given) -> list[str]:
    """The keys that the first part that is not there could have meant."""
    depth = _depth(root, given)
    parent = root.at(given.path[: depth - 1])
    there = list(parent.value) if parent is not None and parent.is_mapping else []
    known = keys_below(given.path[: depth - 1], root)
    return [key for key in dict.fromkeys((*there, *known)) if key != given.path[depth - 1]]


def _renamed(root: Node, given: Given) -> tuple[Fix, ...]:
    part = _depth(root, given) - 1
    return renamed(given.key_part(part), given.path[part], _siblings(root, given))
