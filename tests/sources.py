"""The modules of the package as the tests of the house read them, in one pass over each syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.paths import PACKAGE, ROOT


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    name: str
    """The dotted module, or module and attribute."""
    deferred: bool
    """Inside a function."""

    @property
    def top(self) -> str:
        """The first part of the dotted name."""
        return self.name.partition(".")[0]

    @property
    def home(self) -> str:
        """The folder, or for the ground the file; `python -m meshctl` is a door of the command line."""
        part = self.path.relative_to(PACKAGE).parts
        return part[0] if len(part) > 1 else "cli" if self.path.stem == "__main__" else self.path.stem

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.name}"


@dataclass
class Module:
    imports: list[Import] = field(default_factory=list)
    """The imports that run. Imports under `TYPE_CHECKING` are left out."""
    functions: dict[str, int] = field(default_factory=dict)
    """Name -> lines of the longest one, without its signature and docstring."""
    docstrings: list[tuple[int, str]] = field(default_factory=list)
    """(line, text), of modules, classes, functions, fields and constants."""
    texts: list[tuple[int, str]] = field(default_factory=list)
    """(line, text) of the other strings."""


@cache
def modules() -> dict[Path, Module]:
    return {path: _read(path) for path in sorted(PACKAGE.rglob("*.py"))}


def _read(path: Path) -> Module:
    found, nodes = Module(), [(ast.parse(path.read_text(encoding="utf-8")), False)]
    while nodes:
        node, deferred = nodes.pop()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Expr(value=ast.Constant(value=text)):
                found.docstrings.append((node.lineno, str(text)))
                continue
            case ast.Constant(value=str(text)):
                found.texts.append((node.lineno, text))
            case ast.Import() | ast.ImportFrom():
                found.imports += [Import(path, node.lineno, name, deferred) for name in _names(node)]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                deferred = True
                found.functions[node.name] = max(_lines(node), found.functions.get(node.name, 0))
        nodes += [(child, deferred) for child in ast.iter_child_nodes(node)]
    return found


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    else:
        yield from (alias.name for alias in node.names)


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    return (function.end_lineno or first.lineno) - first.lineno + 1
