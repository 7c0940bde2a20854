"""The CUDA devices of a recipe: their free memory, their compute mode, and the build of torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Check, State
from meshctl.engines.checks import device_files
from meshctl.engines.checks.fork import output_of
from meshctl.engines.checks.requirements import GIB, Requirements, amount, names_in

SUBJECT = "devices"
SMI_S = 5.0
"""Seconds within which nvidia-smi must answer."""
SMI_FIELDS = ("index", "name", "driver_version", "memory.used", "memory.total", "compute_mode", "uuid")
MAX_USED_BYTES = 2 * GIB
"""Other processes may use this many bytes of a device's memory without a warning."""
INSTALL = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Device:
    """A device as nvidia-smi reports it. Sizes are bytes; 0 if unknown."""

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
        is_start_of_uuid = bool(self.uuid) and not name.isdigit() and self.uuid.startswith(name)
        return name == str(self.index) or is_start_of_uuid


@dataclass(frozen=True)
class Report:
    """The answer of nvidia-smi, which ignores the environment."""

    devices: tuple[Device, ...] = ()
    error: str = ""
    """The reason why it did not answer."""


def nvidia_smi() -> Report:
    """Asks nvidia-smi. The report is empty on a machine without CUDA devices, or with those of ROCm."""
    if device_files.is_rocm() or not device_files.count_devices("cuda"):
        return Report()
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        rows = [line.split(", ") for line in output_of(command, SMI_S).splitlines()]
    except OSError as error:
        return Report(error=str(error))
    return Report(tuple(_device(*row) for row in rows if len(row) == len(SMI_FIELDS)))


def _device(index: str, name: str, driver: str, used: str, total: str, mode: str, uuid: str) -> Device:
    def number(text: str) -> int:
        return int(text) if text.strip().isdecimal() else 0

    return Device(number(index), name, driver, number(used) << 20, number(total) << 20, mode, uuid.strip())


def check_devices(requirements: Requirements, report: Report) -> Iterator[Check]:
    """Yields the checks of the devices that a recipe uses, or without one those of the machine."""
    is_rocm = device_files.is_rocm()
    count = device_files.count_devices("cuda", is_rocm)
    names = ", ".join(sorted({device.name for device in report.devices}))
    found = f"{count} x cuda" + (f" ({names}, driver {report.devices[0].driver})" if names else "")
    yield Check(SUBJECT, "accelerators", "ok", found if count else "none: groups run on cpu")
    if not requirements.devices:
        return
    patterns = ("nvidia[0-9]*", "nvidiactl", "kfd")
    files = (file for pattern in patterns for file in Path("/dev").glob(pattern))
    if closed := next((file for file in files if not os.access(file, os.R_OK | os.W_OK)), None):
        remedy = "add yourself to the group that owns it (`ls -l` shows it), or pass it into the container"
        yield Check(SUBJECT, "permission", "failure", f"{closed} cannot be opened by this user", remedy)
    if report.error:
        remedy = (
            "it must answer on its own: otherwise the driver or a device is at fault (dmesg | grep -i nvrm)"
        )
        yield Check(SUBJECT, "nvidia-smi", "warning", report.error, remedy)
    ours = [one for one in report.devices if any(map(one.is_named, requirements.devices))]
    yield from _memory(ours, requirements)
    for one in ours:
        is_shared = any(map(one.is_named, requirements.shared_devices))
        if is_shared and one.mode not in ("Default", "[N/A]", ""):
            text = f"device {one.index} is in compute mode {one.mode}: groups that share it cannot start"
            remedy = f"nvidia-smi -i {one.index} -c DEFAULT, as root"
            yield Check(SUBJECT, "compute mode", "failure", text, remedy)
            break
    build = device_files.torch_build()
    if count and build and not (build.get("cuda") or build.get("hip")):
        found = f"{count} devices, but torch {build['__version__']} is built for cpu"
        yield Check(SUBJECT, "torch on cuda", "failure", found, f"install a build for CUDA: {INSTALL}")


def _memory(ours: Sequence[Device], requirements: Requirements) -> Iterator[Check]:
    """Compares the free memory of the devices of each worker with what its models take."""
    needs = [
        (devices, size)
        for key, size in requirements.device_bytes.items()
        if (devices := [one for one in ours if any(map(one.is_named, names_in(key)))])
    ]
    small, full, used = list[str](), list[str](), list[str]()
    for devices, size in [*needs, *(([one], 0) for one in ours)]:
        if not all(one.total for one in devices):
            continue
        total, taken = sum(one.total for one in devices), sum(one.used for one in devices)
        numbers = ", ".join(str(one.index) for one in devices)
        have = f"device {numbers} has" if len(devices) == 1 else f"devices {numbers} have"
        takes = f"and the models there take at least {amount(size)}"
        if total < size:
            small.append(f"{have} {amount(total)}, {takes}")
        elif total - taken < size:
            full.append(f"{have} {amount(taken)} of {amount(total)} taken by other processes, {takes}")
        elif taken > MAX_USED_BYTES and not size:
            used.append(f"{have} {amount(taken)} of {amount(total)} taken by other processes")
    if small:
        remedy = "split the models over more devices (show-topology lists their bytes), or use smaller ones"
        yield Check(SUBJECT, "device memory", "failure", "; ".join(small), remedy)
    elif full or used:
        state: State = "failure" if full else "warning"
        remedy = "find the processes with nvidia-smi, or leave the devices out: CUDA_VISIBLE_DEVICES"
        yield Check(SUBJECT, "device memory", state, "; ".join(full or used), remedy)
