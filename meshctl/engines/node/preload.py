"""Imports the modules of torch and meshctl that the components import, once and before the fork.

A component that uses FSDP imports `torch.distributed.fsdp`, which would take each worker almost a second of
CPU time, and `meshctl.hf` imports transformers, which takes seconds. The components' files are only read as
text, because importing them may have side effects that belong in workers. Importing these modules has none.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan

OURS = str(PACKAGE_DIR.parent)
"""The folder that contains the package meshctl, and thereby the components that it ships."""
CHECKPOINTS = "torch.distributed.checkpoint"
PRELOADED = ("torch.", "meshctl.")


def preload(plan: Plan, path: Sequence[str], groups: Collection[str]) -> None:
    """Imports the modules of torch and meshctl that the workers of some groups of a plan will import."""
    for name in sorted(named(plan, path, groups)):
        with contextlib.suppress(Exception):  # the worker that imports the module reports the error
            importlib.import_module(name)


def named(plan: Plan, path: Sequence[str], groups: Collection[str]) -> set[str]:
    """Returns the modules of torch and meshctl that the files of the groups' components import, directly or
    through other local files, and the modules of components that meshctl ships."""
    components = [component for component in plan.components if component.group in groups]
    found: set[str] = {CHECKPOINTS} if components and plan.run.checkpoint else set()
    waiting, seen = {component.target.rpartition(".")[0] for component in components}, set()
    found |= {module for module in waiting if module.startswith(PRELOADED)}
    while waiting:
        module = waiting.pop()
        seen.add(module)
        if file := local_file(module, [*path, OURS]):
            names = set(imports(file, module))
            found |= {name for name in names if name.startswith(PRELOADED)}
            waiting |= {name for name in names if not name.startswith(("torch", "meshctl"))} - seen
    return found


def local_file(module: str, path: Iterable[str]) -> Path | None:
    """Returns the file of a module in the recipe's own folders; None for an installed module."""
    parts = module.split(".")
    for folder in path:
        place = Path(folder, *parts)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if module and file.is_file():
                return file
    return None


def imports(file: Path, module: str) -> Iterator[str]:
    """Yields the names of the modules that a file imports, parsed from its text."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            )
            base = ".".join(filter(None, (base, node.module)))
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
