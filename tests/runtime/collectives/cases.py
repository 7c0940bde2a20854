"""The operations, dtypes and shapes with which collectives are tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from meshctl import Batch, Component, DeviceMesh
from meshctl.runtime.collectives.collective import BITWISE, Collective, Op
from meshctl.runtime.rank_context import RankContext

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2, ep_size=2, device_type="cpu")


NODES = [[0, 1, 2], [3]]
"""Two nodes with different numbers of ranks."""


REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn)


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64)


COMPLEX = (torch.complex64, torch.complex128)


DTYPES = (torch.bool, *WHOLE, *REAL, *COMPLEX)


INTEGRAL = (torch.bool, *WHOLE)


LEGAL: dict[Op, tuple[torch.dtype, ...]] = {
    "sum": (*WHOLE, *REAL, *COMPLEX),
    "mean": (*REAL, *COMPLEX),
    "product": (*WHOLE, *REAL),
    "max": (*INTEGRAL, *REAL),
    "min": (*INTEGRAL, *REAL),
    "bitwise_and": INTEGRAL,
    "bitwise_or": INTEGRAL,
    "bitwise_xor": INTEGRAL,
}


SHAPES = ((5, 2), (), (0, 3), (4,))


def component(rank: int, mesh: DeviceMesh = MESH) -> Component:
    made = Component()
    made._context = RankContext("it", mesh, rank, nodes=lambda: NODES)
    return made


def given(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns the input of a rank: small integers, which every dtype can represent and add."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + rank) % (2 if dtype == torch.bool else 4)).to(dtype).reshape(shape)


def reduced(tensors: list[Tensor], op: Op) -> Tensor:
    rows = torch.stack(tensors)
    if op in BITWISE:
        return reduce(BITWISE[op], rows)
    wide = rows.to(torch.complex128 if rows.is_complex() else torch.float64)
    found = {
        "sum": lambda: wide.sum(0),
        "mean": lambda: wide.mean(0),
        "product": lambda: wide.prod(0),
        "max": lambda: wide.amax(0),
        "min": lambda: wide.amin(0),
    }[op]()
    return found.to(tensors[0].dtype)


def same(one: Tensor, other: Tensor) -> None:
    assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
    if one.itemsize > 1 and torch.equal(one, other):
        return
    torch.testing.assert_close(
        one.float() if one.itemsize < 2 else one, other.float() if other.itemsize < 2 else other
    )


def differing(rank: int) -> dict[str, Any]:
    batch = Batch({"x": torch.arange(rank)})
    return {
        "rank": rank,
        "ö" * rank: [1.5, None, (True, float("inf"))],
        "t": torch.arange(rank).bfloat16(),
        "b": batch,
        3: {},
    }


def equal(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    same(one.pop("t"), other.pop("t"))
    same(one["b"]["x"], other["b"]["x"])
    assert one.pop("b").ids.tolist() == other.pop("b").ids.tolist()
    assert one == other


def refused(it: Collective) -> Iterator[tuple[Callable[[], object], str]]:
    """Returns (call, message) of calls that are wrong for a collective of any size."""
    one, each = torch.ones(2), [torch.ones(2)] * it.size
    yield (
        lambda: it.all_to_all([*each, one]),
        f"one tensor for each of the {it.size} ranks, not {it.size + 1}",
    )
    yield lambda: it.all_to_all([]), "not 0"
    yield lambda: it.all_to_all(one), "takes a list of tensors, one for each rank, not a Tensor"  # type: ignore[arg-type]
    yield lambda: it.all_to_all([3.0] * it.size), "all_to_all takes a tensor, not a float"  # type: ignore[list-item]
    for source in (-1, it.size, True, 0.0):
        yield (
            lambda source=source: it.broadcast(one, source),
            f"broadcast names a rank of its collective, 0 to {it.size - 1}, not {source}",
        )  # type: ignore[misc]
        yield lambda source=source: it.broadcast_object(1, source), f"0 to {it.size - 1}, not {source}"  # type: ignore[misc]
    yield (
        lambda: it.all_reduce(torch.arange(3), "mean"),
        "int64 have no mean: reduce it as a float, or by sum",
    )
    yield lambda: it.reduce_scatter(torch.ones(3).bool()), "bools have no sum: .* max .any. or min .all."
    yield lambda: it.all_reduce(torch.ones(3).to(torch.complex64), "max"), "complex numbers have no max"
    yield lambda: it.all_reduce(torch.ones(3).to(torch.uint64)), "a tensor of uint64 cannot be reduced"
    yield (
        lambda: it.all_reduce(one, "avg"),
        "'avg' is not a reduction; the reductions are sum, mean, product, max, min, bitwise_and",
    )  # type: ignore[arg-type]
    yield lambda: it.all_reduce(3.0), "all_reduce takes a tensor, not a float"  # type: ignore[arg-type]
    yield lambda: it.all_reduce(one, "bitwise_or"), "float32 have no bitwise_or"
    yield lambda: it.send(one, it.rank), f"send needs another rank, and {it.rank} is this one"
    yield lambda: it.recv(it.size), f"recv names a rank of its collective, 0 to {it.size - 1}, not {it.size}"
    yield (
        lambda: it.scatter([one], it.rank) if it.size > 1 else it.scatter([], 0),
        "scatter takes one tensor for",
    )
    yield lambda: it.gather(one, -1), "gather names a rank"
    yield lambda: it.differentiable.reduce_scatter(one, "max"), "is by sum or mean, not 'max'"  # type: ignore[arg-type]
    yield lambda: it.all_gather(torch.eye(2).to_sparse()), "not one of layout sparse_coo"
    yield (
        lambda: it.reduce_scatter(torch.tensor(1.0)),
        "reduce_scatter goes along dim 0, but this tensor has no dims",
    )
    yield lambda: it.all_gather(torch.tensor(1.0), uneven=True), "has no dims"
    yield (
        lambda: it.all_gather_object({"a": [{1, 2}]}),
        "a value of the type set cannot be sent: express it as plain data",
    )
    yield lambda: it.broadcast_object(object(), it.rank), "a value of the type object cannot be sent"
