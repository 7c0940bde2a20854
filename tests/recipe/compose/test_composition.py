"""Composition: where files are, groups called like keys, spans and layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.recipe.compose.yaml_tree import leaves, plain
from tests.recipe.compose.composing import composed, write

# Where the files are

ANYWHERE = {
    "far away/my recipe (1)=ä.yml": "defaults: [base, ./near, paint@vars.paint: red, _self_]\nname: far\n",
    "far away/near.yaml": "defaults: [./nearer]\nvars: {near: 1}\n",
    "far away/nearer.yaml": "vars: {nearer: 2}\n",
    "far away/conf/paint/red.yaml": "color: red\n",
    "far away/other/blue.yaml": "color: blue\n",
}


def test_composes_from_any_path_and_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are named as the user would."""
    recipe = write(tmp_path, ANYWHERE)
    near = (
        (tmp_path, "far away/near.yaml"),
        (recipe.parent, "near.yaml"),
        (Path("/usr"), str(tmp_path / "far away/near.yaml")),
    )
    for cwd, name in near:
        monkeypatch.chdir(cwd)
        tree = composed(recipe, "+other@vars.paint2=blue", cwd=cwd).tree
        paints = {"paint": {"color": "red"}, "paint2": {"color": "blue"}}
        assert (
            plain(tree)["vars"] == {"near": 1, "nearer": 2, **paints} and plain(tree)["run"]["dir"] == "runs"
        )
        node = tree.at(("vars", "near"))
        assert node is not None and node.span.file == name


KEY_GROUPS = {
    "recipe.yaml": "defaults: [groups: split, run: short, _self_]\nrun: {steps: 7}\n",
    "conf/groups/split.yaml": "a: {ranks: 1}\nb: {ranks: 1}\n",
    "conf/groups/one.yaml": "a: {ranks: 2}\n",
    "conf/components/own.yaml": "c: {group: a}\n",
    "conf/pipeline/own.yaml": "s: {call: c.f}\n",
    "conf/cluster/own.yaml": "nodes: 3\n",
    "conf/run/mine.yaml": "{steps: 5, grace: 1}\n",
    "conf/run/nightly/deep.yaml": "steps: 6\n",
}


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        ([], "groups", {"a": {"ranks": 1}, "b": {"ranks": 1}}),
        ([], "run", {"steps": 7, "checkpoint": {"every": 50, "keep": 1}}),
        (["groups=one"], "groups", {"a": {"ranks": 2}}),
        (["groups=one", "groups.a.ranks=3"], "groups", {"a": {"ranks": 3}}),
        (["groups={a: {ranks: 4}}"], "groups", {"a": {"ranks": 4}, "b": {"ranks": 1}}),
        (["+components=own"], "components", {"c": {"group": "a"}}),
        (["+pipeline=own"], "pipeline", {"s": {"call": "c.f"}}),
        (["+cluster=own"], "cluster", {"nodes": 3}),
        (["run=mine"], "run", {"steps": 7, "grace": 1}),
        (["+run@vars.x=mine"], "vars", {"x": {"steps": 5, "grace": 1}}),
        (["+run/nightly@run=deep"], "run", {"steps": 6, "checkpoint": {"every": 50, "keep": 1}}),
        (["cluster={nodes: 2}"], "cluster", {"nodes": 2}),
        (["run=null"], "run", None),
        (["run=[]"], "run", []),
        (["~run"], "run", None),
        (["~groups.b"], "groups", {"a": {"ranks": 1}}),
    ],
)
def test_a_group_can_be_called_like_a_key_that_holds_a_mapping(
    tmp_path: Path, overrides: list[str], key: str, expected: object
) -> None:
    result = composed(write(tmp_path, KEY_GROUPS), *overrides)
    assert not result.found
    assert plain(result.tree).get(key) == expected


def test_an_absent_option_of_a_group_called_like_a_key(tmp_path: Path) -> None:
    result = composed(write(tmp_path, KEY_GROUPS), "groups=splt", "cluster=own")
    assert [(found.code, found.help) for found in result.found] == [
        ("MC201", "did you mean `split`?"),
        ("MC203", "to add it, write +cluster=own"),
    ]


def test_a_defaults_list_refers_to_its_other_choices_and_not_to_values(tmp_path: Path) -> None:
    files = {"conf/run/mine.yaml": "steps: 1\n", "conf/cluster/mine.yaml": "nodes: 1\n"}
    choices = {"recipe.yaml": "defaults: [run: mine, cluster: '${run}', _self_]\n"}
    result = composed(write(tmp_path, choices | files))
    assert not result.found
    assert plain(result.tree) == {"run": {"steps": 1}, "cluster": {"nodes": 1}}
    values = {"recipe.yaml": "defaults: [run: '${run.steps}', _self_]\nrun: {steps: mine}\n"}
    assert [found.code for found in composed(write(tmp_path, values | files)).found] == ["MC208"]


@pytest.mark.parametrize(
    ("files", "overrides", "expected"),
    [
        # A folder called like a key that holds one value is no group.
        (
            {"recipe.yaml": "name: x\nseed: 1\n", "seed/a.yaml": "x: 1\n", "name/b.yaml": "y: 1\n"},
            ["seed=3", "name=b"],
            {"name": "b", "seed": 3},
        ),
        # A recipe may be called like what it includes.
        (
            {"base.yaml": "defaults: [layout@vars.x: dp]\nname: mine\n"},
            [],
            {"vars": {"x": {"dp_size": "auto"}}, "name": "mine"},
        ),
        (
            {
                "recipe.yaml": "defaults: [paint: red, _self_]\n",
                "paint/red.yaml": "# @package vars.x\na: 1\n",
            },
            [],
            {"vars": {"x": {"a": 1}}},
        ),
        # A key of recipes needs no plus.
        (
            {"recipe.yaml": "groups: {a: {ranks: 1}}\n"},
            ["run.steps=3", "run.checkpoint.every=2", "groups.a.device_type=cpu", "seed=1"],
            {
                "groups": {"a": {"ranks": 1, "device_type": "cpu"}},
                "run": {"steps": 3, "checkpoint": {"every": 2}},
                "seed": 1,
            },
        ),
    ],
)
def test_recipes(tmp_path: Path, files: dict[str, str], overrides: list[str], expected: object) -> None:
    result = composed(write(tmp_path, files), *overrides)
    assert not result.found and plain(result.tree) == expected


# Where each value was written

SPANS = {
    "recipe.yaml": "defaults:\n  - paint@vars.paint: red\n  - _self_\nvars:\n  paint: {size: 4}\n  list: [1,  two]\n",
    "paint/red.yaml": "color: red\nsize: 2\n",
}


def test_every_value_has_its_span(tmp_path: Path) -> None:
    tree = composed(write(tmp_path, SPANS), "vars.list.0=7", "+vars.new={a: 1}").tree
    places = {
        ".".join(path): (leaf.span.file, leaf.span.line, leaf.span.column, leaf.span.width)
        for path, leaf in leaves(tree)
    }
    assert places == {
        "vars.paint.color": ("paint/red.yaml", 1, 8, 3),
        "vars.paint.size": ("recipe.yaml", 5, 17, 1),
        "vars.list.0": ("override 1", 1, 13, 1),
        "vars.list.1": ("recipe.yaml", 6, 14, 3),
        "vars.new.a": ("override 2", 1, 15, 1),
    }
    size = tree.at(("vars", "paint", "size"))
    assert size and size.was and (size.was.value, size.was.span.file) == (2, "paint/red.yaml")
    assert size.key and (size.key.line, size.key.column, size.key.width) == (5, 11, 4)


# Layouts

LAYOUTS = {
    "recipe.yaml": "components:\n  actor: {parallel: {fsdp_size: auto, tp_size: 2}}\n  other: {parallel: actor}\n  bare: {}\n",
    "named.yaml": "defaults: [layout@components.actor.parallel: fsdp_tp, _self_]\ncomponents: {actor: {parallel: {tp_size: 4}}}\n",
    "child.yaml": "defaults: [./recipe, layout@components.actor.parallel: hsdp, _self_]\n",
    "conf/layout/mine.yaml": "defaults: [hsdp, _self_]\ntp_size: 3\n",
}


HSDP = {"dp_size": 2, "fsdp_size": "auto"}
ACTOR = "components.actor.parallel"
CASES = [
    ("recipe", [f"layout@{ACTOR}=hsdp"], "actor", HSDP),
    ("recipe", [f"+layout@{ACTOR}=hsdp"], "actor", HSDP),
    ("recipe", ["layout@components.other.parallel=dp"], "other", {"dp_size": "auto"}),
    ("recipe", ["layout@components.bare.parallel=dp"], "bare", {"dp_size": "auto"}),
    ("recipe", [f"layout@{ACTOR}=mine"], "actor", {**HSDP, "tp_size": 3}),
    ("recipe", [f"{ACTOR}={{dp_size: 4}}"], "actor", {"dp_size": 4}),
    ("recipe", [f"{ACTOR}=other"], "actor", "other"),
    ("recipe", [f"{ACTOR}.tp_size=8"], "actor", {"fsdp_size": "auto", "tp_size": 8}),
    ("recipe", [f"{ACTOR}.pp_size=2"], "actor", {"fsdp_size": "auto", "tp_size": 2, "pp_size": 2}),
    ("recipe", ["components.bare.parallel.tp_size=8"], "bare", {"tp_size": 8}),
    ("recipe", [f"~{ACTOR}.tp_size"], "actor", {"fsdp_size": "auto"}),
    ("recipe", [f"{ACTOR}.tp_size=8", f"layout@{ACTOR}=dp"], "actor", {"dp_size": "auto", "tp_size": 8}),
    ("named", [], "actor", {"fsdp_size": "auto", "tp_size": 4}),
    ("named", [f"layout@{ACTOR}=hsdp"], "actor", HSDP),
    ("child", [], "actor", HSDP),
    ("child", [f"layout@{ACTOR}=tp2"], "actor", {"dp_size": "auto", "tp_size": 2}),
]


@pytest.mark.parametrize(("recipe", "overrides", "component", "expected"), CASES)
def test_a_layout_is_one_value(
    tmp_path: Path, recipe: str, overrides: list[str], component: str, expected: object
) -> None:
    write(tmp_path, LAYOUTS)
    result = composed(tmp_path / f"{recipe}.yaml", *overrides)
    assert not result.found
    node = result.tree.at(("components", component, "parallel"))
    assert node is not None and plain(node) == expected


PAINT = {"paint/red.yaml": "a: 1\n", "paint/blue.yaml": "a: 2\n", "size/red.yaml": "b: 1\n"}
WRONG_ENTRIES = [
    ("[override paint: red, size: red]", [], [("MC208", "recipe.yaml:1:39"), ("MC208", "recipe.yaml:1:28")]),
    ("[paint: red, paint: blue]", [], [("MC208", "recipe.yaml:1:19")]),
    ("[paint: red, size: '${pant}']", [], [("MC208", "recipe.yaml:1:30")]),
    ("[paint: red, size: '${paint}']", [], []),
    ("[paint: '???']", [], [("MC211", "recipe.yaml:1:19")]),
    ("[optional paint: gold]", ["paint=red"], []),
    ("[paint: red]", ["+paint=blue"], [("MC208", "override 1:1:8")]),
    ("[paint: red]", ["++paint=blue"], [("MC208", "override 1:1:3")]),
    ("[paint: red]", ["size=red"], [("MC203", "override 1:1:1")]),
    ("[paint: red]", ["~size"], [("MC209", "override 1:1:2")]),
    ("[paint: red]", ["paint=null"], [("MC211", "override 1:1:7")]),
]


@pytest.mark.parametrize(("entries", "overrides", "expected"), WRONG_ENTRIES)
def test_a_wrong_entry_is_reported_where_it_is(
    tmp_path: Path, entries: str, overrides: list[str], expected: list[tuple[str, str]]
) -> None:
    recipe = write(tmp_path, {"recipe.yaml": f"defaults: {entries}\nname: x\n", **PAINT})
    result = composed(recipe, *overrides)
    spans = [(found.code, found.primary) for found in result.found]
    assert [(code, f"{at.file}:{at.line}:{at.column}") for code, at in spans if at] == expected
    assert len(spans) == len(expected) and plain(result.tree)["name"] == "x"
