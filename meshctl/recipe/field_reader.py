"""Reads single values of a recipe by the types of their fields, and reports what is wrong.

    reader = FieldReader()
    values = reader.section(node, ("groups", "train"), GROUP)     {"ranks": 4, "device_type": "cuda", ...}

A wrong value is reported once. It is then treated like a key that was left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.overrides import is_override
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, KeyPath, Node
from meshctl.recipe.fixes import renamed
from meshctl.recipe.scalars import found_instead, quoted, shown, yaml_hint
from meshctl.recipe.section_types import Field, Section
from meshctl.text.english import did_you_mean


@dataclass
class FieldReader:
    found: list[Diagnostic] = field(default_factory=list)
    wrong: set[KeyPath] = field(default_factory=set)
    """Key paths of reported values."""

    # Reports

    def report(
        self,
        path: KeyPath,
        code: str,
        message: str,
        span: Span,
        *seconds: Span,
        help: str = "",
        fixes: tuple[Fix, ...] = (),
        missing: bool = False,
    ) -> None:
        self.wrong.add(path)
        self.found.append(Diagnostic(code, message, span, seconds, help, fixes=fixes, missing=missing))

    def expected(
        self, wanted: str, node: Node, path: KeyPath, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        """Reports a value of the wrong type. `wanted` describes the right type."""
        if node.value is BROKEN:
            self.wrong.add(path)
        elif node.value == MISSING:
            name = ".".join(path)
            help = f"replace the `???`, or write {name}=VALUE on the command line"
            self.report(path, "MC103", f"`{name}` must be given", node.span, help=help, missing=True)
        elif node.target:
            message = f"`{shown(path)}` must be {wanted}, {found_instead(node)}"
            self.report(path, "MC102", message, node.span, node.target.with_word("this is its value"))
        else:
            message = f"`{shown(path)}` must be {wanted}, {found_instead(node)}"
            help, fixes = help or yaml_hint(node, wanted), fixes or quoted(node, wanted)
            self.report(path, "MC102", message, node.span, help=help, fixes=fixes)

    def unknown_word(
        self, word: str, words: Iterable[str], noun: str, code: str, node: Node, path: KeyPath
    ) -> None:
        fixes = renamed(node.span, word, words)
        help = did_you_mean(word.lower(), words)
        self.report(path, code, f"`{word}` is not {noun}", node.span, help=help, fixes=fixes)

    def check_octal(self, node: Node, path: KeyPath) -> None:
        """Warns about numbers that YAML 1.1 reads in another base: 010 as 8 and 1:30 as 90."""
        odd = re.fullmatch(r"[-+]?0[0-7_]+|[-+]?\d+(:\d+)+(\.\d*)?", node.written)
        if odd and node.written != str(node.value):
            message = f"`{shown(path)}` is written {node.written}, which YAML 1.1 reads as {node.value}"
            self.found.append(Diagnostic("MC105", message, node.span, (), f"write {node.value}", "warning"))

    # Sections

    def section(
        self, node: Node, path: KeyPath, section: Section, without: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Returns key -> value for every key of a section, with defaults for keys that are left out. Reports
        missing required keys; `structure.py` has reported unknown ones. Keys in `without` are not read."""
        return {
            field.key: self.value(node, path, field, section)
            for field in section.fields
            if field.key not in without
        }

    def value(self, parent: Node, path: KeyPath, field: Field, section: Section) -> Any:
        node = parent.get(field.key)
        if node is None:
            if field.required:
                self.missing(parent, (*path, field.key), field)
            return field.value_if_absent
        value = field.type.read(self, node, (*path, field.key))
        return field.value_if_absent if value is None else value

    def build(self, section: Section, name: str, node: Node, path: KeyPath) -> Any:
        """Returns the object that an item of a mapping of names describes, such as one group."""
        return self.section(node, path, section)

    def missing(self, node: Node, path: KeyPath, field: Field) -> None:
        """Reports a missing required key, unless an unknown key may be a misspelling of it."""
        if path in self.wrong:
            return
        message = field.required.format(name=path[-2])
        self.report(path, "MC103", message, node.key or node.span, help=field.required_help, missing=True)

    def mapping(self, node: Node | None, path: KeyPath, help: str = "") -> Node | None:
        """Returns the node if it is a mapping; otherwise reports it and returns None."""
        if node is None or node.is_mapping:
            return node
        if node.value is None:
            help = "indent the keys below it"
            if is_override(node.span.file):
                help = f"to delete it, write ~{'.'.join(path)}"
        self.expected("a mapping", node, path, help)
        return None
