"""Completion of commands, options, recipes and files."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest
from typer.main import get_command
from typer.models import OptionInfo

from meshctl.cli.app import app
from meshctl.cli.completion.line import candidates
from meshctl.diagnostics.codes import codes
from tests.cli.completion.completing import bash, texts

# Commands, options and what they take


def test_commands() -> None:
    known = texts("")
    assert {"validate", "launch", "explain", "schema", "completion"} <= set(known)
    assert known == [name for name, command in get_command(app).commands.items() if not command.hidden]
    assert bash("meshctl val") == ["validate "]


def test_options() -> None:
    assert bash("meshctl launch --dr") == ["--dry-run "]
    assert texts("--v") == ["--version"] and "--help" in texts("explain --")
    assert texts("show-topology --format sv") == ["svg"] == texts("show-topology -f sv")
    assert texts("show-topology --format=sv") == ["--format=svg"]
    assert bash("meshctl show-topology --format=sv") == ["svg "]


def test_options_describe_what_they_do() -> None:
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


OPTIONS = [
    (name, option)
    for name, command in get_command(app).commands.items()
    for one in command.params
    for option in one.opts
    if option.startswith("-") and not getattr(one, "is_flag", False)
]


WITHOUT_CANDIDATES = {
    "--ranks",
    "--node",
    "--shipped",
    "--samples",
    "--grep",
    "--since",
    "--group",
    "--head",
    "--wait",
    "--host",
    "--port",
}


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_option_can_be_asked_for_its_values(command: str, option: str, place: Path) -> None:
    before = [command, *([] if command in ("init", "schema", "agent", "head") else ["grpo.yaml"]), option]
    found = [one.text for one in candidates(before, "")]
    assert all(found) and bool(found) == (option not in WITHOUT_CANDIDATES)


def test_the_value_of_an_option_is_no_recipe(place: Path) -> None:
    assert texts("launch --only nothing grpo.yaml run.ste") == ["run.steps="]
    assert texts("launch --dry-run grpo.yaml run.ste") == ["run.steps="]


def test_names_of_the_recipe_for_options(place: Path) -> None:
    assert sorted(texts("show-topology grpo.yaml --component ")) == ["actor", "prompts", "sampler"]
    assert bash("meshctl show-topology grpo.yaml --rank tr") == ["train:"]
    dims = texts("show-topology grpo.yaml --dim ")
    assert "tp" in dims and "ulysses" in dims and "vpp" not in dims


def test_codes_in_whatever_case() -> None:
    assert texts("explain MC41") == [code for code in codes() if code.startswith("MC41")]
    assert "mc410" in texts("explain mc4")


# Files


def test_recipes(place: Path) -> None:
    assert texts("launch ") == ["conf/", "grpo.yaml", "my runs/"]
    assert texts("launch .") == [".hidden.yaml"]
    assert texts("launch conf/data/s") == ["conf/data/small.yaml"]
    assert texts("launch nowhere/x") == []


def test_bash_gets_them_quoted_as_they_were_begun(place: Path) -> None:
    assert bash("meshctl launch my") == ["my\\ runs/"]
    assert bash("meshctl launch my\\ runs/") == ["my\\ runs/a\\ recipe.yaml "]
    assert bash("meshctl launch 'my runs/") == ["my runs/a recipe.yaml"]
    assert bash('meshctl launch "my runs/a recipe.yaml" groups.rol') == ["groups.rollout."]


def test_home_is_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    assert texts("launch ~/grpo.y") == ["~/grpo.yaml"]
    assert texts("launch ~/grpo.yaml groups.t") == ["groups.train."]


def test_validate_accepts_several_recipes(place: Path) -> None:
    found = texts("validate grpo.yaml ")
    assert "grpo.yaml" in found and "groups." in found
    assert texts("validate grpo.yaml groups.t") == ["groups.train."]
