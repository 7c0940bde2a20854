"""The wheel works without the checkout: it is installed into an environment of its own and used from an empty folder."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from meshctl.package import our_digest
from meshctl.recipe.templates import NAMES, RECIPES
from tests.paths import CONF, PACKAGE, ROOT

pytestmark = pytest.mark.slow
CHECKS = """
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.checks.machine import problems
for check in problems(Requirements()):
    print(check.found, check.remedy)
"""
"""Prints what `launch` would say of this machine, in one process and without a time limit."""


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command with an environment that knows nothing of the checkout. Returns its standard output."""
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    environ = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
    [found] = folder.glob("meshctl_torch-*.whl")
    return found


@pytest.fixture(scope="module")
def namesake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that has the names of the tool that owns `meshctl` on the package index: distribution, package and
    command."""
    files = {
        "meshctl/__init__.py": "__version__ = '2.7'\n",
        "meshctl/radio.py": "def main():\n    print('a radio')\n",
        "meshctl-2.7.dist-info/METADATA": "Metadata-Version: 2.1\nName: meshctl\nVersion: 2.7\n",
        "meshctl-2.7.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "meshctl-2.7.dist-info/entry_points.txt": "[console_scripts]\nmeshctl = meshctl.radio:main\n",
    }
    wheel = tmp_path_factory.mktemp("index") / "meshctl-2.7-py3-none-any.whl"
    record = "".join(f"{name},,\n" for name in (*files, "meshctl-2.7.dist-info/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (files | {"meshctl-2.7.dist-info/RECORD": record}).items():
            archive.writestr(name, text)
    return wheel


def environment(home: Path) -> Path:
    """Makes an environment with the libraries of this one. Returns its folder."""
    venv.create(home, with_pip=False, symlinks=True)
    # A folder that a .pth file names is searched, but the .pth files in it are not read: the editable install of
    # the checkout, which is one of them, stays unknown.
    (packages_of(home) / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home


def packages_of(home: Path) -> Path:
    [packages] = home.glob("lib/python*/site-packages")
    return packages


def pip(home: Path, *words: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", home / "bin" / "python", *words, cwd=home)


def install(home: Path, wheel: Path) -> None:
    pip(home, "install", "-q", "--no-deps", "--no-index", "--ignore-installed", wheel)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel, and the libraries of this one."""
    home = environment(tmp_path_factory.mktemp("clean") / "env")
    install(home, wheel)
    where = run(home / "bin" / "python", "-c", "import meshctl; print(meshctl.__file__)", cwd=home)
    assert Path(where.strip()).is_relative_to(home)
    return home / "bin"


def test_the_wheel_holds_every_file_of_the_package_and_the_license(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "meshctl", "conf"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    homes = {path: ("conf", CONF) if path.is_relative_to(CONF) else ("", PACKAGE) for path in tracked}
    shipped = {str(Path("meshctl", name, path.relative_to(home))) for path, (name, home) in homes.items()}
    assert shipped and shipped <= names
    recipes = {name for kind, data in RECIPES.items() for name in (f"{NAMES.get(kind, kind)}.yaml", *data)}
    assert {f"meshctl/recipes/{name}" for name in recipes} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_new_user_goes_from_init_to_a_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    meshctl = installed / "meshctl"
    run(meshctl, "init", "--kind", "train", "--device", "cpu", "first", cwd=tmp_path)
    run(meshctl, "launch", "first.yaml", "run.steps=2", cwd=tmp_path)
    [metrics] = tmp_path.glob("runs/*/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 2
    run(meshctl, "init", "--kind", "sft", "--device", "cpu", "second", cwd=tmp_path)
    assert run(meshctl, "validate", "second.yaml", cwd=tmp_path).startswith("ok: ")


def test_a_wheel_is_the_same_meshctl_as_its_checkout_and_names_itself(installed: Path, wheel: Path) -> None:
    program = "from meshctl import package; print(package.digest_of(package.PACKAGE_DIR), package.install_command('hf'))"
    digest, command = run(installed / "python", "-c", program, cwd=installed).strip().split(" ", 1)
    assert (digest, command) == (our_digest(), shlex.join(["pip", "install", f"{wheel}[hf]"]))


@pytest.mark.slow_suite
def test_another_tool_of_the_same_name_is_named(wheel: Path, namesake: Path, tmp_path: Path) -> None:
    """The one that is installed last has the command and `__init__.py`."""
    home = environment(tmp_path / "env")
    for one, words in ((namesake, ["-m", "meshctl", "doctor"]), (wheel, ["-c", CHECKS])):
        if one is namesake:
            install(home, wheel)
        install(home, one)
        done = subprocess.run([home / "bin" / "python", *words], cwd=tmp_path, capture_output=True, text=True)
        printed = done.stdout + done.stderr
        other = "the distribution `meshctl` 2.7 (another tool)"
        assert printed.count(other) == 1 and "Traceback" not in printed
        assert f"pip uninstall -y meshctl meshctl-torch, then pip install {wheel}" in printed
    # The remedy, followed:
    pip(home, "uninstall", "-q", "-y", "meshctl", "meshctl-torch")
    assert not (home / "bin" / "meshctl").exists() and not (packages_of(home) / "meshctl").exists()
    install(home, wheel)
    found = run(
        home / "bin" / "python", "-c", "from meshctl import package; print(package.namesake())", cwd=home
    )
    assert found == "\n" and run(home / "bin" / "meshctl", "--version", cwd=home).startswith("meshctl ")
