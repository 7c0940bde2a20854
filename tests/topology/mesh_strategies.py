"""Meshes for property tests."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from hypothesis import strategies as st

from meshctl.topology.mesh import DIMS, DeviceMesh


@st.composite
def meshes(draw: st.DrawFn) -> DeviceMesh:
    sizes: dict[str, Any] = {f"{dim}_size": draw(st.integers(1, 3)) for dim in DIMS}
    divisors = [size for size in range(1, 17) if sizes["dp_size"] * sizes["fsdp_size"] % size == 0]
    order = draw(st.sampled_from(list(permutations(DIMS))))
    return DeviceMesh.from_sizes(**sizes, ulysses_size=draw(st.sampled_from(divisors)), order=order)


ORDERS = [DIMS, DIMS, ("fsdp", "pp", "dp", "cp", "tp"), ("tp", "dp", "pp", "fsdp", "cp")]


@st.composite
def uneven_meshes(draw: st.DrawFn) -> DeviceMesh:
    """Draws meshes most of whose dims are small, in a few orders."""
    sizes = {f"{dim}_size": draw(st.sampled_from([1, 1, 2, 3])) for dim in DIMS}
    data = sizes["dp_size"] * sizes["fsdp_size"]
    ulysses = draw(st.sampled_from([size for size in (1, 2, 3) if data % size == 0]))
    return DeviceMesh.from_sizes(**sizes, ulysses_size=ulysses, order=draw(st.sampled_from(ORDERS)))
