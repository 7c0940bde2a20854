"""Meshes for tests that try all of them."""

from __future__ import annotations

from itertools import product

from meshctl.topology.mesh import DeviceMesh


def meshes(most: int) -> list[DeviceMesh]:
    """Of up to so many ranks."""
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
