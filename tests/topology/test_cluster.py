"""Nodes and their devices: every look-up against a list of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.topology.cluster import Cluster, Piece

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=7)


def test_devices_are_numbered_by_type() -> None:
    cluster = Cluster.of(3, cuda=[8, 8, 4], npu=2)
    assert cluster == Cluster(3, {"cuda": ((2, 8), (1, 4)), "npu": ((3, 2),)})
    assert (cluster.total("cuda"), cluster.total("npu"), cluster.total("mps")) == (20, 6, 0)
    assert (cluster.node_of("cuda", 17), cluster.number_on_node("cuda", 17)) == (2, 1)
    assert (cluster.node_of("npu", 4), cluster.number_on_node("npu", 4)) == (2, 0)
    assert [cluster.devices_on(kind, 2) for kind in ("cuda", "npu", "mps")] == [4, 2, 0]


def test_there_is_no_device_beyond_the_last() -> None:
    with pytest.raises(ValueError, match="device 6 does not exist; the devices are 0 to 5"):
        Cluster.of(2, cuda=[2, 4]).node_of("cuda", 6)
    with pytest.raises(ValueError, match="the cluster has no devices"):
        Cluster.of(2, cuda=[2, 4]).node_of("npu", 0)


def test_it_does_not_grow_with_equal_nodes() -> None:
    cluster = Cluster.of(1_000_000, cuda=8)
    assert list(cluster.pieces("cuda", 3, 8_000_000 - 3)) == [
        Piece(0, 1, 3, 5, 3),
        Piece(1, 999_998, 0, 8, 8),
        Piece(999_999, 1, 0, 5, 7_999_992),
    ]


@given(SIZES)
def test_look_ups_agree_with_a_list(sizes: list[int]) -> None:
    cluster = Cluster.of(len(sizes), cuda=sizes)
    listed = [(node, number) for node, size in enumerate(sizes) for number in range(size)]
    assert cluster.total("cuda") == len(listed)
    assert [
        (cluster.node_of("cuda", at), cluster.number_on_node("cuda", at)) for at in range(len(listed))
    ] == listed
    assert [cluster.devices_on("cuda", node) for node in range(len(sizes))] == sizes
    assert [cluster.first_on("cuda", node) for node in range(len(sizes))] == [
        sum(sizes[:node]) for node in range(len(sizes))
    ]


@given(SIZES, st.data())
def test_pieces_are_the_devices_in_order(sizes: list[int], data: st.DataObject) -> None:
    listed = [(node, number) for node, size in enumerate(sizes) for number in range(size)]
    start = data.draw(st.integers(0, len(listed)))
    stop = data.draw(st.integers(start, len(listed)))
    pieces = list(Cluster.of(len(sizes), cuda=sizes).pieces("cuda", start, stop))
    expanded = [
        (piece.first_node + node, piece.number + at)
        for piece in pieces
        for node in range(piece.nodes)
        for at in range(piece.each)
    ]
    assert expanded == listed[start:stop]
    assert [piece.device for piece in pieces] == [
        start + sum(p.nodes * p.each for p in pieces[:index]) for index in range(len(pieces))
    ]
