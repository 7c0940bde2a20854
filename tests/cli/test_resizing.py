"""The recipe of a run that loses workers for good is read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.cli.resizing import resizing_of
from meshctl.plan.resizing import CannotResize, Lost
from meshctl.run.directory import RunDir, Start


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "again: .* it has no `recipe.yaml`"), ("groups: {one: {ranks", "again: this `{` is not closed")],
)
def test_a_recipe_that_can_no_longer_be_read_ends_the_run_in_order(
    tmp_path: Path, text: str | None, why: str
) -> None:
    run = RunDir(tmp_path)
    run.plan.write_text("{}")
    run.start.write_text(Start(()).to_json())
    if text is not None:
        run.recipe.write_text(text)
    with pytest.raises(CannotResize, match=why):
        resizing_of(run)(Lost(nodes=frozenset({1})))
