"""The modes of a stage as objects: built in, or a user's, imported by the name `module:NAME` of the plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from meshctl.plan.model import Plan
from meshctl.topology.modes import (
    COLLECT,
    DISPATCH,
    EXECUTE,
    CollectMode,
    DispatchMode,
    ExecuteMode,
    Route,
    is_user_mode,
)

Mode = TypeVar("Mode", DispatchMode, CollectMode, ExecuteMode)


class ModeError(ValueError):
    """A user's mode cannot be imported, or the object of its name is not a mode of the right kind."""


def dispatch_mode(name: str) -> DispatchMode:
    return _mode(name, DISPATCH, DispatchMode)


def collect_mode(name: str) -> CollectMode:
    return _mode(name, COLLECT, CollectMode)


def execute_mode(name: str) -> ExecuteMode:
    return _mode(name, EXECUTE, ExecuteMode)


def _mode(name: str, built_in: Mapping[str, Mode], kind: type[Mode]) -> Mode:
    found = built_in.get(name) or imported(name)
    if not isinstance(found, kind):
        raise ModeError(f"mode {name} is a {type(found).__name__}, not a meshctl.{kind.__name__}")
    return found


@cache
def imported(name: str) -> object:
    """Returns the object that is named `module:NAME`. Raises `ModeError` if there is none."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ModeError(f"mode {name}: module {error.name!r} was not found") from None
    if found is None:
        raise ModeError(f"mode {name}: module {module} has no {attribute!r}")
    return found


def source_digests(plan: Plan, routes: Iterable[Route]) -> dict[str, str]:
    """Returns route -> a digest of the source files of its user modes. Routes without such modes are
    absent."""
    found = {}
    for route in [route for route in routes if route.kind != "weights"]:
        source, target = plan.stage(route.source), plan.stage(route.target)
        modes = dict.fromkeys((route.collect, source.execute, route.dispatch.mode, target.execute))
        if names := [*filter(is_user_mode, modes)]:
            digest = sha256()
            for name in names:
                imported(name)
                file = import_module(name.partition(":")[0]).__file__
                digest.update(Path(file).read_bytes() if file else b"")
            found[route.name] = digest.hexdigest()[:16]
    return found
