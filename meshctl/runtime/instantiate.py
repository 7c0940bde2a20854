"""Imports the class of a `_target_` and makes the component. Nothing else imports what a recipe names.

Only classes that derive from `Component` are instantiated, with plain data as keyword arguments. There is no
nested `_target_`, and Hydra's own instantiation is not used.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from meshctl.plan.model import Component as Placed
from meshctl.runtime.component import Component, endpoint_of
from meshctl.runtime.rank_context import STARTING, RankContext
from meshctl.runtime.user_modes import imported
from meshctl.text.env_refs import Unset, filled
from meshctl.topology.modes import is_user_mode

RUN_DIR = "{run_dir}"
"""This text in a component's arguments is replaced by the folder of the run."""


class TargetError(ValueError):
    """A component that cannot be made. The message names it."""


def make(
    placed: Placed, methods: Sequence[str], path: Sequence[str], context: RankContext | None = None
) -> Component:
    """Imports the class, compares it with the plan, and makes the object.

    The folders of `path` come before the installed modules. `methods` are the endpoints that the pipeline
    calls. The object has its context already when its constructor runs. Raises `TargetError`, and what the
    constructor raises.
    """
    kind = component_class(placed, path)
    for method in methods:
        _check(placed, kind, method)
    run_dir = str(context.run_dir) if context else ""
    args = {
        name: resolved(value, f"components.{placed.name}.args.{name}", run_dir)
        for name, value in placed.args.items()
    }
    token = STARTING.set(context)
    try:
        made = kind(**args)
    finally:
        STARTING.reset(token)
    made._context = context
    return made


def extend_path(path: Sequence[str]) -> None:
    """Makes the modules in these folders importable, before those that are installed."""
    for folder in reversed(path):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def component_class(placed: Placed, path: Sequence[str]) -> type[Component]:
    """Imports the class of a component. Raises `TargetError` if there is none."""
    extend_path(path)
    module, _, name = placed.target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            folders = ", ".join(path)
            raise TargetError(
                f"component `{placed.name}`: no module {error.name!r} in {folders} or among what is installed"
            ) from None
        raise
    if found is None:
        raise TargetError(f"component `{placed.name}`: module {module} has no {name!r}")
    if not (isinstance(found, type) and issubclass(found, Component)):
        raise TargetError(
            f"component `{placed.name}`: {placed.target} is not a class that derives from meshctl.Component"
        )
    return found


def _check(placed: Placed, kind: type[Component], method: str) -> None:
    """Raises `TargetError` unless the method is an endpoint whose decorator has the arguments that the plan
    read."""
    declared = endpoint_of(kind, method)
    if declared is None:
        raise TargetError(
            f"component `{placed.name}`: {placed.target}.{method} is not an endpoint: decorate it with "
            "@endpoint"
        )
    planned = placed.endpoints.get(method)
    if planned is None:
        return
    modes = (declared.dispatch, declared.collect, declared.execute)
    found = tuple(
        # an object has the planned name if that name refers to it
        name if mode == name or (is_user_mode(name) and imported(name) is mode) else str(mode)
        for mode, name in zip(modes, planned, strict=True)
    )
    if tuple(planned) != found:
        raise TargetError(
            f"component `{placed.name}`: @endpoint of {method} states dispatch, collect, execute "
            f"{', '.join(found)}; "
            f"its source text was read as {', '.join(planned)}. Write them as literals, or state them in the "
            "recipe's stage"
        )


def resolved(value: Any, where: str, run_dir: str = "") -> Any:
    """Returns plain data with the value of each `${oc.env:NAME}` and `${oc.env:NAME,default}`, and with the
    run's folder for `{run_dir}`.

    Secrets enter a run here and nowhere else.
    """
    if isinstance(value, Mapping):
        return {key: resolved(item, f"{where}.{key}", run_dir) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, f"{where}[{index}]", run_dir) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    try:
        return filled(value.replace(RUN_DIR, run_dir) if run_dir else value, os.environ)
    except Unset as unset:
        raise TargetError(f"{where}: {unset} here") from None
