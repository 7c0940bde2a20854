"""What is installed: Python and the libraries against the ranges that meshctl promises, meshctl's own parts,
files that hide modules."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.options import Asked
from meshctl.package import PACKAGE_DIR

SUBJECT = "versions"
PARTS = ("conf/base.yaml", "conf/layout/fsdp.yaml", "components/starters/train.yaml")
"""Some of the files that come with the package and are no Python."""
HIDING = 8
"""Files that are listed."""


@dataclass(frozen=True)
class Facts:
    version: str = ""
    """Of meshctl; empty where it is not installed."""
    ranges: Mapping[str, str] = field(default_factory=dict)
    """What it wants of each, Python among them: `>=1.3.8,<1.4`."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """What there is; empty where there is none."""
    command: str = ""
    """The `meshctl` that a shell would find."""
    prefix: str = ""
    """Of the Python that this is."""
    folder: str = ""
    """Of meshctl's package."""
    lost: tuple[str, ...] = ()
    """Its parts that are not there."""
    torch: Mapping[str, Any] = field(default_factory=dict)
    """What the imported torch says; `wrong` where it cannot be imported."""
    hiding: tuple[str, ...] = ()
    """Files that come first on the path and are called like something that is needed."""


def measure(asked: Asked, torch: Mapping[str, Any]) -> Facts:
    package = PACKAGE_DIR
    try:
        own = metadata.metadata("meshctl")
        wanted = {
            "python": str(own.json.get("requires_python", "")),
            **requirements(metadata.requires("meshctl") or []),
        }
        version = own["Version"]
    except metadata.PackageNotFoundError:
        version, wanted = "", {}
    installed = {
        name: platform.python_version() if name == "python" else installed_version(name) for name in wanted
    }
    lost = tuple(
        part for part in PARTS if not (package / part).is_file() and not (package.parent / part).is_file()
    )
    command = shutil.which("meshctl") or ""
    return Facts(
        version, wanted, installed, command, sys.prefix, str(package), lost, torch, hiding(asked, set(wanted))
    )


def requirements(lines: list[str]) -> dict[str, str]:
    """`hydra-core<1.4,>=1.3.8` by name; those of extras are left out."""
    found = {}
    for line in lines:
        text, _, marker = line.partition(";")
        if "extra" not in marker and (
            parts := re.fullmatch(r"\s*([\w.-]+)\s*(?:\[[^]]*])?\s*\(?([^)]*)\)?\s*", text)
        ):
            found[parts[1]] = parts[2].strip()
    return found


def installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def hiding(asked: Asked, libraries: set[str]) -> tuple[str, ...]:
    """The recipe's folders come first when a worker imports something: `random.py` there is taken for
    Python's own."""
    modules = {"hydra-core": "hydra", "pyyaml": "yaml"}
    names = (
        {modules.get(name, name) for name in libraries - {"python"}} | sys.stdlib_module_names | {"meshctl"}
    )
    found = []
    for folder in asked.path or (os.getcwd(),):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            path = Path(folder, entry)
            is_module = entry.endswith(".py") or (path / "__init__.py").is_file()
            if is_module and path.stem in names and not same(path, PACKAGE_DIR):
                found.append(str(path))
    return tuple(found)


def same(one: Path, other: Path) -> bool:
    """A checkout of meshctl is not in its own way."""
    return os.path.realpath(one) == os.path.realpath(other)


def judge(facts: Facts) -> Iterator[Check]:
    yield _meshctl(facts)
    yield _command(facts)
    for name, wanted in facts.ranges.items():
        if name == "torch":
            yield _torch(facts, wanted)
        else:
            yield _library(name, facts.installed.get(name, ""), wanted)
    if facts.hiding:
        files = ", ".join(facts.hiding[:HIDING]) + (
            f" and {len(facts.hiding) - HIDING} more" if len(facts.hiding) > HIDING else ""
        )
        remedy = (
            "rename them: workers find them before the modules of the same name that Python and torch need"
        )
        yield Check(SUBJECT, "hidden modules", "warning", files, remedy)


def _meshctl(facts: Facts) -> Check:
    again = "install it again: pip install --force-reinstall meshctl"
    if facts.lost:
        return Check(SUBJECT, "meshctl", "failure", f"{facts.folder} lacks {', '.join(facts.lost)}", again)
    if not facts.version:
        found = f"not installed, run from {facts.folder}: what it needs is not known"
        return Check(SUBJECT, "meshctl", "warning", found, "pip install . in its checkout")
    return Check(SUBJECT, "meshctl", "ok", f"{facts.version}, in {facts.folder}")


def _command(facts: Facts) -> Check:
    if not facts.command:
        return Check(
            SUBJECT,
            "command",
            "warning",
            "`meshctl` is not on the PATH",
            f"add {facts.prefix}/bin to the PATH, or activate it",
        )
    if not os.path.realpath(os.path.dirname(facts.command)).startswith(
        os.path.realpath(facts.prefix) + os.sep
    ):
        found = f"{facts.command} is not that of the Python that runs now, in {facts.prefix}"
        return Check(
            SUBJECT,
            "command",
            "warning",
            found,
            f"activate the environment that is meant, or call {facts.prefix}/bin/meshctl",
        )
    return Check(SUBJECT, "command", "ok", facts.command)


def _library(name: str, version: str, wanted: str) -> Check:
    if not version:
        return Check(
            SUBJECT,
            name,
            "failure",
            f"not installed; meshctl wants {wanted or 'it'}",
            f"pip install '{name}{wanted}'",
        )
    if not fits(version, wanted):
        remedy = f"use a Python {wanted}" if name == "python" else f"pip install '{name}{wanted}'"
        return Check(SUBJECT, name, "failure", f"{version}; meshctl wants {wanted}", remedy)
    return Check(SUBJECT, name, "ok", version)


def _torch(facts: Facts, wanted: str) -> Check:
    check, torch = _library("torch", facts.installed.get("torch", ""), wanted), facts.torch
    if check.state != "ok":
        return check
    if torch.get("wrong"):
        remedy = "try `python -c 'import torch'`, and install it again if that fails too: pip install --force-reinstall torch"
        return Check(
            SUBJECT,
            "torch",
            "failure",
            f"{check.found} is installed, and its import fails: {torch['wrong']}",
            remedy,
        )
    imported = str(torch.get("version", check.found))
    if imported.partition("+")[0] != check.found.partition("+")[0]:
        found = f"{check.found} is installed, and {imported} is imported from {torch['file']}"
        return Check(
            SUBJECT, "torch", "warning", found, "remove one of the two: look at PYTHONPATH and at `pip list`"
        )
    if torch.get("seconds", 0) > 20:
        found, remedy = (
            f"{imported}; its import took {torch['seconds']:.0f} s",
            "install it on a local disk, every worker waits for it",
        )
        return Check(SUBJECT, "torch", "warning", found, remedy)
    return Check(SUBJECT, "torch", "ok", f"{imported}, {_build(torch)}")


def _build(torch: Mapping[str, Any]) -> str:
    if torch.get("hip"):
        return f"for ROCm {torch['hip']}"
    return f"for CUDA {torch['cuda']}" if torch.get("cuda") else "for cpu"


def fits(version: str, wanted: str) -> bool:
    """Whether a version is in a range of `>=`, `>`, `<=`, `<`, `==`, `!=`; what else a range may say is taken
    for granted.

    A version before a release, `2.4.0rc1`, counts as that release.
    """
    have = numbers(version)
    for clause in wanted.split(","):
        if not (parts := re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\d[\d.]*)\s*", clause)):
            continue
        sign, bound = parts[1], numbers(parts[2])
        width = max(len(have), len(bound))
        one, other = have + (0,) * (width - len(have)), bound + (0,) * (width - len(bound))
        holds = {
            ">=": one >= other,
            "<=": one <= other,
            "==": one == other,
            "!=": one != other,
            ">": one > other,
            "<": one < other,
        }
        if not holds[sign]:
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: (2, 13, 0) of `2.13.0+cpu`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
