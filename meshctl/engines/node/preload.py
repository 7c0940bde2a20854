"""Imports the parts of torch that the components' files name once, before the fork, so that no worker has to.

A component that uses FSDP imports `torch.distributed.fsdp`: most of a second of CPU time, in every worker.
The files are read as text and never imported here, since their code may have effects that only workers
expect. The modules of torch have none.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan

OURS = str(PACKAGE_DIR.parent)
"""The folder in which the components that meshctl ships are found."""
CHECKPOINTS = "torch.distributed.checkpoint"


def preload(plan: Plan, path: Sequence[str]) -> None:
    """Imports the modules of torch that the workers of a plan will import."""
    for name in sorted(named(plan, path)):
        with contextlib.suppress(ImportError):  # a worker reports it, with the line that needs it
            importlib.import_module(name)


def named(plan: Plan, path: Sequence[str]) -> set[str]:
    """Returns the modules of torch that the components' files import, directly or by way of other local
    files."""
    found: set[str] = {CHECKPOINTS} if plan.components and plan.run.checkpoint else set()
    waiting, seen = {component.target.rpartition(".")[0] for component in plan.components}, set()
    while waiting:
        module = waiting.pop()
        seen.add(module)
        if file := local_file(module, [*path, OURS]):
            names = set(imports(file, module))
            found |= {name for name in names if name.startswith("torch.")}
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
    """Returns the names of the modules that a file imports, by its text."""
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
