"""Engines whose nodes are other machines: the address of the head, and their common options. The base of
`ssh`, `ray` and `slurm`, and the engine `commands`, whose nodes a person or another tool starts. Its head
prints the command line of each node, and waits for them.

    RUN/commands.txt    the command lines
    RUN/head.json       the address of the head: `meshctl agent` without `--head` reads it
    RUN/.token          the token of the run, for agents that see this file; others get MESHCTL_TOKEN
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal

from meshctl.engines.engine import CannotStart, Command, Handle, Job, Rendered, agent_commands
from meshctl.engines.shipping import check_code, check_size, pack
from meshctl.network.addresses import address_of, default_address
from meshctl.network.connection import TOKEN_VARIABLE
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, SHIP_TO, RunDir, Start, write_whole

NO_MESHCTL, NO_SETUP, NO_CONNECTION = 96, 97, 255
"""Exit codes of the script. The last one is also that of ssh."""
REFUSED = 4
TAIL_BYTES = 4096
FOLDER = "meshctl_shipped"
"""The variable of the script with the temporary folder."""
REMOVE = f'for i in 1 2 3 4 5; do rm -rf "${FOLDER}" && break; sleep 1; done; '
"""Removes the folder. A process that is killed meanwhile may still write into it."""
RECEIVE = (
    f'{FOLDER}=$(umask 077; mktemp -d "${{TMPDIR:-/tmp}}/meshctl-shipped-XXXXXX") && IFS= read -r size || '
    f"exit {NO_CONNECTION}",
    f'head -c "$size" >"${FOLDER}/archive"',
    f'[ "$(wc -c <"${FOLDER}/archive")" -eq "$size" ] || {{ rm -rf "${FOLDER}"; '
    f'echo "error: the recipe\'s folder was not received whole" >&2; exit {REFUSED}; }}',
)


def script_of(setup: Sequence[str], argv: Sequence[str], is_shipped: bool = False) -> str:
    """Returns the shell script of a host: the lines of `setup`, then `meshctl agent`.

    The first line of its standard input is the token of the run. With `ship`, the next one is the size of an
    archive (`shipping`), which follows, and which the agent unpacks in a new temporary folder. When the input
    ends, everything that the script has started ends, also while the setup runs, and this folder is removed:
    a subshell ends the whole process group. It is no child of the agent, which kills its children."""
    lines = [
        f"IFS= read -r {TOKEN_VARIABLE} && export {TOKEN_VARIABLE} || exit {NO_CONNECTION}",
        *(RECEIVE if is_shipped else ()),
        "exec 3<&0 </dev/null",
        f"( {{ trap '' TERM; cat <&3; kill -TERM 0; {REMOVE if is_shipped else ''}}} >/dev/null 2>&1 & )",
        "exec 3<&-",
    ]
    agent = shlex.join(argv) + (f' --shipped "${FOLDER}"' if is_shipped else "")
    return "\n".join([*lines, *node_lines(setup, agent, is_shipped)])


def node_lines(setup: Sequence[str], agent: str, is_shipped: bool = False) -> list[str]:
    """Returns the lines of shell that run the setup on a node and become the agent. `agent` is its command
    line, whose first word is `meshctl`."""
    lines = [
        "cd" if is_shipped else f"cd {shlex.quote(os.getcwd())} 2>/dev/null",
    ]
    for line in setup:
        failed = shlex.quote(f"error: {line}")
        lines += [line, f"[ $? -eq 0 ] || {{ echo {failed} >&2; exit {NO_SETUP}; }}"]
    folder = shlex.quote(str(Path(sys.executable).parent))
    lines += [
        f"PATH=$PATH:{folder}; export PATH",
        f"command -v {agent.split()[0]} >/dev/null || exit {NO_MESHCTL}",
        f"exec {agent}",
    ]
    return lines


def refusals(where: str, key: str, problem: str) -> dict[int, str]:
    """Returns exit code -> the reason why a node did not start. `where` names its host, `key` is that of the
    engine in a recipe, and `problem` the last error in its output."""
    return {
        NO_MESHCTL: f"{where} has no meshctl: install it there, or activate it in `{key}.setup`",
        NO_SETUP: f"{where} has failed in `{key}.setup`: {problem}",
        2: f"{where}: {problem}",
        REFUSED: f"{where}: {problem}",
    }


def last_error(log: Path) -> str:
    """Returns the last line of a log that begins with `error: `, without that, or else its last line."""
    try:
        lines = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return [*lines[-1:], *errors][-1] if lines else "it has ended without a message"


class Awaited(Handle):
    """Nodes whose command lines the head prints."""

    def __init__(self, job: Job, commands: Sequence[Command]) -> None:
        """Publishes the address and the token, and prints the command lines. Raises `OSError`."""
        self._job = job
        self._commands = commands
        lines = [shlex.join(command.argv) for command in commands]
        publish(job)
        write_whole(job.run.commands, "".join(f"{line}\n" for line in lines))
        print(f"the head listens at {job.head}; start on each node:\n", flush=True)
        self._print([command.node for command in commands])

    def _print(self, nodes: Sequence[int]) -> None:
        for command in self._commands:
            if command.node in nodes:
                print(f"  {shlex.join(command.argv)}", flush=True)
        token = self._job.run.token
        print(f"\nwhere a node does not see {token}, set MESHCTL_TOKEN to its content\n", flush=True)

    def restart(self, nodes: Sequence[int]) -> bool:
        print("these nodes are lost; start them again:\n", flush=True)
        self._print(nodes)
        return True

    def close(self) -> None:
        withdraw(self._job)


def publish(job: Job) -> None:
    """Writes the address of the head and the token of the run, for nodes that see its directory. Raises
    `OSError`."""
    write_whole(job.run.token, f"{job.token}\n", private=True)
    write_whole(job.run.head, json.dumps({"address": job.head, "plan": job.plan.digest}) + "\n")


def withdraw(job: Job) -> None:
    """Removes what `publish` has written."""
    for file in (job.run.head, job.run.token):
        with suppress(OSError):
            file.unlink()


class RemoteEngine:
    """An engine whose nodes run `meshctl agent`, and whose supervisor is in the launcher's process."""

    supervisor: Literal["here", "inside"] = "here"
    examines_nodes = True

    def __init__(
        self,
        setup: Sequence[str] = (),
        join_limit: float = 300.0,
        lease: float = 15.0,
        head: str = "",
        ship: bool = False,
        ship_to: str = "",
    ) -> None:
        """The options of `engine.NAME`: shell commands before the agent, seconds, seconds, the address, host
        name or interface at which the head listens, whether the recipe's folder is copied to the nodes, and
        the folder there for runs."""
        self.setup, self.join_limit_s, self.lease_s, self._head = tuple(setup), join_limit, lease, head
        self.ships, self.shares_files, self._ship_to = ship, not ship, ship_to or SHIP_TO

    @property
    def host(self) -> str:
        """The address at which the head listens. Raises `CannotStart` if its name is unknown."""
        try:
            return address_of(self._head) if self._head else self.default_host()
        except OSError as error:
            raise CannotStart(
                f"`{self._head}` is neither an address, a host name nor an interface of this machine: {error}"
            ) from error

    def default_host(self) -> str:
        """Returns the address from which the nodes reach the head, if no option names it."""
        return default_address()

    def preflight(self, plan: Plan, start: Start) -> None:
        """Raises `CannotStart` if the head cannot listen, or the recipe's folder cannot be shipped. Each node
        checks itself before it starts workers."""
        _ = self.host
        if self.ships:
            check_code(plan, start.path)
            check_size(Path(start.path[0]), Path(plan.run.dir))

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        there = RunDir(Path(self._ship_to, run.path.parent.name, run.path.name)) if self.ships else run
        return Rendered(tuple(self.prepared(command) for command in agent_commands(plan, there, head)))

    def archive(self, job: Job) -> BinaryIO | None:
        """Returns the archive that each node unpacks; None without `ship`. Raises `CannotStart`."""
        if not self.ships:
            return None
        start = job.run.read_start()
        if start.resume:
            raise CannotStart(
                "with `ship` a run cannot continue from a checkpoint, because nodes do not see the files of "
                "others: continue it without `ship`, where all nodes share the run directory"
            )
        files = {"plan.json": job.plan.to_json(), "start.json": job.run.start.read_text(encoding="utf-8")}
        return pack(Path(start.path[0]), Path(job.plan.run.dir), files)

    def prepared(self, command: Command) -> Command:
        """Returns the command line that is started on a node: the agent after the setup."""
        return command


class CommandsEngine(RemoteEngine):
    def prepared(self, command: Command) -> Command:
        if not self.setup:
            return command
        lines = " && ".join([*self.setup, f"exec {shlex.join(command.argv)}"])
        return Command(command.node, ("sh", "-c", lines))

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        host = head.rpartition(":")[0].strip("[]")
        argv = ("meshctl", "head", "--plan", str(run.plan), "--host", host)
        return replace(super().render(plan, run, head), head=argv)

    def start(self, job: Job) -> Handle:
        return Awaited(job, self.render(job.plan, job.run, job.head).commands)
