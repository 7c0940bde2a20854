"""The installation: versions of Python and of the libraries against the required ranges, meshctl's own files,
and files of the user that hide modules."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from meshctl import __version__
from meshctl.dataclass import dataclass
from meshctl.engines.checks import torch_build
from meshctl.engines.checks.requirements import Finding, Requirements, failure, ok, warning
from meshctl.package import (
    PACKAGE_DIR,
    install_command,
    installed_version,
    is_in_range,
    is_newer,
    namesake,
    reinstall_command,
    required_python,
    required_ranges,
    requirements,
)

SECONDS = 90.0
"""Time limit of the topic. Torch may be imported from a slow disk."""
SLOW_IMPORT_S = 20.0
DATA_FILES = ("conf/base.yaml", "conf/layout/fsdp.yaml", "components/starters/train.yaml")
"""Some of the files of the package that are not Python."""
MAX_LISTED_FILES = 8
IMPORT_NAMES = {"hydra-core": "hydra", "pyyaml": "yaml"}
"""Distribution -> module, if the names differ."""


@dataclass(frozen=True)
class Facts:
    version: str = ""
    """The version of meshctl; empty if it is not installed."""
    ranges: Mapping[str, str] = field(default_factory=dict)
    """Library (or `python`) -> the required range: `>=1.3.8,<1.4`."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Library -> its installed version; empty if it is not installed."""
    command: str = ""
    """The `meshctl` that a shell finds."""
    prefix: str = ""
    """The folder of the running Python's environment (`sys.prefix`)."""
    folder: str = ""
    """The folder of meshctl's package."""
    lost: Sequence[str] = ()
    """Missing files of the package."""
    torch: Mapping[str, Any] = field(default_factory=dict)
    """The facts of `torch_build.build`."""
    hiding: Sequence[str] = ()
    """Files on the import path that have the name of a required module."""
    namesake: str = ""
    """The distribution `meshctl` in words; empty without one."""


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    found = installation()
    return found | {
        "command": shutil.which("meshctl") or "",
        "torch": torch_build.build(),
        "hiding": hiding_files(requirements["path"] or (os.getcwd(),), set(found["ranges"])),
    }


def measure_quickly(requirements: Requirements) -> dict[str, Any]:
    """Returns the facts about the installation, without an import of torch."""
    return installation() | {"command": "meshctl"}


def installation() -> dict[str, Any]:
    """Returns the versions of meshctl and of its requirements, and its folders."""
    lines, homes = requirements(), (PACKAGE_DIR, PACKAGE_DIR.parent)
    ranges = {"python": required_python(), **required_ranges(lines)} if lines else {}
    return {
        "version": __version__ if lines else "",
        "namesake": namesake(),
        "ranges": ranges,
        "installed": {name: _installed(name) for name in ranges},
        "prefix": sys.prefix,
        "folder": str(PACKAGE_DIR),
        "lost": [file for file in DATA_FILES if not any((home / file).is_file() for home in homes)],
    }


def _installed(name: str) -> str:
    return platform.python_version() if name == "python" else installed_version(name)


def hiding_files(folders: Sequence[str], libraries: set[str]) -> list[str]:
    """Returns the files in these folders that have the name of a required module.

    The folders come first on the workers' import path, so a worker would import such a `random.py` in place
    of Python's module.
    """
    required = {IMPORT_NAMES.get(name, name) for name in libraries - {"python"}}
    names = required | sys.stdlib_module_names | {"meshctl"}
    found = []
    for folder in folders:
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for path in (Path(folder, entry) for entry in entries):
            is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
            is_meshctl = os.path.realpath(path) == os.path.realpath(PACKAGE_DIR)
            if is_module and path.stem in names and not is_meshctl:
                found.append(str(path))
    return found


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    yield _meshctl(facts)
    if facts.namesake:
        found = f"{facts.namesake} is installed, too, and to remove one of the two deletes files of both"
        yield warning("other meshctl", found, reinstall_command()).of_recipe()
    yield _command(facts)
    for name, required in facts.ranges.items():
        library = _library(name, facts.installed.get(name, ""), required)
        yield _torch(facts, library) if name == "torch" and library.state == "ok" else library
    if facts.hiding:
        more = len(facts.hiding) - MAX_LISTED_FILES
        files = ", ".join(facts.hiding[:MAX_LISTED_FILES]) + (f" and {more} more" if more > 0 else "")
        found = f"workers would import {files} in place of modules that Python or torch needs"
        yield warning("hidden modules", found, "rename them")


def _meshctl(facts: Facts) -> Finding:
    if facts.lost:
        return failure("meshctl", f"{facts.folder} lacks {', '.join(facts.lost)}", reinstall_command())
    if not facts.version:
        found = f"not installed, run from {facts.folder}: its requirements are not known"
        return warning("meshctl", found, install_command())
    return ok("meshctl", f"{facts.version}, in {facts.folder}")


def _command(facts: Facts) -> Finding:
    if not facts.command:
        remedy = f"add {facts.prefix}/bin to the PATH, or activate it"
        return warning("command", "`meshctl` is not on the PATH", remedy)
    prefix = os.path.realpath(facts.prefix) + os.sep
    if not os.path.realpath(os.path.dirname(facts.command)).startswith(prefix):
        found = f"{facts.command} belongs to another Python than the running one, in {facts.prefix}"
        remedy = f"activate the environment that you mean, or call {facts.prefix}/bin/meshctl"
        return warning("command", found, remedy)
    return ok("command", facts.command)


def _library(name: str, version: str, required: str) -> Finding:
    install = f"pip install '{name}{required}'"
    if not version:
        return failure(name, f"not installed; meshctl requires {required or 'it'}", install)
    if not is_in_range(version, required):
        found = f"{version}; meshctl requires {required}"
        if is_newer(version, required):
            return warning(name, f"{found}, and was not tested with it", install).of_recipe()
        remedy = f"use a Python {required}" if name == "python" else install
        return failure(name, found, remedy)
    return ok(name, version)


def _torch(facts: Facts, library: Finding) -> Finding:
    torch, installed = facts.torch, library.found
    if error := torch.get("error"):
        remedy = (
            "try `python -c 'import torch'`, and if that fails too: "
            "pip uninstall -y torch, then install it as it was installed"
        )
        return failure("torch", f"{installed} is installed, but its import fails: {error}", remedy)
    imported = str(torch.get("version", installed))
    if imported.partition("+")[0] != installed.partition("+")[0]:
        found = f"{installed} is installed, but {imported} is imported from {torch['file']}"
        return warning("torch", found, "remove one of the two: look at PYTHONPATH and at `pip list`")
    if torch.get("seconds", 0) > SLOW_IMPORT_S:
        found = f"{imported}; its import took {torch['seconds']:.0f} s"
        return warning("torch", found, "install it on a local disk: every worker waits for the import")
    return ok("torch", f"{imported}, {_build(torch)}")


def _build(torch: Mapping[str, Any]) -> str:
    if torch.get("hip"):
        return f"for ROCm {torch['hip']}"
    return f"for CUDA {torch['cuda']}" if torch.get("cuda") else "for cpu"
