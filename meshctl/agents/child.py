"""A process that runs the episodes of agents: an `async` function, many at a time, or a command for each.

parent                                              this process
{path, function, options} or {path, command}  ->    imports the function
                                              <-    {required, optional}, or {error}
{begin: number, columns, base_url, ...}       ->    begins an episode
{cancel: number}                              ->    ends it
                                              <-    {end: number, value: [reward, metrics]}, or error
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.named_function import Unsuitable, described, import_function, numbers_of, parameters_of
from meshctl.run.process import die_with
from meshctl.runtime.child_process import imported, receive, send

SCRATCH = "MESHCTL_SCRATCH"
"""The environment variable with the folder of the node that is removed at the end of the run."""
WHAT = "agent's function"
TASK = "{task}"
"""A word of a command that is replaced by the path of the file with the columns."""
MAX_LINE = 1 << 16
"""The longest line of a command's output in bytes."""


class WrongFunction(ValueError):
    """The function cannot run an agent."""


@dataclass(frozen=True)
class Episode:
    """The first argument of an agent's function."""

    id: str
    """The number of the sample, and that of the episode: 17.3"""
    base_url: str
    """The address of the gateway, for a client of the protocol."""
    api_key: str
    """The token of this episode."""


class Failed(Exception):
    """An episode that ended with an error. The text is the reason."""


class Agent(NamedTuple):
    """A function that runs an episode, and the columns that it takes; None for all."""

    run: Callable[[Episode, Mapping[str, Any]], Awaitable[Any]]
    required: list[str]
    optional: list[str] | None


def main(connection: Connection, first: Mapping[str, Any]) -> None:
    """Runs the process, until the parent closes the connection."""
    find = partial(_of_command, first["command"]) if first["command"] else partial(_of_function, first)
    if agent := imported(connection, WHAT, WrongFunction, find):
        asyncio.run(_serve(connection, agent))


async def _serve(connection: Connection, agent: Agent) -> None:
    tasks, closed = dict[int, asyncio.Task[None]](), asyncio.Event()

    async def run(number: int, given: Mapping[str, Any]) -> None:
        episode = Episode(given["id"], given["base_url"], given["api_key"])
        message: dict[str, Any] = {"end": number}
        try:
            found = await agent.run(episode, given["columns"])
            message["value"] = [None, {}] if found is None else [*numbers_of(found)]
        except (Failed, Unsuitable) as error:
            message["error"] = f"the agent {error}"
        except asyncio.CancelledError:
            message["error"] = "the agent was cancelled"
        del tasks[number]
        with suppress(OSError):  # the parent needs nothing more
            send(connection, message)

    def read() -> None:
        try:
            given = receive(connection)
        except (EOFError, OSError):
            closed.set()
            return
        if (number := given.get("begin")) is not None:
            tasks[number] = asyncio.create_task(run(number, given))
        elif task := tasks.get(given["cancel"]):
            task.cancel()

    asyncio.get_running_loop().add_reader(connection.fileno(), read)
    await closed.wait()
    for task in tasks.values():
        task.cancel()
    await asyncio.wait(tasks.values(), timeout=1.0) if tasks else None
    os._exit(0)  # a task that goes on would keep the process


def _of_function(first: Mapping[str, Any]) -> Agent:
    name, options = first["function"], first["options"]
    function = import_function("function", {}, name, WrongFunction)
    if not iscoroutinefunction(function):
        raise WrongFunction(
            f"function `{name}` must be `async def`, as many episodes share a process; a program that blocks "
            "is a `command`"
        )
    found = parameters_of(f"function `{name}`", function, options, WrongFunction)
    if not found.required:
        raise WrongFunction(f"function `{name}` has no parameter for the episode: `async def solve(episode)`")
    _, *required = found.required

    async def run(episode: Episode, columns: Mapping[str, Any]) -> Any:
        named = {one: columns[one] for one in found.optional if one in columns}
        try:
            return await function(episode, *(columns[one] for one in required), **named, **options)
        except (Exception, SystemExit) as error:
            raise Failed(f"raised {described(error, function)}") from error

    return Agent(run, required, [*found.optional])


def _of_command(command: list[str]) -> Agent:
    if command[0] == "python":
        command = [sys.executable, *command[1:]]

    async def run(episode: Episode, columns: Mapping[str, Any]) -> Any:
        with TemporaryDirectory(prefix="meshctl-agent-", dir=os.environ.get(SCRATCH)) as scratch:
            task = Path(scratch, "task.json")
            with os.fdopen(os.open(task, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                json.dump(columns, file)
            own = {"OPENAI_BASE_URL": episode.base_url, "OPENAI_API_KEY": episode.api_key}
            own |= {"MESHCTL_TASK": str(task), "TMPDIR": scratch}
            words = [str(task) if word == TASK else word for word in command]
            code, last, complaint = await _output_of(words, episode.id, {**os.environ, **own})
        if code:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            raise Failed(how + (f": {complaint}" if complaint else ""))
        try:
            found = json.loads(last)
        except ValueError:
            return None  # an answer, and no reward
        return found if isinstance(found, (int, float, dict)) else None

    return Agent(run, [], None)


async def _output_of(command: list[str], id: str, env: Mapping[str, str]) -> tuple[int, str, str]:
    """Runs a command in the recipe's folder, as a process group of its own that is killed if the episode ends
    before. Returns its exit status, and the last lines of its output and of its errors."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=sys.path[0] or None,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE,
            process_group=0,
            preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL),
        )
    except (OSError, ValueError) as error:
        raise Failed(f"cannot start `{command[0]}`: {error}") from None
    try:
        last, complaint = await asyncio.gather(
            *(_last_line(one, id) for one in (process.stdout, process.stderr))
        )
        return await process.wait(), last, complaint
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _last_line(stream: asyncio.StreamReader | None, id: str) -> str:
    """Forwards the lines of an episode's command to the log of the worker, and returns the last one."""
    last = ""
    assert stream is not None
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # it is longer than `MAX_LINE`, and left out
            continue
        if not line:
            return last
        text = line.decode(errors="replace").rstrip()
        if text:
            last = text
            print(f"{id}: {text}", file=sys.stderr)
