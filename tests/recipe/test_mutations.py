"""Correct recipes with one mistake: exactly this place is reported, once, with help that leads to a correct
recipe: the fixes of the report restore it, or its help says what to write. A mutation after which the recipe is
still valid has another meaning; such mutations are counted separately."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe import fixes
from tests.recipe.correct_recipes import CORRECT, loaded
from tests.recipe.mutations import KINDS, OVERRIDES, Mutation, mutations

MIN_GOOD = 0.97
"""Minimum share of mistakes whose report leads to a correct recipe."""
MAX_VALID = 0.06
"""Maximum share of mutations after which a recipe is valid with another meaning."""
MAX_ROUNDS = 3
"""Maximum number of times that the fixes of a report are applied."""


def test_the_recipes_are_correct_before_they_are_broken() -> None:
    for recipe in CORRECT:
        for override in (None, *OVERRIDES[recipe.name]):
            found = loaded(recipe.name, recipe.text, *[override] * (override is not None)).report.diagnostics
            assert not [one for one in found if one.severity != "note"], override


def report_of(mutation: Mutation, text: str, override: str) -> Report:
    return loaded(mutation.recipe.name, text, *[override] * bool(override)).report


def outcome(mutation: Mutation) -> str:
    """Returns `restored` or `explained` for a report as it should be, `valid` for a recipe with another meaning,
    and otherwise what is wrong."""
    report = report_of(mutation, mutation.text, mutation.override)
    if not report.errors:
        return "valid"
    if len(report.errors) > 1:
        return "several"
    [error] = report.errors
    if not is_at(mutation, error):
        return "elsewhere"
    if is_restored(mutation, report):
        return "restored"
    spans = [span for span in (error.primary, *error.seconds) if span is not None]
    output = "\n".join([error.message, error.help, *(span.label for span in spans)])
    return "explained" if any(re.search(one, output) for one in mutation.remedies) else "no remedy"


def is_at(mutation: Mutation, found: Diagnostic) -> bool:
    file, text = (
        ("override 1", mutation.override) if mutation.override else (mutation.recipe.name, mutation.text)
    )
    if (span := found.primary) is None or span.file != file:
        return False
    offset = sum(len(line) for line in text.splitlines(keepends=True)[: span.line - 1]) + span.column - 1
    return any(offset <= stop and start <= offset + span.width for start, stop in mutation.places)


def is_restored(mutation: Mutation, report: Report) -> bool:
    """Returns whether the fixes of a report lead to a recipe without errors."""
    text, override = mutation.text, mutation.override
    for _ in range(MAX_ROUNDS):
        edits = [fix for found in report.errors for fix in found.fixes]
        if not edits:
            break
        if of_override := [fix for fix in edits if fix.span.file == "override 1"]:
            override = fixes.apply(override, of_override)
        text = fixes.apply(text, [fix for fix in edits if fix.span.file == mutation.recipe.name])
        report = report_of(mutation, text, override)
        if not report.errors:
            return True
    return False


@pytest.mark.parametrize(
    ("count", "seed"),
    [
        (120, 3),
        pytest.param(10_000, 1, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_a_mistake_is_reported_where_it_is_with_what_mends_it(count: int, seed: int) -> None:
    assert len(KINDS) >= 40
    counts = Counter((one.kind, outcome(one)) for one in mutations(count, seed))
    valid = sum(number for (_, how), number in counts.items() if how == "valid")
    misleading = {
        key: number for key, number in counts.items() if key[1] in ("several", "elsewhere", "no remedy")
    }
    print(f"left valid: {valid}; misleading: {misleading}")
    assert valid <= MAX_VALID * count
    assert sum(misleading.values()) <= (1 - MIN_GOOD) * (count - valid), misleading
