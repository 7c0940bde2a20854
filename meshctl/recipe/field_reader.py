"""One value of a tree at a time: is it there, has it the right type, and if not, what to write instead.

Every method gives the value, or "not known" (0, or empty) once it has said what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe import model
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node, Path
from meshctl.recipe.fixes import as_whole, keys_meant, quoted, renamed, rewritten
from meshctl.recipe.misplaced import home_of, otherwise
from meshctl.recipe.model import MAX_COUNT
from meshctl.recipe.suggestions import called, nearest_key
from meshctl.text.english import MAX_LETTERS, did_you_mean, listed


@dataclass
class Values:
    root: Node
    """The whole recipe."""
    found: list[Diagnostic] = field(default_factory=list)
    wrong: set[Path] = field(default_factory=set)

    # Saying what is wrong

    def say(
        self,
        path: Path,
        code: str,
        message: str,
        span: Span,
        *seconds: Span,
        help: str = "",
        fixes: tuple[Fix, ...] = (),
    ) -> None:
        self.wrong.add(path)
        self.found.append(Diagnostic(code, message, span, seconds, help, fixes=fixes))

    def expected(
        self, what: str, node: Node, path: Path, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        """One wrong type or word."""
        if node.value is BROKEN:
            self.wrong.add(path)
        elif node.value == MISSING:
            self.say(path, "MC103", f"`{'.'.join(path)}` must be given", node.span)
        else:
            message = f"`{shown(path)}` must be {what}, {_kind(node)}"
            if node.target:
                self.say(path, "MC102", message, node.span, node.target.with_word("this is its value"))
            else:
                self.say(
                    path,
                    "MC102",
                    message,
                    node.span,
                    help=help or _yaml_hint(node, what),
                    fixes=fixes or _as_text(node, what),
                )

    def keys(self, node: Node, path: Path, known: Sequence[str], what: str) -> None:
        """Says which keys of a mapping there are not."""
        meant = keys_meant(node, known)
        for key, item in node.items():
            if key in known:
                continue
            span = item.key or item.span
            if later := model.LATER.get((path[0] if path else "", key)):
                self.say((*path, key), "MC104", f"`{key}` ({later}) is not supported yet", span)
                continue
            home = "" if called(key, known) else home_of(key, what, path, node, self.root)
            near = "" if home else nearest_key(key, known)
            help = home or (f"did you mean `{near}`?" if near else otherwise(what))
            help = help or f"its {'key is' if len(known) == 1 else 'keys are'} {listed(known)}"
            message = f"{what} has no key `{key[:MAX_LETTERS]}`"
            self.say(
                (*path, key), "MC101", message, span, help=help, fixes=meant.get(key, ()) if near else ()
            )

    def means(self, node: Node, key: str, known: Sequence[str]) -> bool:
        """Whether a key that there is not was meant to be this one, which then is not missing."""
        return any(nearest_key(other, known) == key for other, _ in node.items() if other not in known)

    def missing(self, node: Node, path: Path, known: Sequence[str], message: str, help: str = "") -> None:
        """A key that must be there, unless another was meant to be it."""
        if self.means(node, path[-1], known):
            self.wrong.add(path)
        else:
            self.say(path, "MC103", message, node.key or node.span, help=help)

    # Values

    def mapping(self, node: Node | None, path: Path, help: str = "") -> Node | None:
        """The node where it is a mapping; nothing said where it is absent."""
        if node is None or node.is_mapping:
            return node
        help = "indent the keys below it" if node.value is None else help
        self.expected("a mapping", node, path, help)
        return None

    def whole(self, parent: Node, path: Path, default: int = 0, least: int = 0, most: int = MAX_COUNT) -> int:
        """A whole number."""
        node = parent.get(path[-1])
        if node is None:
            return default
        value = number_of(node, int)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            wanted = (
                f"a whole number from {least}"
                if not isinstance(value, int) or value <= most
                else f"a whole number up to {most:,}"
            )
            self.expected(wanted, node, path, integer_hint(node), as_whole(node, least, most))
            return default
        self.octal(node, path)
        return value

    def octal(self, node: Node, path: Path) -> None:
        """YAML 1.1 reads 010 as 8 and 1:30 as 90, silently."""
        if re.fullmatch(r"[-+]?0[0-7_]+|[-+]?\d+(:\d+)+(\.\d*)?", node.written) and node.written != str(
            node.value
        ):
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
        self.octal(node, path)
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
        value = (
            {"true": True, "false": False}.get(str(node.value).lower())
            if node.from_environment
            else node.value
        )
        if not isinstance(value, bool):
            written = str(node.value).lower()
            hint = _boolean_hint(written)
            right = hint.removeprefix("write ") if hint.startswith("write ") else written
            self.expected(
                "true or false",
                node,
                path,
                hint,
                rewritten(node, right) if right in ("true", "false") else (),
            )
            return False
        return value

    def word(self, parent: Node, path: Path, words: Sequence[str], what: str, code: str) -> str:
        """One of a few words."""
        given = self.text(parent, path)
        if given and given not in words:
            span = span_of(parent, path)
            self.say(
                path,
                code,
                f"`{given}` is not {what}",
                span,
                help=did_you_mean(given, words),
                fixes=renamed(span, given, words),
            )
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
        """A list whose numbers are taken as they were written: the arguments of a program, the numbers of
        devices."""
        node = parent.get(path[-1])
        if node is None:
            return ()
        if not node.is_list:
            self.expected("a list", node, path, "write it as [a, b], or one `- item` a line")
            return ()
        right = [
            item for item in node.value if isinstance(item.value, (str, int, float)) and item.value != MISSING
        ]
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
    return (
        f"it is {(node.written or str(node.value))[:60]}"
        if not isinstance(node.value, str)
        else f"it is the text `{node.value[:60]}`"
    )


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
    if isinstance(value, str) and not node.from_environment:
        if re.fullmatch(r"[-+]?(0|[1-9]\d*)", value):
            return "remove the quotes"
        if re.fullmatch(r"[-+]?0\d+", value):
            return f"write {int(value)}: a number does not begin with 0"
        if re.fullmatch(r"0o[0-7]{1,20}", value):
            return f"write {int(value, 8)}"
        if re.fullmatch(r"[-+]?\d{1,3}([ ,.']\d{3})+", value):
            return f"write {re.sub('[^0-9+-]', '', value)}"
    if isinstance(value, float) and value == value and abs(value) < 1e15 and value == int(value):
        return f"write {int(value)}"
    return ""


def _boolean_hint(written: str) -> str:
    if written in ("true", "false"):
        return "remove the quotes"
    meant = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}.get(
        written
    )
    return f"write {meant}" if meant else ""


def _as_text(node: Node, what: str) -> tuple[Fix, ...]:
    return (
        quoted(node)
        if what in ("text", "text or a number") and isinstance(node.value, (bool, int, float))
        else ()
    )


def _yaml_hint(node: Node, what: str) -> str:
    if what == "text" and isinstance(node.value, bool):
        return f'`{node.written}` is a boolean in YAML 1.1, quote it: "{node.written}"'
    if what == "text" and isinstance(node.value, (int, float)):
        return f'quote it: "{node.written}"'
    if (
        isinstance(node.value, str)
        and (name := re.fullmatch(r"\$?[({]{0,2}(\w+(\.\w+)+)[)}]{0,2}", node.value))
        and not node.value[0].isalnum()
    ):
        return f"another value of the recipe is ${{{name[1]}}}"
    if isinstance(node.value, str) and node.value and node.value[0] in "\u201c\u201d\u2018\u2019\u201e":
        return "YAML's quotes are straight ones"
    return ""
