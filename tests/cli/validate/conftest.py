"""A folder with correct recipes, and `meshctl validate` in this process and in one of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshctl.cli.validate import Options, validate
from tests.cli.commands import code_of
from tests.paths import RECIPE_GOLDEN as GOLDEN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a correct recipe."""
    for name in ("base_of_all.yaml", "arithmetic.py"):
        (tmp_path / name).write_text((GOLDEN / name).read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capfd: pytest.CaptureFixture[str], *arguments: str, **asked: Any) -> tuple[int, str, str]:
    """Returns (exit code, stdout, stderr)."""
    code = code_of(validate, arguments, Options(**asked))
    return code, *capfd.readouterr()


def meshctl(
    *arguments: str, data: bytes = b"", closed: bool = False, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "meshctl", "validate", *arguments]
    if closed:
        command = ["sh", "-c", f"exec {shlex.join(command)} <&-"]
    given = None if closed else data
    return subprocess.run(command, input=given, capture_output=True, cwd=GOLDEN, env=env)
