"""The interpreter of a fork server, and its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from meshctl.engines.node.interpreter import environ_of, server_python
from meshctl.plan.model import Group


def test_the_environment_is_that_of_an_activated_one(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = f"{tmp_path}/bin/python"
    inherited = {
        "PATH": "/launcher/bin:/usr/bin",
        "PYTHONPATH": "/code:/launcher/lib/python3.11/site-packages",
        "PYTHONHOME": "/launcher",
        "VIRTUAL_ENV": "/launcher",
        "TOKEN": "secret",
    }
    assert environ_of(python, inherited) == {
        "PATH": f"{tmp_path}/bin:/launcher/bin:/usr/bin",
        "PYTHONPATH": "/code",
        "VIRTUAL_ENV": str(tmp_path),
        "TOKEN": "secret",
    }
    assert environ_of("/usr/bin/python3", {"VIRTUAL_ENV": "/launcher"}) == {"PATH": f"/usr/bin:{os.defpath}"}


def test_other_names_of_the_launchers_interpreter_need_no_server(tmp_path: Path) -> None:
    def python(name: str) -> str:
        return server_python(Group("one", "cpu", 1, 0, python=name), (str(tmp_path),))

    folder = Path(sys.executable).parent
    assert python("") == python(sys.executable) == python(str(folder / "python")) == sys.executable
    (tmp_path / "python").symlink_to(sys.executable)  # not in the environment of the launcher
    assert python("./python") == f"{tmp_path}/python"
