"""The examination by `launch` and `doctor`: devices, disks, memory and limits, those of this machine and imagined
ones."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from meshctl.diagnostics import Check
from meshctl.engines.checks import device_files, machine
from meshctl.engines.checks.devices import Device, Report, check_devices, nvidia_smi
from meshctl.engines.checks.machine import check_disk, examine, problems
from meshctl.engines.checks.requirements import GIB, MIB, Requirements
from meshctl.package import is_in_range, required_ranges

TWO = Requirements(device_bytes={"0": 20 * GIB, "1": 20 * GIB})
ROWS = (
    "0, NVIDIA H200, 570.86.15, 1024, 143771, Default, GPU-5a1",
    "1, GB10, 580.1, [N/A], [N/A], [N/A], GPU-7c2",
)
FIRST = Device(0, "NVIDIA H200", "570.86.15", GIB, 143771 * MIB, "Default", "GPU-5a1")


def device(index: int, used_gib: int = 0, mode: str = "Default") -> Device:
    return Device(index, "H200", "570.86", used_gib * GIB, 140 * GIB, mode, f"GPU-{index}")


def sharing(bytes_of: dict[str, int], *shared: str) -> Requirements:
    return Requirements(device_bytes=bytes_of, shared_devices=shared)


CASES = {
    "others leave enough": (
        [device(0), device(1, 126)],
        TWO,
        ("failure", "device 1 has 126 GiB of 140 GiB taken by other processes, and the models there take at"),
    ),
    "others take little": ([device(0), device(1, 1)], TWO, None),
    "others take some": (
        [device(0), device(1, 60)],
        TWO,
        ("warning", "device 1 has 60 GiB of 140 GiB taken"),
    ),
    "too large": (
        [device(0)],
        sharing({"0": 150 * GIB}),
        ("failure", "device 0 has 140 GiB, and the models there take at least 150 GiB"),
    ),
    "by UUID": (
        [device(0, 126), device(1, 126)],
        sharing({"GPU-1": 20 * GIB}),
        ("failure", "device 1 has 126 GiB"),
    ),
    "two devices of a worker": (
        [device(0), device(1, 90)],
        sharing({"0,1": 200 * GIB}),
        (
            "failure",
            "devices 0, 1 have 90 GiB of 280 GiB taken by other processes, and the models there take at least 200 GiB",
        ),
    ),
    "too large for two": (
        [device(0), device(1)],
        sharing({"0,1": 300 * GIB}),
        ("failure", "devices 0, 1 have 280 GiB, and"),
    ),
    "one process only": (
        [device(0), device(1, 0, "Exclusive_Process")],
        sharing({"0": 0, "1": 0}, "1"),
        ("failure", "device 1 is in compute mode Exclusive_Process"),
    ),
    "not shared": ([device(0), device(1, 0, "Exclusive_Process")], sharing({"0": 0, "1": 0}), None),
    "unknown memory": ([Device(0, "GB10", "580.1", 0, 0, "[N/A]")], sharing({"0": GIB}), None),
}
"""Name -> devices, requirements, and the state and beginning of the only problem."""


@pytest.mark.parametrize(("devices", "requirements", "expected"), CASES.values(), ids=CASES)
def test_devices(
    devices: list[Device],
    requirements: Requirements,
    expected: tuple[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_files, "torch_build", lambda: {"__version__": "2.13.0", "cuda": "12.6"})
    checks = check_devices(requirements, Report(tuple(devices)))
    found = [check for check in checks if check.state != "ok" and check.name != "permission"]
    assert [one.state for one in found] == ([expected[0]] if expected else [])
    assert not expected or (found[0].found.startswith(expected[1]) and found[0].remedy)


def test_torch_for_cpu_is_a_failure_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device_files, "torch_build", lambda: {"__version__": "2.13.0+cpu", "cuda": "", "hip": ""}
    )
    monkeypatch.setattr(device_files, "count_devices", lambda kind, rocm: 2)
    *_, found = check_devices(TWO, Report((device(0), device(1))))
    assert (found.name, found.state) == ("torch on cuda", "failure")


def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(device_files, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scripts = {
        "\n".join(f"echo '{row}'" for row in (*ROWS, "nonsense")): Report(
            (FIRST, Device(1, "GB10", "580.1", 0, 0, "[N/A]", "GPU-7c2"))
        ),
        "echo Failed to initialize NVML; exit 9": Report(error="exit code 9: Failed to initialize NVML"),
    }
    for script, expected in scripts.items():
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        assert nvidia_smi() == expected
    (tmp_path / "dev" / "nvidia0").unlink()
    assert nvidia_smi() == Report()


# The disk


def problems_of_disk(runs: Path) -> list[Check]:
    return [check for check in check_disk(Requirements(str(runs))) if check.state != "ok"]


def test_the_disk_is_left_as_it_was(tmp_path: Path) -> None:
    assert problems_of_disk(tmp_path / "not yet" / "runs") == [] == list(tmp_path.iterdir())
    (tmp_path / "runs").touch()
    [found] = problems_of_disk(tmp_path / "runs")
    assert found.state == "failure" and found.found.endswith("cannot be written to: Not a directory")


def test_a_disk_that_does_not_answer_is_a_failure_of_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: Requirements) -> Iterator[Check]:
        time.sleep(1000)
        yield from ()

    monkeypatch.setattr(machine, "BLOCKED_S", 0.1)
    monkeypatch.setattr(machine, "check_disk", hang)
    found = [one for one in problems(Requirements("/a")) if one.subject == "disk"]
    assert [(one.state, one.found) for one in found] == [
        ("failure", "the test of /a failed: no answer within 0 s")
    ]


# The machine


def test_this_machine_passes_and_each_name_is_there_once(tmp_path: Path) -> None:
    checks = examine(Requirements(str(tmp_path), workers=2))
    assert len({(check.subject, check.name) for check in checks}) == len(checks)
    assert {check.subject for check in checks} == {
        "versions",
        "network",
        "memory",
        "limits",
        "devices",
        "disk",
    }
    for check in checks:
        assert check.found and (check.state == "ok") == (not check.remedy), check
    assert not [check for check in checks if check.state == "failure"]
    assert list(tmp_path.iterdir()) == []


def test_a_machine_may_have_no_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = FileNotFoundError(2, "No such file or directory")
    monkeypatch.setattr("os.statvfs", Mock(side_effect=missing))
    *_, found = machine.check_memory(Requirements(workers=2, device_bytes={"0": 0, "1": 0}))
    assert found.state == "warning" and found.found.startswith("cannot be used: No such file or directory")


def test_a_topic_that_cannot_be_examined_stops_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("odd")

    for name in ("_dev_shm", "check_devices", "namesake", "_tasks", "in_fork"):
        monkeypatch.setattr(machine, name, broken)
    monkeypatch.setattr("socket.create_server", broken)
    found = problems(Requirements())
    topics = ["versions", "network", "memory", "limits", "devices", "disk"]
    assert [(one.subject, one.state) for one in found] == [(name, "warning") for name in topics]
    assert {one.found for one in found} == {"could not be examined: RuntimeError: odd"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Requirements(model_bytes=1 << 60), "and the models on cpu take at least"),
        (
            Requirements(copy_bytes=1 << 60),
            "and copies of the state for asynchronous checkpoints take at least",
        ),
    ],
)
def test_more_than_the_memory(asked: Requirements, words: str) -> None:
    [found] = [one for one in problems(asked) if one.name == "memory"]
    assert found.state == "warning" and words in found.found


@pytest.mark.parametrize(
    ("soft", "workers", "state", "words"),
    [
        (30, 0, "failure", "30 per process (can be raised to 9,999): a run needs at least 35"),
        (64, 12, "failure", "12 workers need at least 71"),
        (256, 20, "warning", "20 workers may need 320"),
        (1024, 2, "ok", "1,024 per process"),
    ],
)
def test_open_files(soft: int, workers: int, state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = resource.getrlimit
    limits = {resource.RLIMIT_NOFILE: (soft, 9999)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.get(kind) or known(kind))
    found = next(one for one in examine(Requirements(workers=workers)) if one.name == "open files")
    assert found.state == state and words in found.found


# Versions


@pytest.mark.parametrize("suffix", ["", "+cpu", ".dev1", "rc1", ".post1"])
def test_a_build_or_a_pre_release_counts_as_its_release(suffix: str) -> None:
    assert [is_in_range(f"2.11.0{suffix}", one) for one in (">=2.11", "<2.11", "", "!=2.12,>2")] == [
        *(True, False, True, True)
    ]


def test_requirements_are_read() -> None:
    lines = [
        "torch>=2.11",
        "hydra-core<1.4,>=1.3.8",
        "numpy",
        "rich[jupyter] (>=13)",
        "ruff>=0.11; extra == 'dev'",
    ]
    expected = {"torch": ">=2.11", "hydra-core": "<1.4,>=1.3.8", "numpy": "", "rich": ">=13"}
    assert required_ranges(lines) == expected


# Limits of containers


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "MOUNT", tmp_path)
    return tmp_path


def within(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Sets the text of /proc/self/cgroup."""
    read = Path.read_text

    def fake(path: Path, *words: Any, **more: Any) -> str:
        return text if str(path) == "/proc/self/cgroup" else read(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", fake)


def test_the_least_limit_above_counts(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "0::/user.slice/job\n")
    job = mount / "user.slice" / "job"
    job.mkdir(parents=True)
    files = {
        "memory.max": "max\n",
        "memory.current": "4096\n",
        "memory.stat": "anon 100\ninactive_file 96\n",
        "../memory.max": f"{8 * GIB}\n",
    }
    for name, text in files.items():
        (job / name).write_text(text)
    assert machine.smallest_limit("memory.max", "memory/memory.limit_in_bytes") == 8 * GIB
    assert machine.own_value("memory.current", "memory/memory.usage_in_bytes") == 4096
    assert machine.own_entry("memory.stat", "inactive_file") == 96
    assert machine.kills_for_memory() == 0
    (job / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert machine.kills_for_memory() == 2


def test_version_1_writes_no_limit_as_a_large_number(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "5:memory:/docker/abc\n2:pids:/\n")
    for name, text in (("memory/memory.limit_in_bytes", "9223372036854771712"), ("pids/pids.max", "1024")):
        (mount / name).parent.mkdir(exist_ok=True)
        (mount / name).write_text(text)
    assert machine.smallest_limit("memory.max", "memory/memory.limit_in_bytes") == 0
    assert machine.smallest_limit("pids.max", "pids/pids.max") == 1024
    (mount / "memory" / "memory.oom_control").write_text("under_oom 0\noom_kill 4\n")
    assert machine.kills_for_memory() == 4
