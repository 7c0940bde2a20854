"""The passes of a block with `take` on one worker. Each is the work on one sample of the block's source, at
its own pace, beside the program of the worker.

    event loop     a task for each pass, which awaits `async def` endpoints
    one thread     ordinary endpoints, each called with the batches of all passes that wait for it, joined
    program        begins passes, and asks which have ended (`taken`)

Nothing here uses the data plane or collectives.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

import torch

from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Stage
from meshctl.runtime.batch.batch import MARK, Batch, BatchError, identify, numbered
from meshctl.runtime.batch.tensordict import is_tensordict
from meshctl.runtime.component import Component, context_of, coroutine_of, endpoint_of
from meshctl.runtime.errors import CollectiveError, StageError
from meshctl.runtime.event_loop import PASS_CALL, Advances, PassCall, device_setter, event_loop
from meshctl.runtime.routes.inputs import Arguments

VERSIONS = MARK + "versions"
"""The mark of a sampler with the version of the weights of each token."""


OF_LIBRARIES = (str(PACKAGE_DIR), str(Path(asyncio.__file__).parent))
"""The beginnings of the names of files that are no user's."""


class Logged(NamedTuple):
    """Numbers that an endpoint has logged in a pass."""

    stage: str
    values: Mapping[str, float]
    weight: float


@dataclass(eq=False)
class Pass:
    """A pass that runs or has ended."""

    number: int
    stage: str
    """The stage that it is in."""
    since: float
    """The time at which it entered the stage, in seconds of `perf_counter`."""
    logged: list[Logged] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Stage -> the seconds that the pass was in it."""
    task: asyncio.Task[None] | None = None
    value: Batch | None = None
    """The samples of a pass that is ready; None for one that runs or is empty."""


class PassFailed(NamedTuple):
    stage: str
    number: int
    error: BaseException


class PassStage:
    """A stage of the block. Its methods run on the event loop, but `_call`."""

    def __init__(
        self,
        stage: Stage,
        component: Component,
        versions: Mapping[str, int],
        has_old_weights: bool,
        thread: ThreadPoolExecutor,
    ) -> None:
        """`versions` maps a component to the step whose weights it has loaded. `has_old_weights` is whether
        weights may change before samples are trained."""
        self.stage, self._versions, self._thread = stage, versions, thread
        self._has_old_weights = has_old_weights
        self._named = f"{stage.component}.{stage.method}"
        self._coroutine = coroutine_of(component, stage.method)
        self._endpoint, self._in_use = getattr(component, stage.method), context_of(component).in_use
        declared = endpoint_of(type(component), stage.method)
        self._retries = declared.retry if declared else 0
        self._waiting: list[tuple[Pass, Arguments, asyncio.Future[Batch]]] = []
        self._is_calling = False

    async def run(self, one: Pass, values: Mapping[str, Batch]) -> Batch:
        """Returns the value of the stage for a pass with these values of earlier stages."""
        given = _arguments(self.stage, values, one.number)
        if self._coroutine is None:
            future = event_loop().create_future()
            self._waiting.append((one, given, future))
            if not self._is_calling:
                self._is_calling = True
                event_loop().create_task(self._call_waiting())
            value: Batch = await future
            return value
        failed = 0
        while True:
            try:
                PASS_CALL.set(self._pass_call(one))
                found = await self._coroutine(*given.positional, **given.named)
                return self._checked(found, given)
            except Exception as error:
                failed += 1
                self._begin_again(error, failed, one)

    async def _call_waiting(self) -> None:
        """Calls the endpoint for all passes that wait for it, until none does. A source is called for each
        pass, since the numbers of its samples need not follow each other."""
        while self._waiting:
            count = 1 if self.stage.is_source else len(self._waiting)
            some, self._waiting = self._waiting[:count], self._waiting[count:]
            try:
                call = partial(self._call, [one for one, *_ in some], [given for _, given, _ in some])
                found = await event_loop().run_in_executor(self._thread, call)
            except BaseException as error:  # also SystemExit, which would end the event loop
                for _, _, future in some:
                    future.set_exception(error)
            else:
                for (_, _, future), value in zip(some, found, strict=True):
                    future.set_result(value)
        self._is_calling = False

    def _call(self, passes: Sequence[Pass], given: Sequence[Arguments]) -> list[Batch]:
        """Calls the endpoint once for several passes, and returns the value of each. What it logs belongs to
        the first of them."""
        whole, failed = _joined(given), 0
        PASS_CALL.set(self._pass_call(passes[0]))
        while True:
            try:
                with self._in_use:
                    returned = self._endpoint(*whole.positional, **whole.named)
                value = self._checked(returned, whole)
                break
            except Exception as error:
                failed += 1
                self._begin_again(error, failed, passes[0])
        if len(passes) == 1:
            return [value]
        rows: dict[int, list[int]] = {one.number: [] for one in passes}
        for row, (number, *_) in enumerate(value.ids.tolist()):
            if number not in rows:
                raise StageError(f"`{self._named}` returned sample {number}, which it was not given")
            rows[number].append(row)
        return [value.take(some) for some in rows.values()]

    def _begin_again(self, error: Exception, failed: int, one: Pass) -> None:
        """Drops what the failed call has logged. Raises the error if the call is not repeated."""
        if failed > self._retries or isinstance(error, (CollectiveError, StageError)):
            raise error
        one.logged[:] = [each for each in one.logged if each.stage != self.stage.name]
        again = f"raised {type(error).__name__} and is called again ({failed} of {self._retries})"
        print(f"meshctl: pass {one.number}: `{self._named}` {again}", file=sys.stderr)

    def _pass_call(self, one: Pass) -> PassCall:
        def log(values: Mapping[str, float], weight: float = 1.0) -> None:
            one.logged.append(Logged(self.stage.name, dict(values), weight))

        return PassCall(self._named, log, self._has_old_weights)

    def _checked(self, returned: Any, given: Arguments) -> Batch:
        """Returns the value of a call with ids and marks."""
        Advances.add()
        is_tensors = not isinstance(returned, Batch) and is_tensordict(returned)
        value = Batch.from_tensordict(returned) if is_tensors else returned
        if not isinstance(value, Batch):
            kind = "None" if value is None else f"a {type(value).__name__}"
            raise StageError(f"`{self._named}` returned {kind}, and each pass of a block needs a Batch")
        if given.first is not None:
            value = identify(value, given.first)
        elif len(value) > 1:
            number = given.positional[0].start
            raise StageError(f"`{self._named}` returned {len(value)} samples for the number {number}")
        elif len(value):
            value = numbered(value, given.positional[0].start, 1)
        version = self._versions.get(self.stage.component)
        inputs = given.first.columns if given.first is not None else {}
        has_own = VERSIONS in value.columns and VERSIONS not in inputs
        if version is None or has_own:
            return value
        return value.with_columns(**{MARK + "version": torch.full((len(value),), version)})


def _arguments(stage: Stage, values: Mapping[str, Batch], number: int) -> Arguments:
    """Returns the arguments of a stage's call in the pass `number`."""
    if stage.is_source:
        return Arguments([range(number, number + 1)], {}, None, ())
    positional, named = list[Any](), dict[str, Any]()
    first = values[stage.inputs[0].stages[0]]
    for given in stage.inputs:
        batch = values[given.stages[0]]
        for other in given.stages[1:]:
            if not torch.equal(batch.ids, values[other].ids):
                both = f"`{given.stages[0]}` and `{other}`"
                raise StageError(f"`{stage.name}` joins {both}, which do not have the same samples")
            batch = batch.joined(values[other])
        if len(stage.inputs) > 1 or given.parameter:
            named[given.parameter] = batch
        else:
            positional.append(batch)
    return Arguments(positional, named, first, (*positional, *named.values()))


def _joined(given: Sequence[Arguments]) -> Arguments:
    """Returns the arguments of one call for several passes."""
    if len(given) == 1:
        return given[0]
    first = given[0]
    positional = [
        Batch.concat([one.positional[index] for one in given]) for index in range(len(first.positional))
    ]
    named = {name: Batch.concat([one.named[name] for one in given]) for name in first.named}
    batches = (*positional, *named.values())
    return Arguments(positional, named, batches[0], batches)


def _told(error: BaseException, number: int) -> BaseException:
    """Returns the error of a pass as the worker raises it, with the number of the pass."""
    where = f"in the pass of sample {number}"
    if isinstance(error, (BatchError, StageError)):
        return StageError(f"{error}, {where}")
    if not isinstance(error, (Exception, SystemExit)):  # such as asyncio.CancelledError
        return StageError(f"{type(error).__name__} {where}")
    error.add_note(where)
    return error


def place_of(task: asyncio.Task[None]) -> str:
    """Returns FILE:LINE of the innermost line of a user at which a task waits; empty if there is none."""
    place, inner = "", cast(Any, task.get_coro())
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        if not frame.f_code.co_filename.startswith(OF_LIBRARIES):
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        inner = inner.cr_await
    return place


class Passes:
    """Runs the passes of a block on this worker."""

    def __init__(
        self,
        stages: Sequence[Stage],
        components: Mapping[str, Component],
        versions: Mapping[str, int],
        *,
        has_old_weights: bool,
    ) -> None:
        """`stages` are those of the block, in the order of the plan. `versions` and `has_old_weights` are
        those of `PassStage`."""
        thread = ThreadPoolExecutor(1, f"passes of {stages[0].block}", device_setter())
        self._stages = [
            PassStage(one, components[one.component], versions, has_old_weights, thread) for one in stages
        ]
        self.running: dict[int, Pass] = {}
        """The passes that run, by number."""
        self._ended: list[Pass] = []
        self._has_ended = threading.Event()
        self.failed: PassFailed | None = None

    def begin(self, numbers: Sequence[int]) -> None:
        """Begins passes."""
        now, first = perf_counter(), self._stages[0].stage.name
        passes = [Pass(number, first, now) for number in numbers]
        self.running |= {one.number: one for one in passes}

        def begin() -> None:
            for one in passes:
                one.task = event_loop().create_task(self._run(one))

        if passes:
            event_loop().call_soon_threadsafe(begin)

    def ended(self) -> list[Pass]:
        """Returns the passes that have ended since the last call."""
        self._has_ended.clear()
        count = len(self._ended)
        found, self._ended[:count] = self._ended[:count], []
        for one in found:
            del self.running[one.number]
        return found

    def wait(self, seconds: float) -> None:
        """Waits until a pass ends, for at most some seconds."""
        self._has_ended.wait(seconds)

    async def _run(self, one: Pass) -> None:
        values: dict[str, Batch] = {}
        try:
            for each in self._stages:
                one.stage, one.since = each.stage.name, perf_counter()
                values[one.stage] = await each.run(one, values)
                one.seconds[one.stage] = perf_counter() - one.since
                if not len(values[one.stage]):
                    break
            else:
                one.value = values[one.stage]
        except BaseException as error:
            self.failed = self.failed or PassFailed(one.stage, one.number, _told(error, one.number))
        self._ended.append(one)
        self._has_ended.set()
