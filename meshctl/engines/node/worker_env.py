"""What one worker is started with: its environment, its command line, where its output goes.

Pure: from the plan, the start and the environment that the fork server inherited. torchrun's variables are
the agent's to add, as they are torchelastic's; everything else is here.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from meshctl.engines.node.visible_devices import CannotStart as CannotStart
from meshctl.engines.node.visible_devices import narrowed, variables, visible
from meshctl.plan.model import Group, Plan, Program, Worker
from meshctl.run.directory import RunDir, Start
from meshctl.text.env_refs import Unset, filled

LOOPBACK = "lo"

READ_AT_IMPORT = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_"),
    *(
        "PYTHON",
        "PYTORCH_",
        "TORCH",
        "ATEN_",
        "CUDA_",
        "CUBLAS_",
        "CUDNN_",
        "NVIDIA_",
        "HIP_",
        "HSA_",
        "ROCR_",
        "ASCEND_",
    ),
    *("LD_", "MALLOC_", "GLIBC_TUNABLES", "LC_", "LANG"),
)
"""How the names of those variables begin that Python, torch or the libraries below them read while they are
loaded: too late for a process that is forked after that."""

WORKER = ("-m", "meshctl.runtime.worker")


def argv_of(run: RunDir, start: Start, group: Group, inherited: Mapping[str, str]) -> tuple[str, ...] | None:
    """A command line for a worker that has to be exec'd; none for one that is forked and called."""
    if group.program is not None:
        return _program_argv(group.program, run, start)
    return (sys.executable, *WORKER) if reads_at_import(group, inherited) else None


def reads_at_import(group: Group, inherited: Mapping[str, str]) -> bool:
    return any(
        name.startswith(READ_AT_IMPORT)
        and value is not None
        and resolve(value, inherited) != inherited.get(name)
        for name, value in group.env
    )


def environment(
    plan: Plan,
    run: RunDir,
    start: Start,
    group: Group,
    worker: Worker,
    head: str,
    inherited: Mapping[str, str],
    rocm: bool = False,
) -> dict[str, str]:
    """On top of what is inherited; the group's own `env` has the last word but for meshctl's names. `rocm`:
    torch is ROCm's.

    Devices of other types than its group's are left as they were: torchrun hides nothing, and a process on
    cpu that borrows a GPU is not surprised. Who wants them hidden says so: `env: {CUDA_VISIBLE_DEVICES: ""}`.
    """
    found = {"OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1")}
    if plan.cluster.nodes == 1:  # nothing leaves this machine
        found |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
    if mine := variables(group.device_type, rocm):
        found |= dict.fromkeys(
            mine, ",".join(visible(plan, worker, narrowed(group.device_type, inherited, rocm)))
        )
    found |= {name: resolve(value, inherited) for name, value in group.env if value is not None}
    return found | {
        "MESHCTL_PLAN": str(run.plan),
        "MESHCTL_GROUP": group.name,
        "MESHCTL_HEAD": head,
        "MESHCTL_ATTEMPT": str(start.attempt),
        "MESHCTL_RUN_DIR": str(run.path),
    }


def resolve(value: str, environ: Mapping[str, str]) -> str:
    """A value of `env:` with its references filled."""
    try:
        return filled(value, environ)
    except Unset as unset:
        raise CannotStart(f"{unset}, and the recipe refers to it") from None


def cwd_of(start: Start, program: Program) -> str:
    """Where a program runs; empty for where meshctl was called."""
    return str(Path(start.path[0], program.cwd)) if program.cwd else ""


def missing(start: Start, group: Group) -> str:
    """What of a program is not on this machine; empty if nothing."""
    program = group.program
    if program is None:
        return ""
    if (cwd := cwd_of(start, program)) and not Path(cwd).is_dir():
        return f"the folder {cwd}, in which the program of group {group.name} is to run, does not exist"
    if shutil.which(python := interpreter_of(start, program)) is None:
        return f"the interpreter {python} of group {group.name} does not exist"
    if not program.argv[0].startswith("-") and script_of(start, program) is None:
        return f"the program {program.argv[0]} of group {group.name} is in none of {', '.join(_folders(start, program))}"
    return ""


def script_of(start: Start, program: Program) -> Path | None:
    """The script, looked for where the program runs, beside the recipe and where meshctl was called."""
    candidates = (Path(folder, program.argv[0]) for folder in _folders(start, program))
    return next((path for path in candidates if path.is_file()), None)


def _folders(start: Start, program: Program) -> list[str]:
    cwd = cwd_of(start, program)
    return [cwd, *start.path] if cwd else list(start.path)


def _program_argv(program: Program, run: RunDir, start: Start) -> tuple[str, ...]:
    argv = [argument.replace("{run_dir}", str(run.path)) for argument in program.argv]
    if script := script_of(start, program):
        argv[0] = str(script)
    return (interpreter_of(start, program), *argv)


def interpreter_of(start: Start, program: Program) -> str:
    """A name is looked for as a shell does; a path is relative to the recipe's folder."""
    if not program.python:
        return sys.executable
    return str(Path(start.path[0], program.python)) if "/" in program.python else program.python
