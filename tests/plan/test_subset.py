"""One group of a plan alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshctl.plan.model import Best, Checkpoint, Stop
from meshctl.plan.subset import only
from tests.runtime.plans import call, plan

PLAN = plan(
    {"a": 1, "b": 2},
    {"source": ("a", {}), "model": ("b", {})},
    [call("batch", "source.next", samples=4), call("eval", "model.loss", "batch")],
)


@pytest.mark.parametrize(("group", "is_kept"), [("a", False), ("b", True)])
def test_metrics_of_other_groups_neither_end_the_run_nor_rank_checkpoints(group: str, is_kept: bool) -> None:
    stop, best = Stop("eval.loss"), Best("eval.loss")
    named = replace(
        PLAN.run, stop=stop, checkpoint=Checkpoint(keep=2, best=best), show=("eval.loss", "batch.x")
    )
    run = only(replace(PLAN, run=named), group, ["batch -> eval"]).plan.run
    assert run.stop == (stop if is_kept else None)
    assert run.checkpoint == Checkpoint(keep=2, best=best if is_kept else None)
    assert run.show == (("eval.loss",) if is_kept else ("batch.x",))
