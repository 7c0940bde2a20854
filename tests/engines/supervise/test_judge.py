"""What the metrics of a run do to it: a number that is not finite fails it, one that no longer improves ends
it, and the best checkpoints are kept."""

from __future__ import annotations

import math
from pathlib import Path

from processes import Launch, Launched, plan_of, rows_of

from meshctl.engines.supervise.judge import Judge
from meshctl.plan.model import Best, Checkpoint, Run, Stop
from meshctl.run.events import Event
from meshctl.run.metrics import NotFinite

LOSS = NotFinite("metrics.loss", 7, math.nan, "metrics", (("train", 1),))
NORM = NotFinite("metrics.norm", 7, math.inf, "metrics", tuple(("train", rank) for rank in range(6)))


def test_the_first_number_that_is_not_finite_fails_the_run() -> None:
    judge = Judge(Run(), [])
    judge.add({"step": 6, "metrics.loss": 1.0}, [])
    assert judge.fault == ""
    judge.add({"step": 7, "metrics.loss": None}, [LOSS])
    judge.add({"step": 8, "metrics.loss": None}, [NORM])
    assert judge.fault == "metric `metrics.loss` is NaN in step 7 (stage metrics, train:1)"
    assert judge.warnings() == []


def test_a_fault_names_some_of_many_workers_and_metrics() -> None:
    judge = Judge(Run(), [])
    judge.add({"step": 7}, [NORM, LOSS])
    where = "stage metrics, train:0, train:1, train:2, train:3, train:4 and train:5"
    assert judge.fault == f"metric `metrics.norm` is infinite in step 7 ({where}), and 1 more are not finite"


def test_ignored_numbers_are_reported_once_for_each_metric() -> None:
    judge = Judge(Run(on_nan="ignore"), [])
    for _ in range(3):
        judge.add({"step": 7}, [LOSS])
    goes_on = "; the run goes on, and later ones are not reported"
    assert judge.warnings() == [f"metric `metrics.loss` is NaN in step 7 (stage metrics, train:1){goes_on}"]
    judge.add({"step": 8}, [LOSS, NORM])
    assert [text.partition(" is ")[0] for text in judge.warnings()] == ["metric `metrics.norm`"]
    assert judge.fault == ""


def test_a_metric_that_no_step_reported_is_a_warning_at_the_end() -> None:
    named = Run(
        show=("a.x", "b.x"), stop=Stop("c.x"), checkpoint=Checkpoint(best=Best("d.x")), on_nan="ignore"
    )
    judge = Judge(named, [{"step": 1, "d.x": 1.0}])
    judge.add({"step": 2, "a.x": None}, [])
    assert judge.warnings_at_end() == [
        "`run.show` names `b.x`, which no step of the run reported",
        "`run.stop.on` names `c.x`, which no step of the run reported",
    ]


def test_a_metric_that_only_an_uncounted_rank_logs_is_a_warning() -> None:
    judge = Judge(Run(), [])
    for rank in (1, 2):
        names = {"names": ["loss", "norm"], "counted": 0}
        judge.note_uncounted(Event("uncounted", "train", rank, 3, "metrics", names))
    judge.add({"step": 2}, [])
    assert judge.warnings() == []
    judge.add({"step": 3, "metrics.norm": 1.0}, [])
    judge.add({"step": 4}, [])
    assert judge.warnings() == [
        "train:1 has logged `metrics.loss` in step 3, but train:0, whose values enter the metrics, has not: log it "
        "on all ranks"
    ]


def test_a_number_that_differs_between_peers_is_one_warning() -> None:
    judge = Judge(Run(), [])
    for rank in (1, 2):
        value = {"metric": "seconds", "counted": "train:0", "values": ["0.5", f"{rank}.5"]}
        judge.note_difference(Event("differs", "train", rank, 3, "metrics", value))
    assert judge.warnings() == [
        "in step 3, `metrics.seconds` is 0.5 on train:0, whose values enter the metrics, but 1.5 on train:1; "
        "later differences are not reported"
    ]


# Real processes. The workers report `eval.loss` as their MODE lists it.


def losses(run: Launched) -> list[tuple[int, float | None]]:
    return [(row["step"], row["eval.loss"]) for row in rows_of(run.run) if "eval.loss" in row]


def kept(run: Launched) -> set[str]:
    names = {path.name for path in run.run.checkpoints.iterdir()}
    return names - {run.run.latest.resolve().name}


def test_nan_ends_a_run_and_its_checkpoint_is_not_published(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 2), ("two", 1)), "forever losses=3,2,nan")
    assert run.end() == 5
    where = "(stage eval, one:0, one:1 and two:0)"
    line = f"metric `eval.loss` is NaN in step 3 {where}; the newest checkpoint is of step 2"
    assert run.output() == f"error: {line}\n"
    assert [event.value for event in run.events("over")] == [{"code": 5, "reason": line}]
    assert losses(run) == [(1, 3), (2, 2), (3, None)]
    assert run.run.saved() == 2
    assert [event.step for event in run.events("checkpoint")] == [1, 2]
    assert len({event.step for event in run.events("done")}) == 1
    assert {event.value["code"] for event in run.events("exited")} == {0}


def test_a_continued_run_stops_by_the_values_before_it_too(launch: Launch, tmp_path: Path) -> None:
    """The best checkpoint is of the first attempt, and kept beside the newest one."""
    plan = plan_of(
        tmp_path,
        ("one", 2),
        stop=Stop("eval.loss", patience=2),
        checkpoint=Checkpoint(keep=1, best=Best("eval.loss")),
    )
    run = launch(plan, "one:0 raise losses=1,2")
    assert run.end() == 5
    assert (run.run.saved(), losses(run)) == (1, [(1, 1)])
    again = launch(plan, "forever resumes losses=1,2,3,4", again=True)
    assert again.end() == 0, again.output()
    reason = "`eval.loss` has not improved in 2 values, up to step 3: its best value is 1, in step 1"
    assert again.events("over")[-1].value == {"code": 0, "reason": reason}
    assert again.run.saved() > 3
    assert kept(again) == {"latest", "best.json", "step-1"}
    assert [(one.step, one.value) for one in again.run.read_best()[1]] == [(1, 1.0)]


def test_a_stop_in_the_planned_last_step_is_not_what_ended_the_run(launch: Launch, tmp_path: Path) -> None:
    run = launch(plan_of(tmp_path, ("one", 1), stop=Stop("eval.loss", patience=2)), "losses=1,2,3")
    assert run.end() == 0, run.output()
    assert [event.value["reason"] for event in run.events("over")] == [""]
