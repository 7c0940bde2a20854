"""Every operation of a collective, with every dtype and set of dims, in four real processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshctl import Component, DeviceMesh
from meshctl.runtime.collectives.collective import Collective, CollectiveError
from meshctl.topology.mesh import even_split
from tests.runtime import worlds
from tests.runtime.collectives.cases import (
    DTYPES,
    LEGAL,
    MESH,
    SHAPES,
    component,
    differing,
    equal,
    given,
    reduced,
    refused,
    same,
)

SIZE = 4


ASKED: list[tuple[str, ...]] = [
    ("tp",), ("dp",), ("dp", "tp"), ("tp", "dp"), ("fsdp",), ("data",), ("ep",), ("ep_fsdp", "ep"), ("local",), ("world",)
]  # fmt: skip


CHECKS: list[worlds.Check] = []


def check(function: worlds.Check) -> worlds.Check:
    CHECKS.append(function)
    return function


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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return worlds.run(SIZE, CHECKS, tmp_path_factory.mktemp("collective"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [function.__name__ for function in CHECKS])
def test_four_processes(results: dict[str, str], name: str) -> None:
    assert results[name] == worlds.PASSED, results[name]
