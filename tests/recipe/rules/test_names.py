"""Undefined names: one report for each, at the misspelt name."""

from __future__ import annotations

import pytest

from meshctl.recipe import fixes
from tests.recipe.correct_recipes import TEXTS, errors_of

GRPO = TEXTS["grpo.yaml"]


@pytest.mark.parametrize(
    ("was", "new", "code"),
    [("  judge:\n    _target_", "  jduge:\n    _target_", "MC512"), ("  metrics:", "  metrcs:", "MC560")],
)
def test_a_name_that_is_used_once_is_reported_where_it_is_used(was: str, new: str, code: str) -> None:
    (one,) = errors_of("grpo.yaml", (was, new))
    assert one.code == code and one.help.startswith("did you mean")


@pytest.mark.parametrize(
    ("was", "new", "code", "wrong"),
    [("  sampler:\n", "  samplr:\n", "MC512", "samplr"), ("  rollout:\n", "  rolout:\n", "MC500", "rolout")],
)
def test_a_name_that_is_used_twice_is_reported_where_it_is_defined(
    was: str, new: str, code: str, wrong: str
) -> None:
    text = GRPO.replace(was, new)
    (one,) = errors_of("grpo.yaml", (was, new))
    assert one.primary is not None and one.code == code
    assert text.splitlines()[one.primary.line - 1].strip() == f"{wrong}:"
    assert len(one.seconds) >= 2 and fixes.apply(text, one.fixes) == GRPO


def test_a_name_that_is_missing_is_reported_once() -> None:
    (one,) = errors_of("grpo.yaml", ("group: rollout", "group: inference"))
    assert one.code == "MC500" and {span.label for span in one.seconds} == {"and here"}
    assert one.help == "available: `rollout`, `train` and `judge`"


@pytest.mark.parametrize("written", ["[batch rollouts]", "batch rollouts"])
def test_names_without_a_comma_between_them(written: str) -> None:
    (one,) = errors_of("grpo.yaml", ("in: rollouts", f"in: {written}"))
    assert one.code == "MC530" and not one.fixes
    assert one.help == "write `,` between the names of the stages: [batch, rollouts]"
