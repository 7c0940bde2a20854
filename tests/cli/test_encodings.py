"""A run whose launcher has an output that is not UTF-8: workers and programs print what they like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from meshctl.run.directory import RunDir
from tests.cli.commands import MAIN

HELLO = """
import sys
from meshctl import Component, endpoint

class Hello(Component):
    @endpoint
    def say(self):
        print("größer → \\ud800")
        return {"größe": 1.0}
"""
RECIPE = """
name: case
groups:
  a: {ranks: 1, device_type: cpu}
  b: {ranks: 1, device_type: cpu, program: {module: prints}}
components: {hello: {_target_: hello.Hello, group: a}}
pipeline: {said: {call: hello.say, in: []}}
run: {steps: 2}
"""


def test_the_run_goes_on_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    (tmp_path / "prints.py").write_text("print('größer')\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "launch", "recipe.yaml"],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"is stopped" not in done.stderr and b"step 2/2" in done.stdout
    assert b"a:0: gr" in done.stdout and "größer".encode() not in done.stdout
    [path] = (tmp_path / "runs" / "case").iterdir()
    assert "größer → \\ud800" in RunDir(path).log("a", 0).read_text(encoding="utf-8")
    assert "größer" in RunDir(path).log("b", 0).read_text(encoding="utf-8")
