"""Reads and checks a recipe's files and overrides without executing anything.

load.py            the passes from YAML to a `Recipe`, by name
fields.py          every key, declared once; field_types.py, device_types.py, section_types.py: value types
model.py           `Recipe` and its parts: the values that were read
compose/           files and overrides -> one tree, in which each value knows its place
structure.py       misspelt and misplaced keys; misplaced.py, spacing.py, suggestions.py: what was meant
reader.py          the tree -> a `Recipe`, by the table of `fields.py`
code/              the classes that `_target_` names, read as text
rules/             relations between values; one file for one subject
fixes.py           safe edits of a recipe's text (`validate --fix`)
secrets.py         which values are secret; masking.py removes them from reports
origins.py         where each value comes from (`config --origins`)
editor_schema.py   the JSON Schema, derived from `fields.py`
templates.py       the recipes that `init` writes
"""
