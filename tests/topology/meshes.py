"""Exhaustive lists of small meshes, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from meshctl.topology import consumers, modes
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, Dispatch
from meshctl.topology.samples import Run, SampleTable


def meshes(most: int) -> list[DeviceMesh]:
    """Yields all meshes of up to this many ranks."""
    found = {}
    for pp, dp, fsdp, cp, tp in product(*[(1, 2, 3, 4, 8, 16)] * 5):
        if pp * dp * fsdp * cp * tp <= most:
            for ulysses in {1, *(size for size in (2, 4) if dp * fsdp % size == 0)}:
                made = DeviceMesh.from_sizes(
                    pp_size=pp, dp_size=dp, fsdp_size=fsdp, cp_size=cp, tp_size=tp, ulysses_size=ulysses
                )
                found[made] = None
    return list(found)


MESHES = meshes(16)


# Modes by name


def producer_ranks(mesh: DeviceMesh, collect: str, execute: str = "all") -> tuple[int, ...]:
    return modes.producer_set(COLLECT[collect], EXECUTE[execute]).ranks(mesh)


def producers_of(mesh: DeviceMesh, execute: str, producers: int, rank: int) -> range:
    return modes.producers_of(mesh, EXECUTE[execute], producers, rank)


def consumer_parts(mesh: DeviceMesh, execute: str, mode: str, producers: int) -> consumers.ConsumerParts:
    return consumers.consumer_parts(mesh, EXECUTE[execute], DISPATCH[mode], producers)


def parts_for(
    execute: str, dispatch: Dispatch, mesh: DeviceMesh, table: SampleTable
) -> Sequence[Sequence[Run]]:
    return consumers.parts_for(EXECUTE[execute], DISPATCH[dispatch.mode], dispatch, mesh, table)


def samples_by_rank(
    execute: str, dispatch: Dispatch, mesh: DeviceMesh, table: SampleTable
) -> dict[int, list[tuple[int, int]]]:
    return consumers.samples_by_rank(EXECUTE[execute], DISPATCH[dispatch.mode], dispatch, mesh, table)
