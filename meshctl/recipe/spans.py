"""The places of a recipe's values: spans by key path."""

from __future__ import annotations

from dataclasses import dataclass

from meshctl.diagnostics import Span
from meshctl.recipe.compose.yaml_tree import Node


@dataclass(frozen=True)
class Spans:
    root: Node

    def node(self, *path: str) -> Node | None:
        return self.root.at(path)

    def value(self, *path: str) -> Span:
        """Returns the span of a value. If it does not exist, returns that of the nearest existing key above
        it."""
        node = self.root.at(path)
        return node.span if node is not None else self._above(path)

    def key(self, *path: str) -> Span:
        """Returns the span of a key. If it does not exist, returns that of the nearest existing key above
        it."""
        node = self.root.at(path)
        return self._above(path) if node is None else node.key or node.span

    def _above(self, path: tuple[str, ...]) -> Span:
        return self.key(*path[:-1]) if path else self.root.span
