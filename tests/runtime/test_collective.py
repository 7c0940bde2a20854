"""Collectives: every operation, dtype and set of dims in four real processes, and in one process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshctl import Batch, Component, DeviceMesh
from meshctl.plan.model import Cluster
from meshctl.runtime.collective import Collective, CollectiveError
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.reductions import REDUCTIONS, Op, refusal
from meshctl.runtime.world import ranks_by_node
from meshctl.topology.mesh import even_split
from tests.paths import ROOT
from tests.runtime import worlds
from tests.runtime.plans import plan

SIZE = 4
MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2, ep_size=2, device_type="cpu")
NODES = [[0, 1, 2], [3]]
"""Two nodes with different numbers of ranks."""
ASKED: list[tuple[str, ...]] = [
    ("tp",), ("dp",), ("dp", "tp"), ("tp", "dp"), ("fsdp",), ("data",), ("ep",), ("ep_fsdp", "ep"), ("local",), ("world",)
]  # fmt: skip
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

CHECKS: list[worlds.Check] = []


def check(function: worlds.Check) -> worlds.Check:
    CHECKS.append(function)
    return function


def component(rank: int, mesh: DeviceMesh = MESH) -> Component:
    made = Component()
    made._context = RankContext("it", mesh, rank, nodes=lambda: NODES)
    return made


_made: dict[int, Component] = {}


def collectives(rank: int) -> Iterator[Collective]:
    """All tested collectives, created once in each process."""
    it = _made.setdefault(rank, component(rank))
    for dims in ASKED:
        yield it.collective(*dims)


def cases(rank: int, dtypes: Iterable[torch.dtype]) -> Iterator[tuple[Collective, torch.dtype]]:
    """Yields every dtype for a collective whose ranks are not ascending, some for one of three ranks, and one
    for all others."""
    tried = {("tp", "dp"): {*DTYPES, torch.uint64}, ("local",): {torch.float32, torch.bool, torch.bfloat16}}
    for dims, it in zip(ASKED, collectives(rank), strict=True):
        yield from ((it, dtype) for dtype in dtypes if dtype in tried.get(dims, {torch.float32}))


def given(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns the input of a rank: small integers, which every dtype can represent and add."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + rank) % (2 if dtype == torch.bool else 4)).to(dtype).reshape(shape)


def reduced(tensors: list[Tensor], op: Op) -> Tensor:
    rows = torch.stack(tensors)
    if op.startswith("bitwise"):
        return REDUCTIONS[op].of_rows(rows)
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
    torch.testing.assert_close(
        one.float() if one.itemsize < 2 else one, other.float() if other.itemsize < 2 else other
    )


@check
def ranks_are_in_the_order_of_the_dims(rank: int) -> None:
    found = dict(zip(ASKED, collectives(rank), strict=True))
    assert found["tp",].ranks == MESH.ranks_along("tp", rank)
    assert found["dp", "tp"].ranks == (0, 1, 2, 3) and found["tp", "dp"].ranks == (0, 2, 1, 3)
    assert found["local",].ranks == ((3,) if rank == 3 else (0, 1, 2)) and found["world",].ranks == (
        0,
        1,
        2,
        3,
    )
    assert found["fsdp",].ranks == (rank,)
    assert found["ep",].ranks == MESH.ranks_along("ep", rank) and found["ep_fsdp", "ep"].size == 4
    for it in found.values():
        assert it.ranks[it.rank] == rank and it.size == len(it.ranks) and it.device == torch.device("cpu")


@check
def all_reduce(rank: int) -> None:
    for op, dtypes in LEGAL.items():
        for it, dtype in cases(rank, dtypes):
            for shape in SHAPES:
                tensor = given(rank, dtype, shape)
                assert it.all_reduce(tensor, op) is tensor
                same(tensor, reduced([given(other, dtype, shape) for other in it.ranks], op))


@check
def all_gather(rank: int) -> None:
    for it, dtype in cases(rank, (*DTYPES, torch.uint64)):
        for shape in SHAPES:
            expected = [given(other, dtype, shape) for other in it.ranks]
            tensor = given(rank, dtype, shape)
            for one, other in zip(it.all_gather(tensor), expected, strict=True):
                same(one, other)
            same(it.all_gather_joined(tensor), torch.cat(expected) if shape else torch.stack(expected))


@check
def one_element_may_have_any_stride(rank: int) -> None:
    for it in collectives(rank):
        found = it.all_gather(torch.tensor([float(rank), -1.0])[::2])
        assert [one.tolist() for one in found] == [[float(other)] for other in it.ranks]


@check
def uneven_gathers(rank: int) -> None:
    for it, dtype in cases(rank, DTYPES):
        for rest in ((), (3,), (0,)):
            expected = [given(other, dtype, (other, *rest)) for other in it.ranks]
            tensor = given(rank, dtype, (rank, *rest))
            for one, other in zip(it.all_gather(tensor, uneven=True), expected, strict=True):
                same(one, other)
            same(it.all_gather_joined(tensor, uneven=True), torch.cat(expected))


@check
def reduce_scatter(rank: int) -> None:
    for op, dtypes in LEGAL.items():
        for it, dtype in cases(rank, dtypes):
            for shape in ((12, 2), (5,), (2, 3), (0, 2), (7, 0)):
                whole = reduced([given(other, dtype, shape) for other in it.ranks], op)
                mine = even_split(shape[0], it.size, it.rank)
                same(it.reduce_scatter(given(rank, dtype, shape), op), whole[mine.start : mine.stop])


@check
def reduce_gives_the_result_to_one_rank(rank: int) -> None:
    for op, dtypes in LEGAL.items():
        for it, dtype in cases(rank, dtypes):
            destination = it.size - 1
            for shape in SHAPES:
                tensor = given(rank, dtype, shape)
                result = it.reduce(tensor, destination, op)
                same(tensor, given(rank, dtype, shape))
                if it.rank != destination:
                    assert result is None
                    continue
                assert result is not None
                same(result, reduced([given(other, dtype, shape) for other in it.ranks], op))


@check
def gather_and_scatter(rank: int) -> None:
    for it, dtype in cases(rank, (*DTYPES, torch.uint64)):
        for root in range(it.size):
            for shape in SHAPES:
                parts = [given(other, dtype, shape) for other in it.ranks]
                gathered = it.gather(given(rank, dtype, shape), root)
                assert (gathered is None) == (it.rank != root)
                for one, other in zip(gathered or (), parts, strict=bool(gathered)):
                    same(one, other)
                same(it.scatter(parts if it.rank == root else None, root), given(rank, dtype, shape))


@check
def send_and_receive(rank: int) -> None:
    for it, dtype in cases(rank, (*DTYPES, torch.uint64)):
        for shape in SHAPES if it.size > 1 else ():
            if it.rank == 0:
                it.send(given(rank, dtype, shape).clone(), to=it.size - 1)
                same(it.recv(it.size - 1), given(it.ranks[-1], dtype, shape))
            elif it.rank == it.size - 1:
                same(it.recv(0), given(it.ranks[0], dtype, shape))
                it.send(given(rank, dtype, shape), to=0)


@check
def gradients_are_those_of_one_process(rank: int) -> None:
    """The loss of every rank weights the result with its own numbers. The sum of all losses is
    differentiated."""
    for it in collectives(rank):
        inputs = [given(other, torch.float64, (4 * it.size, 2)).requires_grad_() for other in it.ranks]
        factors = [torch.arange(8.0 * it.size**2).double().view(-1, 2) + other for other in it.ranks]
        mine = inputs[it.rank].detach().clone().requires_grad_()

        (it.differentiable.all_gather(mine) * factors[it.rank]).sum().backward()
        sum((torch.cat(inputs) * factor).sum() for factor in factors).backward()  # type: ignore[union-attr]
        same(_grad(mine), _grad(inputs[it.rank]))

        for op in ("sum", "mean"):
            for each in (mine, *inputs):
                each.grad = None
            weight = factors[it.rank][: 4 * it.size]
            share = even_split(len(mine), it.size, it.rank)
            (it.differentiable.reduce_scatter(mine, op) * weight[share.start : share.stop]).sum().backward()  # type: ignore[arg-type]
            whole = getattr(torch.stack(inputs), op)(0)
            shares = [even_split(len(mine), it.size, other) for other in range(it.size)]
            weights = [factor[part.start : part.stop] for factor, part in zip(factors, shares, strict=True)]
            (whole * torch.cat(weights)).sum().backward()
            same(_grad(mine), _grad(inputs[it.rank]))

        mine.grad = None
        received = it.differentiable.all_to_all(list(mine.split(4)))
        sum((part * (number + 1)).sum() for number, part in enumerate(received)).backward()  # type: ignore[union-attr]
        same(_grad(mine), torch.full_like(mine, it.rank + 1.0))


@check
def gradients_of_uneven_operations(rank: int) -> None:
    for it in collectives(rank):
        mine = torch.ones(it.rank + 1, 2, requires_grad=True)
        gathered = it.differentiable.all_gather(mine, uneven=True)
        (gathered * (it.rank + 1)).sum().backward()
        same(_grad(mine), torch.full((it.rank + 1, 2), it.size * (it.size + 1) / 2))
        parts = [torch.ones(it.rank + other, 3, requires_grad=True) for other in range(it.size)]
        received = it.differentiable.all_to_all(parts, uneven=True)
        assert [len(part) for part in received] == [it.rank + other for other in range(it.size)]
        sum((part * (it.rank + 2)).sum() for part in received).backward()  # type: ignore[union-attr]
        for other, part in enumerate(parts):
            same(_grad(part), torch.full_like(part, other + 2.0))


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


@check
def the_process_group_is_torch_s(rank: int) -> None:
    for dims, it in zip(ASKED, collectives(rank), strict=True):
        assert (it.group is None) == (it.size == 1), dims
        if it.group is not None:
            assert dist.get_process_group_ranks(it.group) == sorted(it.ranks)


@check
def shares_gathered_are_the_whole(rank: int) -> None:
    for it in collectives(rank):
        tensor = given(rank, torch.float32, (7, 2))
        joined = it.all_gather_joined(it.reduce_scatter(tensor), uneven=True)
        same(joined, it.all_reduce(tensor.clone()))


@check
def all_to_all(rank: int) -> None:
    for it, dtype in cases(rank, (*DTYPES, torch.uint64)):
        for shape in SHAPES:
            got = it.all_to_all([given(10 * rank + other, dtype, shape) for other in it.ranks])
            for one, other in zip(got, it.ranks, strict=True):
                same(one, given(10 * other + rank, dtype, shape))


@check
def uneven_all_to_all(rank: int) -> None:
    for it, dtype in cases(rank, DTYPES):
        for rest in ((), (3,), (0,)):
            got = it.all_to_all(
                [given(rank, dtype, (rank * other, *rest)) for other in it.ranks], uneven=True
            )
            for one, other in zip(got, it.ranks, strict=True):
                same(one, given(other, dtype, (rank * other, *rest)))
    for it in collectives(rank):
        got = it.all_to_all([torch.ones(0) for _ in it.ranks], uneven=True)
        assert [part.shape for part in got] == [(0,)] * it.size


@check
def broadcast(rank: int) -> None:
    for it, dtype in cases(rank, (*DTYPES, torch.uint64)):
        for source in range(it.size):
            for shape in SHAPES:
                tensor = given(rank, dtype, shape)
                assert it.broadcast(tensor, torch.tensor(source).numpy()[()] if shape else source) is tensor  # type: ignore[arg-type]
                same(tensor, given(it.ranks[source], dtype, shape))


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


@check
def objects(rank: int) -> None:
    for it in collectives(rank):
        for one, other in zip(it.all_gather_object(differing(rank)), it.ranks, strict=True):
            equal(one, differing(other))
        for source, other in enumerate(it.ranks):
            equal(it.broadcast_object(differing(rank), source), differing(other))
        assert (
            it.broadcast_object({1} if it.rank else "only the source's counts") == "only the source's counts"
        )


@check
def tensors_of_any_kind(rank: int) -> None:
    for it in collectives(rank):
        base = torch.zeros(4, 6)
        base[:, 1] = rank  # a column: not contiguous
        it.all_reduce(base[:, 1])
        assert base[:, 1].tolist() == [float(sum(it.ranks))] * 4 and not base[:, 2].any()
        it.broadcast(base.t()[1:3], it.size - 1)
        same(it.all_gather(base.t()[::2])[it.rank], base.t()[::2])
        same(
            it.reduce_scatter(base.t(), "max"),
            base.t()[even_split(6, it.size, it.rank).start : even_split(6, it.size, it.rank).stop],
        )
        parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
        assert it.all_reduce(parameter, "mean") is parameter and parameter.is_leaf
        same(parameter.data, torch.full((3,), sum(it.ranks) / it.size))
        assert not it.all_gather(parameter)[0].requires_grad


@check
def halves_are_summed_in_32_bits(rank: int) -> None:
    it = component(rank).collective("world")
    same(
        it.all_reduce(torch.tensor(40000.0).half(), "mean"), torch.tensor(40000.0).half()
    )  # their sum is no half
    same(it.all_reduce(torch.tensor([256.0, 1.0, 1.0, 1.0][rank]).bfloat16()), torch.tensor(259.0).bfloat16())


@check
def barrier(rank: int) -> None:
    for it in collectives(rank):
        it.barrier()


@check
def closed_ones_are_made_anew(rank: int) -> None:
    it = component(rank)
    for dims in (("tp",), ("world",), ("local",)):
        first = it.collective(*dims)
        first.all_reduce(torch.ones(1))
        assert it.collective(*dims) is first
        first.close()
        first.close()
        with pytest.raises(CollectiveError, match="all_reduce: this collective is closed"):
            first.all_reduce(torch.ones(1))
        second = it.collective(*dims)
        assert second is not first
        assert second.all_reduce(torch.ones(1)).item() == second.size
        second.close()
    assert dist.is_initialized()
    dist.barrier()


@check
def one_process_group_for_the_same_ranks(rank: int) -> None:
    it = component(rank, DeviceMesh.from_sizes(fsdp_size=2, tp_size=2))
    assert it.collective("dp", "fsdp") is it.collective("fsdp") is it.collective("fsdp", "cp")
    assert it.collective("tp", "fsdp") is not it.collective("fsdp", "tp")
    assert it.collective("pp") is it.collective("dp", "cp") and it.collective("pp").size == 1


@check
def impossible_calls_are_reported_before_any_rank_waits(rank: int) -> None:
    it = component(rank).collective("tp")
    for wrong, message in refused(it):
        with pytest.raises(CollectiveError, match=message):
            wrong()
    for group in ([[0, 1], [2, 9]], [[2, 3], [0, 9]]):
        with pytest.raises(CollectiveError, match="in torch's world it is rank"):
            Collective.of(group, (rank + 1) % 4)


def refused(it: Collective) -> Iterator[tuple[Callable[[], object], str]]:
    """Returns (call, message) of calls that are wrong for a collective of any size."""
    one, each = torch.ones(2), [torch.ones(2)] * it.size
    yield (
        lambda: it.all_to_all([*each, one]),
        f"one tensor for each of the {it.size} ranks, here are {it.size + 1}",
    )
    yield lambda: it.all_to_all([]), "here are 0"
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
    yield lambda: it.send(one, it.rank), f"send goes to another rank, and {it.rank} is this one"
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
        "reduce_scatter goes along dim 0, and this tensor has no dims",
    )
    yield lambda: it.all_gather(torch.tensor(1.0), uneven=True), "has no dims"
    yield lambda: it.all_gather_object({"a": [{1, 2}]}), "a set cannot be sent: say it in plain data"
    yield lambda: it.broadcast_object(object(), it.rank), "a object cannot be sent"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return worlds.run(SIZE, CHECKS, tmp_path_factory.mktemp("collective"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [function.__name__ for function in CHECKS])
def test_four_processes(results: dict[str, str], name: str) -> None:
    assert results[name] == worlds.PASSED, results[name]


# Alone


def test_every_operation_of_one_rank_returns_what_several_ranks_would() -> None:
    assert not dist.is_initialized()
    for it in (
        Collective(),
        Component().collective("tp", "dp"),
        Component().collective("local"),
        Component().collective("world"),
    ):
        assert (it.size, it.rank, it.ranks, it.device) == (1, 0, (0,), torch.device("cpu"))
        for dtype in DTYPES:
            for shape in SHAPES:
                tensor = given(1, dtype, shape)
                for op in get_args(Op):
                    if dtype in LEGAL[op]:
                        same(it.all_reduce(tensor.clone(), op), tensor)
                        if shape:
                            same(it.reduce_scatter(tensor, op), tensor)
                same(it.broadcast(tensor.clone()), tensor)
                for [got] in (it.all_gather(tensor), it.all_to_all([tensor]), it.gather(tensor) or ()):
                    same(got, tensor)
                same(it.scatter([tensor]), tensor)
                same(it.reduce(tensor, 0, "max") if dtype in LEGAL["max"] else tensor, tensor)  # type: ignore[arg-type]
                same(it.all_gather_joined(tensor), tensor if shape else tensor[None])
                if shape:
                    for [got] in (it.all_gather(tensor, uneven=True), it.all_to_all([tensor], uneven=True)):
                        same(got, tensor)
        [value] = it.all_gather_object(differing(2))
        equal(value, differing(2))
        equal(it.broadcast_object(differing(2)), differing(2))
        it.barrier()


def test_a_result_shares_no_memory_with_what_was_given() -> None:
    it, tensor = Collective(), torch.ones(3)
    for got in (
        it.all_gather(tensor)[0],
        it.all_gather_joined(tensor),
        it.reduce_scatter(tensor),
        it.all_to_all([tensor])[0],
    ):
        got.zero_()
    assert tensor.tolist() == [1, 1, 1]
    value = {"a": [1]}
    it.broadcast_object(value)["a"].append(2)
    assert value == {"a": [1]}


@pytest.mark.parametrize("op", get_args(Op))
def test_dtypes_are_accepted_where_the_table_lists_them(op: Op) -> None:
    assert set(get_args(Op)) == set(REDUCTIONS)
    for dtype in (*DTYPES, torch.uint64):
        assert (refusal(dtype, op) == "") == (dtype in LEGAL[op]), dtype


def test_alone_the_same_is_refused() -> None:
    for wrong, message in refused(Collective()):
        with pytest.raises(CollectiveError, match=message):
            wrong()


def test_a_closed_collective_is_reported_as_closed() -> None:
    it = Collective()
    it.close()
    it.close()
    one = torch.ones(1)
    for operation, call in {
        "all_reduce": lambda: it.all_reduce(one),
        "reduce": lambda: it.reduce(one),
        "gather": lambda: it.gather(one),
        "scatter": lambda: it.scatter([one]),
        "send": lambda: it.send(one, 0),
        "recv": lambda: it.recv(0),
        "all_gather": lambda: it.all_gather(one),
        "all_gather_joined": lambda: it.all_gather_joined(one),
        "reduce_scatter": lambda: it.reduce_scatter(one),
        "all_to_all": lambda: it.all_to_all([one]),
        "broadcast": lambda: it.broadcast(one),
        "all_gather_object": lambda: it.all_gather_object(1),
        "broadcast_object": lambda: it.broadcast_object(1),
        "barrier": it.barrier,
    }.items():
        with pytest.raises(
            CollectiveError, match=f"{operation}: this collective is closed; `self.collective"
        ):
            call()


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            (),
            "name the dims: one or several of pp, dp, fsdp, cp, tp or of a view's dims, `local` or `world`",
        ),
        (
            ("expert",),
            "dim 'expert' does not exist; available: pp, dp, fsdp, cp, tp.*; `local` is this node, `world` the whole group",
        ),
        (("tp", "tp"), "a dim must be named once, but tp is named 2 times"),
        (("data", "ep"), "data and ep cannot be used together: they are not dims of one view of the mesh"),
        (("tp", "local"), "`local` is not a dim of the mesh and is named alone, here are tp, local"),
    ],
)
def test_dims_that_make_no_collective(dims: tuple[str, ...], message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        component(1).collective(*dims)


def test_ranks_that_are_no_processes() -> None:
    with pytest.raises(CollectiveError, match="the ranks 0, 1 work together, and this process has no"):
        component(1).collective("tp")
    with pytest.raises(CollectiveError, match=r"the ranks 0, 1, 2, 3, 4, 5, 6, 7, \.\.\. work together"):
        component(1, DeviceMesh.from_sizes(dp_size=100)).collective("world")
    assert component(1).collective("cp").ranks == (1,)
    assert component(3).collective("cp").ranks == (3,)


def test_a_rank_alone_in_a_large_mesh_lists_nobody() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=10**7)
    assert component(9_999_999, mesh).collective("tp", "cp").ranks == (9_999_999,)


def test_the_ranks_of_a_group_by_node() -> None:
    job = replace(plan({"a": 2, "b": 5}, {"it": ("b", {})}, []), cluster=Cluster(nodes=2))
    assert ranks_by_node(job, "a") == [[0], [1]]
    assert ranks_by_node(job, "b") == [[0, 1, 2], [3, 4]]


# Devices


@pytest.mark.parametrize(
    ("backends", "travels"),
    [
        ({"cpu": "gloo", "cuda": "gloo"}, {"cpu": "cpu", "cuda:1": "cpu", "mps": "cpu"}),
        ({"cpu": "gloo", "cuda": "nccl"}, {"cpu": "cpu", "cuda:1": "cuda:1", "mps": "cpu"}),
        ({"cuda": "nccl"}, {"cpu": "cuda:0", "cuda:1": "cuda:1"}),
    ],
)
def test_where_a_tensor_travels(backends: dict[str, str], travels: dict[str, str]) -> None:
    it = Collective(device=torch.device("cuda", 0))
    it._backends = backends
    assert {device: str(it._carrier(torch.device(device))) for device in travels} == travels


def every_operation(it: Collective, device: torch.device) -> None:
    """Runs every operation. Results are on the device of the inputs."""
    assert it.device == device

    def brought(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return given(rank, dtype, (4, 2)).to(device)

    for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.float32):
        expected, mine = [brought(other, dtype) for other in it.ranks], brought(it.rank, dtype)
        for one, other in zip(it.all_gather(mine), expected, strict=True):
            same(one, other)
        same(it.all_gather_joined(mine, uneven=True), torch.cat(expected))
        for one, other in zip(it.all_to_all([mine] * it.size), expected, strict=True):
            same(one, other)
        same(it.broadcast(mine.clone(), it.size - 1), expected[-1])
        most = reduced([part.cpu() for part in expected], "max").to(device)
        same(it.all_reduce(mine.clone(), "max"), most)
        same(
            it.reduce_scatter(mine, "max"),
            most[even_split(4, it.size, it.rank).start : even_split(4, it.size, it.rank).stop],
        )
    same(
        it.all_reduce(brought(it.rank), "mean"),
        reduced([brought(other).cpu() for other in it.ranks], "mean").to(device),
    )
    assert it.broadcast_object({"t": brought(0)})["t"].device == torch.device("cpu")
    it.barrier()


def on_one(device: torch.device) -> None:
    made = Component()
    made._context = RankContext("it", DeviceMesh.from_sizes(), device=device)
    every_operation(made.collective("tp"), device)


def one_of_two(rank: int, port: int, backend: str, kind: str) -> None:
    """Runs one of two processes on accelerators."""
    device = torch.device(kind, rank % torch.cuda.device_count() if kind == "cuda" else None)
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    made = Component()
    made._context = RankContext("it", DeviceMesh.from_sizes(tp_size=2), rank, device)
    every_operation(made.collective("tp"), device)
    dist.barrier()
    dist.destroy_process_group()


def on_two(backend: str, kind: str) -> None:
    """Runs in new processes, because a fork cannot use a device that its parent has initialized."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code = "import os, sys; from tests.runtime.test_collective import one_of_two as do; do(int(sys.argv[1]), {}, {!r}, {!r}); os._exit(0)"
    words = [sys.executable, "-c", code.format(port, backend, kind)]
    both = [
        subprocess.Popen([*words, str(rank)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)


CUDA = torch.cuda.device_count()
WITH_CUDA = pytest.mark.skipif(not CUDA, reason="there is no CUDA device here")
WITH_TWO = pytest.mark.skipif(CUDA < 2, reason="there are no two CUDA devices here")
WITH_MPS = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="there is no MPS device here")


@pytest.mark.parametrize(
    "kind", [pytest.param("cuda:0", marks=WITH_CUDA), pytest.param("mps:0", marks=WITH_MPS)]
)
def test_one_process_on_a_device(kind: str) -> None:
    on_one(torch.device(kind))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        pytest.param("cpu:gloo,cuda:nccl", "cuda", marks=WITH_TWO, id="nccl"),
        pytest.param("gloo", "cuda", marks=WITH_CUDA, id="gloo from cuda"),
        pytest.param("gloo", "mps", marks=WITH_MPS, id="gloo from mps"),
    ],
)
def test_two_processes_on_devices(backend: str, kind: str) -> None:
    on_two(backend, kind)
