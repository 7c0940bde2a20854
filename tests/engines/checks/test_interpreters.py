"""The report of `doctor` about the interpreters of groups."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meshctl import __version__
from meshctl.engines.checks import interpreters
from meshctl.engines.checks.interpreters import examine, interpreter_checks
from meshctl.package import our_digest
from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.topology.mesh import DeviceMesh
from tests.environments import OURS, distribution, environment, site_packages


def plan(*groups: Group) -> Plan:
    components = tuple(
        Component(f"on_{group.name}", "nowhere.Any", group.name, DeviceMesh.from_sizes(world_size=1))
        for group in groups
    )
    return Plan("test", 0, Cluster(), groups, components, (), (), Run())


def answering(folder: Path, **changed: str) -> str:
    """An interpreter that reports the facts of a right one, except for some versions."""
    versions = {"torch": "99.0", "numpy": "99.0", "msgpack": "99.0", **changed}
    facts = {"python": [3, 12], "folder": "/env/meshctl", "version": __version__, "digest": our_digest()}
    facts |= {"namesake": "", "versions": versions}
    script = folder / "python"
    script.write_text(f"#!/bin/sh\necho '{json.dumps([facts, ''])}' > /proc/self/fd/$6\n")
    script.chmod(0o755)
    return str(script)


def test_the_interpreter_of_the_launcher_is_not_examined(tmp_path: Path) -> None:
    groups = (Group("one", "cpu", 1, 0), Group("two", "cpu", 1, 1, python=sys.executable))
    assert examine(plan(*groups), (str(tmp_path),)) == ()


def test_groups_share_the_check_of_their_interpreter(tmp_path: Path) -> None:
    python = answering(tmp_path)
    groups = (Group("one", "cpu", 1, 0, python=python), Group("two", "cpu", 1, 1, python="./python"))
    (found,) = interpreter_checks(plan(*groups), (str(tmp_path),))
    assert (found.name, found.state) == ("`one` and `two`", "ok")
    assert found.found == f"Python 3.12, meshctl {__version__}, torch 99.0, {python}"


def test_a_torch_that_is_too_old_is_refused(tmp_path: Path) -> None:
    python = answering(tmp_path, torch="2.4.1")
    (found,) = interpreter_checks(plan(Group("one", "cpu", 1, 0, python=python)), (str(tmp_path),))
    assert found.state == "failure" and f"{python} has torch 2.4.1, and meshctl requires >=" in found.found


@pytest.mark.parametrize(("device_type", "state"), [("cuda", "warning"), ("cpu", "ok")])
def test_another_nccl_is_a_warning_for_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_type: str, state: str
) -> None:
    monkeypatch.setattr(interpreters, "installed_version", lambda name: "2.28.9" if "cu12" in name else "")
    python = answering(tmp_path, **{"nvidia-nccl-cu13": "2.30.1"})
    group = Group("one", device_type, 1, 0, python=python)  # type: ignore[arg-type]
    (found,) = interpreter_checks(plan(group), (str(tmp_path),))
    assert found.state == state
    assert ("its NCCL is 2.30.1 and the launcher's 2.28.9" in found.found) == (state == "warning")


def problem_of(python: Path | str, folder: Path) -> str:
    """Returns why an interpreter cannot be used by a recipe in a folder."""
    (found,) = examine(plan(Group("one", "cpu", 1, 0, python=str(python))), (str(folder),))
    return found.problem


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("mine", "is a folder: write {folder}/mine/bin/python"),
        ("no-such-python", "is not on PATH"),
        ("mine/pyvenv.cfg", "is not executable"),
        ("./old", "is Python 3.9, and meshctl needs 3.11"),
        ("./fails", "cannot be started: exit code 3: no licence"),
        ("./silent", "cannot be started: exit code 0"),
        ("./text", "cannot be started: no process could be started: Exec format error"),
    ],
)
def test_what_is_no_interpreter(tmp_path: Path, python: str, problem: str) -> None:
    environment(tmp_path / "mine")
    scripts = {
        "old": """#!/bin/sh\necho '[{"python": [3, 9]}, ""]' > /proc/self/fd/$6\n""",
        "fails": "#!/bin/sh\necho no licence >&2\nexit 3\n",
        "silent": "#!/bin/sh\n",
        "text": "an executable text\n",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    assert problem_of(python, tmp_path) == problem.format(folder=tmp_path)


def test_the_same_version_with_other_source_is_refused(tmp_path: Path) -> None:
    python = environment(tmp_path / "mine", OURS[0])
    package = site_packages(tmp_path / "mine") / "meshctl"
    package.mkdir()
    (package / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    problem = problem_of(python, tmp_path)
    assert problem.startswith("has another meshctl") and f"in {package}, than this one" in problem
    distribution(site_packages(tmp_path / "mine"), "meshctl", "9.0")
    assert problem_of(python, tmp_path) == "has the distribution `meshctl` 9.0 (another tool)"


def test_the_launchers_packages_are_not_on_the_path_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", OURS[0])
    assert (
        problem_of(environment(tmp_path / "mine", OURS[1]), tmp_path)
        == "lacks `torch`, `numpy` and `msgpack`"
    )
