"""From a `_target_` to an object: the only place where something that a recipe names is imported.

Only classes that derive from `Component` are instantiated, with plain data as keyword arguments; nothing
nested, and never Hydra's own instantiation.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from meshctl.plan.model import Component as Placed
from meshctl.runtime.component import Component, endpoint_of
from meshctl.runtime.user_modes import imported
from meshctl.text.env_refs import Unset, filled
from meshctl.topology.modes import is_user_mode


class TargetError(ValueError):
    """A component that cannot be made; the message names it."""


def make(placed: Placed, methods: Sequence[str], path: Sequence[str]) -> Component:
    """Imports the class, looking in `path` before what is installed, holds it against the plan, and makes the
    object.

    `methods` are the endpoints that the pipeline calls. What the constructor itself raises passes through.
    """
    kind = _class(placed, path)
    for method in methods:
        _check(placed, kind, method)
    return kind(
        **{
            name: resolved(value, f"components.{placed.name}.args.{name}")
            for name, value in placed.args.items()
        }
    )


def extend_path(path: Sequence[str]) -> None:
    """Makes the modules in these folders importable, before those that are installed."""
    for folder in reversed(path):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def _class(placed: Placed, path: Sequence[str]) -> type[Component]:
    extend_path(path)
    module, _, name = placed.target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            here = ", ".join(path)
            raise TargetError(
                f"component `{placed.name}`: no module {error.name!r} in {here} or among what is installed"
            ) from None
        raise
    if found is None:
        raise TargetError(f"component `{placed.name}`: module {module} has no {name!r}")
    if not (isinstance(found, type) and issubclass(found, Component)):
        raise TargetError(
            f"component `{placed.name}`: {placed.target} is no class that derives from meshctl.Component"
        )
    return found


def _check(placed: Placed, kind: type[Component], method: str) -> None:
    """A called method is an endpoint, and its decorator says what the source text said when the plan was
    made."""
    declared = endpoint_of(kind, method)
    if declared is None:
        raise TargetError(
            f"component `{placed.name}`: {placed.target}.{method} is no endpoint; decorate it with @endpoint"
        )
    said = placed.endpoints.get(method)
    if said is None:
        return
    words = (declared.dispatch, declared.collect, declared.execute)
    found = tuple(_mode_name(word, name) for word, name in zip(words, said, strict=True))
    if tuple(said) != found:
        raise TargetError(
            f"component `{placed.name}`: @endpoint of {method} says dispatch, collect, execute {', '.join(found)}; its source text was "
            f"read as {', '.join(said)}. Write them as literals, or say them in the recipe's stage"
        )


def _mode_name(mode: object, planned: str) -> str:
    """The name of a mode in a decorator. An object has the planned name where that names this object."""
    if isinstance(mode, str):
        return mode
    return planned if is_user_mode(planned) and imported(planned) is mode else repr(mode)


def resolved(value: Any, where: str) -> Any:
    """Plain data with every `${oc.env:NAME}` or `${oc.env:NAME,default}` replaced: secrets enter here, and
    only here."""
    if isinstance(value, Mapping):
        return {key: resolved(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    try:
        return filled(value, os.environ)
    except Unset as unset:
        raise TargetError(f"{where}: {unset} here") from None
