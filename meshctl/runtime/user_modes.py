"""The modes of a stage as objects: built in, or a user's, imported by the name `module:NAME` of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TypeVar

from meshctl.runtime.instantiate import TargetError
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, CollectMode, DispatchMode, ExecuteMode

Mode = TypeVar("Mode", DispatchMode, CollectMode, ExecuteMode)


def dispatch_mode(name: str) -> DispatchMode:
    return _mode(name, DISPATCH, DispatchMode)


def collect_mode(name: str) -> CollectMode:
    return _mode(name, COLLECT, CollectMode)


def execute_mode(name: str) -> ExecuteMode:
    return _mode(name, EXECUTE, ExecuteMode)


def _mode(name: str, built_in: Mapping[str, Mode], kind: type[Mode]) -> Mode:
    found = built_in.get(name) or _imported(name)
    if not isinstance(found, kind):
        raise TargetError(f"{name} is a {type(found).__name__}, and not a meshctl.{kind.__name__}")
    return found


@cache
def _imported(name: str) -> object:
    """The object of a user's module. Raises `TargetError` where there is none."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise TargetError(f"the mode {name}: there is no module {error.name!r}") from None
    if found is None:
        raise TargetError(f"the mode {name}: module {module} has no {attribute!r}")
    return found
