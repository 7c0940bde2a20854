"""The wheel works without the checkout: it is installed into an environment of its own and used from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from meshctl.recipe.templates import NAMES, RECIPES
from tests.paths import CONF, PACKAGE, ROOT

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command with an environment that knows nothing of the checkout. Returns its standard output."""
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    environ = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, env=environ, check=True, timeout=240, stdout=subprocess.DEVNULL)
    [found] = folder.glob("meshctl-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel, and the libraries of this one."""
    home = tmp_path_factory.mktemp("clean") / "env"
    venv.create(home, with_pip=False, symlinks=True)
    [packages] = home.glob("lib/python*/site-packages")
    # A folder that a .pth file names is searched, but the .pth files in it are not read: the editable install of
    # the checkout, which is one of them, stays unknown.
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-q", "--no-deps"]
    run(*pip, "--no-index", "--force-reinstall", "--ignore-installed", wheel, cwd=home)
    where = run(home / "bin" / "python", "-c", "import meshctl; print(meshctl.__file__)", cwd=home)
    assert Path(where.strip()).is_relative_to(home)
    return home / "bin"


def test_the_wheel_holds_every_file_of_the_package_and_the_license(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "meshctl", "conf"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    shipped = {
        f"meshctl/conf/{path.relative_to(CONF)}"
        if path.is_relative_to(CONF)
        else f"meshctl/{path.relative_to(PACKAGE)}"
        for path in tracked
    }
    assert shipped and shipped <= names
    templates = {
        f"meshctl/recipes/{name}"
        for kind, data in RECIPES.items()
        for name in (f"{NAMES.get(kind, kind)}.yaml", *data)
    }
    assert templates <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_new_user_goes_from_init_to_a_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    meshctl = installed / "meshctl"
    run(meshctl, "init", "--kind", "train", "--device", "cpu", "first", cwd=tmp_path)
    assert run(meshctl, "validate", "first.yaml", cwd=tmp_path).startswith("ok: ")
    assert "placement" in run(meshctl, "show-topology", "first.yaml", cwd=tmp_path)
    run(meshctl, "launch", "first.yaml", "run.steps=2", cwd=tmp_path)
    [metrics] = tmp_path.glob("runs/*/*/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 2
    run(meshctl, "init", "--kind", "sft", "--device", "cpu", "second", cwd=tmp_path)
    assert run(meshctl, "validate", "second.yaml", cwd=tmp_path).startswith("ok: ")
