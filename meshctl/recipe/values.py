"""One value of a tree at a time: is it there, has it the right type, and if not, what to write instead.

Every method gives the value, or "not known" (0, or empty) once it has said what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe import model
from meshctl.recipe.nodes import BROKEN, MISSING, Node, Path
from meshctl.recipe.words import did_you_mean, listed, nearest

MAX_COUNT = 10_000_000


@dataclass
class Values:
    found: list[Diagnostic] = field(default_factory=list)
    wrong: set[Path] = field(default_factory=set)

    # Saying what is wrong

    def say(self, path: Path, code: str, message: str, span: Span, *seconds: Span, help: str = "") -> None:
        self.wrong.add(path)
        self.found.append(Diagnostic(code, message, span, seconds, help))

    def expected(self, what: str, node: Node, path: Path, help: str = "") -> None:
        """One wrong type or word."""
        if node.value is BROKEN:
            self.wrong.add(path)
        elif node.value == MISSING:
            self.say(path, "MC103", f"`{'.'.join(path)}` must be given", node.span)
        else:
            self.say(path, "MC102", f"`{shown(path)}` must be {what}, {_kind(node)}", node.span, help=help or _yaml_hint(node, what))

    def keys(self, node: Node, path: Path, known: Sequence[str], what: str) -> None:
        """Says which keys of a mapping there are not."""
        for key, item in node.items():
            if key in known:
                continue
            span = item.key or item.span
            if key in model.LATER:
                self.say((*path, key), "MC104", f"`{key}` ({model.LATER[key]}) is not supported yet", span)
                continue
            help = f"did you mean `{near}`?" if (near := nearest(key, known)) else self.elsewhere(key, path)
            self.say(
                (*path, key),
                "MC101",
                f"{what} has no key `{key}`",
                span,
                help=help or f"its {'key is' if len(known) == 1 else 'keys are'} {listed(known)}",
            )

    def elsewhere(self, key: str, path: Path) -> str:
        """Help for a key that belongs into another mapping."""
        homes = {"a group": model.GROUP, "a component": model.COMPONENT, "`run`": model.RUN, "`cluster`": model.CLUSTER}
        homes |= {"`parallel`": model.PARALLEL, "a stage": model.CALL, "`run.checkpoint`": model.CHECKPOINT}
        home = next((home for home, keys in homes.items() if key in keys), "")
        if home == "" and path[:1] == ("components",):
            return "what the constructor takes belongs into `args`"
        return f"it is a key of {home}" if home else ""

    # Values

    def mapping(self, node: Node | None, path: Path) -> Node | None:
        """The node where it is a mapping; nothing said where it is absent."""
        if node is None or node.is_mapping:
            return node
        help = "indent the keys below it" if node.value is None else ""
        self.expected("a mapping", node, path, help)
        return None

    def whole(self, parent: Node, path: Path, default: int = 0, least: int = 0, most: int = MAX_COUNT) -> int:
        """A whole number."""
        node = parent.get(path[-1])
        if node is None:
            return default
        value = number_of(node, int)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            wanted = f"a whole number from {least}" if not isinstance(value, int) or value <= most else f"a whole number up to {most:,}"
            self.expected(wanted, node, path, integer_hint(node))
            return default
        self.octal(node, path)
        return value

    def octal(self, node: Node, path: Path) -> None:
        """YAML 1.1 reads 010 as 8 and 1:30 as 90, silently."""
        if re.fullmatch(r"[-+]?0[0-7_]+|[-+]?\d+(:\d+)+", node.written) and node.written != str(node.value):
            message = f"`{shown(path)}` is written {node.written}, which YAML 1.1 reads as {node.value}"
            self.found.append(Diagnostic("MC105", message, node.span, (), f"write {node.value}", "warning"))

    def number(self, parent: Node, path: Path, default: float) -> float:
        node = parent.get(path[-1])
        if node is None:
            return default
        value = number_of(node, float)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            self.expected("a number from 0", node, path)
            return default
        return float(value)

    def text(self, parent: Node, path: Path, default: str = "") -> str:
        node = parent.get(path[-1])
        if node is None:
            return default
        if not isinstance(node.value, str) or node.value == MISSING:
            self.expected("text", node, path)
            return default
        return node.value

    def name(self, parent: Node, path: Path) -> str:
        """The name of something else in the recipe; numbers are taken as written."""
        return self.text(parent, path)

    def boolean(self, parent: Node, path: Path) -> bool:
        node = parent.get(path[-1])
        if node is None:
            return False
        value = {"true": True, "false": False}.get(str(node.value).lower()) if node.from_environment else node.value
        if not isinstance(value, bool):
            self.expected("true or false", node, path)
            return False
        return value

    def word(self, parent: Node, path: Path, words: Sequence[str], what: str, code: str) -> str:
        """One of a few words."""
        given = self.text(parent, path)
        if given and given not in words:
            self.say(path, code, f"`{given}` is not {what}", span_of(parent, path), help=did_you_mean(given, words))
            return ""
        return given

    def texts(self, parent: Node, path: Path) -> tuple[str, ...]:
        """A list of texts, or one."""
        node = parent.get(path[-1])
        if node is None:
            return ()
        if isinstance(node.value, str) and node.value != MISSING:
            return (node.value,)
        if not node.is_list:
            self.expected("a list of texts", node, path)
            return ()
        for index, item in enumerate(node.value):
            if not isinstance(item.value, str):
                self.expected("text", item, (*path, str(index)))
        return tuple(item.value for item in node.value if isinstance(item.value, str))

    def scalar_texts(self, parent: Node, path: Path) -> tuple[str, ...]:
        """A list whose numbers are taken as they were written: the arguments of a program, the numbers of devices."""
        node = parent.get(path[-1])
        if node is None:
            return ()
        if not node.is_list:
            self.expected("a list", node, path, "write it as [a, b], or one `- item` a line")
            return ()
        right = [item for item in node.value if isinstance(item.value, (str, int, float)) and item.value != MISSING]
        for index, item in enumerate(node.value):
            if item not in right:
                self.expected("text or a number", item, (*path, str(index)))
        return tuple(text_of(item) for item in right)


def span_of(parent: Node, path: Path) -> Span:
    node = parent.get(path[-1])
    return node.span if node is not None else parent.span


def shown(path: Path) -> str:
    """The last key, with the name of what has it."""
    return ".".join(path[-2:]) if len(path) > 1 and path[-1].isdigit() else path[-1]


def _kind(node: Node) -> str:
    """What it is instead; the environment's text is not shown, it may be a secret."""
    if node.from_environment:
        return "what the environment gives is not"
    if node.value is None:
        return "found nothing"
    if node.is_mapping:
        return "found a mapping"
    if node.is_list:
        return "found a list"
    return f"it is {node.written or node.value}" if not isinstance(node.value, str) else f"it is the text `{node.value[:60]}`"


def number_of(node: Node, kind: Callable[[str], Any]) -> Any:
    """The value; text from the environment is read as the number that is wanted."""
    if node.from_environment and isinstance(node.value, str):
        try:
            return kind(node.value)
        except ValueError:
            return node.value
    return node.value


def text_of(node: Node) -> str:
    """A number as it was written: 010 is a name here, not 8."""
    return node.value if isinstance(node.value, str) else node.written or str(node.value)


def integer_hint(node: Node) -> str:
    value = node.value
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+", value) and not node.from_environment:
        return "remove the quotes"
    if isinstance(value, float) and value == value and abs(value) < 1e15 and value == int(value):
        return f"write {int(value)}"
    return ""


def _yaml_hint(node: Node, what: str) -> str:
    if what == "text" and isinstance(node.value, bool):
        return f'`{node.written}` is a boolean in YAML 1.1, quote it: "{node.written}"'
    if what == "text" and isinstance(node.value, (int, float)):
        return f'quote it: "{node.written}"'
    return ""
