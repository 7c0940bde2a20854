"""Computes the devices that a process sees, by the environment variables that CUDA, ROCm and CANN read.

Each device of the plan has a number on its node. A list in the launcher's environment selects and renumbers
devices: with `CUDA_VISIBLE_DEVICES=4,5`, number 0 is device 4 of the machine. The entries of the list,
numbers, UUIDs or MIG instances, are hardware names. Without a list, a device's number is its hardware name. A
group's `visible_devices` are hardware names, never numbers, and must be in the list.

The functions are pure: they depend on the plan, an environment, and whether torch is a ROCm build.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from meshctl.dataclass import dataclass
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Group, Plan, Worker

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VARIABLES = {"cuda": (CUDA,), "npu": ("ASCEND_RT_VISIBLE_DEVICES",)}
ON_ROCM = (HIP, CUDA)
"""HIP reads both variables and prefers HIP_VISIBLE_DEVICES. Both number the devices that ROCR_VISIBLE_DEVICES
selects, which meshctl does not change."""


@dataclass(frozen=True)
class DeviceList:
    """The devices of one type that an environment variable selects."""

    variable: str
    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.variable}={self.text} leaves {len(self.names) or 'none'}"


def variables(device_type: str, rocm: bool) -> tuple[str, ...]:
    """Returns the variables that list a worker's devices; empty for a device type without such a variable."""
    return ON_ROCM if rocm and device_type == "cuda" else VARIABLES.get(device_type, ())


def device_list(device_type: str, environ: Mapping[str, str], rocm: bool = False) -> DeviceList | None:
    """Returns the devices of a type that an environment selects; None if it contains no list."""
    for variable in variables(device_type, rocm):
        if (text := environ.get(variable)) is not None:
            return DeviceList(variable, text, _names(text))
    if rocm and device_type == "cuda" and (text := environ.get(ROCR)) is not None:
        return DeviceList(ROCR, text, tuple(map(str, range(len(_names(text))))))
    return None


def _names(text: str) -> tuple[str, ...]:
    """Parses a list as the drivers do: up to the first invalid entry, and as empty if a name is repeated."""
    names: list[str] = []
    for name in map(str.strip, text.split(",")):
        if not re.match(r"\d|GPU-|MIG-", name):
            break
        names.append(name)
    return tuple(names) if len(set(names)) == len(names) else ()


def visible_names(plan: Plan, worker: Worker, visible: DeviceList | None) -> list[str]:
    """Returns the hardware names of the devices that a worker sees. Raises `CannotStart` if `visible` lacks
    some of them.

    A worker of components sees its own devices, numbered from 0; so does a worker of a program with several
    devices. A worker of a program with one device sees all devices of its group on the node, as under
    torchrun, so that `LOCAL_RANK` selects the right one.
    """
    group = plan.group(worker.group)
    names = hardware_names(group, numbers_on_node(plan, group, worker.node), visible)
    first = worker.local_rank * group.gpus_per_worker
    if group.program and group.gpus_per_worker == 1:
        return names
    return names[first : first + group.gpus_per_worker]


def numbers_on_node(plan: Plan, group: Group, node: int) -> list[int]:
    """Returns the numbers on a node of a group's devices there, in the order of its workers."""
    devices = (device for worker in plan.workers(group.name, node) for device in worker.devices)
    return [plan.cluster.number_on_node(group.device_type, device) for device in devices]


def hardware_names(group: Group, numbers: Sequence[int], visible: DeviceList | None) -> list[str]:
    """Returns the hardware names of a group's devices on this node. Raises `CannotStart` if `visible` lacks
    some of them."""
    if group.visible_devices:
        names = list(group.visible_devices[: len(numbers)])
        if visible is not None and (missing := [name for name in names if not _has(visible.names, name)]):
            has = ", ".join(visible.names) or "none"
            message = (
                f"group {group.name} needs {', '.join(names)} (its visible_devices), but "
                f"{visible.variable} leaves {has}"
            )
            raise CannotStart(
                f"{message}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there"
            )
        return names
    if visible is None:
        return [str(number) for number in numbers]
    if any(number >= len(visible.names) for number in numbers):
        raise CannotStart(
            f"group {group.name} needs {devices_text(group, numbers)} of its node, but {visible}"
        )
    return [visible.names[number] for number in numbers]


def _has(names: Sequence[str], name: str) -> bool:
    """Returns whether a name is in a list; a UUID may be abbreviated to its beginning."""
    return name in names or any(
        not name.isdigit() and (other.startswith(name) or name.startswith(other)) for other in names
    )


def devices_text(group: Group, numbers: Sequence[int]) -> str:
    """Returns `the cuda devices 0-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"the {group.device_type} device{'' if len(numbers) == 1 else 's'} {shown}"
