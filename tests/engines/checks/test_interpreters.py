"""The interpreters of groups, before a launch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meshctl import __version__
from meshctl.engines.checks.interpreters import check_interpreters
from meshctl.engines.engine import CannotStart
from meshctl.package import our_digest
from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.topology.mesh import DeviceMesh
from tests.environments import OURS, environment, site_packages


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
    facts |= {"versions": versions}
    script = folder / "python"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
    script.chmod(0o755)
    return str(script)


def test_interpreters_that_can_be_used(tmp_path: Path) -> None:
    """The interpreter of the launcher is not examined."""
    one, two = Group("one", "cpu", 1, 0), Group("two", "cpu", 1, 1, python=sys.executable)
    check_interpreters(plan(one, two), (str(tmp_path),))
    check_interpreters(plan(one, Group("two", "cpu", 1, 1, python=answering(tmp_path))), (str(tmp_path),))


def test_a_torch_that_is_too_old_is_refused(tmp_path: Path) -> None:
    python = answering(tmp_path, torch="2.4.1")
    groups = (Group("one", "cpu", 1, 0, python=python), Group("two", "cpu", 1, 1, python="./python"))
    with pytest.raises(CannotStart) as refused:
        check_interpreters(plan(*groups), (str(tmp_path),))
    problem = f"the interpreter {python} of groups `one` and `two` has torch 2.4.1, and meshctl requires >="
    assert str(refused.value).startswith(problem)


def problem_of(python: Path | str, folder: Path) -> str:
    """Returns why an interpreter cannot be used by a recipe in a folder."""
    with pytest.raises(CannotStart) as refused:
        check_interpreters(plan(Group("one", "cpu", 1, 0, python=str(python))), (str(folder),))
    return str(refused.value).partition(" of group `one` ")[2]


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("mine", "is a folder: write {folder}/mine/bin/python"),
        ("no-such-python", "is not on PATH"),
        ("mine/pyvenv.cfg", "is not executable"),
        ("./old", "is Python 3.9, and meshctl needs 3.11"),
        ("./fails", "cannot be started: exit code 3: no licence"),
        ("./silent", "cannot be started: it is not a Python interpreter"),
        ("./text", "cannot be started: no process could be started: Exec format error"),
    ],
)
def test_what_is_no_interpreter(tmp_path: Path, python: str, problem: str) -> None:
    environment(tmp_path / "mine")
    scripts = {
        "old": """#!/bin/sh\necho '{"python": [3, 9]}'\n""",
        "fails": "#!/bin/sh\necho no licence >&2\nexit 3\n",
        "silent": "#!/bin/sh\n",
        "text": "an executable text\n",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    assert problem_of(python, tmp_path).startswith(problem.format(folder=tmp_path))


def test_the_same_version_with_other_source_is_refused(tmp_path: Path) -> None:
    python = environment(tmp_path / "mine", OURS[0])
    package = site_packages(tmp_path / "mine") / "meshctl"
    package.mkdir()
    (package / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    problem = problem_of(python, tmp_path)
    assert problem.startswith("has another meshctl") and f"in {package}, than this one" in problem


def test_the_launchers_packages_are_not_on_the_path_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", OURS[0])
    problem = problem_of(environment(tmp_path / "mine", OURS[1]), tmp_path)
    assert problem.startswith("lacks `torch`, `numpy` and `msgpack`")
