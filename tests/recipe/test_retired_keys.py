"""Keys of earlier versions: an error where they had an effect, a warning that `--fix` removes where they had none."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.fixes import apply
from meshctl.recipe.load import load
from meshctl.run.directory import Start

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


def test_a_run_that_was_to_be_encrypted_is_not_continued() -> None:
    start = {"path": ["/a"], "attempt": 0, "resume": ""}
    for secure in (False, True):
        data = {**start, "engine": {"name": "ssh", "options": {"hosts": ["a"], "secure": secure}}}
        if secure:
            with pytest.raises(ValueError, match="encrypted"):
                Start.from_json(data)
        else:
            assert Start.from_json(data).engine.options == {"hosts": ["a"]}
