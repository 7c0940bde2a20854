"""The sections of the contract that are read from the package itself and from the benchmarks."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import meshctl
from tests.contract.observed import Found
from tests.contract.pinned import DATA, Json
from tests.log_text import output_of
from tests.paths import ROOT

PACKAGE = ROOT / "meshctl"


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


BENCHMARKS: dict[str, str] = {
    "busiest_process": "bytes goal name ok others total value what",
    "checkpoint_async": "goal load name ok others value what workers",
    "checks_cost": "goal name ok others value what",
    "collect_ranks": "goal name ok value",
    "data_plane": "goal load name ok others value what",
    "dims": "goal layouts load name ok value",
    "faults": "goal name ok value",
    "empty_step": "cpu goal load name ok others value what",
    "group_restart": "goal kills name ok same value",
    "grpo_end_to_end": "goal load name ok others time value what",
    "hf_gpu_step": "device goal name ok skipped value",
    "hf_launch": "cpu goal load name ok value",
    "hf_step": "goal load name ok others time value what",
    "launch_time": "goal name ok others value workers",
    "long_run": "files goal name ok steps value what",
    "overhead": "goal microseconds name ok others value what",
    "overlap": "goal load name ok value",
    "report": "cpu goal megabytes name ok others value what",
    "restart": "goal killed name ok others value",
    "topology_scale": "goal name ok others value what",
    "tracing": "goal load name ok others value what",
    "validate_time": "goal name ok others value what",
    "weight_sync": "case goal load most ms name ok others value",
    "weight_sync_vllm": "bytes goal load ms name ok others value what",
    "watching": "cpu goal megabytes name ok others value what",
    "worker_memory": "goal name ok value",
}
"""The keys of the last line that each benchmark prints. They are searched in its source."""


def benchmarks(_: Found) -> Json:
    found = {}
    for name, keys in BENCHMARKS.items():
        path = ROOT / "benchmarks" / f"{name}.py"
        if path.is_file() and "__main__" in path.read_text():
            texts, written, options = words_of(path)
            found[name] = {
                "keys": [key for key in keys.split() if key in written],
                "name": name if name in texts else "",
                "options": sorted(options),
            }
    return found


@cache
def words_of(path: Path) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the texts of a module, the keys that it and the modules it imports write, and its options."""
    texts, written, options = set[str](), set[str](), set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.Dict(keys=names):
                written |= {
                    key.value for key in names if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
            case ast.Call(
                func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(option)), *_]
            ):
                options.add(option)
            case ast.Call(keywords=named):
                written |= {keyword.arg for keyword in named if keyword.arg}
            case ast.ImportFrom(module=str(module)) if module.startswith("benchmarks."):
                neighbour = ROOT / f"{module.replace('.', '/')}.py"
                written |= words_of(neighbour)[1] if neighbour.is_file() else frozenset()
    return frozenset(texts), frozenset(written), frozenset(options)
