"""Ranks along dims, and routes of a million ranks. `tests/plan/views` compares `EvenFlow` with lists of samples, in every mode."""

from __future__ import annotations

import pytest

from meshctl.topology.flows import EvenFlow, along
from meshctl.topology.mesh import DIMS, DeviceMesh
from meshctl.topology.modes import EXECUTE


@pytest.mark.parametrize("dims", [("tp",), ("dp", "tp"), ("pp", "ulysses"), ("ep",), ("etp", "pp"), ("cp",)])
def test_ranks_along_dims_are_those_of_the_mesh(dims: tuple[str, ...]) -> None:
    for order in (DIMS, ("dp", "tp", "fsdp", "cp", "pp")):
        mesh = DeviceMesh.from_sizes(
            pp_size=2, dp_size=3, fsdp_size=4, tp_size=4, ulysses_size=2, ep_size=3, etp_size=2, order=order
        )
        for rank in range(0, mesh.world_size, 7):
            listed, folded = mesh.ranks_along(dims, rank), along(mesh, dims, rank)
            assert (folded.count, folded.last) == (len(listed), listed[-1]) and folded.first == listed[
                : len(folded.first)
            ]
            if folded.stride is not None:
                assert listed == tuple(range(listed[0], listed[-1] + 1, folded.stride))


def test_a_million_ranks_are_as_quick_as_eight() -> None:
    """A list of all ranks would take minutes."""
    mesh = DeviceMesh.from_sizes(pp_size=16, dp_size=256, fsdp_size=32, tp_size=8)
    for execute in EXECUTE:
        links = EvenFlow(mesh, mesh, 1 << 30, execute=EXECUTE[execute])
        received = links.producers_of(0)
        assert links.samples_of(0) == links.samples(received[-1], links.share_of(0)).stop
