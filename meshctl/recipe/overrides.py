"""What the command line changes: Hydra's grammar, and what it does to a tree.

    k=v      sets a value that is there, or a key that recipes have        k={a: 1}   merges into a mapping; a layout is replaced
    +k=v     adds one that is not there                                    ++k=v      either
    ~k       deletes; ~k=v only if it is v                                 group@place=option   chooses a config

Reading and scalars are Hydra's own. Everything that is wrong is said, and the override passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe import nodes
from meshctl.recipe.foreign import FOREIGN
from meshctl.recipe.model import TOP, is_key
from meshctl.recipe.nodes import MISSING, Node
from meshctl.recipe.words import nearest

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
    def path(self) -> nodes.Path:
        return tuple(self.parsed.key_or_group.split("."))

    @property
    def bare(self) -> str:
        """`group@package`, or the key, without what stands before it."""
        return self.parsed.get_key_element().lstrip("+~")

    @property
    def is_layout(self) -> bool:
        return self.is_choice and is_layout(self.parsed.package)

    def node(self) -> Node:
        return replace(nodes.of_plain(self.parsed.value(), self.value, self.key), written=self.value_text)


def is_layout(package: str | None) -> bool:
    """Whether what is mounted there is the one value of a component's `parallel`."""
    return re.fullmatch(r"(_global_\.)?components\.[^.]+\.parallel", package or "") is not None


def parsed(texts: Sequence[str], is_group: Callable[[str], bool], found: list[Diagnostic]) -> Iterator[Given]:
    """The overrides that can be understood."""
    if len(texts) > MAX_OVERRIDES:
        found.append(Diagnostic("MC206", f"{len(texts)} overrides are more than {MAX_OVERRIDES}, put them into a recipe"))
        return
    parser = OverridesParser.create() if texts else None
    for number, text in enumerate(texts, 1):
        file = file_of(number)
        try:
            override = parser.parse_rule(text, "override") if parser else None
            value = None if override is None or override.is_sweep_override() else override.value()
        except FOREIGN as error:
            found.append(Diagnostic("MC206", "this is no override", _blamed(text, file, error), help=_grammar(text)))
            continue
        if override is not None and _is_one_value(override, text, file, found):
            yield Given(override, text, file, is_group(override.key_or_group) and not isinstance(value, dict))


def file_of(number: int) -> str:
    return f"override {number}"


def is_override(file: str) -> bool:
    return re.fullmatch(r"override \d+", file) is not None


def _is_one_value(override: Override, text: str, file: str, found: list[Diagnostic]) -> bool:
    given = Given(override, text, file, False)
    if override.is_sweep_override():
        help = "one value here; quote it if the comma belongs to it: key='a,b', or a list: key=[1,2]"
        found.append(Diagnostic("MC207", f"`{given.value_text}` is a sweep of several values", given.value, help=help))
    elif re.split(r"[./]", override.key_or_group)[0] == "hydra":
        found.append(Diagnostic("MC216", "an override does not configure Hydra itself", given.key))
    else:
        return True
    return False


def applied(root: Node, given: Given, found: list[Diagnostic]) -> Node:
    """The tree with one value set, added or deleted."""
    if wrong := _unreachable(root, given):
        found.append(wrong)
        return root
    old, override = root.at(given.path), given.parsed
    if override.is_delete():
        return _deleted(root, given, old, found)
    new = given.node()
    forced = override.is_force_add()
    adds = override.is_add() and not forced
    if adds and old is not None and old.value not in (None, MISSING) and not isinstance(new.value, (dict, list)):
        help = f"`{given.bare}={given.value_text}` replaces it"
        found.append(Diagnostic("MC204", f"`{given.bare}` is there already", given.key, (old.span.with_word("here"),), help))
        return root
    if not adds and not forced and old is None and not is_key(given.path, root):
        found.append(_unknown(root, given))
        return root
    if old is not None and new.is_mapping and not is_layout(override.key_or_group):
        new = nodes.merge(old, new)
    return nodes.put(root, given.path, new)


def _unreachable(root: Node, given: Given) -> Diagnostic | None:
    """What is wrong where something on the way to the key cannot hold keys."""
    for length in range(1, len(given.path)):
        node = root.at(given.path[:length])
        where, key = ".".join(given.path[:length]), given.path[length]
        if node is None:
            return None
        if node.is_list and node.get(key) is None:
            return Diagnostic("MC203", f"the list `{where}` has no item {key}", given.key_part(length), (node.span,))
        if not node.is_list and not node.is_mapping and node.value is not None:
            help = f"give it whole: {where}={{{'.'.join(given.path[length:])}: {given.value_text}}}"
            says = node.span.with_word(f"`{where}`")
            return Diagnostic("MC220", f"`{where}` is one value, it has no keys", given.key_part(length), (says,), help)
    return None


def _deleted(root: Node, given: Given, old: Node | None, found: list[Diagnostic]) -> Node:
    expected = given.parsed.value()
    if old is None:
        found.append(Diagnostic("MC209", f"`{given.bare}` is not there to delete", given.key, help=_sibling(root, given)))
    elif expected is not None and expected != nodes.plain(old):
        message = f"`{given.bare}` is not {given.value_text}"
        found.append(Diagnostic("MC209", message, given.value, (old.span.with_word("it is this"),)))
    else:
        return nodes.without(root, given.path)
    return root


def _unknown(root: Node, given: Given) -> Diagnostic:
    help = _sibling(root, given) or f"to add it, say +{given.text.strip()}"
    return Diagnostic("MC203", f"`{given.bare}` is not in the recipe", given.key_part(_depth(root, given) - 1), help=help)


def _depth(root: Node, given: Given) -> int:
    """How many parts of the key lead to the first that is not there."""
    return next(length for length in range(1, len(given.path) + 1) if root.at(given.path[:length]) is None)


def _sibling(root: Node, given: Given) -> str:
    """The nearest key beside the first part that is not there."""
    depth = _depth(root, given)
    parent = root.at(given.path[: depth - 1])
    there = list(parent.value) if parent is not None and parent.is_mapping else []
    fixed = [key for key in TOP if depth == 1 and key != "defaults"]
    meant = nearest(given.path[depth - 1], [key for key in (*there, *fixed) if key != given.path[depth - 1]])
    return f"did you mean `{'.'.join((*given.path[: depth - 1], meant, *given.path[depth:]))}`?" if meant else ""


def _blamed(text: str, file: str, error: BaseException) -> Span:
    """Where the grammar gave up, as far as the parser says."""
    column = getattr(error.__cause__, "startIndex", None)
    token = getattr(error.__cause__, "offendingToken", None)
    if token is not None:
        column = token.column
    if not isinstance(column, int) or not 0 <= column < len(text):
        return Span(file, 1, 1, max(1, len(text)))
    return Span(file, 1, column + 1)


def _grammar(text: str) -> str:
    if text.startswith("--"):
        return f"overrides have no dashes: {text.lstrip('-')}"
    if "=" not in text and not text.startswith("~"):
        return "an override is KEY=VALUE; +KEY=VALUE adds a key, ~KEY deletes one"
    if "[" in text.partition("=")[0]:
        return "items of a list are numbered with dots: key.0=value"
    return "quote a value that is not plain: key='a value'"
