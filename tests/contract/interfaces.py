"""The sections of the contract that are read from the package itself."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import meshctl
from tests.contract.observed import Found
from tests.contract.pinned import DATA, Json
from tests.log_text import output_of
from tests.paths import PACKAGE

OPERATORS = ("__contains__", "__eq__", "__getitem__", "__hash__", "__iter__", "__len__")
RUN = next((DATA / "runs").glob("*/"))
"""A run of an earlier version."""
EXAMPLES: dict[str, Callable[[], object]] = {
    "Batch": lambda: meshctl.Batch({}),
    "Collective": lambda: meshctl.Collective(),
    "Component": lambda: meshctl.Component(),
    "DeviceMesh": lambda: meshctl.DeviceMesh.from_sizes(),
    "OpenedRun": lambda: meshctl.open_run(RUN),
    "Ragged": lambda: meshctl.Ragged.of([]),
}
INTERNAL_PARAMETERS = ("Batch.concat(cat)", "Batch(most)")
INTERNAL_CONSTRUCTORS = ("DeviceMesh",)
"""Users make a mesh with `DeviceMesh.from_sizes`."""


def public_names(_: Found) -> Json:
    return sorted(meshctl.__all__)


def public_members(_: Found) -> Json:
    """Lists the members of objects and not of classes, so that attributes are among them."""
    found = {}
    for name, example in EXAMPLES.items():
        made = example()
        operators = [operator for operator in OPERATORS if operator in vars(type(made))]
        found[name] = sorted([*operators, *(member for member in dir(made) if not member.startswith("_"))])
    return found


def public_bases(_: Found) -> Json:
    """Lists the built-in exceptions by which a caller may catch those of meshctl."""
    errors = [name for name in meshctl.__all__ if name.endswith("Error")]
    return {name: [base.__name__ for base in getattr(meshctl, name).__mro__[1:-1]] for name in errors}


def keywords(_: Found) -> Json:
    """Lists the parameters that callers pass by name: those with a default, and keyword-only ones."""
    callables: dict[str, Any] = {"endpoint": meshctl.endpoint}
    for name in EXAMPLES:
        cls = getattr(meshctl, name)
        if name not in INTERNAL_CONSTRUCTORS:
            callables[name] = cls
        members = [
            member for member in dir(cls) if not member.startswith("_") and callable(getattr(cls, member))
        ]
        callables |= {f"{name}.{member}": getattr(cls, member) for member in members}
    found = {}
    for name, each in callables.items():
        named = [
            parameter.name
            for parameter in inspect.signature(each).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
            or (
                parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty
            )
        ]
        if kept := sorted(
            parameter for parameter in named if f"{name}({parameter})" not in INTERNAL_PARAMETERS
        ):
            found[name] = kept
    return found


def variables(found: Found) -> Json:
    """Lists the variables that the source names, and those that a program receives."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    named = {name for text in texts for name in re.findall(r"\bMESHCTL_[A-Z_]*[A-Z]\b", text)}
    received = json.loads(output_of(found.runs["SIGINT"].path / "logs" / "script" / "0.log"))
    return {
        "known to meshctl": sorted(named),
        "received by programs": received["names"],
        "run_dir is filled in arguments": received["run_dir_is_filled"],
    }
