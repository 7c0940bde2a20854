"""Keys of earlier versions: an error where they had an effect, a warning that `--fix` removes where they had none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.cli.launch import head
from meshctl.engines.engine import engine_named
from meshctl.recipe.fixes import apply
from meshctl.recipe.load import load
from meshctl.run.directory import EngineChoice, RunDir, Start
from tests.paths import ROOT

RECIPE = """\
engine:
  ssh:
    hosts: [a, b]
cluster: {nodes: 2}
groups:
  train: {ranks: 2, device_type: cpu, program: train.py}
"""


def found(folder: Path, text: str, *overrides: str) -> list[tuple[str, str]]:
    (folder / "train.py").touch()
    (folder / "recipe.yaml").write_text(text)
    return [(one.code, one.severity) for one in load("recipe.yaml", overrides, folder).report.diagnostics]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("engine.ssh.secure=true", [("MC108", "error")]),
        ("engine.ssh.secure=false", [("MC109", "warning")]),
        ("run.checkpoint.local_dir=/scratch", [("MC108", "error")]),
        ("run.checkpoint.local_dir=null", [("MC109", "warning")]),
        ("cluster.domains={rack: 2}", [("MC108", "error")]),
        ("cluster.domains.rack=2", [("MC108", "error")]),
    ],
)
def test_a_retired_key_is_reported(tmp_path: Path, key: str, expected: list[tuple[str, str]]) -> None:
    assert found(tmp_path, RECIPE) == []
    assert found(tmp_path, RECIPE, key) == expected


def test_the_fix_removes_the_line_of_an_idle_key(tmp_path: Path) -> None:
    text = RECIPE.replace("[a, b]\n", "[a, b]\n    secure: false\n")
    assert found(tmp_path, text) == [("MC109", "warning")]
    fixes = [fix for one in load("recipe.yaml", (), tmp_path).report.diagnostics for fix in one.fixes]
    assert apply(text, fixes) == RECIPE


@pytest.mark.parametrize("secure", [False, True])
def test_the_head_refuses_a_run_that_was_to_be_encrypted(
    tmp_path: Path, secure: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run directory itself can still be read."""
    plan = ROOT / "tests/contract/runs/208765c4/plan.json"
    (tmp_path / "plan.json").write_text(plan.read_text())
    options = {"hosts": ["a"], "secure": secure}
    start = Start(("/a",), engine=EngineChoice("unknown" if not secure else "ssh", options))
    (tmp_path / "start.json").write_text(start.to_json())
    assert RunDir(tmp_path).read_start().engine.options == options
    assert engine_named("ssh", options)
    assert head(tmp_path / "plan.json", "", 0, {}) == 4
    assert ("encrypted" in capsys.readouterr().err) == secure
