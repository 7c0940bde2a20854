"""Reads and checks a recipe's files and overrides without executing anything.

load.py            the passes from YAML to a `Recipe`, by name
fields.py          every key, declared once; field_types.py, device_types.py, section_types.py: value types
model.py           `Recipe` and its parts: the values that were read
compose/           files and overrides -> one tree, in which each value knows its place
mistakes.py        misspelt and misplaced keys: what was meant
reader.py          the tree -> a `Recipe`, by the table of `fields.py`
code/              the classes that `_target_` names, read as text
rules/             relations between values; one file for one subject
fixes.py           safe edits of a recipe's text (`validate --fix`)
secrets.py         which values are secret, and reports without them
origins.py         where each value comes from (`config --origins`)
templates.py       the recipes that `init` writes
"""
