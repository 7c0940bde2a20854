"""The table of fields is the only source of keys: a field that is added to it is known everywhere."""

from dataclasses import fields as attributes

import pytest

from meshctl.cli.completion.overrides import Outline, overrides
from meshctl.diagnostics import Span
from meshctl.recipe import fields, model
from meshctl.recipe.compose.yaml_tree import BROKEN, Node, of_plain
from meshctl.recipe.engine_fields import OPTIONS
from meshctl.recipe.field_types import FieldReader, Section
from meshctl.recipe.fields import (
    COMPONENT,
    DISPATCH,
    GROUP,
    PARALLEL,
    RECIPE,
    RUN,
    SECTIONS,
    STAGE,
    field_at,
)
from meshctl.recipe.section_types import Defaults
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
