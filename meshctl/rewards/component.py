"""`rewards.Function`: a component that scores samples by functions of their columns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean, pstdev
from typing import Any, ClassVar, Literal

import torch

from meshctl.argument_limits import check_arguments
from meshctl.rewards.checks import FUNCTION
from meshctl.rewards.functions import Choice, FunctionError, Score, Scorer
from meshctl.rewards.processes import Processes
from meshctl.runtime.batch.batch import Batch, plain_values
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.child_process import MessageError
from meshctl.runtime.component import Component, ComponentError, endpoint
from meshctl.runtime.event_loop import PASS_CALL

DROP: Literal["drop"] = "drop"
TIMEOUT_S = 10.0
"""The default of `timeout_s` with worker processes."""
MAX_FAILED = 64
"""The number of samples of a rank that may fail in a row."""
MAX_WARNINGS = 3
"""The failed samples of a step that have a warning of their own."""
_log = logging.getLogger(__name__)


class RewardError(ComponentError):
    """Raised if a reward function cannot be used, or if it fails for every sample of a step."""


class Function(Component):
    """Scores each sample by one function of its columns, or by the weighted sum of several."""

    RETURNS: ClassVar = {"score": ("*", "rewards")}

    def __init__(
        self,
        function: str = "",
        *,
        options: Mapping[str, Any] | None = None,
        functions: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
        workers: int = 1,
        timeout_s: float | None = None,
        on_error: Literal["drop"] | float = DROP,
        drop_equal: bool = False,
    ) -> None:
        """Stores and checks the arguments. `setup` imports the functions. Raises `RewardError` for invalid
        arguments.

        function, options: a name of `FUNCTIONS` or the dotted path of a function, and its options.
        functions: in place of these, the name of each function -> its weight, or a mapping of `weight` and
            its options. The reward is the weighted sum.
        columns: parameter of a function -> column of the batch, for names that differ.
        workers: the number of processes that call the functions; with 0, `score` calls them.
        timeout_s: the seconds after which the process of a sample is killed; None for 10. Without processes
            there is no limit.
        on_error: `drop` for the removal of a sample whose reward cannot be computed, or its reward.
        drop_equal: whether groups of answers with equal rewards, whose advantages are 0, are dropped. In a
            block with `take`, others take their place (dynamic sampling, Yu et al., 2025, arXiv:2503.14476).
        """
        check_arguments(FUNCTION, locals(), RewardError)
        if on_error != DROP and not (isinstance(on_error, (int, float)) and isfinite(on_error)):
            raise RewardError(f"`on_error` is `{DROP}` or a number, not {on_error!r}")
        given = functions or {function: dict(options or {})}
        try:
            self._choices = [Choice.of(name, value) for name, value in given.items()]
        except FunctionError as error:
            raise RewardError(str(error)) from None
        self._names = dict(columns or {})
        self._workers, self._timeout_s, self._on_error = workers, timeout_s or TIMEOUT_S, on_error
        self._drop_equal = drop_equal
        self._scorer: Scorer | Processes | None = None
        self._has_succeeded, self._failed_in_row = False, 0

    def setup(self) -> None:
        """Imports the functions, in `workers` processes or in this one. Raises `RewardError` if that
        fails."""
        try:
            if self._workers:
                self._scorer = Processes(self._choices, self._workers, self._timeout_s)
            else:
                self._scorer = Scorer(self._choices)
        except FunctionError as error:
            raise RewardError(str(error)) from None
        known = (*self._scorer.required, *self._scorer.optional)
        if unknown := [name for name in self._names if name not in known]:
            self.close()
            raise RewardError(
                f"`columns` names `{unknown[0]}`, which is not a parameter; the parameters are "
                f"{', '.join(known)}"
            )

    def close(self) -> None:
        if isinstance(self._scorer, Processes):
            self._scorer.close()
        self._scorer = None

    @endpoint
    def score(self, batch: Batch) -> Batch:
        """Returns the samples with a column `rewards`, float32 `[samples]`.

        Logs `reward`, the mean over samples, `reward_std`, the mean over groups of the standard deviation in
        a group, `failed`, the number of samples without a reward in the step (or the mean in a pass), with
        `drop_equal` also `equal`, the fraction of groups that were dropped, and the means of the further
        numbers of the functions. Raises `RewardError` if a column is missing, or if all samples fail: those
        of a rank in its first step, or many in a row.
        """
        if self._scorer is None:
            self.setup()
        scores, passes = self._scores(batch), len({*batch.ids[:, 0].tolist()})
        self._warn(scores, batch)
        self._check_failures(scores, batch)
        if self._on_error == DROP:
            batch = batch.where([not one.failure for one in scores])
            rewards = [one.reward for one in scores if not one.failure]
        else:
            rewards = [float(self._on_error) if one.failure else one.reward for one in scores]
        batch = batch.with_columns(rewards=torch.tensor(rewards, dtype=torch.float32))
        groups = _groups(batch)
        self._log_metrics(scores, rewards, groups, passes)
        if not self._drop_equal:
            return batch
        equal = [rows for rows in groups if len({rewards[row] for row in rows}) == 1]
        if groups:
            self.log({"equal": len(equal) / len(groups)}, weight=len(groups))
        dropped = {row for rows in equal for row in rows}
        return batch.where([row not in dropped for row in range(len(batch))])

    def _scores(self, batch: Batch) -> list[Score]:
        assert self._scorer is not None
        rows = self._rows(batch, self._scorer.required, self._scorer.optional)
        try:
            if isinstance(self._scorer, Processes):
                return self._scorer.scores(rows)
            return [self._scorer.score(row) for row in rows]
        except (FunctionError, MessageError) as error:
            raise RewardError(str(error)) from None

    def _rows(self, batch: Batch, required: Sequence[str], optional: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the values of the functions' parameters for each sample: plain data, and for tensors
        numbers or lists."""
        missing = [name for name in required if self._names.get(name, name) not in batch]
        if missing:
            column = self._names.get(missing[0], missing[0])
            raise RewardError(
                f"the reward function has a parameter `{missing[0]}`, and the batch no column `{column}`; it "
                f"has {', '.join(batch.names)}. The answer is `response`, and a source keeps a column of its "
                f"rows with `keep: [{column}]`"
            )
        columns = {name: self._names.get(name, name) for name in (*required, *optional)}
        values = {name: plain_values(batch[column]) for name, column in columns.items() if column in batch}
        return [{name: column[row] for name, column in values.items()} for row in range(len(batch))]

    def _warn(self, scores: Sequence[Score], batch: Batch) -> None:
        failed = [row for row, one in enumerate(scores) if one.failure]
        ids = batch.ids.tolist()
        for row in failed[:MAX_WARNINGS]:
            step = "" if PASS_CALL.get() else f"step {self.step}, "
            _log.warning("%ssample %s: %s", step, shown_ids([ids[row]]), scores[row].failure)
        if further := failed[MAX_WARNINGS:]:
            shown = shown_ids([ids[row] for row in further])
            _log.warning("step %d: %d further samples failed: %s", self.step, len(further), shown)

    def _check_failures(self, scores: Sequence[Score], batch: Batch) -> None:
        """Raises `RewardError` if all samples of a rank failed in its first step, or many in a row."""
        failed = [(row, one.failure) for row, one in enumerate(scores) if one.failure]
        if len(failed) < len(scores):
            self._has_succeeded, self._failed_in_row = True, 0
            return
        self._failed_in_row += len(failed)
        is_first = not self._has_succeeded and not PASS_CALL.get()
        if failed and (is_first or self._failed_in_row >= MAX_FAILED):
            first = f"sample {shown_ids([batch.ids[failed[0][0]].tolist()])}: {failed[0][1]}"
            raise RewardError(f"all {self._failed_in_row} samples failed: {first}")

    def _log_metrics(
        self,
        scores: Sequence[Score],
        rewards: Sequence[float],
        groups: Sequence[Sequence[int]],
        passes: int,
    ) -> None:
        succeeded = [one for one in scores if not one.failure]
        failed = len(scores) - len(succeeded)
        if PASS_CALL.get():  # the mean over passes, of which a call may have several
            self.log({"failed": failed / max(passes, 1)}, weight=passes)
        else:  # each data rank logs once in a step
            self.log({"failed": failed * self.mesh.data_size})
        if succeeded:
            self.log({"reward": fmean(one.reward for one in succeeded)}, weight=len(succeeded))
            spreads = [pstdev(rewards[row] for row in rows) for rows in groups]
            self.log({"reward_std": fmean(spreads)}, weight=len(spreads))
        for name in dict.fromkeys(name for one in succeeded for name in one.metrics):
            numbers = [one.metrics[name] for one in succeeded if name in one.metrics]
            self.log({name: fmean(numbers)}, weight=len(numbers))


def _groups(batch: Batch) -> list[list[int]]:
    """Returns the rows of each group of samples; all rows are one where the batch has no groups."""
    ids = batch.group_ids
    rows: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(batch)):
        rows.setdefault(() if ids is None else tuple(ids[row].tolist()), []).append(row)
    return [*rows.values()]
