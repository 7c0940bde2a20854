"""`engine:` of a recipe: one engine with its options, as a config group and in overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.load import Loaded, load
from meshctl.recipe.rules.engines import hosts_are_given
from meshctl.run.directory import EngineChoice

RECIPE = """
groups: {train: {ranks: 2, device_type: cpu}}
components: {rows: {_target_: parts.Rows, group: train}}
pipeline: {batch: {call: rows.next, samples: 4}}
run: {steps: 2}
"""
PARTS = """
from meshctl import Batch, Component, endpoint

class Rows(Component):
    @endpoint
    def next(self, samples: range) -> Batch: ...
"""
COMMON = {"setup": (), "join_limit": 300.0, "lease": 15.0, "head": ""}
RAY = {"address": "auto", "namespace": "meshctl", "cpus": None, "resources": None, "env": ()}
SHIP = {"ship": False, "ship_to": ""}
RAY |= {"placement_limit": None, **SHIP, **COMMON}
SSH = {"hosts": ("a", "b"), "hosts_file": "", "ssh_options": (), **SHIP, **COMMON}


def loaded(folder: Path, engine: str, *overrides: str, more: str = "") -> Loaded:
    (folder / "parts.py").write_text(PARTS)
    (folder / "recipe.yaml").write_text(more + RECIPE + (f"engine: {engine}\n" if engine else ""))
    return load("recipe.yaml", overrides, folder)


@pytest.mark.parametrize(
    ("engine", "overrides", "choice"),
    [
        ("", [], EngineChoice()),
        ("commands", [], EngineChoice("commands", COMMON)),
        ("{commands: }", [], EngineChoice("commands", COMMON)),
        ("{ssh: {hosts: [a, b]}}", [], EngineChoice("ssh", SSH)),
        ("ssh", ["engine.ssh.hosts=[a,b]"], EngineChoice("ssh", SSH)),
        ("", ["engine.ssh.hosts=[a,b]"], EngineChoice("ssh", SSH)),
        ("", ["engine=ssh", "engine.ssh.hosts=[a,b]"], EngineChoice("ssh", SSH)),
        ("{ssh: {hosts: [a, b]}}", ["engine=ssh"], EngineChoice("ssh", SSH)),
        ("{ssh: {hosts: [a]}}", ["engine=local"], EngineChoice("local")),
        ("", ["engine=ray", "engine.ray.resources={rack: 0.5}"], EngineChoice("ray", {**RAY, "resources": {"rack": 0.5}})),
        ("{ray: {cpus: 0, env: [HF_TOKEN]}}", [], EngineChoice("ray", {**RAY, "cpus": 0, "env": (("HF_TOKEN", None),)})),
        ("{ssh: {hosts: [a]}}", ["~engine"], EngineChoice()),
        ("{ssh: {hosts: [a]}}", ["engine={commands:{lease:20}}"], EngineChoice("commands", {**COMMON, "lease": 20.0})),
    ],
)  # fmt: skip
def test_one_engine_with_its_options(
    tmp_path: Path, engine: str, overrides: list[str], choice: EngineChoice
) -> None:
    found = loaded(tmp_path, engine, *overrides)
    assert found.report.diagnostics == () and found.recipe.engine == choice


def test_a_config_of_the_user_names_an_engine_with_options(tmp_path: Path) -> None:
    (tmp_path / "conf" / "engine").mkdir(parents=True)
    (tmp_path / "conf" / "engine" / "lab.yaml").write_text("ssh: {hosts: [a, b]}\n")
    chosen = EngineChoice("ssh", SSH)
    assert loaded(tmp_path, "", "engine=lab").recipe.engine == chosen
    assert loaded(tmp_path, "{commands: {lease: 3}}", "engine=lab").recipe.engine == chosen
    assert loaded(tmp_path, "", more="defaults: [engine: lab]\n").recipe.engine == chosen
    later = loaded(tmp_path, "commands", more="defaults: [engine: lab, _self_]\n")
    assert later.report.diagnostics == () and later.recipe.engine.name == "commands"


@pytest.mark.parametrize(
    ("engine", "overrides", "code", "message"),
    [
        ("shh", [], "MC600", "`shh` is not an engine"),
        ("{shh: {}}", [], "MC101", "`engine` has no key `shh`"),
        ("{}", [], "MC103", "`engine` names no engine"),
        ("", ["engine=shh"], "MC201", "`shh` is not an engine"),
        ("ssh", ["engine.commands.lease=9"], "MC601", "`engine` names 2 engines: `ssh` and `commands`"),
        ("{ray: {resources: {rack: 0}}}", [], "MC102", "`rack` must be a positive number, not 0"),
        ("{ray: {resources: {GPU: 8}}}", [], "MC630", "`engine.ray.resources` contains `GPU`, which follows from the recipe"),
        ("ssh", [], "MC602", "engine `ssh` needs `engine.ssh.hosts`, or `engine.ssh.hosts_file`"),
        ("{ssh: {hosts: [a, a]}}", [], "MC603", "host `a` is listed twice"),
        ("{ssh: {hosts: [a]}}", ["cluster.nodes=2"], "MC603", "the recipe has 2 nodes, and `engine.ssh.hosts` lists 1 host"),
        ("{commands: {lease: 0.5}}", [], "MC102", "`lease` must be a number of at least 1, not 0.5"),
        ("{local: {lease: 5}}", [], "MC101", "`engine.local` has no key `lease`"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, engine: str, overrides: list[str], code: str, message: str) -> None:
    (found,) = loaded(tmp_path, engine, *overrides).report.diagnostics
    assert (found.code, found.message) == (code, message)


def test_the_engine_is_no_part_of_the_plan(tmp_path: Path) -> None:
    from meshctl.plan.resolve import resolve

    here, there = loaded(tmp_path, "local"), loaded(tmp_path, "{ssh: {hosts: [a]}}")
    assert resolve(here.recipe, here.endpoints) == resolve(there.recipe, there.endpoints)
    assert list(hosts_are_given(there.facts)) == [] if there.facts else False
