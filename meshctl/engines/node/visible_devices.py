"""The devices that a process sees and their hardware names: the variables that CUDA, ROCm and CANN read.

A device of the plan has a number on its node. The list in the launcher's environment, where there is one,
narrows and renumbers: with `CUDA_VISIBLE_DEVICES=4,5` number 0 is the machine's 4, and with UUIDs or MIG
instances it is the first of them. Without a list a number is its own name. A group's `visible_devices` are
hardware names and never numbers; they must be in that list.

Pure: from the plan, an environment and whether torch is ROCm's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Group, Plan, Worker

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VARIABLES = {"cuda": (CUDA,), "npu": ("ASCEND_RT_VISIBLE_DEVICES",)}
ON_ROCM = (HIP, CUDA)
"""HIP reads either and prefers its own. Both count within what ROCR_VISIBLE_DEVICES leaves, which stays as it
is."""


@dataclass(frozen=True)
class DeviceList:
    """The devices of one type that an environment leaves."""

    variable: str
    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.variable}={self.text} leaves {len(self.names) or 'none'}"


def variables(device_type: str, rocm: bool) -> tuple[str, ...]:
    """Returns the variables that hold a worker's list; none for a type that has no such variable."""
    return ON_ROCM if rocm and device_type == "cuda" else VARIABLES.get(device_type, ())


def device_list(device_type: str, environ: Mapping[str, str], rocm: bool = False) -> DeviceList | None:
    """Returns the devices of a type that an environment leaves; None where it has no list."""
    for variable in variables(device_type, rocm):
        if (text := environ.get(variable)) is not None:
            return DeviceList(variable, text, _names(text))
    if rocm and device_type == "cuda" and (text := environ.get(ROCR)) is not None:
        return DeviceList(ROCR, text, tuple(map(str, range(len(_names(text))))))
    return None


def _names(text: str) -> tuple[str, ...]:
    """Parses a list as the drivers do: up to the first entry that is no name; empty where a name is
    repeated."""
    names: list[str] = []
    for name in map(str.strip, text.split(",")):
        if not re.match(r"\d|GPU-|MIG-", name):
            break
        names.append(name)
    return tuple(names) if len(set(names)) == len(names) else ()


def visible_names(plan: Plan, worker: Worker, left: DeviceList | None) -> list[str]:
    """Returns the hardware names of the devices that a worker sees. Raises `CannotStart` where some are not
    left.

    A components' worker sees its own, numbered from 0. A program's worker sees those of its whole group on
    the node, as under torchrun, so that `LOCAL_RANK` selects the right one.
    """
    group = plan.group(worker.group)
    names = hardware_names(group, numbers_on_node(plan, group, worker.node), left)
    first = worker.local_rank * group.gpus_per_worker
    return names if group.program else names[first : first + group.gpus_per_worker]


def numbers_on_node(plan: Plan, group: Group, node: int) -> list[int]:
    """Returns the devices of a group on a node, by their numbers there, in the order of its workers."""
    devices = (device for worker in plan.workers(group.name, node) for device in worker.devices)
    return [plan.cluster.number_on_node(group.device_type, device) for device in devices]


def hardware_names(group: Group, wanted: Sequence[int], left: DeviceList | None) -> list[str]:
    """Returns the hardware names of a group's devices on this node. Raises `CannotStart` where some are not
    left."""
    if group.visible_devices:
        names = list(group.visible_devices[: len(wanted)])
        if left is not None and (strange := [name for name in names if not _has(left.names, name)]):
            has = ", ".join(left.names) or "none"
            message = (
                f"group {group.name} is to see {', '.join(names)} (its visible_devices), and {left.variable} "
                f"leaves {has}"
            )
            raise CannotStart(
                f"{message}: {', '.join(strange)} {'is' if len(strange) == 1 else 'are'} not there"
            )
        return names
    if left is None:
        return [str(number) for number in wanted]
    if any(number >= len(left.names) for number in wanted):
        raise CannotStart(f"group {group.name} needs {devices_text(group, wanted)} of its node, and {left}")
    return [left.names[number] for number in wanted]


def _has(names: Sequence[str], name: str) -> bool:
    """Whether a name is in a list; a UUID may be abbreviated to its beginning."""
    return name in names or any(
        not name.isdigit() and (other.startswith(name) or name.startswith(other)) for other in names
    )


def devices_text(group: Group, wanted: Sequence[int]) -> str:
    """Returns `the cuda devices 0-3, 6`."""
    runs: list[list[int]] = []
    for number in sorted(wanted):
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"the {group.device_type} device{'' if len(wanted) == 1 else 's'} {shown}"
