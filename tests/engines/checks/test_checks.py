"""The checks of `doctor`: pinned findings for many kinds of machines, the child processes, and the
measurements.

python -m tests.engines.checks.test_checks      regenerates the golden text; read the difference
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from meshctl.diagnostics.health import Check
from meshctl.engines.checks import (
    clock,
    devices,
    disk,
    limits,
    memory,
    network,
    runner,
    versions,
)
from meshctl.engines.checks.probe import Answer, Probe
from meshctl.engines.checks.requirements import GIB, MIB, Finding, Requirements, amount
from meshctl.view.reports.health import table
from tests.engines.checks.facts import row
from tests.paths import ROOT

GOLDEN = Path(__file__).parent / "golden" / "doctor.txt"


RANGES = {"python": ">=3.11", "torch": ">=2.11", "hydra-core": "<1.4,>=1.3.8"}


INSTALLED = {"python": "3.11.7", "torch": "2.13.0+cu126", "hydra-core": "1.3.8"}


TORCH: Mapping[str, Any] = {
    "version": "2.13.0+cu126",
    "file": "/env/lib/torch/__init__.py",
    "seconds": 2.0,
    "cuda": "12.6",
    "hip": "",
}


CPU_TORCH = {**TORCH, "version": "2.13.0+cpu", "cuda": ""}


SEEN: Mapping[str, Any] = {
    "kind": "cuda",
    "count": 2,
    "driver": 12080,
    "names": ["NVIDIA H200"] * 2,
    "capabilities": [[9, 0]] * 2,
    "archs": ["sm_80", "sm_90"],
}


VERSIONS = versions.Facts(
    "0.1.0", RANGES, INSTALLED, "/env/bin/meshctl", "/env", "/env/lib/meshctl", (), TORCH
)


DEVICES = devices.Facts({"cuda": 2}, smi=[row(0), row(1)], torch=TORCH, seen=SEEN)


NO_DEVICE = devices.Facts(torch=CPU_TORCH, seen={"kind": "cuda", "count": 0})


TRAINS = Requirements(device_types=("cuda",), workers=8)


ONLY_CPU = Requirements(device_types=("cpu",))


NEEDS_20_GIB = Requirements(device_types=("cuda",), workers=2, device_bytes={"0": 20 * GIB, "1": 20 * GIB})


SAVES = Requirements(workers=2, checkpoint_bytes=3 * GIB, checkpoints=4)


BIG = limits.Facts(cpus=256, allowed=256)


NOW = time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1))


CLOCK = clock.Facts("Linux", "6.8.0", now=NOW + 60, written=NOW)


def seen(**changes: Any) -> devices.Facts:
    """Returns the facts of two devices about which torch reports something else."""
    return replace(DEVICES, seen={**SEEN, **changes})


def listed(*names: str, count: int) -> devices.Facts:
    """Returns the facts of two devices, a variable that lists some of them, and the number that torch
    sees."""
    left = {"variable": "CUDA_VISIBLE_DEVICES", "variable_text": ",".join(names), "visible": names}
    return replace(seen(count=count), **left)


def workers(count: int) -> Requirements:
    return Requirements(workers=count)


CASES: dict[str, tuple[Any, ...]] = {
    "all is well": (VERSIONS,),
    "run from a checkout": (versions.Facts(folder="/home/me/meshctl", torch=TORCH),),
    "parts are lost": (replace(VERSIONS, lost=("conf/base.yaml",)),),
    "a namesake": (replace(VERSIONS, namesake="the distribution `meshctl` 9.0 (another tool)"),),
    "no command": (replace(VERSIONS, command=""),),
    "another's command": (replace(VERSIONS, command="/usr/bin/meshctl"),),
    "old and missing": (
        replace(VERSIONS, installed={"python": "3.10.1", "torch": "2.4.1", "hydra-core": ""}),
    ),
    "too new": (replace(VERSIONS, installed={**INSTALLED, "hydra-core": "1.4.0rc1"}),),
    "torch cannot be imported": (
        replace(VERSIONS, torch={"error": "OSError: libcudnn.so.9: cannot open shared file"}),
    ),
    "two torches": (
        replace(VERSIONS, torch={**TORCH, "version": "2.9.0", "file": "/home/me/torch/__init__.py"}),
    ),
    "a slow disk": (replace(VERSIONS, torch={**TORCH, "seconds": 48.0}),),
    "torch for ROCm": (replace(VERSIONS, torch={**TORCH, "cuda": "", "hip": "6.4"}),),
    "hidden modules": (
        replace(VERSIONS, hiding=tuple(f"/job/{name}.py" for name in ("random", "json", *"abcdefg"))),
    ),
    "no device": (NO_DEVICE,),
    "two devices": (DEVICES,),
    "devices that the container lacks": (devices.Facts(hidden=8, torch=TORCH), TRAINS),
    "devices that are closed": (replace(DEVICES, closed="/dev/nvidia0"),),
    "a list of devices": (listed("1", "0", count=2),),
    "a list of no devices": (listed(count=0),),
    "a list of others": (listed("0", "7", count=1),),
    "MIG": (listed("MIG-a", "MIG-b", count=1),),
    "nvidia-smi hangs": (replace(DEVICES, smi=(), smi_error="no answer within 20 s"),),
    "torch for cpu": (replace(DEVICES, torch=CPU_TORCH),),
    "torch for cpu, and a recipe for cuda": (replace(DEVICES, torch=CPU_TORCH), TRAINS),
    "an old driver": (
        seen(error="The NVIDIA driver on your system is too old (found version 11040).", driver=11040),
    ),
    "an old driver, and a recipe for cpu": (
        seen(error="The NVIDIA driver on your system is too old", driver=11040),
        ONLY_CPU,
    ),
    "an error of the driver": (seen(error="CUDA unknown error"),),
    "a driver that hangs": (replace(DEVICES, seen={}, seen_error="no answer within 90 s"),),
    "a device is missing": (seen(count=1),),
    "a device is too new": (seen(capabilities=[[9, 0], [12, 0]], names=["H200", "RTX 5090"]),),
    "others are on a device": (replace(DEVICES, smi=[row(0), row(1, 60 << 10, "Exclusive_Process")]),),
    "models beside others": (
        replace(DEVICES, smi=[row(0), row(1, 126 << 10)]),
        NEEDS_20_GIB,
    ),
    "models with others": (replace(DEVICES, smi=[row(0), row(1, 80 << 10)]), NEEDS_20_GIB),
    "models that are too large": (DEVICES, replace(NEEDS_20_GIB, device_bytes={"0": 150 * GIB})),
    "models on devices by UUID": (
        replace(DEVICES, smi=[row(0, 126 << 10), row(1, 126 << 10)]),
        replace(NEEDS_20_GIB, device_bytes={"GPU-1": 20 * GIB}),
    ),
    "models on two devices beside others": (
        replace(DEVICES, smi=[row(0), row(1, 90 << 10)]),
        replace(NEEDS_20_GIB, device_bytes={"0,1": 200 * GIB}),
    ),
    "models that are too large for two devices": (
        DEVICES,
        replace(NEEDS_20_GIB, device_bytes={"0,1": 300 * GIB}),
    ),
    "others are on one of two devices": (
        replace(DEVICES, smi=[row(0), row(1, 60 << 10)]),
        replace(NEEDS_20_GIB, device_bytes={"0,1": 0}),
    ),
    "a device for one process": (
        replace(DEVICES, smi=[row(0), row(1, mode="Exclusive_Process")]),
        replace(NEEDS_20_GIB, shared_devices=("1",)),
    ),
    "ROCm": (replace(seen(driver=0), is_rocm=True, smi=(), torch={**TORCH, "cuda": "", "hip": "6.4"}),),
    "npu": (replace(NO_DEVICE, files={"npu": 8}),),
    "npu and its torch": (
        replace(NO_DEVICE, files={"npu": 8}, has_torch_npu=True, seen={"kind": "npu", "count": 8}),
    ),
    "npu that is not seen": (replace(NO_DEVICE, files={"npu": 8}, has_torch_npu=True),),
    "mps": (replace(NO_DEVICE, files={"mps": 1}, seen={"kind": "mps", "count": 1}),),
    "network": (network.Facts(),),
    "no loopback": (network.Facts("PermissionError: Operation not permitted"),),
    "another loopback": (network.Facts(interfaces=("loopback0", "eth0")),),
    "few ports": (network.Facts(ports_used=27_000),),
    "hardly any ports": (network.Facts(ports=(40_000, 40_030)),),
    "no ports": (network.Facts(port_error="Address already in use"),),
    "memory": (memory.Facts(),),
    "little memory": (memory.Facts(available=600 * MIB),),
    "little memory for models": (memory.Facts(available=6 * GIB), Requirements(model_bytes=9 * GIB)),
    "little memory for copies": (
        memory.Facts(available=6 * GIB),
        Requirements(model_bytes=4 * GIB, copy_bytes=3 * GIB),
    ),
    "little memory for copies of devices": (
        memory.Facts(available=6 * GIB),
        Requirements(copy_bytes=9 * GIB),
    ),
    "a container's memory": (memory.Facts(limit=8 * GIB, used=3 * GIB),),
    "a container's memory is full": (memory.Facts(limit=8 * GIB, used=7 * GIB),),
    "a container's shm": (memory.Facts(shm=64 * MIB, shm_free=64 * MIB),),
    "a container's shm, and NCCL": (memory.Facts(shm=64 * MIB, shm_free=64 * MIB), NEEDS_20_GIB),
    "a full shm": (memory.Facts(shm_free=3 * MIB),),
    "no shm": (memory.Facts(shm=0, shm_free=0, shm_error="No such file or directory"),),
    "no memfd": (memory.Facts(memfd_error="OSError: [Errno 38] Function not implemented"),),
    "no files over sockets": (
        memory.Facts(socket_error="PermissionError: [Errno 1] Operation not permitted"),
    ),
    "no overcommit": (memory.Facts(overcommit=2),),
    "limits": (limits.Facts(),),
    "few files": (limits.Facts((256, 4096)),),
    "hardly any files": (limits.Facts((30, 30)),),
    "hardly any files for a recipe": (limits.Facts((64, 1024)), workers(12)),
    "fewer files than some workers use": (limits.Facts((256, 4096)), workers(20)),
    "few files for many workers": (replace(BIG, files=(1024, limits.NO_LIMIT)), workers(128)),
    "few processes": (limits.Facts(tasks=200),),
    "few processes, but for root": (limits.Facts(tasks=200, is_root=True),),
    "few processes in a container": (limits.Facts(pids=1024, pids_used=1000),),
    "too few processes in a container": (limits.Facts(pids=1024, pids_used=1000), workers(16)),
    "few processes for many workers": (replace(BIG, pids=4096, pids_used=100), workers(128)),
    "locked memory and InfiniBand": (limits.Facts(locked_bytes=8 * MIB, infiniband=("mlx5_0",)),),
    "little address space": (limits.Facts(address_bytes=32 * GIB),),
    "a quota of processors": (limits.Facts(quota=1.5), workers(4)),
    "threads that are too many": (limits.Facts(omp_num_threads="16"),),
    "threads by workers": (limits.Facts(omp_num_threads="4"), workers(4)),
    "threads that are none": (limits.Facts(omp_num_threads="many"),),
    "clock": (CLOCK,),
    "not Linux": (replace(CLOCK, system="Darwin", release="24.1"),),
    "a clock that is behind": (replace(CLOCK, now=NOW - 10 * clock.YEAR_S),),
    "a clock that is ahead": (replace(CLOCK, now=NOW + 30 * clock.YEAR_S),),
    "a shell's background": (replace(CLOCK, is_interrupt_ignored=True),),
    "disk": (disk.Facts("/data", kind="ext4"),),
    "a disk on a network": (disk.Facts("/shared", kind="nfs4"),),
    "a disk that hangs": (disk.Facts(error="no answer within 20 s"), Requirements("/shared/runs")),
    "a disk that is read only": (disk.Facts("/data", errors={"write": "Read-only file system"}),),
    "a disk with little space": (disk.Facts("/data", free=2 * GIB),),
    "a disk that is full": (disk.Facts("/data", free=200 << 10),),
    "a disk without space for a checkpoint": (disk.Facts("/data", free=2 * GIB), SAVES),
    "a disk without space for the checkpoints": (disk.Facts("/data", free=10 * GIB), SAVES),
    "a disk with space for the checkpoints": (disk.Facts("/data", free=12 * GIB), SAVES),
    "a disk with few files": (disk.Facts("/data", free_files=12),),
    "a disk without locks": (disk.Facts("/data", errors={"lock": "OSError: [Errno 37] No locks available"}),),
    "a disk with another clock": (disk.Facts("/data", skew_s=-90.0),),
    "a disk that flushes slowly": (disk.Facts("/data", flush_s=2.5),),
    "no temporary files": (disk.Facts("/data", temporary_error="No usable temporary directory found"),),
}
"""Name of a case -> the facts of a topic, and the requirements if they matter."""


def judged(facts: Any, requirements: Requirements = Requirements()) -> tuple[Check, ...]:
    [subject] = [name for name, topic in runner.TOPICS.items() if topic.facts is type(facts)]
    findings = runner.TOPICS[subject].judge(facts, requirements)
    return tuple(finding.check(subject) for finding in findings)


FOUND = {name: judged(*case) for name, case in CASES.items()}


def pinned() -> str:
    """Returns the findings of a case; only those that are not ok, if there are any."""
    shown = {
        name: [check for check in checks if check.state != "ok"] or checks for name, checks in FOUND.items()
    }
    return "\n".join(f"== {name}\n{table([*map(anywhere, checks)])}" for name, checks in shown.items())


def anywhere(check: Check) -> Check:
    """Replaces the folder of the checkout."""
    return replace(check, remedy=check.remedy.replace(str(ROOT), "/checkout"))


def test_golden() -> None:
    assert pinned() == GOLDEN.read_text()


@pytest.mark.parametrize("checks", FOUND.values(), ids=FOUND)
def test_what_is_not_well_has_a_remedy_and_each_name_is_there_once(checks: tuple[Check, ...]) -> None:
    assert len({(check.subject, check.name) for check in checks}) == len(checks)
    for check in checks:
        assert check.found and (check.state == "ok") == (not check.remedy), check
        assert (
            "\n" not in check.found + check.remedy and not check.found.endswith(".") and len(check.name) <= 21
        )


# Measurements


def test_a_device_that_hangs_hides_no_other_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(function: str, arguments: list[Any], seconds: float) -> Probe:
        hangs = function == "meshctl.engines.checks.torch_build:devices"
        return Probe("time:sleep", [1000], 0.1) if hangs else Probe(function, arguments, seconds)

    monkeypatch.setattr(devices, "Probe", probe)
    found = devices.measure(asdict(Requirements()))
    assert found["seen"] == {} and found["seen_error"].startswith("no answer within ")
    assert found["torch"]["version"].startswith("2.")


def test_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    requirements = Requirements(str(tmp_path / "not yet" / "runs"))
    facts = disk.Facts(**disk.measure(asdict(requirements)))
    assert facts.errors == {} and facts.folder == str(tmp_path) and facts.kind
    assert list(tmp_path.iterdir()) == []
    disk.scratch(requirements.runs, os.getpid()).mkdir()
    disk.clean(requirements)
    assert list(tmp_path.iterdir()) == []


def test_disk_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    facts = disk.Facts(**disk.measure(asdict(Requirements(str(tmp_path / "runs")))))
    assert [finding.state for finding in disk.judge(facts, Requirements())] == ["failure"]


def test_broken_renames_links_and_locks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", lambda self, target: None)
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    assert set(disk.measure(asdict(Requirements(str(tmp_path))))["errors"]) == {"rename", "link", "lock"}
    assert list(tmp_path.iterdir()) == []


def test_this_machine_passes_what_is_tried() -> None:
    assert network.loopback_error() == memory.memfd_error() == memory.socket_error() == ""
    facts = network.Facts(**network.measure({}))
    assert facts.ports[0] < facts.ports[1] and "lo" in facts.interfaces


def test_memory_and_limits_are_numbers_of_this_machine() -> None:
    facts = memory.Facts(**memory.measure({}))
    assert 0 < facts.available <= facts.total and facts.limit <= facts.total
    found = limits.Facts(**limits.measure({}))
    assert tuple(found.files) == resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits.usable_cpus(found) >= 1


@pytest.mark.parametrize("size", [0, 1, MIB, GIB - 1, GIB, 10 * GIB, 1 << 50])
def test_amounts(size: int) -> None:
    assert amount(size).endswith(("KiB", "MiB", "GiB"))


# The runner


def test_a_topic_that_cannot_be_examined_hides_no_other() -> None:
    def broken(facts: Any, requirements: Requirements) -> Iterator[Finding]:
        raise ZeroDivisionError("what?")

    topic = replace(runner.TOPICS["network"], judge=broken)
    [check] = runner.checks_of("network", topic, Answer({}), Requirements())
    text = "could not be examined: ZeroDivisionError: what?"
    assert check == Check("network", "all of it", "warning", text, runner.BUG)


def test_a_child_without_an_answer_is_reported() -> None:
    silent = Answer(error="killed by SIGSEGV")
    for subject, topic in runner.TOPICS.items():
        [check] = runner.checks_of(subject, topic, silent, Requirements())
        assert check.state != "ok" and "killed by SIGSEGV" in check.found and check.remedy


def test_every_topic_measures_the_fields_of_its_facts() -> None:
    for subject, topic in runner.TOPICS.items():
        measured = import_module(f"meshctl.engines.checks.{subject}").measure(asdict(Requirements()))
        assert isinstance(topic.facts(**json.loads(json.dumps(measured))), object)


if __name__ == "__main__":
    GOLDEN.write_text(pinned())
