"""The accelerators: devices of the machine, the driver's report, the devices that the environment selects,
and the devices that torch sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from importlib.machinery import PathFinder
from itertools import takewhile
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import STATES, State
from meshctl.engines.checks import device_files, torch_build
from meshctl.engines.checks.probe import Probe
from meshctl.engines.checks.requirements import (
    GIB,
    Finding,
    Requirements,
    amount,
    failure,
    ok,
    warning,
)
from meshctl.engines.node.visible_devices import device_list
from meshctl.text.english import counted

SECONDS = 120.0
SMI_S, DRIVER_S, SMI_AT_LAUNCH_S = 20.0, 90.0, 5.0
SMI_FIELDS = ("index", "name", "driver_version", "memory.used", "memory.total", "compute_mode", "uuid")
MAX_USED_BYTES = 2 * GIB
"""Other processes may use this many bytes of a device's memory without a warning."""
INSTALL = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Device:
    """A device as nvidia-smi reports it. Sizes are bytes."""

    index: int
    name: str
    driver: str
    used: int
    total: int
    mode: str
    """`Default`, or a mode that admits only one process."""
    uuid: str = ""

    def is_named(self, name: str) -> bool:
        """Returns whether a hardware name is its number or the beginning of its UUID."""
        return name == str(self.index) or (
            bool(self.uuid) and not name.isdigit() and self.uuid.startswith(name)
        )


@dataclass(frozen=True)
class Facts:
    files: Mapping[str, int] = field(default_factory=dict)
    """Device type -> the number of its files in /dev."""
    is_rocm: bool = False
    """True if the installed torch is a ROCm build."""
    variable: str = ""
    """The environment variable that selects devices; empty if it is not set."""
    variable_text: str = ""
    visible: Sequence[str] = ()
    """The devices that this variable names."""
    smi: Sequence[Sequence[str]] = ()
    """A row of nvidia-smi, which ignores the environment, for each device."""
    smi_error: str = ""
    hidden: int = 0
    """Number of NVIDIA devices that the driver lists and that have no file in /dev."""
    closed: str = ""
    """A device file that this user may not open; empty if there is none."""
    has_torch_npu: bool = False
    torch: Mapping[str, Any] = field(default_factory=dict)
    """The facts of `torch_build.build`."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The facts of `torch_build.devices`."""
    seen_error: str = ""

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        return read_rows(self.smi)

    @property
    def has_torch(self) -> bool:
        """True if torch could be imported. The topic `versions` reports it otherwise."""
        return bool(self.torch) and not self.torch.get("error")


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    is_rocm = device_files.is_rocm()
    counts = {kind: device_files.count_devices(kind, is_rocm) for kind in device_files.DEVICES}
    files = {kind: count for kind, count in counts.items() if count}
    smi = Probe("meshctl.engines.checks.devices:nvidia_smi", [], SMI_S) if files.get("cuda") else None
    driver = Probe("meshctl.engines.checks.torch_build:devices", [], DRIVER_S)
    try:
        left = device_list(next(iter(files), "cuda"), os.environ, is_rocm)
        found: dict[str, Any] = {
            "files": files | ({"mps": 1} if sys.platform == "darwin" else {}),
            "is_rocm": is_rocm,
            "hidden": 0 if files.get("cuda") else len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
            "closed": closed_file(),
            "has_torch_npu": PathFinder.find_spec("torch_npu") is not None,
            "torch": torch_build.build(),
        }
        if left is not None:
            found |= {"variable": left.variable, "variable_text": left.text, "visible": list(left.names)}
        if smi is not None:
            found |= {"smi": smi.answer().value or [], "smi_error": smi.answer().error}
        return found | {"seen": driver.answer().value or {}, "seen_error": driver.answer().error}
    finally:
        driver.close()
        if smi is not None:
            smi.close()


def measure_quickly(requirements: Requirements) -> dict[str, Any]:
    """Returns the facts about the devices of a recipe for cuda, without an import of torch."""
    if not requirements.devices:
        return {}
    is_rocm = device_files.is_rocm()
    count = device_files.count_devices("cuda", is_rocm)
    found: dict[str, Any] = {"files": {"cuda": count} if count else {}, "is_rocm": is_rocm}
    found |= {"closed": closed_file(), "torch": torch_build.read()}
    if count and not is_rocm:
        answer = Probe("meshctl.engines.checks.devices:nvidia_smi", [], SMI_AT_LAUNCH_S).answer()
        found |= {"smi": answer.value or [], "smi_error": answer.error}
    return found


def nvidia_smi() -> list[list[str]]:
    """Returns a row of `SMI_FIELDS` for each device. To be called in a child process."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(" ".join((done.stdout + done.stderr).split())[:200] or f"exit code {done.returncode}")
    return [[part.strip() for part in line.split(", ")] for line in done.stdout.splitlines() if line.strip()]


def read_rows(rows: Sequence[Sequence[str]]) -> tuple[Device, ...]:
    """Returns the devices of nvidia-smi's rows. An unknown number (`[N/A]`) becomes 0."""

    def number(text: str) -> int:
        return int(text) if text.isdecimal() else 0

    return tuple(
        Device(number(index), name, driver, number(used) << 20, number(total) << 20, mode, uuid)
        for index, name, driver, used, total, mode, uuid in (
            row for row in rows if len(row) == len(SMI_FIELDS)
        )
    )


def closed_file() -> str:
    """Returns a device file that this user may not open; such files belong to the groups `video` and
    `render`."""
    patterns = ("nvidia[0-9]*", "nvidiactl", "kfd", "davinci[0-9]*")
    files = [file for pattern in patterns for file in Path("/dev").glob(pattern)]
    return next((str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)), "")


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    yield _accelerators(facts, requirements)
    if facts.closed:
        states: list[State] = [requirements.broken(kind) for kind in facts.files]
        worst: State = max(states, key=STATES.index) if states else "warning"
        remedy = "add yourself to the group that owns it (`ls -l` shows it), or pass it into the container"
        yield Finding("permission", worst, f"{facts.closed} cannot be opened by this user", remedy)
    if facts.variable:
        yield _visible(facts)
    if facts.files.get("cuda"):
        yield from _cuda(facts, requirements)
    if facts.files.get("npu"):
        yield _npu(facts, requirements)
    if facts.files.get("mps"):
        yield _seen(facts, requirements, "mps", "use a Python for arm64, on macOS 13 or later")


def _accelerators(facts: Facts, requirements: Requirements) -> Finding:
    if facts.hidden and not facts.files:
        found = f"the driver has {facts.hidden} NVIDIA devices, but /dev has none"
        state = requirements.missing("cuda")
        return Finding("accelerators", state, found, "in a container: docker run --gpus all")
    if not facts.files:
        return ok("accelerators", "none: groups run on cpu")
    found = ", ".join(f"{count} x {kind}" for kind, count in facts.files.items())
    if facts.devices:
        names = ", ".join(sorted({device.name for device in facts.devices}))
        found += f" ({names}, driver {facts.devices[0].driver})"
    return ok("accelerators", found)


def _visible(facts: Facts) -> Finding:
    name, text, here = facts.variable, facts.variable_text, next(iter(facts.files.values()), 0)
    if not facts.visible and here:
        remedy = f"unset {name}, or list devices: {name}=0"
        list_is = f"`{text}`" if text else "the empty list"
        return warning(name, f"{list_is} leaves none of {counted(here, 'device')}", remedy)
    beyond = [device for device in facts.visible if here and device.isdecimal() and int(device) >= here]
    if beyond:
        found = f"`{text}` has {', '.join(beyond)}, but the devices of the machine are 0 to {here - 1}"
        return warning(name, found, f"unset {name}, or list devices that exist")
    return ok(name, f"`{text}` leaves {len(facts.visible) or 'none'}" + (f" of {here}" if here else ""))


def _cuda(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    if facts.smi_error and not facts.is_rocm:
        remedy = (
            "it must answer on its own: where it hangs or fails, the driver or the device is at fault "
            "(dmesg | grep -i nvrm)"
        )
        yield warning("nvidia-smi", facts.smi_error, remedy).of_recipe()
    yield from _memory(facts, requirements)
    yield from _compute_mode(facts, requirements)
    if not facts.has_torch:
        return
    if not (facts.torch.get("cuda") or facts.torch.get("hip")):
        found = f"{facts.files['cuda']} devices, but torch {facts.torch['version']} is built for cpu"
        remedy = f"install a build for CUDA: {INSTALL}"
        yield Finding("torch on cuda", requirements.missing("cuda"), found, remedy)
        return
    has_asked_driver = facts.seen or facts.seen_error
    if has_asked_driver and (expected := _expected_devices(facts)):
        yield _driver(facts, requirements.broken("cuda"), expected)


def _driver(facts: Facts, broken: State, expected: int) -> Finding:
    """Judges whether torch can use the devices."""
    name, torch, seen = "torch on cuda", facts.torch, facts.seen
    usual = "python -c 'import torch; torch.cuda.init()' prints the full error"
    if facts.seen_error:
        return Finding(name, broken, f"the driver was not examined: {facts.seen_error}", usual)
    if error := seen.get("error"):
        return Finding(name, broken, error.rstrip("."), _driver_advice(seen, torch) or usual)
    if seen["count"] < expected:
        remedy = "one of them is in error, or not passed into this container: compare with nvidia-smi"
        return Finding(name, broken, f"torch sees {seen['count']} of {expected} devices", remedy)
    if device := _unsupported(seen):
        remedy = f"install a torch that is built for it: {INSTALL}"
        return Finding(name, broken, f"torch {torch['version']} has no code for {device}", remedy)
    build = f"ROCm {torch['hip']}" if torch.get("hip") else f"CUDA {torch['cuda']}"
    driver = f", driver up to CUDA {_cuda_version(seen['driver'])}" if seen.get("driver") else ""
    return ok(name, f"{seen['count']} usable; built for {build}{driver}")


def _expected_devices(facts: Facts) -> int:
    """Returns the number of devices that torch should see. The driver ignores the list from its first unknown
    name on, and shows only one of several MIG instances."""
    count = facts.files["cuda"]
    if not facts.variable:
        return count
    known = list(takewhile(lambda name: not name.isdecimal() or int(name) < count, facts.visible))
    return min(1, len(known)) if any(name.startswith("MIG-") for name in known) else len(known)


def _driver_advice(seen: Mapping[str, Any], torch: Mapping[str, Any]) -> str:
    """Returns advice for a driver whose CUDA has an older major version than the CUDA of torch."""
    driver, built = int(seen.get("driver") or 0), str(torch.get("cuda") or "")
    if not driver or not built or driver // 1000 >= int(built.split(".")[0]):
        return ""
    return (
        f"the driver supports CUDA {_cuda_version(driver)}, torch is built for {built}: "
        "update the driver, or install a torch for that CUDA"
    )


def _cuda_version(number: int) -> str:
    """Returns `12.4` for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _unsupported(seen: Mapping[str, Any]) -> str:
    """Returns the first device for which torch has neither binary code nor PTX that the driver can
    compile."""
    archs = [arch for arch in seen.get("archs", []) if arch.startswith(("sm_", "compute_"))]
    binaries = [capability(arch) for arch in archs if arch.startswith("sm_")]
    ptx = [capability(arch) for arch in archs if arch.startswith("compute_")]
    for name, (major, minor) in zip(seen.get("names", []), seen.get("capabilities", []), strict=False):
        has_binary = any(arch_major == major and arch_minor <= minor for arch_major, arch_minor in binaries)
        has_ptx = any(version <= (major, minor) for version in ptx)
        if archs and not has_binary and not has_ptx:
            return f"{name} (sm_{major}{minor})"
    return ""


def capability(arch: str) -> tuple[int, int]:
    """Returns (9, 0) for `sm_90` and for `sm_90a`."""
    digits = "".join(char for char in arch.rpartition("_")[2] if char.isdecimal())
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _ours(facts: Facts, requirements: Requirements) -> list[Device]:
    """Returns the devices of the recipe, or without one those that the environment leaves."""
    if names := requirements.devices:
        return [one for one in facts.devices if any(map(one.is_named, names))]
    is_listed = facts.variable and all(map(str.isdecimal, facts.visible))
    return [device for device in facts.devices if not is_listed or str(device.index) in facts.visible]


def _memory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Judges the free memory of the devices, against what the models of the recipe take."""
    name, ours = "device memory", _ours(facts, requirements)
    needs = list(_needs(ours, requirements))
    if small := [one for one in needs if 0 < one.total < one.size]:
        first = small[0]
        found = f"{_count_of(small, needs)} too small: {first} {amount(first.total)}, but {first.models}"
        remedy = "split the models over more devices (show-topology lists their bytes), or use smaller ones"
        yield failure(name, found, remedy)
        return
    remedy = "find the processes with nvidia-smi, or leave the devices out: CUDA_VISIBLE_DEVICES"
    if full := [one for one in needs if one.total and one.total - one.used < one.size]:
        most = max(full, key=lambda one: one.used)
        found = f"{_count_of(full, needs)} in use by other processes: {most.taken}, but {most.models}"
        yield failure(name, found, remedy)
    elif busy := [_Need((one,)) for one in ours if one.used > MAX_USED_BYTES]:
        most = max(busy, key=lambda one: one.used)
        found = f"{_count_of(busy, [_Need((one,)) for one in ours])} in use by other processes: {most.taken}"
        yield warning(name, found, remedy).of_recipe()


@dataclass(frozen=True)
class _Need:
    """The devices of a worker, usually one, and the bytes that its models take on them."""

    devices: tuple[Device, ...]
    size: int = 0

    @property
    def total(self) -> int:
        """The memory of all devices; 0 if that of one is unknown."""
        return sum(one.total for one in self.devices) if all(one.total for one in self.devices) else 0

    @property
    def used(self) -> int:
        return sum(one.used for one in self.devices)

    @property
    def taken(self) -> str:
        return f"{self} {amount(self.used)} of {amount(self.total)} taken"

    @property
    def models(self) -> str:
        its = "its" if len(self.devices) == 1 else "their"
        return f"{its} models take at least {amount(self.size)}"

    def __str__(self) -> str:
        """Returns `device 0 has`, or `devices 0, 1 have`."""
        numbers = ", ".join(str(one.index) for one in self.devices)
        return f"device {numbers} has" if len(self.devices) == 1 else f"devices {numbers} have"


def _needs(ours: Sequence[Device], requirements: Requirements) -> Iterator[_Need]:
    for key, size in requirements.device_bytes.items():
        names = key.split(",")
        if devices := tuple(one for one in ours if any(map(one.is_named, names))):
            yield _Need(devices, size)


def _count_of(some: Sequence[_Need], ours: Sequence[_Need]) -> str:
    noun = "device" if all(len(one.devices) == 1 for one in ours) else "worker"
    are = "is" if noun == "device" and len(some) == 1 else "are"
    devices = "" if noun == "device" else "the devices of "
    return f"{devices}{len(some)} of {counted(len(ours), noun)} {are}"


def _compute_mode(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Judges whether several processes may use the devices."""
    ours, shared = _ours(facts, requirements), requirements.shared_devices
    exclusive = [one for one in ours if one.mode not in ("Default", "[N/A]", "")]
    if not exclusive:
        return
    blocked = [one for one in exclusive if any(map(one.is_named, shared))]
    device = (blocked or exclusive)[0]
    found = f"device {device.index} is in compute mode {device.mode}: groups that share it with `colocate`"
    remedy = f"nvidia-smi -i {device.index} -c DEFAULT, as root"
    state: State = "failure" if blocked else "warning"
    yield Finding("compute mode", state, f"{found} cannot start", remedy)


def _npu(facts: Facts, requirements: Requirements) -> Finding:
    if not facts.has_torch_npu:
        found = f"{facts.files['npu']} devices, but torch_npu is not installed"
        remedy = "pip install torch-npu, in the version that fits torch's"
        return Finding("torch on npu", requirements.missing("npu"), found, remedy)
    return _seen(facts, requirements, "npu", "source CANN's set_env.sh, and compare with npu-smi info")


def _seen(facts: Facts, requirements: Requirements, kind: str, remedy: str) -> Finding:
    name = f"torch on {kind}"
    if facts.seen.get("kind") == kind and facts.seen["count"]:
        return ok(name, f"{facts.seen['count']} usable")
    reason = facts.torch.get("error") or facts.seen_error or "torch sees none"
    found = f"{facts.files[kind]} {kind.upper()} devices: {reason}"
    return Finding(name, requirements.broken(kind), found, remedy)
