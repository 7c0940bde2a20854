"""The devices of a machine, counted by their device files, those that the groups of a plan use on it, and
those that each worker sees. No driver is called, because CUDA does not survive a fork.

Each device of the plan has a number on its node. A list in the launcher's environment selects and renumbers
devices: with `CUDA_VISIBLE_DEVICES=4,5`, number 0 is device 4 of the machine. The entries of the list,
numbers, UUIDs or MIG instances, are hardware names. Without a list, a device's number is its hardware name. A
group's `visible_devices` are hardware names, never numbers, and must be in the list.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.checks.requirements import Needs, Requirements, names_in
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Group, Plan, Worker
from meshctl.plan.resizing import Device

ROOT = Path("/")
DEVICES = {"cuda": "dev/nvidia[0-9]*", "npu": "dev/davinci[0-9]*"}
"""Device type -> pattern of its device files."""
ROCM_DEVICES = "sys/class/kfd/kfd/topology/nodes/*/gpu_id"
"""One file per processor. It contains 0 if the processor is not a GPU."""


def check_devices(plan: Plan, node: int = 0) -> None:
    """Raises `CannotStart` if this machine, a node of the plan, lacks a group's devices, or if two groups
    that are not colocated would use the same device."""
    owners: dict[str, Group] = {}
    for group, names in devices_of_groups(plan, node):
        kind = group.device_type
        for name in names:
            other = owners.setdefault(f"{kind} device {name}", group)
            if owner_of_devices(plan, other) != owner_of_devices(plan, group):
                both = f"groups {other.name} and {group.name} would both have the {kind} device {name}"
                raise CannotStart(
                    f"{both}: give them other visible_devices, or write `colocate: {other.name}`"
                )


def devices_of_groups(plan: Plan, node: int = 0) -> Iterator[tuple[Group, list[str]]]:
    """Yields the groups with devices of this machine, a node of the plan, and the hardware names of their
    devices. Raises `CannotStart` if the machine lacks some of them."""
    rocm = any(group.device_type == "cuda" for group in plan.groups) and is_rocm()
    for group in plan.groups:
        kind = group.device_type
        if kind in DEVICES:
            visible, count = device_list(kind, os.environ, rocm), count_devices(kind, rocm)
            yield group, required_names(group, numbers_on_node(plan, group, node), visible, count)


def own_and_missing(plan: Plan, node: int) -> tuple[list[Device], list[Device]]:
    """Returns the devices of a node that the groups of a plan use, and those of them that have no device
    file. The numbers of devices are those of the whole cluster. A device that is named by a UUID has no file
    name, and is taken to exist."""
    own, missing = list[Device](), list[Device]()
    rocm = any(group.device_type == "cuda" for group in plan.groups) and is_rocm()
    for group in plan.groups:
        kind = group.device_type
        if kind not in DEVICES:
            continue
        numbers, visible = numbers_on_node(plan, group, node), device_list(kind, os.environ, rocm)
        first = plan.cluster.first_on(kind, node)
        files = {"".join(filter(str.isdecimal, file.name)) for file in ROOT.glob(DEVICES[kind])}
        if rocm and kind == "cuda":
            files = set(map(str, range(count_devices(kind, rocm))))
        try:
            names = hardware_names(group, numbers, visible)
        except CannotStart:
            continue  # the list of the environment lacks some, which the node reports when it starts
        own += [(kind, first + number) for number in numbers]
        missing += [
            (kind, first + number)
            for number, name in zip(numbers, names, strict=True)
            if name.isdigit() and name not in files and (files or visible is None)
        ]
    return own, missing


def devices_of_workers(plan: Plan, node: int = 0) -> dict[str, list[str]]:
    """Returns group -> the hardware names of each worker's CUDA devices on a node, joined by commas. Returns
    an empty dict if this machine lacks some of them, which `check_devices` reports."""
    try:
        found = list(devices_of_groups(plan, node))
    except CannotStart:
        return {}
    return {
        group.name: [",".join(names[first : first + each]) for first in range(0, len(names), each)]
        for group, names in found
        if group.device_type == "cuda" and (each := group.gpus_per_worker)
    }


def requirements_on(plan: Plan, runs: str, needs: Needs, node: int | None = None) -> Requirements:
    """Returns the requirements of the groups of a plan on a node; None is one machine that runs all of them.
    `runs` is the folder of run directories."""
    workers = {
        group.name: group.workers if node is None else len(list(plan.workers(group.name, node)))
        for group in plan.groups
    }
    device_bytes, uses = Counter[str](), Counter[str]()
    for name, keys in devices_of_workers(plan, node or 0).items():
        device_bytes.update(dict.fromkeys(keys, needs.worker_bytes.get(name, 0)))
        uses.update(name for key in keys for name in names_in(key))
    on_cpu = [group.name for group in plan.groups if group.device_type == "cpu"]
    return Requirements(
        runs,
        sum(workers.values()),
        needs.checkpoint_bytes,
        needs.checkpoints,
        model_bytes=sum(needs.worker_bytes.get(name, 0) * workers[name] for name in on_cpu),
        copy_bytes=sum(needs.copy_bytes.get(name, 0) * count for name, count in workers.items()),
        device_bytes=dict(device_bytes),
        shared_devices=[name for name, count in uses.items() if count > 1],
    )


def owner_of_devices(plan: Plan, group: Group) -> str:
    """Returns the name of the group that owns a group's devices: the group itself, or the one that it is
    colocated with."""
    while group.colocate:
        group = plan.group(group.colocate)
    return group.name


def required_names(group: Group, numbers: Sequence[int], visible: DeviceList | None, count: int) -> list[str]:
    """Returns the hardware names of the devices that a group needs. Raises `CannotStart` if the machine lacks
    some of them.

    `numbers` are the numbers of the devices on the node. `visible` is the list of devices in the environment
    (`CUDA_VISIBLE_DEVICES`), if there is one. `count` is the number of device files. If it is 0, `visible` is
    not checked against it, because the device files may have other names.
    """
    if visible is not None:
        known = takewhile(lambda name: count == 0 or not name.isdigit() or int(name) < count, visible.names)
        return hardware_names(group, numbers, replace(visible, names=tuple(known)))
    names = hardware_names(group, numbers, None)
    if missing := [name for name in names if count == 0 or (name.isdigit() and int(name) >= count)]:
        needs = f"{', '.join(missing)} (its visible_devices)"
        needs = needs if group.visible_devices else devices_text(group, numbers)
        raise CannotStart(f"group {group.name} needs {needs}, but this machine has {count or 'none'}")
    return names


def count_devices(device_type: str, rocm: bool = False) -> int:
    """Returns the number of devices of a type that this machine has."""
    if rocm and device_type == "cuda":
        return len([file for file in ROOT.glob(ROCM_DEVICES) if file.read_text().strip() not in ("", "0")])
    return len(list(ROOT.glob(DEVICES[device_type])))


def is_rocm() -> bool:
    """Returns whether the installed torch is a ROCm build. Imports nothing."""
    return bool(torch_build().get("hip"))


def torch_build() -> Mapping[str, str]:
    """Returns what torch's `version.py` states about its build, without an import: `__version__`, `cuda` and
    `hip`. Returns an empty dict if it is not found."""
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    if version is None or not version.is_file():
        return {}
    stated = re.findall(r"""^(__version__|cuda|hip)\b.*=\s*['"]([^'"]*)""", version.read_text(), re.M)
    return dict(stated)


# The devices that a worker sees, by the environment variables that CUDA, ROCm and CANN read

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
