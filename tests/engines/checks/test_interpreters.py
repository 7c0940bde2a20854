"""What `doctor` reports about the interpreters of groups."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from meshctl.engines.checks import interpreters
from meshctl.engines.checks.interpreters import examine, interpreter_checks, our_digest
from meshctl.package import version
from meshctl.plan.model import Cluster, Component, Group, Plan, Run
from meshctl.topology.mesh import DeviceMesh


def plan(*groups: Group) -> Plan:
    components = tuple(
        Component(f"on_{group.name}", "nowhere.Any", group.name, DeviceMesh.from_sizes(world_size=1))
        for group in groups
    )
    return Plan("test", 0, Cluster(), groups, components, (), (), Run())


def answering(folder: Path, **changed: str) -> str:
    """An interpreter that reports the facts of a right one, except for some versions."""
    versions = {"meshctl": version(), "torch": "99.0", "numpy": "99.0", "msgpack": "99.0", **changed}
    facts = {"python": [3, 12], "folder": "/env/meshctl", "digest": our_digest(), "versions": versions}
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
    assert found.found == f"Python 3.12, meshctl {version()}, torch 99.0, {python}"


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
