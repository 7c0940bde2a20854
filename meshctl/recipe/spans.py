"""Where each value of a recipe was written: the side table of spans, by key path."""

from __future__ import annotations

from dataclasses import dataclass

from meshctl.diagnostics import Span
from meshctl.recipe.compose.yaml_tree import Node


@dataclass(frozen=True)
class Written:
    root: Node

    def node(self, *path: str) -> Node | None:
        return self.root.at(path)

    def value(self, *path: str) -> Span:
        """Of the value, or of the nearest key above it that is there."""
        node = self.root.at(path)
        return node.span if node is not None else self.key(*path[:-1]) if path else self.root.span

    def key(self, *path: str) -> Span:
        node = self.root.at(path)
        if node is None:
            return self.key(*path[:-1]) if path else self.root.span
        return node.key or node.span
