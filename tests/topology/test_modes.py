"""The producers of a value and the workers of each producer, for all meshes up to 16 ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshctl.topology.modes import COLLECT, peer_workers
from tests.topology.meshes import MESHES, producer_ranks


def test_one_representative_per_data_rank_sends() -> None:
    for mesh in MESHES:
        who = producer_ranks(mesh, "flatten")
        assert [mesh.data_rank(rank) for rank in who] == list(range(mesh.data_size))
        assert all(mesh.dim_rank(rank, "pp") == mesh.size("pp") - 1 for rank in who)
        assert producer_ranks(mesh, "first") == who[:1]
        assert len(producer_ranks(mesh, "none")) == mesh.world_size
        assert len(producer_ranks(mesh, "last_pp")) * mesh.size("pp") == mesh.world_size
        assert all(producer_ranks(mesh, collect, "first") == (0,) for collect in COLLECT)


@given(st.integers(1, 20), st.integers(1, 20))
def test_peers_share_the_workers_out(workers: int, producers: int) -> None:
    spans = [peer_workers(workers, producer, producers) for producer in range(producers)]
    assert all(len(span) for span in spans)
    consumers = sorted(rank for span in spans for rank in span)
    assert set(consumers) == set(range(workers))
    assert workers < producers or consumers == list(range(workers))
