"""Returns the facts of a recipe that is given as plain data."""

from __future__ import annotations

from typing import Any

from meshctl.diagnostics import Span
from meshctl.recipe.code.classes import Code
from meshctl.recipe.code.group_code import GroupCode
from meshctl.recipe.compose.yaml_tree import of_plain
from meshctl.recipe.reader import read
from meshctl.recipe.rules import Facts
from tests.paths import RECIPE_GOLDEN

CODE = GroupCode(Code((str(RECIPE_GOLDEN),)))


def facts_of(recipe: dict[str, Any]) -> Facts:
    """Its classes are those of the golden recipes."""
    tree = of_plain(recipe, Span("x.yaml", 1, 1))
    result = read(tree, "stem")
    assert not result.found, result.found
    return Facts(result, tree, CODE)
