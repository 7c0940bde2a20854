"""Computes the results of a pure function ahead of their use, in worker processes.

The processes are those of torch's `DataLoader`. They are forked, so they share the memory of this process,
and they die with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from meshctl.data.errors import DataError
from meshctl.dataclass import dataclass
from meshctl.run.process import die_with

Result = TypeVar("Result")
AHEAD = 2
"""The number of calls whose results each process computes ahead."""


@dataclass(frozen=True)
class _Failure:
    message: str


class _Calls(Dataset[object]):
    def __init__(self, function: Callable[[range], object]) -> None:
        self._function = function

    def __getitem__(self, numbers: range) -> object:
        try:
            return self._function(numbers)
        except DataError as error:  # as a value, because a DataLoader adds a traceback to the message
            return _Failure(str(error))


def results(function: Callable[[range], Result], calls: Iterable[range], workers: int) -> Iterator[Result]:
    """Yields the result of `function` for each of `calls`, in order. `calls` may be endless.

    If `workers` is not 0, this number of forked processes computes the results ahead. Raises `DataError` if
    the function raises it, or if one of the processes is killed.
    """
    if not workers:
        yield from map(function, calls)
        return
    loader: DataLoader[object] = DataLoader(
        _Calls(function),
        batch_size=None,
        sampler=calls,
        num_workers=workers,
        prefetch_factor=AHEAD,
        collate_fn=lambda value: value,
        worker_init_fn=_die_with_parent,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # the seeds of the processes are not drawn from the run's generator
    )
    try:
        for result in loader:
            if isinstance(result, _Failure):
                raise DataError(result.message)
            yield result
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        first = str(error).splitlines()[0].strip(" .")
        raise DataError(
            f"a process that prepares samples was killed, perhaps for want of memory: {first}"
        ) from None


class Prefetch(Generic[Result]):
    """Calls a pure function of sample numbers, whose next results are computed ahead by worker processes.

    Two successive calls for the same number of samples predict the sample numbers of the next calls, which
    follow at the same distance. From the second call on, the processes compute the results of the predicted
    calls. An unexpected call ends the processes, and its result is computed in the calling process.
    """

    def __init__(self, function: Callable[[range], Result], workers: int) -> None:
        self._function, self._workers = function, workers
        self._last: range | None = None
        self._ahead: Iterator[tuple[range, Result]] | None = None

    def __call__(self, samples: range) -> Result:
        if not self._workers:
            return self._function(samples)
        last, self._last = self._last, samples
        if self._ahead is None and last and len(samples) == len(last) and samples.start >= last.stop:
            self._ahead = self._from(samples, samples.start - last.start)
        if self._ahead is not None:
            expected, result = next(self._ahead)
            if expected == samples:
                return result
            self.close()
        return self._function(samples)

    def close(self) -> None:
        """Ends the worker processes. A later call may start new ones."""
        self._ahead = None

    def _from(self, samples: range, stride: int) -> Iterator[tuple[range, Result]]:
        def calls() -> Iterator[range]:
            return (range(samples.start + n * stride, samples.stop + n * stride) for n in count())

        return zip(calls(), results(self._function, calls(), self._workers), strict=False)


def _die_with_parent(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    die_with(os.getppid(), signal.SIGKILL)
