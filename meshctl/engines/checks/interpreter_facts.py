"""The facts about a Python interpreter that another group uses. The interpreter runs this file, which
therefore imports nothing of meshctl: there may be another version of it, or none."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from typing import Any

PACKAGE = "meshctl"


def facts(libraries: Sequence[str]) -> dict[str, Any]:
    """Returns the version of Python, the installation of meshctl, and library -> version, which is empty for
    a library that is not installed."""
    folder = package_folder()
    return {
        "python": list(sys.version_info[:2]),
        "folder": folder,
        "digest": digest(folder) if folder else "",
        "versions": {name: version_of(name) for name in (PACKAGE, *libraries)},
    }


def package_folder() -> str:
    """Returns the folder from which meshctl would be imported; empty if there is none."""
    found = util.find_spec(PACKAGE)
    return os.path.dirname(found.origin) if found is not None and found.origin else ""


def version_of(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def digest(folder: str) -> str:
    """Returns a digest of the Python files of a package. Workers of one run must have equal ones, because
    they exchange headers and frames."""
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                files[os.path.relpath(path, folder)] = path
    return _digest_of(files)


def _digest_of(files: Mapping[str, str]) -> str:
    found = hashlib.sha256()
    for name in sorted(files):
        with open(files[name], "rb") as file:
            content = file.read()
        found.update(f"{name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()
