"""Shell completion. Shells ask by `meshctl complete SHELL`, as the scripts in this folder do.

    meshctl val|                                          words.py: commands and options of the command line
    meshctl launch --only r|                              sources.py: what an option or argument may be, named
                                                          beside each option in `cli/app.py`
    meshctl launch a.yaml groups.train.|                  overrides.py: keys of this recipe, and keys that
                                                          recipes have
    meshctl launch a.yaml layout@components.actor.p|      config groups and their options
    meshctl launch a.yaml groups.train.device_type=|      words, names of the recipe, sizes that divide

`line.py` finds the word in a shell's line and answers in the shell's terms. The scripts are not typer's,
which add a space behind `groups.` and do not complete values behind `=`. The recipe is composed as by
`validate`, nothing is executed, and any error results in an empty answer.
"""
