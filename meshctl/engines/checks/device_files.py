"""The devices that a machine has, by their files, and whether a plan fits them. No driver is called, because
CUDA does not survive a fork."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from meshctl.engines.engine import CannotStart
from meshctl.engines.node.visible_devices import (
    DeviceList,
    device_list,
    devices_text,
    hardware_names,
    numbers_on_node,
)
from meshctl.plan.model import Group, Plan

ROOT = Path("/")
DEVICES = {"cuda": "dev/nvidia[0-9]*", "npu": "dev/davinci[0-9]*"}
"""Patterns of the files that a machine has for its devices."""
ROCM_DEVICES = "sys/class/kfd/kfd/topology/nodes/*/gpu_id"
"""One file for each processor; it holds 0 for a processor that is no GPU."""


def check_devices(plan: Plan) -> None:
    """Raises `CannotStart` where this machine, the only node of the plan, lacks a group's devices, or where
    two groups would have the same device."""
    rocm = any(group.device_type == "cuda" for group in plan.groups) and is_rocm()
    owners: dict[str, Group] = {}
    for group in plan.groups:
        kind = group.device_type
        if kind not in DEVICES:
            continue
        left, here = device_list(kind, os.environ, rocm), count_devices(kind, rocm)
        for name in required_names(group, numbers_on_node(plan, group, 0), left, here):
            other = owners.setdefault(f"{kind} device {name}", group)
            if owner_of_devices(plan, other) != owner_of_devices(plan, group):
                both = f"groups {other.name} and {group.name} would both have the {kind} device {name}"
                raise CannotStart(f"{both}: give them other visible_devices, or say `colocate: {other.name}`")


def owner_of_devices(plan: Plan, group: Group) -> str:
    """Returns the name of the group whose devices a group has: its own, or the one it is colocated with."""
    while group.colocate:
        group = plan.group(group.colocate)
    return group.name


def required_names(group: Group, wanted: Sequence[int], left: DeviceList | None, here: int) -> list[str]:
    """Returns the hardware names of the devices that a group needs. Raises `CannotStart` where the machine
    lacks some.

    `wanted` are the devices by their numbers on the node. `left` is the list in the environment
    (`CUDA_VISIBLE_DEVICES`), if there is one. `here` is the number of devices that were found; where it is 0,
    the list is believed, because the files of the devices may be elsewhere.
    """
    if left is not None:
        known = takewhile(lambda name: here == 0 or not name.isdigit() or int(name) < here, left.names)
        return hardware_names(group, wanted, replace(left, names=tuple(known)))
    names = hardware_names(group, wanted, None)
    if strange := [name for name in names if here == 0 or (name.isdigit() and int(name) >= here)]:
        needs = (
            f"is to see {', '.join(strange)} (its visible_devices)"
            if group.visible_devices
            else f"needs {devices_text(group, wanted)}"
        )
        raise CannotStart(f"group {group.name} {needs}, and this machine has {here or 'none'}")
    return names


def count_devices(device_type: str, rocm: bool = False) -> int:
    """Returns the number of devices of this machine."""
    if rocm and device_type == "cuda":
        return len([file for file in ROOT.glob(ROCM_DEVICES) if file.read_text().strip() not in ("", "0")])
    return len(list(ROOT.glob(DEVICES[device_type])))


def is_rocm() -> bool:
    """Whether the installed torch is ROCm's, found in its text without importing it."""
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    return (
        version is not None
        and version.is_file()
        and re.search(r"^hip\b.*=\s*['\"]", version.read_text(), re.M) is not None
    )
