"""What may stand where the cursor is: shells ask by `meshctl complete SHELL`, as the scripts here do.

    meshctl val|                                          words.py: commands, options, recipes
    meshctl launch a.yaml groups.train.|                  overrides.py: keys of this recipe, and keys that
                                                          recipes have
    meshctl launch a.yaml layout@components.actor.p|      config groups and their options
    meshctl launch a.yaml groups.train.device_type=|      words, names of what the recipe has, sizes that
                                                          divide

`line.py` finds the word in a shell's line and gives the answer in its terms. For a word of a recipe neither
typer nor Hydra is loaded, nothing is executed, and whatever goes wrong is an empty answer.
"""
