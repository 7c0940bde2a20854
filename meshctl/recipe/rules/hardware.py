"""MC317, MC318 and MC321: what the names of devices and the environment say, against what the groups are
given.

A group's `visible_devices` are names of the hardware on its nodes. Without them a device is called by its
number on its node, unless the launcher's own environment narrows and renumbers the devices: so against such a
group it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.groups import too_few_visible
from meshctl.text.english import counted
from meshctl.topology.allocation import DeviceRanges, first_common_device, host_of
from meshctl.topology.cluster import Cluster

OF_TORCHRUN = {
    *(
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
    ),
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
    return one == other or (
        not one.isdigit() and not other.isdigit() and (one.startswith(other) or other.startswith(one))
    )


def names_of(group: DeviceGroup, runs: DeviceRanges, cluster: Cluster) -> list[Names]:
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


@dataclass(frozen=True)
class _Known:
    """A group of which it is known what its devices are called."""

    group: DeviceGroup
    host: str
    runs: DeviceRanges
    names: tuple[Names, ...]

    def meet(self, other: _Known) -> tuple[int, str] | None:
        """(node, name) of a device that both see, although by number they are apart and neither shares with
        the other."""
        one, two = self.group, other.group
        if (
            one.device_type != two.device_type
            or self.host == other.host
            or not (one.visible_devices or two.visible_devices)
        ):
            return None
        met = next((met for mine in self.names for theirs in other.names if (met := mine.meet(theirs))), None)
        return met if met and first_common_device(self.runs, other.runs) is None else None


def _known(facts: Facts) -> Iterator[_Known]:
    """Each is looked at once: there may be many pairs."""
    for name, group in facts.recipe.groups.items():
        placed = facts.allocation
        if (
            placed is None
            or group.device_type not in OF_DEVICES
            or name in placed.beyond
            or too_few_visible(placed, group)
        ):
            continue
        if facts.right("groups", name, "visible_devices"):
            runs = placed.devices[name]
            yield _Known(
                group, host_of(facts.recipe.groups, name), runs, tuple(names_of(group, runs, placed.cluster))
            )


def same_hardware(facts: Facts) -> Iterator[Diagnostic]:
    """Two groups that do not share devices do not see the same ones."""
    for one, other in combinations(_known(facts), 2):
        if met := one.meet(other):
            yield _said(facts, one.group, other.group, *met)


def _said(facts: Facts, one: DeviceGroup, other: DeviceGroup, node: int, name: str) -> Diagnostic:
    if one.visible_devices and other.visible_devices:
        says = facts.value("groups", one.name, "visible_devices").with_word(f"`{one.name}` sees it too")
        message = (
            f"`{one.name}` and `{other.name}` both see the {one.device_type} device {name} of node {node}"
        )
        help = f"name other devices, or say `colocate: {one.name}` in `{other.name}`"
        return Diagnostic(
            "MC317", message, facts.value("groups", other.name, "visible_devices"), (says,), help
        )
    named, plain = (one, other) if one.visible_devices else (other, one)
    says = facts.value("groups", plain.name, "ranks").with_word(
        f"`{plain.name}` has number {name} of node {node}"
    )
    message = (
        f"`{named.name}` sees the {named.device_type} device {name} of node {node}, "
        f"which `{plain.name}` has too unless it is renumbered"
    )
    span = facts.value("groups", named.name, "visible_devices")
    return Diagnostic(
        "MC318", message, span, (says,), "say `visible_devices` in both groups, or in none", "warning"
    )


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
                yield Diagnostic(
                    "MC321", message, span, says, "remove it, or say it as `visible_devices`", "warning"
                )


def _devices(facts: Facts, group: DeviceGroup) -> tuple[Span, ...]:
    has = counted(group.devices, f"{group.device_type} device")
    return (facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {has}"),)


RULES = (same_hardware, own_variables)
