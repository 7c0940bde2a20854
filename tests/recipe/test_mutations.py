"""Correct recipes with one mistake: exactly this place is reported, with help that leads to a correct
recipe."""

from __future__ import annotations

from collections import Counter

import pytest

from meshctl.recipe.load import load
from tests.recipe.mutations.correct_recipes import CORRECT, FOLDER, Correct
from tests.recipe.mutations.forms import OVERRIDES
from tests.recipe.mutations.judge import GOOD, Verdict, judge, mutations
from tests.recipe.mutations.mutation import KINDS, is_own_key

MIN_GOOD = 0.97
"""Minimum share of mistakes whose report leads to a correct recipe."""
MAX_VALID = 0.06
"""Maximum share of mutations after which a recipe is valid with another meaning."""


@pytest.mark.parametrize("name", [recipe.name for recipe in CORRECT])
def test_the_recipes_are_correct_before_they_are_broken(name: str) -> None:
    for override in ("", *OVERRIDES[name]):
        found = load(name, [override] if override else [], FOLDER, environ={"HOME": "/"}).report.diagnostics
        assert not [one for one in found if one.severity != "note"], override


@pytest.mark.parametrize("recipe", CORRECT, ids=lambda recipe: recipe.name)
def test_an_empty_text_is_one_error(recipe: Correct) -> None:
    for item in recipe.items:
        if item.kind == "text" and is_own_key(item.path):
            text = f'{recipe.text[: item.value[0]]}""{recipe.text[item.value[1] :]}'
            held = {str((FOLDER / recipe.name).resolve()): text.encode()}
            errors = load(recipe.name, [], FOLDER, environ={"HOME": "/"}, held=held).report.errors
            assert len(errors) == 1, item.path


def check(verdicts: list[Verdict]) -> None:
    """Prints the outcome of each kind of mutation, and fails if too many reports are misleading."""
    counts = Counter((one.mutation.kind, one.outcome) for one in verdicts)
    misleading = {key: count for key, count in counts.items() if key[1] not in (*GOOD, "valid")}
    print(f"left valid: {sum(one.outcome == 'valid' for one in verdicts)}; misleading: {misleading}")
    valid = sum(one.outcome == "valid" for one in verdicts)
    assert valid <= MAX_VALID * len(verdicts)
    assert sum(misleading.values()) <= (1 - MIN_GOOD) * (len(verdicts) - valid), misleading


def test_a_mistake_is_reported_where_it_is_with_what_mends_it() -> None:
    assert len(KINDS) >= 40
    check([judge(one) for one in mutations(1_000, seed=3)])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_ten_thousand_mistakes_are_reported_where_they_are() -> None:
    check([judge(one) for one in mutations(10_000, seed=1)])
