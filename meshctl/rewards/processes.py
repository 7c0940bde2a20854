"""The worker processes of a reward component, which score samples within a time limit.

parent                                           worker process
{path, functions}                        ->      imports the functions
                                         <-      {required, optional}, or {error}
{column: value} of a sample              ->      calls the functions
                                         <-      [reward, {metric: number}, failure]

A process scores one sample at a time. One that takes longer than the limit is killed together with the
processes that it has started, and another one takes its place. The other processes go on meanwhile.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from meshctl.rewards.functions import Choice, FunctionError, Score, Scorer
from meshctl.runtime.child_process import Process, imported, receive, send

NEVER, WHAT = float("inf"), "reward function"
Row = Mapping[str, Any]
"""Column -> value of a sample."""


def main(connection: Connection, first: Mapping[str, Any]) -> None:
    """Runs a worker process, until the parent closes the connection."""
    choices = [Choice(*choice) for choice in first["functions"]]
    if scorer := imported(connection, WHAT, FunctionError, lambda: Scorer(choices)):
        while True:
            score = scorer.score(receive(connection))
            send(connection, [score.reward, dict(score.metrics), score.failure])


class RewardProcess(Process):
    """One worker process."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        """Starts the process, which then imports the functions."""
        functions = [[choice.name, choice.weight, dict(choice.options)] for choice in choices]
        super().__init__(__name__, {"functions": functions})
        self.sample: int | None = None
        """The sample that it scores; None if it waits for one."""
        self.is_ready = False
        self.deadline = NEVER

    def wait_until_ready(self) -> Mapping[str, Sequence[str]]:
        """Returns the columns `required` and `optional` of the functions. Raises `FunctionError` if the
        functions cannot be imported."""
        answer = self.columns(WHAT)
        if "error" in answer:
            self.kill()
            raise FunctionError(answer["error"])
        self.is_ready = True
        return answer

    def begin(self, sample: int, row: Row, timeout_s: float) -> None:
        """Sends a sample to the process, which begins to score it."""
        self.sample, self.deadline = sample, time.monotonic() + timeout_s
        with suppress(ConnectionError):  # `result` notices its end
            send(self.connection, row)

    def result(self) -> Score:
        """Returns the score of the sample. Raises `EOFError` if the process has ended."""
        reward, metrics, failure = receive(self.connection)
        self.sample, self.deadline = None, NEVER
        return Score(reward, metrics, failure)


class Processes:
    """Several processes with the same functions."""

    def __init__(self, choices: Sequence[Choice], count: int, timeout_s: float) -> None:
        """Starts the processes. Raises `FunctionError` if the functions cannot be imported."""
        self._choices, self._timeout_s = choices, timeout_s
        self._processes = [RewardProcess(choices) for _ in range(count)]
        self.required: Sequence[str] = ()
        self.optional: Sequence[str] = ()
        try:
            for process in self._processes:
                columns = process.wait_until_ready()
                self.required, self.optional = columns["required"], columns["optional"]
        except FunctionError:
            self.close()
            raise

    def scores(self, rows: Sequence[Row]) -> list[Score]:
        """Returns the score of each row. Raises `FunctionError` if a process that takes the place of another
        one cannot import the functions."""
        found: dict[int, Score] = {}
        waiting = iter(enumerate(rows))
        while len(found) < len(rows):
            for process in self._processes:
                if process.is_ready and process.sample is None and (given := next(waiting, None)):
                    process.begin(*given, self._timeout_s)
            for process in self._readable():
                self._read(process, found)
            for process in [one for one in self._processes if one.deadline <= time.monotonic()]:
                self._replace(process, found, f"took longer than {self._timeout_s:g} s")
                process.kill()
        return [found[number] for number in range(len(rows))]

    def close(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            process.kill()
        self._processes = []

    def _readable(self) -> list[RewardProcess]:
        """Waits for an answer or a deadline, and returns the processes that have answered or ended."""
        poll = select.poll()
        by_descriptor = {process.connection.fileno(): process for process in self._processes}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        first = min(process.deadline for process in self._processes)
        timeout_ms = None if first == NEVER else max(0.0, first - time.monotonic()) * 1000 + 1
        return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_ms)]

    def _read(self, process: RewardProcess, found: dict[int, Score]) -> None:
        if not process.is_ready:
            process.wait_until_ready()
            return
        sample = process.sample
        try:
            score = process.result()
        except EOFError:
            self._replace(process, found, f"ended its process, which {process.how_it_ended()}")
        else:
            if sample is not None:
                found[sample] = score

    def _replace(self, process: RewardProcess, found: dict[int, Score], failure: str) -> None:
        if process.sample is not None:
            found[process.sample] = Score(failure=failure)
        self._processes[self._processes.index(process)] = RewardProcess(self._choices)
