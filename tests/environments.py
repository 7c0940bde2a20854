"""Virtual environments for tests, which import the packages of this one."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path

from tests.paths import ROOT

LIBRARY = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def environment(folder: Path, *packages: str | Path) -> Path:
    """Makes a virtual environment whose packages are those in the folders `packages`. Returns its
    interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = site_packages(folder)
    (site / "packages.pth").write_text("".join(f"{package}\n" for package in packages))
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    return folder / "lib" / LIBRARY / "site-packages"


def distribution(site: Path, name: str, version: str, *requires: str, **files: str) -> None:
    """Writes the metadata of a distribution. `files` are further ones, by their stems (JSON)."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {line}" for line in requires]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")
    for stem, text in files.items():
        (folder / f"{stem}.json").write_text(text)


OURS = (sysconfig.get_path("purelib"), str(ROOT))
"""The folders of the libraries of this interpreter and of meshctl."""
