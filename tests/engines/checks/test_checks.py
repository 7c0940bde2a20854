"""What `doctor` says of machines that nobody here has, pinned; that children end as they should; and what is
measured.

python -m tests.engines.checks.test_checks      writes the golden text anew; read the difference
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.diagnostics.health import Check
from meshctl.engines.checks import (
    backends,
    cgroup,
    devices,
    disk,
    environment,
    kernel,
    limits,
    memory,
    network,
    probe,
    runner,
    versions,
)
from meshctl.engines.checks.options import GIB, MIB, Asked, amount
from meshctl.engines.checks.probe import Answer, Probe
from meshctl.engines.node.visible_devices import Narrowed
from meshctl.view.reports.health import table
from tests.paths import ROOT

GOLDEN = Path(__file__).parent / "golden" / "doctor.txt"
HERE = "tests.engines.checks.test_checks"

RANGES = {"python": ">=3.11", "torch": ">=2.11", "hydra-core": "<1.4,>=1.3.8"}
INSTALLED = {"python": "3.11.7", "torch": "2.13.0+cu126", "hydra-core": "1.3.8"}
TORCH: Mapping[str, Any] = {
    "wrong": "", "version": "2.13.0+cu126", "file": "/env/lib/torch/__init__.py", "seconds": 2.0, "cuda": "12.6", "hip": "",
    "gloo": True, "nccl": True, "nccl_version": "2.27.3", "gloo_wrong": "", "nccl_wrong": "", "nccl_ranks": 2, "devices_wrong": "",
    "devices": {
        "kind": "cuda", "count": 2, "error": "", "driver": 12080, "names": ["NVIDIA H200"] * 2, "capabilities": [[9, 0]] * 2,
        "archs": ["sm_80", "sm_90"],
    },
}  # fmt: skip
ON_CPU = {
    **TORCH,
    "version": "2.13.0+cpu",
    "cuda": "",
    "nccl": False,
    "nccl_ranks": 0,
    "devices": {"kind": "cuda", "count": 0},
}
VERSIONS = versions.Facts(
    "0.1.0", RANGES, INSTALLED, "/env/bin/meshctl", "/env", "/env/lib/meshctl", (), TORCH
)
TWO = tuple(
    devices.Device(index, "NVIDIA H200", "570.86.15", 4 * MIB, 140 * GIB, "Default") for index in range(2)
)
DEVICES = devices.Facts({"cuda": 2}, devices=TWO, torch=TORCH)
TRAINS = Asked(device_types=frozenset({"cuda"}), workers=8)
ONLY_CPU = Asked(device_types=frozenset({"cpu"}))


def torch(**changes: Any) -> dict[str, Any]:
    return {**TORCH, **changes}


def seen(**changes: Any) -> dict[str, Any]:
    return {**TORCH, "devices": {**TORCH["devices"], **changes}}


NOW = time.mktime((2026, 1, 2, 3, 4, 5, 0, 0, -1))
CASES: dict[str, Iterator[Check]] = {
    # versions
    "all is well": versions.judge(VERSIONS),
    "run from a checkout": versions.judge(versions.Facts(folder="/home/me/meshctl", torch=TORCH)),
    "parts are lost": versions.judge(replace(VERSIONS, lost=("conf/base.yaml",))),
    "no command": versions.judge(replace(VERSIONS, command="")),
    "another's command": versions.judge(replace(VERSIONS, command="/usr/bin/meshctl")),
    "old and missing": versions.judge(
        replace(VERSIONS, installed={"python": "3.10.1", "torch": "2.4.1", "hydra-core": ""})
    ),
    "too new": versions.judge(replace(VERSIONS, installed={**INSTALLED, "hydra-core": "1.4.0rc1"})),
    "torch cannot be imported": versions.judge(
        replace(VERSIONS, torch={"wrong": "OSError: libcudnn.so.9: cannot open shared file"})
    ),
    "two torches": versions.judge(
        replace(VERSIONS, torch=torch(version="2.9.0", file="/home/me/torch/__init__.py"))
    ),
    "a slow disk": versions.judge(replace(VERSIONS, torch=torch(seconds=48.0))),
    "torch for ROCm": versions.judge(replace(VERSIONS, torch=torch(cuda="", hip="6.4"))),
    "hidden modules": versions.judge(
        replace(VERSIONS, hiding=tuple(f"/job/{name}.py" for name in ("random", "json", *"abcdefg")))
    ),
    # devices
    "no device": devices.judge(devices.Facts(torch=ON_CPU)),
    "two devices": devices.judge(DEVICES),
    "devices that the container lacks": devices.judge(devices.Facts(unseen=8, torch=TORCH, asked=TRAINS)),
    "devices that are closed": devices.judge(replace(DEVICES, closed="/dev/nvidia0")),
    "a list of devices": devices.judge(
        replace(DEVICES, left=Narrowed("CUDA_VISIBLE_DEVICES", "1,0", ("1", "0")))
    ),
    "a list of no devices": devices.judge(
        replace(DEVICES, left=Narrowed("CUDA_VISIBLE_DEVICES", "", ()), torch=seen(count=0))
    ),
    "a list of others": devices.judge(
        replace(DEVICES, left=Narrowed("CUDA_VISIBLE_DEVICES", "0,7", ("0", "7")), torch=seen(count=1))
    ),
    "MIG": devices.judge(
        replace(
            DEVICES,
            left=Narrowed("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b", ("MIG-a", "MIG-b")),
            torch=seen(count=1),
        )
    ),
    "nvidia-smi hangs": devices.judge(replace(DEVICES, devices=(), smi="no answer within 20 s")),
    "torch for cpu": devices.judge(replace(DEVICES, torch=ON_CPU)),
    "torch for cpu, and a recipe for cuda": devices.judge(replace(DEVICES, torch=ON_CPU, asked=TRAINS)),
    "an old driver": devices.judge(
        replace(
            DEVICES,
            torch=seen(
                error="The NVIDIA driver on your system is too old (found version 11040).", driver=11040
            ),
        )
    ),
    "an old driver, and a recipe for cpu": devices.judge(
        replace(
            DEVICES,
            torch=seen(error="The NVIDIA driver on your system is too old", driver=11040),
            asked=ONLY_CPU,
        )
    ),
    "an error of the driver": devices.judge(replace(DEVICES, torch=seen(error="CUDA unknown error"))),
    "a driver that hangs": devices.judge(
        replace(DEVICES, torch=torch(devices={}, devices_wrong="no answer within 40 s"))
    ),
    "a device is missing": devices.judge(replace(DEVICES, torch=seen(count=1))),
    "a device is too new": devices.judge(
        replace(DEVICES, torch=seen(capabilities=[[9, 0], [12, 0]], names=["H200", "RTX 5090"]))
    ),
    "others are on a device": devices.judge(
        replace(DEVICES, devices=(TWO[0], replace(TWO[1], used=60 * GIB, mode="Exclusive_Process")))
    ),
    "ROCm": devices.judge(
        replace(DEVICES, rocm=True, devices=(), torch={**seen(driver=0), "cuda": "", "hip": "6.4"})
    ),
    "npu": devices.judge(devices.Facts({"npu": 8}, torch=ON_CPU)),
    "npu and its torch": devices.judge(
        devices.Facts(
            {"npu": 8}, has_torch_npu=True, torch={**ON_CPU, "devices": {"kind": "npu", "count": 8}}
        )
    ),
    "npu that is not seen": devices.judge(devices.Facts({"npu": 8}, has_torch_npu=True, torch=ON_CPU)),
    "mps": devices.judge(devices.Facts({"mps": 1}, torch={**ON_CPU, "devices": {"kind": "mps", "count": 1}})),
    # backends
    "backends": backends.judge(backends.Facts(TORCH)),
    "backends without a device": backends.judge(backends.Facts(torch(nccl_ranks=0))),
    "no gloo": backends.judge(backends.Facts(torch(gloo=False, nccl=False))),
    "gloo does not meet": backends.judge(backends.Facts({**ON_CPU, "gloo_wrong": "no answer within 40 s"})),
    "nccl does not meet": backends.judge(
        backends.Facts(torch(nccl_wrong="DistBackendError: NCCL error: unhandled system error"))
    ),
    "nccl does not meet, and a recipe for cpu": backends.judge(
        backends.Facts(torch(nccl_wrong="killed by SIGSEGV", nccl_ranks=1), ONLY_CPU)
    ),
    # network
    "network": network.judge(network.Facts()),
    "no loopback": network.judge(network.Facts("PermissionError: Operation not permitted")),
    "another loopback": network.judge(network.Facts(interfaces=("loopback0", "eth0"))),
    "few ports": network.judge(network.Facts(used=27_000)),
    "no ports": network.judge(network.Facts(ports=(40_000, 40_030))),
    "no localhost": network.judge(
        network.Facts(localhost=network.Name("localhost", wrong="Name or service not known"))
    ),
    "localhost is elsewhere": network.judge(
        network.Facts(localhost=network.Name("localhost", ("192.0.2.7",)))
    ),
    "localhost is IPv6": network.judge(network.Facts(localhost=network.Name("localhost", ("::1",)))),
    "localhost is IPv6 first": network.judge(
        network.Facts(localhost=network.Name("localhost", ("::1", "127.0.0.1")), ipv6=False)
    ),
    "localhost is slow": network.judge(
        network.Facts(localhost=network.Name("localhost", ("127.0.0.1",), 5.0))
    ),
    "no host name": network.judge(
        network.Facts(host=network.Name("box", wrong="Temporary failure in name resolution"))
    ),
    "a host name that is slow": network.judge(network.Facts(host=network.Name("box", ("10.0.0.1",), 10.0))),
    # memory
    "memory": memory.judge(memory.Facts()),
    "little memory": memory.judge(memory.Facts(available=600 * MIB)),
    "a container's memory": memory.judge(memory.Facts(limit=8 * GIB, used=3 * GIB)),
    "a container's memory is full": memory.judge(memory.Facts(limit=8 * GIB, used=7 * GIB)),
    "a container's shm": memory.judge(memory.Facts(shm=64 * MIB, shm_free=64 * MIB)),
    "a full shm": memory.judge(memory.Facts(shm_free=3 * MIB)),
    "no shm": memory.judge(memory.Facts(shm_wrong="No such file or directory")),
    "no memfd": memory.judge(memory.Facts(memfd="OSError: [Errno 38] Function not implemented")),
    "no files over sockets": memory.judge(
        memory.Facts(sockets="PermissionError: [Errno 1] Operation not permitted")
    ),
    "no overcommit": memory.judge(memory.Facts(overcommit=2)),
    # limits
    "limits": limits.judge(limits.Facts()),
    "few files": limits.judge(limits.Facts((256, 4096))),
    "hardly any files": limits.judge(limits.Facts((64, 64))),
    "few files for many workers": limits.judge(
        limits.Facts((1024, limits.NO_LIMIT), workers=128, cpus=256, allowed=256)
    ),
    "few processes": limits.judge(limits.Facts(tasks=200)),
    "few processes, but for root": limits.judge(limits.Facts(tasks=200, root=True)),
    "few processes in a container": limits.judge(limits.Facts(pids=1024, pids_used=1000)),
    "few processes for many workers": limits.judge(
        limits.Facts(pids=4096, pids_used=100, workers=128, cpus=256, allowed=256)
    ),
    "locked memory and InfiniBand": limits.judge(limits.Facts(locked=8 * MIB, infiniband=("mlx5_0",))),
    "little address space": limits.judge(limits.Facts(addresses=32 * GIB)),
    "a quota of processors": limits.judge(limits.Facts(quota=1.5, workers=4)),
    "threads that are too many": limits.judge(limits.Facts(threads="16")),
    "threads by workers": limits.judge(limits.Facts(threads="4", workers=4)),
    "threads that are none": limits.judge(limits.Facts(threads="many")),
    # kernel
    "kernel": kernel.judge(kernel.Facts("Linux", "6.8.0", now=NOW + 60, written=NOW)),
    "a sandbox": kernel.judge(
        kernel.Facts(
            "Linux",
            "4.4.0",
            {"pidfd": "OSError: Function not implemented", "subreaper": "killed by SIGSYS"},
            NOW,
            NOW,
        )
    ),
    "not Linux": kernel.judge(
        kernel.Facts("Darwin", "24.1", dict.fromkeys(kernel.TRIED, "AttributeError: prctl"), NOW, NOW)
    ),
    "a clock that is behind": kernel.judge(
        kernel.Facts("Linux", "6.8.0", now=NOW - 10 * kernel.YEAR, written=NOW)
    ),
    "a clock that is ahead": kernel.judge(
        kernel.Facts("Linux", "6.8.0", now=NOW + 30 * kernel.YEAR, written=NOW)
    ),
    "a shell's background": kernel.judge(
        kernel.Facts("Linux", "6.8.0", now=NOW, written=NOW, interrupt_ignored=True)
    ),
    # disk
    "disk": disk.judge(disk.Facts(folder="/data", kind="ext4")),
    "a disk on a network": disk.judge(disk.Facts(folder="/shared", kind="nfs4")),
    "a disk that hangs": disk.judge(disk.Facts("/shared/runs", "/shared", hangs="no answer within 20 s")),
    "a disk that is read only": disk.judge(
        disk.Facts(folder="/data", wrong={"write": "Read-only file system"})
    ),
    "a disk with little room": disk.judge(disk.Facts(folder="/data", free=2 * GIB)),
    "a disk that is full": disk.judge(disk.Facts(folder="/data", free=3 * MIB)),
    "a disk with few files": disk.judge(disk.Facts(folder="/data", files=12)),
    "a disk without locks": disk.judge(
        disk.Facts(folder="/data", wrong={"lock": "OSError: [Errno 37] No locks available"})
    ),
    "a disk with another clock": disk.judge(disk.Facts(folder="/data", apart=-90.0)),
    "a slow disk to be safe on": disk.judge(disk.Facts(folder="/data", safe=2.5)),
    "no temporary files": disk.judge(
        disk.Facts(folder="/data", temporary="No usable temporary directory found")
    ),
    # environment
    "environment": environment.judge(
        environment.Facts({"HOME": "/root", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN"})
    ),
    "a job within a job": environment.judge(
        environment.Facts({"MASTER_ADDR": "10.0.0.1", "RANK": "3", "WORLD_SIZE": "8"})
    ),
    "many variables": environment.judge(
        environment.Facts(
            {
                "CUDA_LAUNCH_BLOCKING": "1",
                "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
                "NCCL_P2P_DISABLE": "1",
                "NCCL_DEBUG": "INFO",
                "OMP_PROC_BIND": "close",
                "MKL_NUM_THREADS": "8",
                "PYTHONWARNINGS": "error",
                "PYTHONPATH": "/a::/b",
                "LD_PRELOAD": "/usr/lib/libjemalloc.so",
            }
        )
    ),
    "a proxy": environment.judge(
        environment.Facts({"https_proxy": "http://me:secret@proxy:3128", "HTTP_PROXY": "http://proxy:3128"})
    ),
    "a proxy with some exceptions": environment.judge(
        environment.Facts({"http_proxy": "http://proxy", "no_proxy": "localhost,.corp"})
    ),
    "a proxy with exceptions": environment.judge(
        environment.Facts({"http_proxy": "http://proxy", "NO_PROXY": "localhost, 127.0.0.1"})
    ),
}
FOUND = {name: tuple(checks) for name, checks in CASES.items()}


def pinned() -> str:
    """Of a case in which something is not well, only that."""
    shown = {
        name: [check for check in checks if check.state != "ok"] or checks for name, checks in FOUND.items()
    }
    return "\n".join(f"== {name}\n{table(checks)}" for name, checks in shown.items())


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


def test_no_value_of_a_proxy_is_told() -> None:
    assert "secret" not in pinned()


# Versions


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.sampled_from(["", "+cpu", ".dev1", "rc1", "a0", ".post1"]),
)
def test_ranges_are_those_of_packaging(parts: list[int], suffix: str) -> None:
    from packaging.specifiers import SpecifierSet

    text = ".".join(map(str, parts))
    for range in (">=1.3.8,<1.4", ">=2.11", "<1.4,>=1.3.8", "", "!=1.2", "==2.0", ">1,<=3"):
        if suffix in ("", "+cpu"):
            assert versions.fits(text + suffix, range) == SpecifierSet(range).contains(
                text + suffix, prereleases=True
            )
        assert versions.fits(text + suffix, range) == versions.fits(text, range)


def test_requirements_are_read() -> None:
    lines = [
        "torch>=2.11",
        "hydra-core<1.4,>=1.3.8",
        "numpy",
        "rich[jupyter] (>=13)",
        "ruff>=0.11; extra == 'dev'",
    ]
    assert versions.requirements(lines) == {
        "torch": ">=2.11",
        "hydra-core": "<1.4,>=1.3.8",
        "numpy": "",
        "rich": ">=13",
    }


def test_what_this_installation_says_of_itself() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    facts = versions.measure(Asked(), TORCH)
    assert facts.ranges["python"] == project["requires-python"]
    assert {"torch", "hydra-core", "omegaconf"} <= facts.ranges.keys() == facts.installed.keys()
    assert facts.lost == () and Path(facts.folder).name == "meshctl"


def test_files_that_hide_modules(tmp_path: Path) -> None:
    for name in ("random.py", "mine.py", "yaml.py", "torch.txt"):
        (tmp_path / name).touch()
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "__init__.py").touch()
    (tmp_path / "typer").mkdir()
    found = versions.hiding(
        Asked(path=(str(tmp_path), "/nowhere")), {"hydra-core", "pyyaml", "typer", "torch"}
    )
    assert [Path(path).name for path in found] == ["hydra", "random.py", "yaml.py"]
    assert versions.hiding(Asked(path=(str(ROOT),)), {"torch"}) == ()


# Devices


def test_rows_of_nvidia_smi_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["0, NVIDIA H200, 570.86.15, 1024, 143771, Default", "1, GB10, 580.1, [N/A], [N/A], [N/A]"]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = devices.read(devices.smi())
    assert found[0] == devices.Device(0, "NVIDIA H200", "570.86.15", GIB, 143771 * MIB, "Default")
    assert found[1] == devices.Device(1, "GB10", "580.1", 0, 0, "[N/A]")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n")
    with pytest.raises(OSError, match="Failed to initialize NVML"):
        devices.smi()
    assert devices.read([["nonsense"]]) == ()


@pytest.mark.parametrize(
    ("arch", "pair"), [("sm_90", (9, 0)), ("sm_90a", (9, 0)), ("compute_120", (12, 0)), ("gfx942", (94, 2))]
)
def test_capabilities(arch: str, pair: tuple[int, int]) -> None:
    assert devices._capability(arch) == pair


# Limits of containers


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    return tmp_path


def within(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What /proc/self/cgroup says."""
    read = Path.read_text

    def fake(path: Path, *words: Any, **more: Any) -> str:
        return text if str(path) == "/proc/self/cgroup" else read(path, *words, **more)

    monkeypatch.setattr(Path, "read_text", fake)


def test_the_least_limit_above_counts(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "0::/user.slice/job\n")
    job = mount / "user.slice" / "job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text("4096\n")
    (job / "memory.stat").write_text("anon 100\ninactive_file 96\n")
    (job.parent / "memory.max").write_text(f"{8 * GIB}\n")
    (job / "cpu.max").write_text("400000 100000\n")
    (job.parent / "cpu.max").write_text("150000 100000\n")
    assert cgroup.least("memory.max", "memory/memory.limit_in_bytes") == 8 * GIB
    assert cgroup.value("memory.current", "memory/memory.usage_in_bytes") == 4096
    assert cgroup.entry("memory.stat", "inactive_file") == 96
    assert cgroup.cpus() == 1.5


def test_version_1_says_no_limit_by_a_large_number(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n2:pids:/\n")
    for folder, name, text in (
        ("memory", "memory.limit_in_bytes", "9223372036854771712"),
        ("pids", "pids.max", "1024"),
        ("cpu", "cpu.cfs_quota_us", "200000"),
        ("cpu", "cpu.cfs_period_us", "100000"),
    ):
        (mount / folder).mkdir(exist_ok=True)
        (mount / folder / name).write_text(text)
    assert cgroup.least("memory.max", "memory/memory.limit_in_bytes") == 0
    assert cgroup.least("pids.max", "pids/pids.max") == 1024
    assert cgroup.cpus() == 2.0


def test_without_control_groups_there_is_no_limit(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "nonsense")
    assert (
        cgroup.least("memory.max", "memory/x"),
        cgroup.value("a", "b/c"),
        cgroup.entry("a", "b"),
        cgroup.cpus(),
    ) == (0, 0, 0, 0.0)


# Children


def say(word: str) -> str:
    print("noise that is no answer")
    return word


def hang() -> None:
    subprocess.Popen(["sleep", "1000"])
    time.sleep(1000)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    print("first\nRuntimeError: the last line", file=sys.stderr)
    sys.stderr.flush()
    os._exit(3)


def fail() -> None:
    raise ValueError("two\n  lines")


def in_forks() -> list[tuple[Any, str]]:
    return [(found.said, found.wrong) for found in probe.forked([lambda: 1, hang, crash, fail], 3)]


def chatter() -> str:
    sys.stderr.write("x" * 500_000)
    return "y" * 300_000


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ROOT", str(ROOT))


def test_a_child_answers() -> None:
    assert Probe(f"{HERE}:say", ["word"], 60).answer() == Answer("word")
    assert Probe(f"{HERE}:chatter", [], 60).answer() == Answer("y" * 300_000)
    assert Probe(f"{HERE}:fail", [], 60).answer() == Answer(None, "ValueError: two lines")
    assert Probe(f"{HERE}:none", [], 60).answer().wrong.startswith("AttributeError: ")


def test_a_child_that_dies_says_how() -> None:
    assert Probe(f"{HERE}:crash", [], 60).answer() == Answer(None, "killed by SIGSEGV")
    assert Probe(f"{HERE}:leave", [], 60).answer() == Answer(None, "exit code 3: RuntimeError: the last line")


def test_a_child_that_hangs_goes_with_all_that_it_started() -> None:
    hanging = Probe(f"{HERE}:hang", [], 4)
    assert hanging._process is not None
    group = hanging._process.pid
    assert hanging.answer() == Answer(None, "no answer within 4 s")
    end = time.monotonic() + 20
    while processes_in(group):
        assert time.monotonic() < end
        time.sleep(0.05)
    hanging.close()
    assert hanging.answer().wrong == "no answer within 4 s"


def processes_in(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgid) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert Probe(f"{HERE}:say", ["word"]).answer() == Answer(
        None, "no process could be started: No such file or directory"
    )


def test_forks_answer_die_and_hang_each_for_itself() -> None:
    """In a process of its own, as this one has threads."""
    assert Probe(f"{HERE}:in_forks", [], 60).answer().said == [
        [1, ""],
        [None, "no answer within 3 s"],
        [None, "killed by SIGSEGV"],
        [None, "ValueError: two lines"],
    ]


# What is measured


def test_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    runs = tmp_path / "not yet" / "runs"
    found = disk.tries(str(runs), ".doctor")
    assert found["wrong"] == {} and found["folder"] == str(tmp_path) and found["kind"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".doctor").mkdir()
    disk.remove(str(runs), ".doctor")
    assert list(tmp_path.iterdir()) == []


def test_disk_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    facts = disk.measure(Asked(), Answer(disk.tries(str(tmp_path / "runs"), ".doctor")))
    assert [check.state for check in disk.judge(facts)] == ["failure"]


def test_rename_link_and_lock_are_seen_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", lambda self, target: None)
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    wrong = disk.tries(str(tmp_path), ".doctor")["wrong"]
    assert isinstance(wrong, dict) and set(wrong) == {"rename", "link", "lock"}
    assert list(tmp_path.iterdir()) == []


def test_this_machine_can_do_what_is_tried() -> None:
    assert network.talk() == "" and memory.memfd() == "" and memory.pass_a_file() == ""
    assert Probe("meshctl.engines.checks.kernel:tries", [], 60).answer() == Answer({})
    addresses, _, wrong = network.resolve("localhost")
    assert wrong == "" and "127.0.0.1" in addresses
    assert network.resolve("no.such.name.invalid")[2]


def test_memory_and_limits_are_numbers_of_this_machine() -> None:
    facts = memory.measure()
    assert 0 < facts.available <= facts.total and facts.limit <= facts.total
    found = limits.measure(Asked(workers=3))
    assert (
        found.files == resource.getrlimit(resource.RLIMIT_NOFILE)
        and found.workers == 3
        and limits.usable(found) >= 1
    )


def test_the_host_name_is_asked_for() -> None:
    facts = network.measure((Answer([["127.0.0.1"], 0.1, ""]), Answer(None, "no answer within 15 s")))
    assert facts.host == network.Name(
        socket.gethostname(), (), network.RESOLVE_SECONDS, "no answer within 15 s"
    )
    assert facts.localhost == network.Name("localhost", ("127.0.0.1",), 0.1)
    assert facts.ports[0] < facts.ports[1] and "lo" in facts.interfaces


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_no_environment_is_too_odd(environ: dict[str, str]) -> None:
    assert list(environment.judge(environment.Facts(environ)))


@pytest.mark.parametrize("size", [0, 1, MIB, GIB - 1, GIB, 10 * GIB, 1 << 50])
def test_amounts(size: int) -> None:
    assert amount(size).endswith(("MiB", "GiB"))


# All of it


def test_a_topic_that_cannot_be_looked_at_hides_no_other() -> None:
    def broken() -> tuple[Check, ...]:
        raise ZeroDivisionError("what?")

    (check,) = runner.guarded("network", broken)
    assert check == Check(
        "network", "all of it", "warning", "could not be looked at: ZeroDivisionError: what?", runner.BUG
    )


if __name__ == "__main__":
    GOLDEN.write_text(pinned())
