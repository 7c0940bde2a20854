"""Runs `meshctl validate`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import pytest

from meshctl.cli.validate import Options, validate
from tests.paths import RECIPE_GOLDEN as GOLDEN

# Several recipes, formats, standard input


def run(capfd: pytest.CaptureFixture[str], *arguments: str, **asked: Any) -> tuple[int, str, str]:
    """Returns (exit code, stdout, stderr)."""
    code = validate(arguments, Options(**asked))
    return code, *capfd.readouterr()


def meshctl(*arguments: str, data: bytes = b"", closed: bool = False) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "meshctl", "validate", *arguments]
    if closed:
        command = ["sh", "-c", f"exec {shlex.join(command)} <&-"]
    return subprocess.run(command, input=None if closed else data, capture_output=True, cwd=GOLDEN)
