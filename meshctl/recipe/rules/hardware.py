"""MC317, MC318 and MC321: what the names of devices and the environment say, against what the groups are given.

A group's `visible_devices` are names of the hardware on its nodes. Without them a device is called by its number on its node, unless
the launcher's own environment narrows and renumbers the devices: so against such a group it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from meshctl.cluster import Cluster
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.placement import Runs, shared
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.groups import host_of, too_few_visible
from meshctl.recipe.words import counted

OF_TORCHRUN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
}
"""What torchrun tells each worker; it is set after a group's `env`."""
OF_DEVICES = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""What meshctl tells each worker of its devices; a group's `env` would take that back."""


@dataclass(frozen=True)
class Names:
    """What a group's devices are called on some neighbouring nodes."""

    first_node: int
    nodes: int
    names: tuple[str, ...]

    def meet(self, other: Names) -> tuple[int, str] | None:
        """(node, name) of the first device that is in both."""
        node = max(self.first_node, other.first_node)
        if node >= min(self.first_node + self.nodes, other.first_node + other.nodes):
            return None
        both = next((name for name in self.names if any(_same(name, theirs) for theirs in other.names)), None)
        return None if both is None else (node, both)


def _same(one: str, other: str) -> bool:
    """A UUID may be cut short, as long as it is the beginning."""
    return one == other or (not one.isdigit() and not other.isdigit() and (one.startswith(other) or other.startswith(one)))


def names_of(group: DeviceGroup, runs: Runs, cluster: Cluster) -> list[Names]:
    """By node: the first of its visible devices, or the numbers there."""
    alone: dict[int, list[str]] = {}
    found: list[Names] = []
    for piece in (piece for start, stop in runs for piece in cluster.pieces(group.device_type, start, stop)):
        numbers = [str(number) for number in range(piece.number, piece.number + piece.each)]
        if piece.nodes == 1:
            alone.setdefault(piece.first_node, []).extend(numbers)
        else:
            found.append(Names(piece.first_node, piece.nodes, tuple(numbers)))
    found += [Names(node, 1, tuple(numbers)) for node, numbers in alone.items()]
    if not group.visible_devices:
        return found
    return [Names(some.first_node, some.nodes, group.visible_devices[: len(some.names)]) for some in found]


def same_hardware(facts: Facts) -> Iterator[Diagnostic]:
    """Two groups that do not share devices do not see the same ones."""
    if facts.placed is None:
        return
    for one, other in combinations(facts.recipe.groups.values(), 2):
        if not _may_meet(facts, one, other):
            continue
        pair = [names_of(group, facts.placed.devices[group.name], facts.placed.cluster) for group in (one, other)]
        met = next((met for mine in pair[0] for theirs in pair[1] if (met := mine.meet(theirs))), None)
        if met is not None:
            yield _said(facts, one, other, *met)


def _may_meet(facts: Facts, one: DeviceGroup, other: DeviceGroup) -> bool:
    """Whether they have devices of one type, apart from one another, and one of them says what they are called."""
    if one.device_type != other.device_type or one.device_type not in OF_DEVICES or not (one.visible_devices or other.visible_devices):
        return False
    assert facts.placed is not None
    if any(group.name in facts.placed.beyond or too_few_visible(facts.placed, group) for group in (one, other)):
        return False
    apart = host_of(facts, one) != host_of(facts, other) and shared(*(facts.placed.devices[group.name] for group in (one, other))) is None
    right = all(facts.right("groups", group.name, "visible_devices") for group in (one, other))
    return apart and right


def _said(facts: Facts, one: DeviceGroup, other: DeviceGroup, node: int, name: str) -> Diagnostic:
    if one.visible_devices and other.visible_devices:
        says = facts.value("groups", one.name, "visible_devices").with_word(f"`{one.name}` sees it too")
        message = f"`{one.name}` and `{other.name}` both see the {one.device_type} device {name} of node {node}"
        help = f"name other devices, or say `colocate: {one.name}` in `{other.name}`"
        return Diagnostic("MC317", message, facts.value("groups", other.name, "visible_devices"), (says,), help)
    named, plain = (one, other) if one.visible_devices else (other, one)
    says = facts.value("groups", plain.name, "ranks").with_word(f"`{plain.name}` has number {name} of node {node}")
    message = (
        f"`{named.name}` sees the {named.device_type} device {name} of node {node}, which `{plain.name}` has too unless it is renumbered"
    )
    span = facts.value("groups", named.name, "visible_devices")
    return Diagnostic("MC318", message, span, (says,), "say `visible_devices` in both groups, or in none", "warning")


def own_variables(facts: Facts) -> Iterator[Diagnostic]:
    """`env` does not say again what every worker is told."""
    for name, group in facts.recipe.groups.items():
        for variable, value in group.env:
            if value is None:
                continue
            span = facts.key("groups", name, "env", variable)
            if variable in OF_TORCHRUN:
                message = f"`{variable}` is told to each worker by torchrun, what `env` says of it is lost"
                yield Diagnostic("MC321", message, span, help="remove it", severity="warning")
            elif variable in OF_DEVICES.get(group.device_type, ()):
                says = _devices(facts, group)
                message = f"`{variable}` in `env` takes the place of the devices that each worker of `{name}` is given"
                yield Diagnostic("MC321", message, span, says, "remove it, or say it as `visible_devices`", "warning")


def _devices(facts: Facts, group: DeviceGroup) -> tuple[Span, ...]:
    has = counted(group.devices, f"{group.device_type} device")
    return (facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {has}"),)


RULES = (same_hardware, own_variables)
