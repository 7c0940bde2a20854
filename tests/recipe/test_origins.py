"""The origin of each value: its place, its kind, and the values that it replaced. `compose/test_composing_as_hydra.py`
checks the places for any defaults lists and overrides."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from meshctl.recipe.load import Loaded, load
from meshctl.recipe.origins import Origin, line_of, origins
from meshctl.text.redaction import HIDDEN
from tests.recipe.compose.test_composition import write

FILES = {
    "recipe.yaml": """\
defaults:
  - base
  - paint@vars.paint: red
  - _self_
name: origins
groups:
  train: {ranks: 4, device_type: cpu, program: run.py, args: [x, --token, t0k], env: {HF_TOKEN: "${oc.env:TOKEN}", API_KEY: abcdefgh}}
vars:
  paint: {size: 4}
  list: [1, two]
  anchor: &same {one: 1, two: 2}
  merged: {<<: *same, two: 3}
  alias: *same
  from: ${vars.paint.size} and ${.list.0}
  chain: ${vars.from}
  old: {token: was-secret}
  word: abcdefgh
run: {steps: 100, dir: "${oc.env:HOME_DIR}/x"}
""",
    "paint/red.yaml": "color: red\nsize: 2\n",
    "run.py": "",
}
OVERRIDES_GIVEN = ["run.steps=7", "vars.list=[3]", "+vars.new={a: {b: 1}}", "vars.old=1"]


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Origin]:
    write(tmp_path, FILES)
    loaded = load(
        "recipe.yaml", OVERRIDES_GIVEN, tmp_path, environ={"TOKEN": "t", "HOME_DIR": "/home/somebody"}
    )
    assert not loaded.report.errors, loaded.report
    return {".".join(origin.path): origin for origin in origins(loaded)}


def place(origin: Origin) -> str:
    assert origin.span is not None
    return f"{origin.span.file}:{origin.span.line}:{origin.span.column}"


@pytest.mark.parametrize(
    ("path", "kind", "written", "replaced"),
    [
        ("run.steps", "override", "override 1:1:11", [(100, "recipe.yaml")]),
        ("vars.new.a.b", "override", "override 3:1:19", []),
        ("vars.paint.color", "file", "paint/red.yaml:1:8", []),
        ("vars.paint.size", "recipe", "recipe.yaml:9:17", [(2, "paint/red.yaml")]),
        ("vars.alias.one", "recipe", "recipe.yaml:11:23", []),
        ("vars.merged.one", "recipe", "recipe.yaml:11:23", []),
        ("vars.merged.two", "recipe", "recipe.yaml:12:28", [(2, "recipe.yaml")]),
        ("vars.list.0", "override", "override 2:1:12", [(1, "recipe.yaml")]),
        ("vars.old", "override", "override 4:1:10", [({"token": HIDDEN}, "recipe.yaml")]),
        ("name", "recipe", "recipe.yaml:5:7", []),
        ("run.dir", "recipe", "recipe.yaml:18:24", [("runs", "conf/base.yaml")]),
        ("run.grace", "file", "conf/base.yaml:5:10", []),
    ],
)
def test_where_a_value_was_written_and_what_it_replaced(
    found: dict[str, Origin], path: str, kind: str, written: str, replaced: list[tuple[Any, str]]
) -> None:
    origin = found[path]
    assert origin.kind == kind and place(origin).endswith(written)
    assert [was.value for was in origin.replaced] == [value for value, _ in replaced]
    for was, (_, file) in zip(origin.replaced, replaced, strict=True):
        assert was.span.file.endswith(file)


def test_what_a_reference_comes_to(found: dict[str, Origin]) -> None:
    origin = found["vars.from"]
    assert origin.value == "${vars.paint.size} and ${.list.0}" and origin.resolved == ("4 and 3",)
    assert [(one.text, one.path, one.span and one.span.file) for one in origin.references] == [
        ("${vars.paint.size}", ("vars", "paint", "size"), "recipe.yaml"),
        ("${.list.0}", ("vars", "list", "0"), "override 2"),
    ]
    assert found["vars.chain"].resolved == ("4 and 3",)


def test_secrets_and_the_environment_are_hidden(found: dict[str, Origin]) -> None:
    assert found["run.dir"].value == "${oc.env:HOME_DIR}/x" and found["run.dir"].resolved == (HIDDEN,)
    assert found["groups.train.env.HF_TOKEN"].value == "${oc.env:TOKEN}"
    assert found["groups.train.env.API_KEY"].value == HIDDEN
    assert [found[f"groups.train.args.{index}"].value for index in range(3)] == ["x", "--token", HIDDEN]
    assert found["vars.word"].value == HIDDEN, "the same text under a secret's key"


ARITHMETIC = Path(__file__).parent / "golden" / "base_of_all.yaml"


def test_what_is_made_up_of_the_file_and_the_machine(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    (tmp_path / "named.yaml").write_text("groups: {a: {ranks: 8, program: x.py}}\n")
    loaded = load("named.yaml", [], tmp_path, detect=lambda: "cuda")
    found = {".".join(origin.path): (origin.value, origin.kind, origin.note) for origin in origins(loaded)}
    assert found["name"] == ("named", "inferred", "the file's name")
    assert found["groups.a.device_type"] == ("cuda", "inferred", "this machine's")


def test_a_layout_that_was_replaced(tmp_path: Path) -> None:
    loaded = load(ARITHMETIC.name, ["layout@components.actor.parallel=hsdp"], ARITHMETIC.parent, environ={})
    found = {".".join(origin.path): origin for origin in origins(loaded)}
    fsdp = found["components.actor.parallel.fsdp_size"]
    assert fsdp.span is not None and fsdp.span.file.endswith("conf/layout/hsdp.yaml")
    assert [(was.value, was.span.file) for was in fsdp.replaced] == [("auto", "base_of_all.yaml")]


def test_a_wrong_recipe_has_origins_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "groups: {a: !!python/name:x y, b: {ranks: nine}}\nvars: {c: '${nope}'}\n"
    )
    loaded: Loaded = load("r.yaml", ["run.steps=2"], tmp_path)
    found = {".".join(origin.path): origin.value for origin in origins(loaded)}
    assert found["groups.a"] == "<unreadable>" and found["groups.b.ranks"] == "nine"
    assert found["vars.c"] == "${nope}" and found["run.steps"] == 2


TEXTS = ["x", "x y", "true", "7", "a: b", "${vars.a}", "it's", "", " x", "#", "é", "a\nb"]


@pytest.mark.parametrize("value", [1, 1.5, True, None, *TEXTS, [1, "a"], {"a": ["b", {}]}])
def test_a_value_on_one_line_is_yaml(value: Any) -> None:
    line = line_of(value)
    assert "\n" not in line and OmegaConf.to_container(OmegaConf.create(f"a: {line}")) == {"a": value}
