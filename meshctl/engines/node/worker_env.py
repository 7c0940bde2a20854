"""The interpreter, the environment and the command line of a worker. Workers of the launcher's interpreter
are forked; those of another one are started by exec.

Computed without side effects from the plan, the start and the fork server's environment. Torchrun's variables
are added by the agent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.checks.device_files import device_list, variables, visible_names
from meshctl.engines.engine import CannotStart
from meshctl.engines.node import scratch
from meshctl.network.connection import TOKEN_VARIABLE
from meshctl.plan.model import Group, Plan, Program, Worker
from meshctl.recipe.code.interpreters import CONFIG, interpreter_path, problem_of, python_path
from meshctl.run.directory import RunDir, Start
from meshctl.text.env_refs import Unset, filled

LOOPBACK = "lo"

READ_AT_IMPORT = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "PYTHON", "PYTORCH_", "TORCH"),
    *("ATEN_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ASCEND_"),
    *("LD_", "MALLOC_", "GLIBC_TUNABLES", "LC_", "LANG"),
)
"""Prefixes of variables that Python, torch or their libraries read while they are loaded. A forked process
has them loaded already and would not see a change."""

WORKER = ("-P", "-m", "meshctl.runtime.worker")


@dataclass(frozen=True)
class Stores:
    """The addresses of the head's stores, and what the processes of an attempt need to use them."""

    torch: str
    """HOST:PORT of the store of torch's process groups; in an attempt on one node, the folder of its
    stores."""
    control: str
    """HOST:PORT of the control store."""
    token: str = field(repr=False)
    """The token of the run, which the control store asks for."""
    interface: str = ""
    """The network interface of this node's connection to the head; empty if it is unknown."""


@dataclass(frozen=True)
class AgentJob:
    """One group on one node, in one attempt, with the environment and the command line of its workers."""

    plan: Plan
    run: RunDir
    start: Start
    name: str
    """The group."""
    node: int
    stores: Stores
    inherited: Mapping[str, str]
    """The environment of the fork server."""
    is_rocm: bool = False
    """True if torch is a ROCm build."""
    starter: int = 0
    """The pid of the process that has started the node process: on one machine, the launcher."""
    generations: Mapping[str, int] = field(default_factory=dict)
    """Group -> how often it has restarted alone in this attempt."""

    @property
    def log(self) -> Path:
        return self.run.log(self.name, f"agent-{self.node}")

    @cached_property
    def group(self) -> Group:
        return self.plan.group(self.name)

    @cached_property
    def members(self) -> tuple[Worker, ...]:
        """The workers of the group on this node, by local rank."""
        return tuple(self.plan.workers(self.name, self.node))

    @property
    def logs(self) -> list[Path]:
        """The logs of these workers."""
        return [self.run.log(self.name, member.rank) for member in self.members]

    @property
    def python(self) -> str:
        """The interpreter of the workers."""
        return server_python(self.group, self.start.path)

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The command line of a worker that must be started by exec; None for a worker that only forks."""
        if self.group.program is not None:
            return _program_argv(self.group.program, self.run, self.start)
        is_other = self.python != sys.executable
        return (self.python, *WORKER) if is_other or reads_at_import(self.group, self.inherited) else None

    @property
    def cwd(self) -> str:
        return cwd_of(self.start, self.group.program) if self.group.program else ""

    def variables(self, worker: Worker) -> dict[str, str | None]:
        """Returns the variables to add to the inherited environment; None for one to remove. The group's
        `env` overrides all of them except `MESHCTL_*`.

        Device lists of other types than the group's are not changed: as under torchrun, a worker on cpu may
        use a GPU. `env: {CUDA_VISIBLE_DEVICES: ""}` hides the GPUs.
        """
        found: dict[str, str | None] = {"OMP_NUM_THREADS": self.inherited.get("OMP_NUM_THREADS", "1")}
        if self.python != sys.executable:
            own = environ_of(self.python, self.inherited)
            changed = {*own.items()} ^ {*self.inherited.items()}
            found = {name: own.get(name) for name, _ in changed} | found
        if self.plan.cluster.nodes == 1:  # nothing leaves this machine
            found |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        elif self.stores.interface:
            # By themselves they take the address of the host's name, perhaps 127.0.1.1.
            own = {"GLOO_SOCKET_IFNAME": self.stores.interface, "NCCL_SOCKET_IFNAME": self.stores.interface}
            found |= {name: self.inherited.get(name, value) for name, value in own.items()}
        if names := variables(self.group.device_type, self.is_rocm):
            left = device_list(self.group.device_type, self.inherited, self.is_rocm)
            found |= dict.fromkeys(names, ",".join(visible_names(self.plan, worker, left)))
        for name, value in self.group.env:
            if value is not None:
                found[name] = resolve(value, self.inherited)
        if self.group.program is None:
            found |= {"MESHCTL_CONTROL": self.stores.control, TOKEN_VARIABLE: self.stores.token}
            found |= {"MESHCTL_GENERATIONS": json.dumps(self.generations)} if self.generations else {}
        return found | {
            "MESHCTL_PLAN": str(self.run.plan_of(self.start)),
            "MESHCTL_GROUP": self.group.name,
            "MESHCTL_HEAD": self.stores.torch,
            "MESHCTL_ATTEMPT": str(self.start.attempt),
            "MESHCTL_RUN_DIR": str(self.run.path),
            scratch.VARIABLE: str(scratch.scratch_folder(self.stores.token, worker.node)),
        }


def reads_at_import(group: Group, inherited: Mapping[str, str]) -> bool:
    """Returns whether the group's `env` changes a variable that libraries read while they are loaded."""
    return any(
        name.startswith(READ_AT_IMPORT)
        and value is not None
        and resolve(value, inherited) != inherited.get(name)
        for name, value in group.env
    )


def resolve(value: str, environ: Mapping[str, str]) -> str:
    """Returns a value of `env:` with its references to variables replaced. Raises `CannotStart` for an unset
    variable."""
    try:
        return filled(value, environ)
    except Unset as unset:
        raise CannotStart(f"{unset}, and the recipe refers to it") from None


def unset_in_args(plan: Plan, group: Group, environ: Mapping[str, str]) -> str:
    """Returns a sentence about a variable that the arguments of the group's components refer to and that is
    not set in `environ`; empty if there is none."""
    for component in plan.components_of(group.name):
        for place, text in texts_in(component.args, f"components.{component.name}.args"):
            try:
                filled(text, environ)
            except Unset as unset:
                return f"{place}: {unset}: set it, or give a default, ${{oc.env:{unset.name},VALUE}}"
    return ""


def texts_in(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Yields the key path and the text of each text in plain data."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_in(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from texts_in(item, f"{place}.{index}")


def cwd_of(start: Start, program: Program) -> str:
    """Returns the working directory of a program; empty for the launcher's working directory."""
    return str(Path(start.path[0], program.cwd)) if program.cwd else ""


def missing(start: Start, group: Group) -> str:
    """Returns a sentence about a file or interpreter that the group's program needs and that this machine
    lacks; empty if none is missing or the group has no program."""
    program = group.program
    if program is None:
        return ""
    if (cwd := cwd_of(start, program)) and not Path(cwd).is_dir():
        return f"the working directory {cwd} of the program of group {group.name} does not exist"
    python = interpreter_path(program.python or sys.executable, start.path[0])
    if problem := problem_of(python):
        return f"the interpreter {python} of group {group.name} {problem}"
    if not program.argv[0].startswith("-") and script_of(start, program) is None:
        return (
            f"the program {program.argv[0]} of group {group.name} was not found in "
            f"{', '.join(_folders(start, program))}"
        )
    return ""


def script_of(start: Start, program: Program) -> Path | None:
    """Returns the path of the program's script, searched in the program's folder, the recipe's folder and the
    working directory; None if it is not found."""
    candidates = (Path(folder, program.argv[0]) for folder in _folders(start, program))
    return next((path for path in candidates if path.is_file()), None)


def _folders(start: Start, program: Program) -> list[str]:
    cwd = cwd_of(start, program)
    return [cwd, *start.path] if cwd else list(start.path)


def _program_argv(program: Program, run: RunDir, start: Start) -> tuple[str, ...]:
    argv = [argument.replace("{run_dir}", str(run.path)) for argument in program.argv]
    if script := script_of(start, program):
        argv[0] = str(script)
    python = os.path.expanduser(program.python or sys.executable)
    return (str(Path(start.path[0], python)) if "/" in python else python, *argv)


# Interpreters

OF_THE_LAUNCHER = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that describe the launcher's interpreter and its packages."""


def server_python(group: Group, path: Sequence[str]) -> str:
    """Returns the interpreter of a group's workers: `sys.executable` if it is the launcher's. `path` lists
    the folders of the recipe's code."""
    if not group.python:
        return sys.executable
    python = interpreter_path(group.python, path[0])
    is_in_same_folder = os.path.dirname(python) == os.path.dirname(sys.executable)
    if is_in_same_folder and os.path.realpath(python) == os.path.realpath(sys.executable):
        return sys.executable
    return python


def groups_of(plan: Plan, path: Sequence[str], python: str = sys.executable) -> tuple[str, ...]:
    """Returns the groups whose workers run an interpreter."""
    return tuple(group.name for group in plan.groups if server_python(group, path) == python)


def environ_of(python: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which another interpreter starts, as if its virtual environment had been
    activated. The packages of the launcher's interpreter are not on its import path."""
    found = {name: value for name, value in inherited.items() if name not in OF_THE_LAUNCHER}
    folder = os.path.dirname(python)
    found["PATH"] = os.pathsep.join([folder, inherited.get("PATH", os.defpath)])
    if Path(folder, "..", CONFIG).is_file():
        found["VIRTUAL_ENV"] = os.path.dirname(folder)
    if folders := python_path(inherited):
        found["PYTHONPATH"] = os.pathsep.join(folders)
    return found
