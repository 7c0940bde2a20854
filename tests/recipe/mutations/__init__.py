"""Breaks correct recipes in one place, and judges the report.

    correct_recipes.py    the correct recipes
    mutation.py           a mutation, and the table of their kinds
    spelling.py, layout.py, values.py, yaml_syntax.py, forms.py, models.py    the kinds of mutations
    judge.py              judges the report of a broken recipe
    __main__.py           prints the results of all kinds

A kind of mutation is a function that changes one random place of a recipe. It returns the changed text, the
place where a person would see the mistake, and what a help must say that restores a correct recipe. `judge`
loads the broken recipe and requires that exactly this place is reported, once, and that the fixes of the
report lead to a recipe without errors, or its help says what to write. A mutation after which the recipe is
still valid has another meaning; such mutations are counted separately.
"""
