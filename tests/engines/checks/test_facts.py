"""The facts that checks are judged by: versions, rows of nvidia-smi, limits of containers."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.engines.checks import (
    cgroup,
    devices,
    versions,
)
from meshctl.engines.checks.requirements import GIB, MIB, Requirements
from meshctl.package import is_in_range, required_ranges
from tests.paths import ROOT

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
            assert is_in_range(text + suffix, range) == SpecifierSet(range).contains(
                text + suffix, prereleases=True
            )
        assert is_in_range(text + suffix, range) == is_in_range(text, range)


def test_requirements_are_read() -> None:
    lines = [
        "torch>=2.11",
        "hydra-core<1.4,>=1.3.8",
        "numpy",
        "rich[jupyter] (>=13)",
        "ruff>=0.11; extra == 'dev'",
    ]
    assert required_ranges(lines) == {
        "torch": ">=2.11",
        "hydra-core": "<1.4,>=1.3.8",
        "numpy": "",
        "rich": ">=13",
    }


def test_the_facts_of_this_installation() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    facts = versions.Facts(**versions.measure(asdict(Requirements())))
    assert facts.ranges["python"] == project["requires-python"]
    assert {"torch", "hydra-core", "omegaconf"} <= facts.ranges.keys() == facts.installed.keys()
    assert facts.lost == [] and Path(facts.folder).name == "meshctl"
    assert facts.torch["version"].startswith("2.")


def test_files_that_hide_modules(tmp_path: Path) -> None:
    for name in ("random.py", "mine.py", "yaml.py", "torch.txt"):
        (tmp_path / name).touch()
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "__init__.py").touch()
    (tmp_path / "typer").mkdir()
    libraries = {"hydra-core", "pyyaml", "typer", "torch"}
    found = versions.hiding_files((str(tmp_path), "/nowhere"), libraries)
    assert [Path(path).name for path in found] == ["hydra", "random.py", "yaml.py"]
    assert versions.hiding_files((str(ROOT),), {"torch"}) == []


# Devices


def test_rows_of_nvidia_smi_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        "0, NVIDIA H200, 570.86.15, 1024, 143771, Default, GPU-5a1",
        "1, GB10, 580.1, [N/A], [N/A], [N/A], GPU-7c2",
    ]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = devices.read_rows(devices.nvidia_smi())
    assert found[0] == devices.Device(0, "NVIDIA H200", "570.86.15", GIB, 143771 * MIB, "Default", "GPU-5a1")
    assert found[1] == devices.Device(1, "GB10", "580.1", 0, 0, "[N/A]", "GPU-7c2")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n")
    with pytest.raises(OSError, match="Failed to initialize NVML"):
        devices.nvidia_smi()
    assert devices.read_rows([["nonsense"]]) == ()


@pytest.mark.parametrize(
    ("arch", "pair"), [("sm_90", (9, 0)), ("sm_90a", (9, 0)), ("compute_120", (12, 0)), ("gfx942", (94, 2))]
)
def test_capabilities(arch: str, pair: tuple[int, int]) -> None:
    assert devices.capability(arch) == pair


# Limits of containers


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
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
    (job / "memory.max").write_text("max\n")
    (job / "memory.current").write_text("4096\n")
    (job / "memory.stat").write_text("anon 100\ninactive_file 96\n")
    (job.parent / "memory.max").write_text(f"{8 * GIB}\n")
    (job / "cpu.max").write_text("400000 100000\n")
    (job.parent / "cpu.max").write_text("150000 100000\n")
    assert cgroup.smallest_limit("memory.max", "memory/memory.limit_in_bytes") == 8 * GIB
    assert cgroup.value("memory.current", "memory/memory.usage_in_bytes") == 4096
    assert cgroup.entry("memory.stat", "inactive_file") == 96
    assert cgroup.kills_for_memory() == 0
    (job / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroup.kills_for_memory() == 2
    assert cgroup.cpus() == 1.5


def test_version_1_writes_no_limit_as_a_large_number(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n2:pids:/\n")
    for folder, name, text in (
        ("memory", "memory.limit_in_bytes", "9223372036854771712"),
        ("pids", "pids.max", "1024"),
        ("cpu", "cpu.cfs_quota_us", "200000"),
        ("cpu", "cpu.cfs_period_us", "100000"),
    ):
        (mount / folder).mkdir(exist_ok=True)
        (mount / folder / name).write_text(text)
    assert cgroup.smallest_limit("memory.max", "memory/memory.limit_in_bytes") == 0
    assert cgroup.smallest_limit("pids.max", "pids/pids.max") == 1024
    (mount / "memory" / "memory.oom_control").write_text("under_oom 0\noom_kill 4\n")
    assert cgroup.kills_for_memory() == 4
    assert cgroup.cpus() == 2.0


def test_without_control_groups_there_is_no_limit(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    within(monkeypatch, "nonsense")
    assert (
        cgroup.smallest_limit("memory.max", "memory/x"),
        cgroup.value("a", "b/c"),
        cgroup.entry("a", "b"),
        cgroup.cpus(),
    ) == (0, 0, 0, 0.0)
