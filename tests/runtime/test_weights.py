"""Shards to shards: whatever the two layouts, each taker gets exactly what it asked for, each byte from one giver."""

from __future__ import annotations

import threading
from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl.mesh import DeviceMesh, share
from meshctl.routes import Route, RouteError
from meshctl.runtime import weights
from meshctl.runtime.channel import Party
from meshctl.runtime.transports.memory import MemoryTransport
from meshctl.runtime.weights import Box, Piece, WeightChannel, buckets, pieces


def cut(shape: tuple[int, ...], parts: tuple[int, ...]) -> list[Box]:
    """A grid of boxes over a whole, as a sharding of several dims gives it."""
    edges = [[share(size, count, part) for part in range(count)] for size, count in zip(shape, parts, strict=True)]
    return [Box(tuple(r.start for r in ranges), tuple(len(r) for r in ranges)) for ranges in product(*edges)]


shapes = st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple)


@given(st.data(), shapes, st.integers(1, 3))
def test_pieces_cover_what_is_wanted_exactly_once(data: st.DataObject, shape: tuple[int, ...], replicas: int) -> None:
    def grid() -> list[Box]:
        return [box for box in cut(shape, tuple(data.draw(st.integers(1, 3)) for _ in shape)) if prod(box.size)]

    whole = torch.arange(prod(shape)).view(shape)
    everything = Box((0,) * len(shape), shape)
    givers = [{"w": box} for box in grid()] * replicas
    for taker, wanted in enumerate(grid()):
        result = torch.full(wanted.size, -1)
        for piece in pieces("w", wanted, givers, taker):
            held = givers[piece.giver]["w"].of(whole, everything)
            target = piece.box.of(result, wanted)
            assert bool((target == -1).all())
            target.copy_(piece.box.of(held, givers[piece.giver]["w"]))
        assert torch.equal(result, wanted.of(whole, everything))


def test_replicas_serve_takers_in_turn() -> None:
    whole = Box((0,), (4,))
    assert [pieces("w", whole, [{"w": whole}] * 2, taker)[0].giver for taker in range(4)] == [0, 1, 0, 1]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(RouteError, match="no weights called `w`"):
        pieces("w", Box((0,), (4,)), [{}], 0)
    with pytest.raises(RouteError, match="only a part of `w`"):
        pieces("w", Box((0,), (4,)), [{"w": Box((0,), (2,))}], 0)


def test_buckets_keep_order_and_bound_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BUCKET", 100)
    sent = [Piece(0, name, Box((0,), (size,))) for name, size in {"a": 10, "b": 10, "c": 100, "d": 5}.items()]
    cut = buckets(sent, dict.fromkeys("abcd", 4))
    assert [[piece.name for piece in bucket] for bucket in cut] == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize(("givers", "takers"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_two_meshes(givers: int, takers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a transport, in more frames than one: takers want everything in full."""
    monkeypatch.setattr(weights, "BUCKET", 16)
    values = {"w": torch.arange(12.0).view(4, 3), "scalar": torch.tensor(7.0), "b": torch.arange(5)}
    hub: dict[int, MemoryTransport] = {}
    transports = [MemoryTransport(place, {}, hub) for place in range(givers + takers)]
    got: dict[int, dict[str, torch.Tensor]] = {}

    def work(place: int) -> None:
        sides = Party(DeviceMesh.from_sizes(dp_size=givers), 0), Party(DeviceMesh.from_sizes(dp_size=takers), givers)
        channel = WeightChannel(Route("publish", "publish", "publish", kind="weights"), *sides, transports[place], 0, lag=0)
        gives = place < givers
        channel.meet(values if gives else None, None if gives else {})
        for step in (0, 3):
            if gives:
                channel.give(values, step)
            else:
                channel.due(step)
                got[place] = {name: tensor.clone() for name, tensor in channel.take()}
                assert channel.version == step

    workers = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(givers + takers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10)
    assert len(got) == takers
    assert all(torch.equal(mine[name], tensor) for mine in got.values() for name, tensor in values.items())
