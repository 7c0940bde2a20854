"""The JSON Schema of recipes, for editors. It is derived from `fields.py`, which declares every key of a
recipe."""

from __future__ import annotations

from meshctl.recipe.editor_schema_parts import Schema, plain_data
from meshctl.recipe.fields import MODEL, PARALLEL, RECIPE, SECTIONS
from meshctl.recipe.tracker_fields import TRACKER_SECTIONS

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> Schema:
    """Returns the whole schema as plain data."""
    sections = (section for section in (*SECTIONS, *TRACKER_SECTIONS) if section is not RECIPE)
    definitions = {one.name: one.schema(has_shorthand=one in (PARALLEL, MODEL)) for one in sections}
    return {
        "$schema": DRAFT,
        "title": "meshctl recipe",
        "description": "Device groups, the components that run on them, and the data flow between them.",
        **RECIPE.schema(),
        "$defs": {**definitions, "data": plain_data()},
    }
