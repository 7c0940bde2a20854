"""The devices of a machine, counted by their device files, and those that the groups of a plan use on it. No
driver is called, because CUDA does not survive a fork."""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from meshctl.engines.checks.requirements import Needs, Requirements, names_in
from meshctl.engines.engine import CannotStart
from meshctl.engines.node.visible_devices import (
    DeviceList,
    device_list,
    devices_text,
    hardware_names,
    numbers_on_node,
)
from meshctl.plan.model import Group, Plan
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
