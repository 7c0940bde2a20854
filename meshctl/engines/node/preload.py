"""Imports the modules of torch and meshctl that the components import, once and before the fork.

A component that uses FSDP imports `torch.distributed.fsdp`, which would take each worker almost a second of
CPU time, and `meshctl.hf` imports transformers, which takes seconds. The components' files are only read as
text, because importing them may have side effects that belong in workers. Importing these modules has none.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Sequence

from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.recipe.code.digests import imported_modules, module_file

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
        if file := module_file(module, [*path, OURS]):
            package = module if file.name == "__init__.py" else module.rpartition(".")[0]
            names = set(imported_modules(file.read_bytes(), package))
            found |= {name for name in names if name.startswith(PRELOADED)}
            waiting |= {name for name in names if not name.startswith(("torch", "meshctl"))} - seen
    return found
