"""Common behaviour of all commands: a recipe from standard input, streams that are closed or full, and
interrupts at any time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshctl.cli import main as way_in
from meshctl.cli.show_topology import Options, show
from tests.paths import ROOT

RECIPE = str(ROOT / "tests" / "recipe" / "golden" / "base_of_all.yaml")
CALL = [sys.executable, "-m", "meshctl"]
TEXT = "groups: {a: {ranks: 2, device_type: cpu, program: {module: json.tool}}}\n"


def called(
    *words: str, around: str = '"$@"', input: str | None = None, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    line = ["sh", "-c", around, "-", *CALL, *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd=folder, env=environ, input=input, capture_output=True, text=True)


@pytest.mark.parametrize("words", [["launch", RECIPE, "--dry-run"], ["schema"]], ids=" ".join)
def test_an_output_that_is_full(words: list[str]) -> None:
    done = called(*words, around='"$@" >/dev/full')
    error = "error: the output was not written completely: no space left on device\n"
    assert (done.returncode, done.stderr) == (4, error)


def test_an_output_that_is_gone_or_closed() -> None:
    words = ["validate", RECIPE, "seed=x", "--format", "sarif"]
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run([*CALL, *words], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (1, "")
    done = called("launch", RECIPE, "--dry-run", around='"$@" >&-')
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_terminal_is_no_error() -> None:
    ours, theirs = os.openpty()
    os.close(ours)
    done = subprocess.run([*CALL, "explain", "MC410"], cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_recipe_from_standard_input(tmp_path: Path) -> None:
    done = called("launch", "-", "--dry-run", "groups.a.ranks=3", input=TEXT, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("recipe: 1 group, 3 workers; plan ")
    done = called("config", "-", around='"$@" <&-')
    assert done.returncode == 3 and "error[MC001]: standard input is closed\n" in done.stderr


def test_what_changes_to_or_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for other in ("groups.a.ranks=3", "- groups.a.ranks=3"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
        assert show("-", [], Options(diff=other)) == 0
        shown.append(capsys.readouterr())
    assert "ranks" in shown[0].out or "workers" in shown[0].out
    assert shown[0] == shown[1]


def test_an_interrupt_while_a_command_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(way_in, "_called", interrupted)
    with pytest.raises(SystemExit) as leaving:
        way_in.main()
    assert leaving.value.code == 130
