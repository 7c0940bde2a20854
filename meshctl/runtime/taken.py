"""The last stage of a block with `take`: in each step, the data ranks of the group agree on the passes whose
samples are the value of the step (`topology.take`), and each gives those of its own passes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgpack

from meshctl.plan.model import Stage
from meshctl.run.progress import Activity
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.call import Call, Channels
from meshctl.runtime.errors import StageError
from meshctl.runtime.event_loop import Advances
from meshctl.runtime.loop_context import LoopContext, StepState, TakePosition
from meshctl.runtime.metrics.stage_metrics import StageMetrics
from meshctl.runtime.passes import Pass, Passes, place_of
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, TAGS_PER_ROUTE
from meshctl.topology.take import Row, RowError, Taking

MAX_WAIT_S = 0.02
"""The longest wait for an own pass before the ranks exchange rows again."""
WARNING_S = 60.0
"""Seconds after which a step that waits for a pass says so, or half of `run.patience`; then twice as many."""
MAX_EMPTY = 100
"""A step that has taken none and dropped this many times as many passes as it takes ends the run."""


class TakenCall(Call):
    """The last stage of a take block, as one worker runs it."""

    def __init__(self, stage: Stage, context: LoopContext, channels: Channels, state: StepState) -> None:
        super().__init__(stage, context, channels, state)
        plan = context.plan
        block, mesh = plan.block(stage.block), plan.component(stage.component).mesh
        self._stages = [one for one in plan.stages if one.block == stage.block]
        is_old = block.ahead > 0 or plan.staleness(block.name) > 0
        self._passes = Passes(self._stages, context.components, state.versions, has_old_weights=is_old)
        self._sizes = block.take, block.ahead, block.late, mesh.data_size
        self._taking = Taking(*self._sizes)
        self._block, self._me = block, mesh.data_rank(context.rank)
        first = plan.group(context.group).first_job_rank
        self._job_ranks = [first + mesh.representative(rank) for rank in range(mesh.data_size)]
        self._data_plane = context.transport
        names = [one.name for one in plan.blocks]
        self._tag = (2 * len(plan.routes) + names.index(block.name)) * TAGS_PER_ROUTE
        self._dealt: list[int] = []
        """The own passes that have not begun. While a step takes passes that are ready, no others begin."""
        self._ready: dict[int, Batch] = {}
        """The samples of own passes that are ready and not taken."""
        self._unsent: tuple[list[int], list[int]] = [], []
        """The numbers of own passes that have ended, (ready, empty), of which no row has told."""
        self._wait = context.transport.turn.during(self._passes.wait)
        run = self._context.run_dir
        self._pass_metrics = {
            one.name: StageMetrics(
                one, plan.component(one.component).mesh, context.rank, state, context.events, run
            )
            for one in self._stages
        }
        self._events, self._begun_after = context.events, 0
        self._generation: int | None = None
        if self._me == 0 and plan.group(context.group).restartable:
            self._generation = context.rejoining.generation if context.rejoining else 0
        self._advances = 0
        self._warning_s = min(WARNING_S, (plan.run.patience or math.inf) / 2)

    def begin(self, position: TakePosition, step: int) -> None:
        """Begins with the passes of a position, which are dealt again. The samples of steps up to `step` were
        taken, and their consumers have them."""
        self._taking, self._begun_after = Taking(*self._sizes, position.next, position.open), step
        self._note_taken(step)
        for number in [number for number, one in self._taking.open.items() if one.rank == self._me]:
            if number in position.ready:
                self._ready[number] = position.ready[number]
                self._unsent[0].append(number)
            else:
                self._dealt.append(number)
        self._begin_dealt()

    def position(self) -> TakePosition:
        """The passes between two steps."""
        self._collect_ended()
        open = {number: one.dealt for number, one in self._taking.open.items()}
        return TakePosition(self._taking.next, open, dict(self._ready))

    def run_once(self, outputs: Sequence[Channel], step: int) -> bool:
        self._state.at = (self.stage.name, step)
        if step <= self._begun_after:
            self.send_end(outputs, step)
            return False
        begin = perf_counter()
        self._progress.enter(Activity.CALLING, self._number, begin)
        value = self._take(step)
        self._note_taken(step)
        called = perf_counter()
        self._state.report.add_times(self.stage.name, 0.0, called - begin)
        weight = float(len(value)) if isinstance(value, Batch) else 0.0
        has_ended = self._send(outputs, value, step, weight, called)
        self._begin_dealt()
        return has_ended

    def _note_taken(self, step: int) -> None:
        """Tells the head before samples are sent, if the group may restart alone, which passes are open."""
        if self._generation is not None:
            position = [[number, one.dealt] for number, one in self._taking.open.items()]
            known: dict[str, Any] = {"next": self._taking.next, "open": position}
            known["generation"] = self._generation
            self._events.write("taken", step=step, block=self._block.name, **known)

    def _begin_dealt(self) -> None:
        self._passes.begin(self._dealt)
        self._dealt.clear()

    def _has_ended(self, outputs: Sequence[Channel], all_ended: bool) -> bool:
        return False

    def _take(self, step: int) -> Any:
        """Returns the samples of the own passes that the step takes, in the order of their ids; END if it
        takes none of them."""
        taking, begin, warned_at = self._taking, perf_counter(), self._warning_s
        taking.begin(step)
        while not taking.is_full:
            dealt = taking.deal(self._last)
            self._dealt += [number for number, rank in dealt.items() if rank == self._me]
            try:
                taking.receive(self._exchanged(self._ended_row()))
            except RowError as error:
                raise StageError(f"`{self._block.name}`: the ranks disagree: {error}") from None
            if not taking.batch and len(taking.empty) >= MAX_EMPTY * self._block.take:
                raise StageError(f"none of {len(taking.empty)} passes of step {step} has samples")
            if not taking.is_full:
                self._begin_dealt()
                self._note_wait()
                self._wait(MAX_WAIT_S)
                self._advance()
            if perf_counter() - begin > warned_at:
                warned_at *= 2
                self._report_slow(step, perf_counter() - begin)
        self._progress.wait_for(-1, -1)
        self._report_ages()
        own = [self._ready.pop(one.number) for one in sorted(taking.batch) if one.rank == self._me]
        return Batch.concat(own) if own else END

    def _note_wait(self) -> None:
        """Notes for the report of a stall which rank runs the oldest open pass."""
        oldest = next((one.rank for one in self._taking.open.values()), self._me)
        self._progress.wait_for(-1 if oldest == self._me else self._job_ranks[oldest], -1)

    @property
    def _last(self) -> int:
        """The last step that takes passes, as all ranks have known it since the first one."""
        return self._context.last_step or sys.maxsize

    def _ended_row(self) -> Row:
        """Returns the numbers of own passes that have ended since the last row."""
        self._collect_ended()
        row, self._unsent = self._unsent, ([], [])
        return row

    def _collect_ended(self) -> None:
        """Collects the own passes that have ended, and reports what they logged. Raises the error of a pass
        that has failed."""
        ended = sorted(self._passes.ended(), key=lambda one: one.number)
        if failed := self._passes.failed:
            self._state.at, self._state.is_in_user_code = (failed.stage, self._state.at[1]), True
            raise failed.error
        for one in ended:
            self._report_logged(one)
        ready = {one.number: one.value for one in ended if one.value is not None}
        self._ready |= ready
        self._unsent[0].extend(ready)
        self._unsent[1].extend(one.number for one in ended if one.value is None)

    def _report_logged(self, one: Pass) -> None:
        for stage, seconds in one.seconds.items():
            self._state.report.add_metric(stage, {"seconds": seconds}, 1.0, "mean")
        for logged in one.logged:
            metrics = self._pass_metrics[logged.stage]
            metrics.begin_call()
            metrics.log(logged.values, logged.weight)

    def _exchanged(self, row: Row) -> list[Row]:
        """Returns the rows of all data ranks."""
        if len(self._job_ranks) == 1:
            return [row]
        rows = self._data_plane.allgather(self._job_ranks, self._me, self._tag, msgpack.packb(row))
        return [(ready, empty) for ready, empty in map(msgpack.unpackb, rows)]

    def _advance(self) -> None:
        """Notes progress where passes have advanced since the last call."""
        if self._advances != Advances.count:
            self._advances = Advances.count
            self._progress.advance()

    def _report_ages(self) -> None:
        """Reports the ages of the own passes that were taken. The first data rank reports the counts, which
        are equal on all."""
        ages = [one.age for one in self._taking.batch if one.rank == self._me]
        add = self._state.report.add_metric
        if ages:
            add(self.stage.name, {"age": sum(ages) / len(ages)}, float(len(ages)), "mean")
        if self._me == 0:
            most = max(one.age for one in self._taking.batch)
            counts = {"age_max": most, "empty": len(self._taking.empty), "open": len(self._taking.open)}
            add(self.stage.name, {name: float(number) for name, number in counts.items()}, 1.0, "mean")

    def _report_slow(self, step: int, seconds: float) -> None:
        """Names the oldest open pass. The rank that runs it also names its stage."""
        number, one = next(iter(self._taking.open.items()), (0, None))
        waited = f"step {step} has waited {seconds:.0f} s for pass {number}"
        if one and one.rank == self._me and number in self._passes.running:
            running = self._passes.running[number]
            name, here = running.stage.rpartition(".")[2], perf_counter() - running.since
            place = place_of(running.task) if running.task else ""
            self._say(f"{waited}, {here:.0f} s in `{name}`{f' at {place}' if place else ''}")
        elif one and self._me == 0:
            self._say(f"{waited} of {self._data_plane.name_of(self._job_ranks[one.rank])}")

    def _say(self, text: str) -> None:
        print(f"meshctl: `{self._block.name}`: {text}", file=sys.stderr)
