"""Undefined names: one report for each."""

from __future__ import annotations

import pytest

from tests.recipe.correct_recipes import errors_of


@pytest.mark.parametrize(
    ("was", "new", "code"),
    [
        ("  judge:\n    _target_", "  jduge:\n    _target_", "MC512"),
        ("  metrics:", "  metrcs:", "MC560"),
        ("  sampler:\n", "  samplr:\n", "MC512"),
        ("  rollout:\n", "  rolout:\n", "MC500"),
    ],
)
def test_a_misspelt_name_is_reported_once(was: str, new: str, code: str) -> None:
    (one,) = errors_of("grpo.yaml", (was, new))
    assert one.code == code and one.help.startswith("did you mean")


def test_a_name_that_is_missing_is_reported_once() -> None:
    (one,) = errors_of("grpo.yaml", ("group: rollout", "group: inference"))
    assert one.code == "MC500" and {span.label for span in one.seconds} == {"and here"}
    assert one.help == "available: `rollout`, `train` and `judge`"


@pytest.mark.parametrize("written", ["[batch rollouts]", "batch rollouts"])
def test_names_without_a_comma_between_them(written: str) -> None:
    (one,) = errors_of("grpo.yaml", ("in: rollouts", f"in: {written}"))
    assert one.code == "MC530" and not one.fixes
    assert one.help == "write `,` between the names of the stages: [batch, rollouts]"
