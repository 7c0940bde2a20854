"""A block of stages that runs several times in a step (`repeat` in the recipe).

    for each round: for each pass: for each stage of the block: receive the inputs, call, send the value

All ranks of all groups run the passes of a block in lockstep. A round ends as a run does whose source is a
stream: the repeated source, or the minibatches of a value from outside, return END instead of a batch. Every
stage of the block receives it, directly or through others, so every rank sees END in the same pass. Values
from outside are received once, before the first pass. A stage outside receives one value: that of all passes
of the last round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshctl.plan.model import Block
from meshctl.runtime.call import Call, SourceCall
from meshctl.runtime.errors import StageError
from meshctl.runtime.loop_context import StepState
from meshctl.runtime.progress import Progress
from meshctl.runtime.routes.channel import Channel


class RepeatedSource(SourceCall):
    """The source of a block. It begins with its first sample each time."""

    _given = 0
    """The number of samples that it has produced in this round."""

    @property
    def _total(self) -> int | None:
        length = getattr(self._component, "__len__", None)
        return None if length is None else length()

    @property
    def can_end(self) -> bool:
        return self._producer is not None

    def begin_round(self) -> None:
        super().begin_round()
        self._given, self._had_no_data = 0, False

    def run_once(self, outputs: Sequence[Channel], step: int) -> bool:
        has_ended = super().run_once(outputs, step)
        if has_ended and self._state.pass_number == 1:
            called = f"`{self.stage.component}.{self.stage.method}`"
            block = self.stage.block
            raise StageError(f"{called} returned no samples, but `{block}` runs until its data end")
        return has_ended

    def _next_numbers(self) -> range:
        total, start = self._total, self._given
        self._given = start + self.stage.samples
        if total is None:
            return range(start, self._given)
        return range(min(start, total), min(self._given, total))


class BlockStage(NamedTuple):
    """A stage of a block as one worker runs it."""

    call: Call
    inner: tuple[Channel, ...]
    """The ends of the routes to stages of the block."""
    outer: tuple[Channel, ...]
    """The ends of the routes to stages outside of the block."""


class BlockRun:
    """A block as one worker runs it."""

    def __init__(
        self, block: Block, stages: Sequence[BlockStage], state: StepState, progress: Progress
    ) -> None:
        """`stages` are the stages of the block that are called on this worker, in the order of the plan."""
        self._block, self._state, self._progress = block, state, progress
        self._stages = [stage for stage in stages if stage.call.can_end]

    def run(self, step: int) -> None:
        """Runs all passes of a step."""
        held = [one for stage in self._stages for one in stage.call.held]
        try:
            for one in held:
                one.begin(step)
            self._run_rounds(step)
        finally:
            self._state.pass_number = 0
            for one in held:
                one.release()

    def send_end(self, step: int) -> None:
        """Sends END to the stages outside of the block, in place of the values of a step that is not part of
        the run."""
        for stage in self._stages:
            stage.call.send_end(stage.outer, step)

    def _run_rounds(self, step: int) -> None:
        self._state.pass_number = 0
        for number in range(1, self._block.times + 1 if self._stages else 1):
            self._run_round(step, number)
        self._state.pass_number = 0
        for stage in self._stages:
            stage.call.send_passes(stage.outer, step)

    def _run_round(self, step: int, number: int) -> None:
        for stage in self._stages:
            stage.call.begin_round()
            for held in stage.call.held:
                held.begin_round(number)
        has_ended = False
        while not has_ended:
            self._state.pass_number += 1
            self._progress.next_pass()
            for call, inner, _ in self._stages:
                has_ended |= call.run_once(inner, step)
        self._state.pass_number -= 1  # the last one had no samples
