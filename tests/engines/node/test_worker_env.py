"""The environment and the command line of a worker."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshctl.engines.node.scratch import scratch_folder
from meshctl.engines.node.worker_env import (
    AgentJob,
    Stores,
    environ_of,
    missing,
    reads_at_import,
    server_python,
    unset_in_args,
)
from meshctl.plan.model import Cluster, Component, Group, Plan, Program, Run
from meshctl.run.directory import RunDir, Start
from meshctl.topology.mesh import DeviceMesh


def planned(*groups: Group, devices: int = 8) -> Plan:
    return Plan("test", 0, Cluster.of(1, cuda=devices, npu=devices), groups, (), (), (), Run())


def cuda(name: str = "train", start: int = 4, workers: int = 2, per_worker: int = 1, **more: Any) -> Group:
    stop = start + workers * per_worker
    return Group(name, "cuda", workers, 0, devices=((start, stop),), gpus_per_worker=per_worker, **more)


STORES = Stores("127.0.0.1:1", "127.0.0.1:2", "secret")


def test_environment() -> None:
    group = cuda(env=(("MY", "${oc.env:HOME_OF_MINE,none}/x"), ("PASSED", None)))
    plan, run = planned(group), RunDir(Path("/runs/1"))
    env = AgentJob(plan, run, Start(("/recipe",), 2), "train", 0, STORES, {})
    assert env.variables(plan.worker("train", 0)) == {
        "CUDA_VISIBLE_DEVICES": "4",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "MESHCTL_ATTEMPT": "2",
        "MESHCTL_CONTROL": "127.0.0.1:2",
        "MESHCTL_GROUP": "train",
        "MESHCTL_HEAD": "127.0.0.1:1",
        "MESHCTL_PLAN": "/runs/1/plan.json",
        "MESHCTL_RUN_DIR": "/runs/1",
        "MESHCTL_SCRATCH": str(scratch_folder("secret", 0)),
        "MESHCTL_TOKEN": "secret",
        "MY": "none/x",
        "OMP_NUM_THREADS": "1",
    }
    env = replace(env, inherited={"OMP_NUM_THREADS": "3"})
    assert env.variables(plan.worker("train", 0))["OMP_NUM_THREADS"] == "3"


def devices_of(group: Group, inherited: dict[str, str], rocm: bool = False) -> dict[str, str]:
    plan = planned(group)
    env = AgentJob(plan, RunDir(Path("/runs/1")), Start(()), group.name, 0, STORES, inherited, rocm)
    environ = env.variables(plan.worker(group.name, 1))
    return {name: value for name, value in environ.items() if name.endswith("VISIBLE_DEVICES")}


HIP = {"HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "5"}
HIDDEN = Group("train", "cpu", 2, 0, env=(("CUDA_VISIBLE_DEVICES", ""),))


@pytest.mark.parametrize(
    ("group", "inherited", "rocm", "expected"),
    [
        (cuda(), {}, False, {"CUDA_VISIBLE_DEVICES": "5"}),
        (cuda(), {}, True, HIP),
        (Group("train", "npu", 2, 0, devices=((4, 6),)), {}, True, {"ASCEND_RT_VISIBLE_DEVICES": "5"}),
        (Group("train", "cpu", 2, 0), {"CUDA_VISIBLE_DEVICES": "0"}, False, {}),
        (cuda(start=0), {"ROCR_VISIBLE_DEVICES": "GPU-a,GPU-b"}, True, dict.fromkeys(HIP, "1")),
        (cuda(start=0), {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "2,3"}, True, dict.fromkeys(HIP, "3")),
        (cuda(start=0), {"CUDA_VISIBLE_DEVICES": "6,7"}, True, dict.fromkeys(HIP, "7")),
        (cuda(env=(("CUDA_VISIBLE_DEVICES", "7"),)), {}, False, {"CUDA_VISIBLE_DEVICES": "7"}),
        (HIDDEN, {"CUDA_VISIBLE_DEVICES": "0"}, False, {"CUDA_VISIBLE_DEVICES": ""}),
    ],
)  # fmt: skip
def test_each_type_of_device_has_its_variables(
    group: Group, inherited: dict[str, str], rocm: bool, expected: dict[str, str]
) -> None:
    """A list that ROCm inherits is kept and counted in. A group's own variables have the last word."""
    assert devices_of(group, inherited, rocm) == expected


def test_a_variable_that_arguments_refer_to_is_missing_before_the_start() -> None:
    group = Group("train", "cpu", 2, 0)
    args = {"rows": [{"path": "${oc.env:DATA}/x"}], "cache": "${oc.env:CACHE,/tmp}", "n": 3}
    plan = planned(group)
    plan = replace(
        plan, components=(Component("actor", "a.B", "train", DeviceMesh.from_sizes(dp_size=2), args),)
    )
    found = unset_in_args(plan, group, {})
    assert found.startswith("components.actor.args.rows.0.path: the environment variable DATA is not set: ")
    assert unset_in_args(plan, group, {"DATA": "/data"}) == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((("OMP_NUM_THREADS", "2"),), True),
        ((("OMP_NUM_THREADS", "1"),), False),
        ((("MKL_DEBUG", None),), False),
        ((("LD_PRELOAD", "${oc.env:LIBRARY}"),), True),
        ((("NCCL_DEBUG", "INFO"), ("MY_OMP_NUM_THREADS", "2")), False),
    ],
)
def test_which_variables_are_read_at_import(
    given: tuple[tuple[str, str | None], ...], expected: bool
) -> None:
    group = Group("one", "cpu", 1, 0, env=given)
    inherited = {"OMP_NUM_THREADS": "1", "LIBRARY": "x.so"}
    assert reads_at_import(group, inherited) == expected
    env = AgentJob(planned(group), RunDir(Path()), Start(("/",)), "one", 0, STORES, inherited)
    assert env.argv == ((sys.executable, "-P", "-m", "meshctl.runtime.worker") if expected else None)
    other = replace(env, plan=planned(replace(group, python="/other/python")))
    assert other.argv == ("/other/python", "-P", "-m", "meshctl.runtime.worker")


def test_a_program_is_found_in_the_folder_of_the_recipe(tmp_path: Path) -> None:
    recipe, here = tmp_path / "recipe", tmp_path / "here"
    for folder in (recipe / "sub", here):
        folder.mkdir(parents=True)
    start, run = Start((str(recipe), str(here))), RunDir(tmp_path / "run")

    def argv(program: Program) -> tuple[str, ...] | None:
        group = Group("one", "cpu", 1, 0, program=program)
        return AgentJob(planned(group), run, start, "one", 0, STORES, {}).argv

    (here / "train.py").touch()
    assert argv(Program(("train.py", "{run_dir}/out"))) == (
        sys.executable,
        str(here / "train.py"),
        f"{tmp_path}/run/out",
    )
    (recipe / "train.py").touch()
    assert argv(Program(("train.py",))) == (sys.executable, str(recipe / "train.py"))
    (recipe / "sub" / "train.py").touch()
    assert argv(Program(("train.py",), cwd="sub")) == (sys.executable, str(recipe / "sub" / "train.py"))
    assert argv(Program(("-m", "train"), python="python3")) == ("python3", "-m", "train")
    assert argv(Program(("-m", "train"), python="env/bin/python")) == (
        f"{recipe}/env/bin/python",
        "-m",
        "train",
    )
    assert argv(Program(("-m", "train"), python="~/env/python")) == (
        f"{Path.home()}/env/python",
        "-m",
        "train",
    )


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (Program(("none.py",)), "the program none.py of group one was not found in"),
        (Program(("none.py",), cwd="none"), "of the program of group one does not exist"),
        (
            Program(("-m", "x"), python="no-such-python"),
            "the interpreter no-such-python of group one is not on PATH",
        ),
    ],
)
def test_what_is_missing_is_reported_before_the_start(tmp_path: Path, program: Program, words: str) -> None:
    assert words in missing(Start((str(tmp_path),)), Group("one", "cpu", 1, 0, program=program))


# Interpreters


def test_the_environment_is_that_of_an_activated_one(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    python = f"{tmp_path}/bin/python"
    inherited = {
        "PATH": "/launcher/bin:/usr/bin",
        "PYTHONPATH": "/code:/launcher/lib/python3.11/site-packages",
        "PYTHONHOME": "/launcher",
        "VIRTUAL_ENV": "/launcher",
        "TOKEN": "secret",
    }
    assert environ_of(python, inherited) == {
        "PATH": f"{tmp_path}/bin:/launcher/bin:/usr/bin",
        "PYTHONPATH": "/code",
        "VIRTUAL_ENV": str(tmp_path),
        "TOKEN": "secret",
    }
    assert environ_of("/usr/bin/python3", {"VIRTUAL_ENV": "/launcher"}) == {"PATH": f"/usr/bin:{os.defpath}"}


def test_other_names_of_the_launchers_interpreter_need_no_server(tmp_path: Path) -> None:
    def python(name: str) -> str:
        return server_python(Group("one", "cpu", 1, 0, python=name), (str(tmp_path),))

    folder = Path(sys.executable).parent
    assert python("") == python(sys.executable) == python(str(folder / "python")) == sys.executable
    (tmp_path / "python").symlink_to(sys.executable)  # not in the environment of the launcher
    assert python("./python") == f"{tmp_path}/python"
