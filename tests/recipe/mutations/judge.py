"""Judges the report of a mutated recipe."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from meshctl.diagnostics import Diagnostic, Report
from meshctl.recipe import fixes
from meshctl.recipe.load import Loaded, load
from tests.recipe.mutations import forms, layout, models, spelling, values, yaml_syntax  # noqa: F401, they register kinds
from tests.recipe.mutations.correct_recipes import CORRECT, FOLDER
from tests.recipe.mutations.mutation import KINDS, Mutation, NoPlace


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    outcome: str
    """`restored` and `explained` are as they should be, `valid` is a recipe with another meaning; others name
    what is wrong."""
    report: Report


GOOD = ("restored", "explained")
MAX_TRIES = 10
"""Maximum number of rounds over all recipes in search of a place."""
MAX_ROUNDS = 3
"""Maximum number of times that the fixes of a report are applied."""


def mutations(count: int, seed: int, kinds: Sequence[str] = ()) -> Iterator[Mutation]:
    """Yields so many mutations, of all kinds in turn."""
    chance = random.Random(seed)
    names = list(kinds) or list(KINDS)
    for number in range(count):
        yield _one(names[number % len(names)], chance)


def _one(name: str, chance: random.Random) -> Mutation:
    for _ in range(MAX_TRIES):
        for recipe in chance.sample(CORRECT, len(CORRECT)):
            with suppress(NoPlace):
                made = KINDS[name](recipe, chance)
                if made.override or made.text != recipe.text:
                    return replace(made, kind=name)
    raise AssertionError(f"no recipe has a place for {name}")


def loaded(mutation: Mutation, text: str, override: str) -> Loaded:
    path = FOLDER / mutation.recipe.name
    held = {str(path.resolve()): text.encode()}
    overrides = [override] if override else []
    return load(mutation.recipe.name, overrides, FOLDER, environ={"HOME": "/home/me"}, held=held)


def judge(mutation: Mutation) -> Verdict:
    report = loaded(mutation, mutation.text, mutation.override).report
    return Verdict(mutation, _outcome(mutation, report), report)


def _outcome(mutation: Mutation, report: Report) -> str:
    errors = report.errors
    if not errors:
        return "valid"
    if len(errors) > 1:
        return "several"
    if not _is_at(mutation, errors[0]):
        return "elsewhere"
    if _is_restored(mutation, report):
        return "restored"
    output = f"{errors[0].message}\n{errors[0].help}\n" + "\n".join(span.label for span in _spans(errors[0]))
    return "explained" if any(re.search(one, output) for one in mutation.remedies) else "no remedy"


def _spans(found: Diagnostic) -> Iterator[Any]:
    yield from (span for span in (found.primary, *found.seconds) if span is not None)


def _is_at(mutation: Mutation, found: Diagnostic) -> bool:
    span = found.primary
    if span is None:
        return False
    text, file = mutation.text, mutation.recipe.name
    if mutation.override:
        text, file = mutation.override, "override 1"
    if span.file != file:
        return False
    offset = sum(len(line) for line in text.splitlines(keepends=True)[: span.line - 1]) + span.column - 1
    return any(offset <= stop and start <= offset + span.width for start, stop in mutation.places)


def _is_restored(mutation: Mutation, report: Report) -> bool:
    """Whether the fixes of a report lead to a recipe without errors."""
    text, override = mutation.text, mutation.override
    for _ in range(MAX_ROUNDS):
        edits = [fix for found in report.errors for fix in found.fixes]
        if not edits:
            break
        of_override = [fix for fix in edits if fix.span.file == "override 1"]
        override = fixes.apply(override, of_override) if of_override else override
        text = fixes.apply(text, [fix for fix in edits if fix.span.file == mutation.recipe.name])
        report = loaded(mutation, text, override).report
        if not report.errors:
            return True
    return False
