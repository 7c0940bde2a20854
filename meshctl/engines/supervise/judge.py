"""Judges the metrics of a run: values that are not finite, metrics that no longer improve, and the best
checkpoints.

    judge = Judge(plan.run, rows)          the rows up to the step that the run continues from
    judge.add(row, fold.not_finite())
    judge.fault, judge.stop                the reason why the run fails or ends; empty while it goes on
    judge.warnings()                       the warnings since the last call
    judge.best(steps)                      the best of the checkpoints of some steps
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from meshctl.plan.model import Run
from meshctl.run.best import BestCheckpoints, EarlyStopping, ScoredCheckpoint
from meshctl.run.events import Event
from meshctl.run.metrics import NotFinite
from meshctl.run.shutdown import ENDLESS
from meshctl.text.english import in_words, listed


class Judge:
    def __init__(self, run: Run, rows: Iterable[Mapping[str, Any]]) -> None:
        """`rows` are the rows of `metrics.jsonl` up to the step that the run continues from."""
        self._ignores_nan = run.on_nan == "ignore"
        self._stopping = EarlyStopping(run.stop.on, run.stop.mode, run.stop.patience) if run.stop else None
        best = run.checkpoint.best if run.checkpoint else None
        self._best = BestCheckpoints(best.on, best.keep, best.mode) if best else None
        self._unseen = {"run.show": {*run.show}, "run.stop.on": {run.stop.on} if run.stop else set[str]()}
        self._unseen["run.checkpoint.best.on"] = {best.on} if best else set[str]()
        """Key -> the metrics that it names and that no row has had."""
        self._warnings: list[str] = []
        self._uncounted: dict[str, Event] = {}
        """Metric -> the report of a rank that has logged it without being counted."""
        self._warned: set[str] = set()
        """The metrics for which a warning has reported a value that is not finite. Their later values are not
        reported."""
        self._differing: set[str] = set()
        """The metrics that differ between the ranks of a data rank."""
        self.fault = ""
        """The reason why the run fails, a metric that is not finite, in one line; empty if the run goes
        on."""
        self._wrong_step = ENDLESS
        if self._stopping or self._best or any(self._unseen.values()):
            for row in rows:
                self.add(row, ())

    @property
    def stop(self) -> str:
        """The reason why the run ends, a metric that no longer improves, in one line; empty if the run goes
        on."""
        return self._stopping.reason if self._stopping else ""

    def add(self, row: Mapping[str, Any], not_finite: Sequence[NotFinite]) -> None:
        """Adds a row with the metrics of it that are not finite. The row of the last step may arrive
        again."""
        for metrics in self._unseen.values():
            metrics.difference_update(row)
        self._warn_of_uncounted(row)
        if not_finite and not self._ignores_nan and not self.fault:
            self.fault, self._wrong_step = described(not_finite), row["step"]
        elif self._ignores_nan:
            for one in not_finite:
                if one.metric not in self._warned:
                    self._warned.add(one.metric)
                    goes_on = "the run goes on, and later ones are not reported"
                    self._warnings.append(f"{described([one])}; {goes_on}")
        if self._stopping:
            self._stopping.add(row)
        if self._best:
            self._best.add(row)

    def first_wrong(self, pending: Sequence[NotFinite], step: int | None) -> str:
        """Returns the metric that was not finite before or when a worker failed in `step`, in one line; empty
        if there was none. `pending` are those of the first step without a row that has any."""
        if self.fault or self._ignores_nan or step is None or not pending or pending[0].step > step:
            return self.fault
        return described(pending)

    def note_uncounted(self, event: Event) -> None:
        """Notes the names that a rank has logged without being counted. The row of the step shows whether the
        counted rank has logged them, too."""
        for name in event.value.get("names", ()):
            self._uncounted.setdefault(f"{event.stage}.{name}", event)

    def note_difference(self, event: Event) -> None:
        """Warns of a number that a rank logs and that differs from the one that counts, once for a metric."""
        value, who = event.value, f"{event.group}:{event.rank}"
        metric, (counts, differs) = f"{event.stage}.{value['metric']}", value["values"]
        if metric in self._differing:
            return
        self._differing.add(metric)
        self._warnings.append(
            f"in step {event.step}, `{metric}` is {counts} on {value['counted']}, whose values enter the "
            f"metrics, but {differs} on {who}; later differences are not reported"
        )

    def _warn_of_uncounted(self, row: Mapping[str, Any]) -> None:
        noted = [metric for metric, event in self._uncounted.items() if (event.step or 0) <= row["step"]]
        for metric in noted:
            event = self._uncounted.pop(metric)
            if metric not in row:
                who, counted = f"{event.group}:{event.rank}", f"{event.group}:{event.value.get('counted')}"
                self._warnings.append(
                    f"{who} has logged `{metric}` in step {event.step}, but {counted}, whose values enter "
                    "the metrics, has not: log it on all ranks"
                )

    def is_right(self, step: int) -> bool:
        """Returns whether no metric of a step or of an earlier one makes the run fail."""
        return step < self._wrong_step

    def warnings(self) -> list[str]:
        """Returns the warnings since the last call."""
        found, self._warnings = self._warnings, []
        return found

    def warnings_at_end(self) -> list[str]:
        """Returns the warnings at the end of the run, about metrics that the recipe names and no step had."""
        return [
            f"`{key}` names {listed(sorted(metrics))}, which no step of the run reported"
            for key, metrics in self._unseen.items()
            if metrics
        ]

    def best(self, steps: Collection[int]) -> list[ScoredCheckpoint]:
        """Returns the best checkpoints of those of `steps`, the best first; none if the recipe does not
        ask for them."""
        return self._best.among(steps) if self._best else []


def described(not_finite: Sequence[NotFinite]) -> str:
    """Returns `metric `metrics.loss` is NaN in step 7 (stage metrics, train:1)`, and how many others are not
    finite, too."""
    first = not_finite[0]
    what = "NaN" if math.isnan(first.value) else "infinite"
    when = f"in step {first.step}" if first.step else "before step 1"
    workers = in_words([f"{group}:{rank}" for group, rank in first.workers])
    where = ", ".join([*([f"stage {first.stage}"] if first.stage else []), workers])
    others = f", and {len(not_finite) - 1} more are not finite" if len(not_finite) > 1 else ""
    return f"metric `{first.metric}` is {what} {when} ({where}){others}"
