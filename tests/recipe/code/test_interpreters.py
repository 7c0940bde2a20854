"""The packages of another interpreter, found in the file system."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from meshctl.recipe.code.interpreters import interpreter_path, problem_of, read_interpreter

NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def environment(folder: Path) -> tuple[Path, Path]:
    """Makes a virtual environment. Returns its interpreter and the folder of its packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python", folder / "lib" / NAME / "site-packages"


def path_of(python: Path | str, home: Path, **environ: str) -> list[str]:
    found = read_interpreter(str(python), str(home), environ)
    assert not found.problem
    return list(found.folders)


def test_the_folders_of_packages_are_found_and_no_line_of_code_is_run(tmp_path: Path) -> None:
    python, site = environment(tmp_path / "env")
    (tmp_path / "mine").mkdir()
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    (site / "other.pth").write_text(f"# a comment\n\n{code}\n{tmp_path}/mine\nnowhere\n")
    assert path_of(python, tmp_path) == [str(site), f"{tmp_path}/mine"]
    assert not (tmp_path / "ran").exists()


def test_an_installation_without_a_virtual_environment(tmp_path: Path) -> None:
    """As of conda: the library is beside the folder of the executable, which is a link."""
    (tmp_path / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.12").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "python3.12").chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to("python3.12")
    assert path_of("bin/python", tmp_path) == [f"{tmp_path}/lib/python3.12/site-packages"]


def test_pythonpath_holds_except_packages_of_another_interpreter(tmp_path: Path) -> None:
    python, _ = environment(tmp_path / "env")
    given = f"/code:/envs/launcher/lib/{NAME}/site-packages:/usr/lib/python3/dist-packages"
    folders = path_of(python, tmp_path, PYTHONPATH=given)
    assert folders[0] == "/code"
    assert not any("launcher" in one or "dist-packages" in one for one in folders)


def test_a_script_has_no_packages(tmp_path: Path) -> None:
    """As the shims of pyenv, which choose an interpreter when they run."""
    (tmp_path / "shim").write_text("#!/bin/sh\nexec python3\n")
    (tmp_path / "shim").chmod(0o755)
    assert path_of(tmp_path / "shim", tmp_path) == []


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("none/bin/python", "does not exist"),
        ("no-such-python", "is not on PATH"),
        ("mine", "is a folder: write {home}/mine/bin/python"),
        ("./mine/bin", "is a folder"),
        ("mine/pyvenv.cfg", "is not executable"),
    ],
)
def test_what_cannot_be_an_interpreter(tmp_path: Path, python: str, problem: str) -> None:
    environment(tmp_path / "mine")
    assert read_interpreter(python, str(tmp_path), {}).problem == problem.format(home=tmp_path)


def test_a_folder_without_access_does_not_exist() -> None:
    assert problem_of("/" + "x" * 300) == "does not exist"


def test_paths_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "python9").write_text("#!/bin/sh\n")
    (tmp_path / "python9").chmod(0o755)
    for written, path in {
        "../env/bin/python": "/recipes/../env/bin/python",
        "~/env/bin/python": "/home/me/env/bin/python",
        "/env/bin/python": "/env/bin/python",
        "python9": f"{tmp_path}/python9",
        "python10": "python10",
    }.items():
        assert interpreter_path(written, "/recipes") == path
