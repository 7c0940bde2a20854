"""Configurations of other systems: what their keys are in a recipe, and what the rules say about them.

    source = read([Path("train.sh")])                  source.py     keys with values and places
    table = table_of(source)                           table.py      formats/verl.yaml: key -> key of a recipe
    found = convert(source, table)                     convert.py    a recipe, and what became of each key
    found.text                                         write.py      the recipe as a person writes it
    findings(found)                                    lint.py       the rules, at the lines of the source

Nothing of another system is imported, and no file of a user is executed.
"""
