"""Mutations of recipes with models of transformers and their data."""

from __future__ import annotations

import random

from tests.recipe.mutations.correct_recipes import Correct
from tests.recipe.mutations.mutation import Mutation, kind, misspell
from tests.recipe.mutations.spelling import pick_text


@kind
def model_folder_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    """The folder may be on the machine that runs the recipe, so a note is all that can be said."""
    item = pick_text(recipe, chance, "components.*.args.model")
    return misspell(recipe, (item.value[0] + len("./"), item.value[1]), chance)


@kind
def data_file_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    item = pick_text(recipe, chance, "components.pairs.args.path")
    return misspell(recipe, item.value, chance)


@kind
def loss_misspelt(recipe: Correct, chance: random.Random) -> Mutation:
    return misspell(recipe, pick_text(recipe, chance, "components.*.args.loss").value, chance)
