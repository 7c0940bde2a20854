"""Completion of commands, options, recipes, files, and runs with their groups and ranks."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.main import get_command
from typer.models import OptionInfo

from meshctl.cli.app import app
from meshctl.cli.completion.line import candidates
from meshctl.diagnostics.codes import codes
from tests.cli.completion.conftest import bash, texts
from tests.contract.launches import old_runs
from tests.contract.pinned import DATA

COMMANDS = get_command(app).commands


def test_commands_and_options() -> None:
    known = texts("")
    assert {"validate", "launch", "explain", "schema", "completion"} <= set(known)
    assert known == [name for name, command in COMMANDS.items() if not command.hidden]
    assert bash("meshctl val") == ["validate "] and bash("meshctl launch --dr") == ["--dry-run "]
    assert texts("--v") == ["--version"] and "--help" in texts("explain --")
    assert texts("show-topology --format sv") == ["svg"] == texts("show-topology -f sv")
    assert texts("show-topology --format=sv") == ["--format=svg"]
    assert bash("meshctl show-topology --format=sv") == ["svg "]
    assert [one.description for one in candidates(["launch"], "--dry")] != [""]


def test_an_option_states_its_name_where_its_metavar_is_the_same_word() -> None:
    """Otherwise typer 0.27, which is in the supported range, takes the metavar for the name: `--NODE`."""
    stated = {}
    for command in app.registered_commands:
        assert command.callback
        for name, kind in get_type_hints(command.callback, include_extras=True).items():
            for one in getattr(kind, "__metadata__", ()):
                if isinstance(one, OptionInfo) and (one.metavar or "").lower() == name:
                    stated[name] = one.default  # its first name, which typer takes as such in an Annotated
    assert stated == {"dim": "--dim", "node": "--node", "folder": "--dir"}


WITHOUT_CANDIDATES = "--ranks --node --shipped --samples --grep --since --head --wait --host --port --step"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_can_be_asked_for_its_values(command: str, place: Path) -> None:
    for one in COMMANDS[command].params:
        for option in one.opts:
            if option.startswith("-") and not getattr(one, "is_flag", False):
                recipe = [] if command in ("init", "schema", "agent", "head") else ["grpo.yaml"]
                found = [one.text for one in candidates([command, *recipe, option], "")]
                assert all(found) and bool(found) == (option not in WITHOUT_CANDIDATES.split()), option


def test_options_beside_a_recipe(place: Path) -> None:
    assert texts("launch --only nothing grpo.yaml run.ste") == ["run.steps="]
    assert texts("launch --dry-run grpo.yaml run.ste") == ["run.steps="]
    assert sorted(texts("show-topology grpo.yaml --component ")) == ["actor", "prompts", "sampler"]
    assert bash("meshctl show-topology grpo.yaml --rank tr") == ["train:"]
    dims = texts("show-topology grpo.yaml --dim ")
    assert "tp" in dims and "ulysses" in dims and "vpp" not in dims
    found = texts("validate grpo.yaml ")
    assert "grpo.yaml" in found and "groups." in found, "validate accepts several recipes"


def test_codes_in_whatever_case() -> None:
    assert texts("explain MC41") == [code for code in codes() if code.startswith("MC41")]
    assert "mc410" in texts("explain mc4")


def test_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts("launch ") == ["conf/", "grpo.yaml", "my runs/"]
    assert texts("launch .") == [".hidden.yaml"]
    assert texts("launch conf/data/s") == ["conf/data/small.yaml"]
    assert texts("launch nowhere/x") == []
    assert bash("meshctl launch my") == ["my\\ runs/"]
    assert bash("meshctl launch my\\ runs/") == ["my\\ runs/a\\ recipe.yaml "]
    assert bash("meshctl launch 'my runs/") == ["my runs/a recipe.yaml"]
    assert bash('meshctl launch "my runs/a recipe.yaml" groups.rol') == ["groups.rollout."]
    monkeypatch.setenv("HOME", str(place))
    assert texts("launch ~/grpo.y") == ["~/grpo.yaml"]
    assert texts("launch ~/grpo.yaml groups.t") == ["groups.train."]


@pytest.mark.parametrize(
    ("before", "word", "found"),
    [
        (["status"], "", ["contract", "runs/"]),
        (["watch"], "contract/", ["contract/1"]),
        (["stop"], "runs/", ["runs/contract/"]),
        (["report", "contract"], "contract/", ["contract/1"]),
        (["logs", "contract"], "", ["rollout", "train", "script"]),
        (["logs", "contract"], "train:", ["train:0", "train:1"]),
        (["logs", "contract", "train:0"], "rollout:", ["rollout:0"]),
        (["logs", "nothing"], "", []),
        (["runs"], "", ["runs/"]),
        (["status", "--dir"], "", ["runs/"]),
    ],
)
def test_runs(
    before: Sequence[str], word: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory has a run with one worker in `rollout` and two in `train`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "runs" / old_runs()[0], tmp_path / "runs" / "contract" / "1", symlinks=True)
    assert [one.text for one in candidates(before, word)] == found


def test_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [*candidates(["status"], "")] == [] == [*candidates(["logs", "contract"], "")]
