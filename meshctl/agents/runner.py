"""Runs episodes of agents in child processes, each within its limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, TypeVar

from meshctl.agents.child import WHAT, Failed
from meshctl.runtime.child_process import Process, receive, send

T = TypeVar("T")
_log = logging.getLogger(__name__)
EMPTY: Mapping[str, Any] = {"function": "", "options": {}, "command": []}
"""The first message to a process, without its agent."""
TIMEOUT_S = 600.0
MAX_ALONE = 4
"""The least number of episodes that may run at the same time in processes of their own."""
CANCEL_S = 5.0
"""Seconds within which an episode ends that has reached a limit. Then its process is killed."""


class Interrupted(Exception):
    """An episode that ended because its process was lost, perhaps by another episode there."""


class Ended(NamedTuple):
    """The end of an episode without an error."""

    limit: str
    """The limit that it has reached; empty if the agent returned."""
    reward: float | None = None
    metrics: Mapping[str, float] = {}


class AgentProcess(Process):
    """A process, and the episodes that run in it. Its methods run on the event loop."""

    def __init__(self, spec: Mapping[str, Any], is_shared: bool = True) -> None:
        super().__init__("meshctl.agents.child", spec)
        self.is_shared = is_shared
        """True if several episodes may run in it."""
        self.running: dict[int, asyncio.Future[Ended]] = {}
        self.is_lost = False
        self.is_ready, self._sending = asyncio.Event(), asyncio.Lock()

    def attach(self) -> None:
        """Begins to read the messages of the process."""
        asyncio.get_running_loop().add_reader(self.connection.fileno(), self._read)

    def begin(self, number: int) -> tuple[int, asyncio.Future[Ended]]:
        """Returns the number of an episode, and the future of its end."""
        end: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        end.add_done_callback(lambda one: one.cancelled() or one.exception())  # it may be of no interest
        self.running[number] = end
        return number, end

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Sends a message. A process that does not read it blocks no other, and a caller that does not wait
        any longer does not cut the message."""
        await asyncio.shield(asyncio.create_task(self._send(message)))

    async def _send(self, message: Mapping[str, Any]) -> None:
        async with self._sending:
            if not self.is_lost:
                with suppress(OSError):  # `_read` notices the end of the process
                    await asyncio.to_thread(send, self.connection, message)

    def lose(self, error: str = "") -> None:
        """Ends a process that has ended by itself, or because of an `error` of all episodes."""
        how = error or f"the process of the agent {self._detached(self.how_it_ended)}"
        if error:
            self._detached(self.kill)
        self._fail(Failed(how) if error or len(self.running) == 1 else Interrupted())

    def kill_all(self) -> None:
        """Kills the process with all episodes in it."""
        if not self.is_lost:
            self._detached(self.kill)
        self._fail(Interrupted())

    def _fail(self, error: Exception) -> None:
        self.is_ready.set()
        for one in self.running.values():
            if not one.done():
                one.set_exception(error)

    def _detached(self, act: Callable[[], T]) -> T:
        self.is_lost = True
        asyncio.get_running_loop().remove_reader(self.connection.fileno())
        return act()

    def _read(self) -> None:
        try:
            message = receive(self.connection)
        except (EOFError, OSError):
            self.lose()
            return
        if "error" in message and "end" not in message:  # the function cannot be imported any more
            self.lose(message["error"])
        elif "end" not in message:
            self.is_ready.set()
        elif (future := self.running.get(message.get("end", -1))) and not future.done():
            if "error" in message:
                future.set_exception(Failed(message["error"]))
            else:
                future.set_result(Ended("", *message["value"]))


class Runner:
    """The processes of an agent."""

    def __init__(self, spec: Mapping[str, Any], workers: int) -> None:
        """`spec` is the first message to a process."""
        self._spec = spec
        self._processes = [AgentProcess(spec) for _ in range(workers)]
        self._numbers = count()
        self._alone = asyncio.Semaphore(max(workers, MAX_ALONE))

    def columns(self) -> tuple[Sequence[str], Sequence[str] | None]:
        """Waits until all processes are ready, and returns the required and the optional columns; None for
        all. Raises `Failed` if the function cannot be used."""
        for process in self._processes:
            found = process.columns(WHAT)
            process.is_ready.set()
            if "error" in found:
                for one in self._processes:
                    one.kill()
                raise Failed(found["error"])
        return found["required"], found["optional"]

    async def start(self) -> None:
        for process in self._processes:
            process.attach()

    async def run(
        self, task: Mapping[str, Any], limit: asyncio.Future[str], timeout_s: float, is_alone: bool
    ) -> Ended:
        """Runs an episode. `task` has `id`, `columns`, `base_url` and `api_key`, and `limit` gets the limit
        that ends it. Raises `Failed`, `Interrupted`, and the exception of `limit`."""
        if not is_alone:
            return await self._run_in(self._process(), task, limit, timeout_s)
        async with self._alone:
            process = AgentProcess(self._spec, is_shared=False)
            process.attach()
            try:
                return await self._run_in(process, task, limit, timeout_s)
            finally:
                process.kill_all()

    def _process(self) -> AgentProcess:
        """Returns the process with the fewest episodes. Lost ones are replaced."""
        for number, one in enumerate(self._processes):
            if one.is_lost:
                self._processes[number] = AgentProcess(self._spec)
                self._processes[number].attach()
        return min(self._processes, key=lambda one: len(one.running))

    async def _run_in(
        self, process: AgentProcess, task: Mapping[str, Any], limit: asyncio.Future[str], timeout_s: float
    ) -> Ended:
        number, end = process.begin(next(self._numbers))
        try:
            await process.is_ready.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await process.tell({"begin": number, **task})
                    either: set[asyncio.Future[Any]] = {end, limit}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            has_ended = end.done()
            if not has_ended:
                await self._cancel(process, number, end)
            if limit.done():
                return Ended(limit.result())
            return end.result() if has_ended else Ended("time")
        finally:
            if not end.done():  # the caller is cancelled
                await process.tell({"cancel": number})
            del process.running[number]

    async def _cancel(self, process: AgentProcess, number: int, end: asyncio.Future[Ended]) -> None:
        """Ends an episode that has reached a limit, and a process in which it does not end. Raises
        `Interrupted` if another one there may be the reason."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await process.tell({"cancel": number})
                await asyncio.wait({end})
        if not end.done():
            text = "an agent goes on %g s after its limit: its process is killed, and %d episodes begin again"
            _log.warning(text, CANCEL_S, len(process.running) if process.is_shared else 0)
            process.kill_all()
        if process.is_lost and process.is_shared:
            raise Interrupted

    async def close(self) -> None:
        for process in self._processes:
            process.kill_all()
