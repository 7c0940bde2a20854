"""The table of fields is the only source of keys: a field that is added to it is known everywhere."""

from dataclasses import fields as attributes

import pytest

from meshctl.cli.completion.overrides import Outline, overrides
from meshctl.diagnostics import Span
from meshctl.recipe import field_types, fields, model
from meshctl.recipe.compose.yaml_tree import BROKEN, Node, of_plain
from meshctl.recipe.engine_fields import OPTIONS
from meshctl.recipe.field_types import Field, FieldReader, Section
from meshctl.recipe.fields import (
    COMPONENT,
    DISPATCH,
    GROUP,
    INPUT,
    PARALLEL,
    RECIPE,
    RUN,
    SECTIONS,
    STAGE,
    field_at,
    section_at,
)
from meshctl.recipe.mistakes import ALIASES, correct, nearest_key
from meshctl.recipe.section_types import Defaults, Nested
from meshctl.run import settings

HERE = Span("recipe.yaml", 1, 1)
PATHS: dict[str, tuple[str, ...]] = {
    "recipe": (),
    "cluster": ("cluster",),
    "pool": ("cluster", "nodes", "gpu"),
    "group": ("groups", "g"),
    "component": ("components", "c"),
    "parallel": ("components", "c", "parallel"),
    "model": ("components", "c", "model"),
    "call": ("pipeline", "called"),
    "sync": ("pipeline", "synced"),
    "stage": ("pipeline", "s"),
    "block": ("pipeline", "repeated"),
    "inner": ("pipeline", "repeated", "stages", "s"),
    "repeat": ("pipeline", "repeated", "repeat"),
    "dispatch": ("pipeline", "called", "dispatch"),
    "input": ("pipeline", "called", "in", "x"),
    "run": ("run",),
    "checkpoint": ("run", "checkpoint"),
    "stop": ("run", "stop"),
    "best": ("run", "checkpoint", "best"),
    "restarts": ("run", "restarts"),
    "elastic": ("run", "elastic", "g"),
    "logs": ("run", "logs"),
    "trace": ("run", "trace"),
    "engine": ("engine",),
    **{section.name: ("engine", section.name) for section in OPTIONS},
    "volume": ("engine", "jobset", "volumes", "v"),
}
TREE = of_plain(
    {
        "groups": {"g": {}},
        "components": {"c": {"parallel": {}, "model": {}}},
        "pipeline": {
            "called": {"call": "c.m", "in": {"x": {}}, "dispatch": {}},
            "synced": {"sync": "c"},
            "s": {},
            "repeated": {"repeat": {}, "stages": {"s": {}}},
        },
        "run": {"checkpoint": {"best": {}}, "stop": {}, "elastic": {"g": {}}},
        "cluster": {"nodes": {"gpu": {}}},
        "engine": {"jobset": {"volumes": {"v": {}}}},
    },
    HERE,
)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_field_is_known_wherever_keys_are(section: Section) -> None:
    described = section.schema()["properties"]
    values = FieldReader().section(Node({}, HERE), PATHS[section.name], section)
    for field in section.fields:
        path = (*PATHS[section.name], field.key)
        assert field_at(path, TREE) == field and described[field.key]["description"] == field.doc
        assert field.doc and len(field.doc) <= 220
        assert values[field.key] == field.value_if_absent
        if field is not RECIPE.by_key["defaults"]:
            proposed = {one.text: one.description for one in overrides(Outline(TREE), "++" + ".".join(path))}
            found = [label for text, label in proposed.items() if text.strip("+=.") == ".".join(path)]
            assert found and {*found} == {field.doc}
        own = FieldReader()
        field.type.read(own, Node(BROKEN, HERE), ("x",))
        assert field.type.schema() and (own.wrong or isinstance(field.type, Defaults))
        assert not {*field.aliases.split()} & {*section.keys}  # an alias is no key of its own section


def test_a_new_key_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is added to a section is read, checked, documented, completed and suggested."""
    new = Field(
        "cool_down", field_types.Seconds(), "Seconds of rest between steps.", default=2.5, aliases="rest"
    )
    section = Section("run", "`run`", (*RUN.fields, new))
    nested = Field("run", Nested(section), "")
    monkeypatch.setitem(RECIPE.by_key, "run", nested)
    monkeypatch.setitem(ALIASES, "rest", {"cool_down": None})
    own = FieldReader()
    assert own.section(of_plain({}, HERE), ("run",), section)["cool_down"] == 2.5
    assert own.section(of_plain({"cool_down": 4}, HERE), ("run",), section)["cool_down"] == 4.0
    own.section(of_plain({"cool_down": -1}, HERE), ("run",), section)
    assert [found.message for found in own.found] == ["`cool_down` must be a number of at least 0, not -1"]
    (unknown,) = correct(of_plain({"run": {"cool_down": 1, "rest": 1}}, HERE)).found
    assert (unknown.message, unknown.help) == ("`run` has no key `rest`", "did you mean `cool_down`?")
    described = section.schema()["properties"]["cool_down"]
    assert (described["description"], described["default"]) == ("Seconds of rest between steps.", 2.5)
    assert [
        one.description for one in overrides(Outline(TREE), "run.cool") if one.text == "run.cool_down="
    ] == [new.doc]
    assert [field.key for field in section.defaults()][-1] == "cool_down"


def test_defaults_of_the_model_are_those_of_the_table() -> None:
    classes = {
        GROUP: (model.DeviceGroup, model.Program),
        COMPONENT: (model.Component,),
        STAGE: (model.Stage,),
        RUN: (settings.Run,),
        fields.CHECKPOINT: (settings.Checkpoint,),
        fields.STOP: (settings.Stop,),
        fields.BEST: (settings.Best,),
        fields.RESTARTS: (settings.Restarts,),
        PARALLEL: (model.Sizes,),
        DISPATCH: (model.DispatchWords,),
    }
    for section, kinds in classes.items():
        defaults = {one.name: one.default for kind in kinds for one in attributes(kind)}
        for field in section.defaults():
            assert defaults[field.key] == field.default


def test_sections_are_where_the_table_states() -> None:
    assert section_at(("pipeline", "called", "in", "x", "dispatch"), TREE) is DISPATCH
    assert section_at(("pipeline", "called", "in", "x"), TREE) is INPUT
    assert section_at(("components", "nobody"), TREE) is COMPONENT
    for path in ("groups", "vars", "vars.x", "run.steps", "run.x.y", "pipeline.s.in"):
        assert section_at(tuple(path.split(".")), TREE) is None


def test_words_of_other_systems() -> None:
    assert nearest_key("Tensor-Model-Parallel-Size", PARALLEL.keys) == "tp_size"
    assert nearest_key("devices", GROUP.keys) == "ranks"
