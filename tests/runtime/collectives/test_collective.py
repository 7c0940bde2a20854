"""Every operation of a collective with every dtype: of one rank, over sets of dims in four real processes, and on
devices where there are any."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from meshctl import Batch, Component, DeviceMesh
from meshctl.plan.model import Cluster
from meshctl.runtime.collectives.collective import Collective, CollectiveError, Op, refusal
from meshctl.runtime.rank_context import RankContext
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
DTYPES = (torch.bool, *WHOLE, torch.uint64, *REAL, *COMPLEX)
LEGAL: dict[Op, tuple[torch.dtype, ...]] = {
    "sum": (*WHOLE, *REAL, *COMPLEX),
    "mean": (*REAL, *COMPLEX),
    "product": (*WHOLE, *REAL),
    "max": (torch.bool, *WHOLE, *REAL),
    "min": (torch.bool, *WHOLE, *REAL),
}
SHAPES = ((5, 2), (), (0, 3), (12,), (2, 3), (7, 0))


def component(rank: int, mesh: DeviceMesh = MESH) -> Component:
    made = Component()
    made._context = RankContext("it", mesh, rank, nodes=lambda: NODES)
    return made


def given(rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Returns the input of a rank: small integers, which every dtype can represent and add."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + rank) % (2 if dtype == torch.bool else 4)).to(dtype).reshape(shape)


def reduced(tensors: list[Tensor], op: Op) -> Tensor:
    rows = torch.stack(tensors).cpu()
    wide = rows.to(torch.complex128 if rows.is_complex() else torch.float64)
    names = {"product": "prod", "max": "amax", "min": "amin"}
    found: Tensor = getattr(wide, names.get(op, op))(0)
    return found.to(tensors[0].device, tensors[0].dtype)


def same(one: Any, other: Any) -> None:
    if isinstance(other, Tensor):
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        pair = (part.float() if part.itemsize < 2 else part for part in (one, other))
        assert (one.itemsize > 1 and torch.equal(one, other)) or torch.testing.assert_close(*pair) is None
    elif isinstance(other, (list, tuple)):
        for part, expected in zip(one, other, strict=True):
            same(part, expected)
    else:
        assert one is other is None


def results(
    it: Collective, dtype: torch.dtype, shape: tuple[int, ...], device: str = "cpu"
) -> Iterator[tuple[Any, Any]]:
    """Yields the result of each operation on this rank, and what it must be."""

    def of(number: int, *rows: int) -> Tensor:
        return given(number, dtype, (*rows, *shape[1:]) if rows else shape).to(device)

    parts, rank, ranks = [of(other) for other in it.ranks], it.rank, it.ranks
    mine, share = parts[rank], even_split(shape[0] if shape else 0, it.size, rank)
    for op, dtypes in LEGAL.items():
        if dtype in dtypes:
            whole, own = reduced(parts, op), mine.clone()
            yield it.reduce(mine, it.size - 1, op), whole if rank == it.size - 1 else None
            yield (it.reduce_scatter(mine, op), whole[share.start : share.stop]) if shape else (None, None)
            assert it.all_reduce(own, op) is own
            yield own, whole
    yield it.all_gather(mine), parts
    yield it.all_gather_joined(mine), torch.cat(parts) if shape else torch.stack(parts)
    for root in range(it.size):
        own = mine.clone()
        assert it.broadcast(own, torch.tensor(root).numpy()[()] if shape else root) is own
        yield own, parts[root]
        yield it.gather(mine, root), parts if rank == root else None
        yield it.scatter(parts if rank == root else None, root), mine
    sent = [of(10 * ranks[rank] + other) for other in ranks]
    yield it.all_to_all(sent), [of(10 * other + ranks[rank]) for other in ranks]
    if shape:
        uneven = [of(other, other) for other in range(it.size)]
        yield it.all_gather(uneven[rank], uneven=True), uneven
        yield it.all_gather_joined(uneven[rank], uneven=True), torch.cat(uneven)
        sent = [of(rank, rank * other) for other in range(it.size)]
        expected = [of(other, rank * other) for other in range(it.size)]
        yield it.all_to_all(sent, uneven=True), expected
    yield mine, of(ranks[rank])  # no other operation changes its input


def differing(rank: int) -> dict[str, Any]:
    values = {"rank": rank, "ö" * rank: [1.5, None, (True, float("inf"))], 3: {}}
    return {**values, "t": torch.arange(rank).bfloat16(), "b": Batch({"x": torch.arange(rank)})}  # type: ignore[dict-item]


def equal(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    same(one.pop("t"), other.pop("t"))
    same(one["b"]["x"], other["b"]["x"])
    assert one.pop("b").ids.tolist() == other.pop("b").ids.tolist()
    assert one == other


def refused(it: Collective) -> Iterator[tuple[Callable[[], object], str]]:
    """Yields (call, message) of calls that are wrong for a collective of any size."""
    it_: Any = it
    one = torch.ones(2)
    each, ranks = [one] * it.size, f"0 to {it.size - 1}"
    yield (
        lambda: it.all_to_all([*each, one]),
        f"one tensor for each of the {it.size} ranks, not {it.size + 1}",
    )
    yield lambda: it_.all_to_all(one), f"one tensor for each of the {it.size} ranks, not a Tensor"
    yield lambda: it_.all_to_all([3.0] * it.size), "all_to_all takes a tensor, not a float"
    for source in (-1, it.size, True, 0.0):
        message = f"broadcast names a rank of its collective, {ranks}, not {source}"
        yield lambda source=source: it_.broadcast(one, source), message  # type: ignore[misc]
        yield lambda source=source: it_.broadcast_object(1, source), f"{ranks}, not {source}"  # type: ignore[misc]
    yield (
        lambda: it.all_reduce(torch.arange(3), "mean"),
        "int64 have no mean: reduce it as a float, or by sum",
    )
    yield lambda: it.reduce_scatter(torch.ones(3).bool()), "bools have no sum: .* max .any. or min .all."
    yield lambda: it.all_reduce(torch.ones(3).to(torch.complex64), "max"), "complex numbers have no max"
    yield lambda: it.all_reduce(torch.ones(3).to(torch.uint64)), "a tensor of uint64 cannot be reduced"
    yield (
        lambda: it_.all_reduce(one, "avg"),
        "'avg' is not a reduction; the reductions are sum, mean, product, max, min",
    )
    yield lambda: it_.all_reduce(3.0), "all_reduce takes a tensor, not a float"
    yield lambda: it.send(one, it.rank), f"send needs another rank, and {it.rank} is this one"
    yield lambda: it.recv(it.size), f"recv names a rank of its collective, {ranks}, not {it.size}"
    yield lambda: it.scatter([one] * (it.size + 1), it.rank), "scatter takes a list with one tensor for"
    yield lambda: it.gather(one, -1), "gather names a rank"
    yield lambda: it_.differentiable.reduce_scatter(one, "max"), "is by sum or mean, not 'max'"
    yield lambda: it.all_gather(torch.eye(2).to_sparse()), "not one of layout sparse_coo"
    yield (
        lambda: it.reduce_scatter(torch.tensor(1.0)),
        "reduce_scatter goes along dim 0, but this tensor has no",
    )
    yield lambda: it.all_gather(torch.tensor(1.0), uneven=True), "has no dims"
    yield (
        lambda: it.all_gather_object({"a": [{1, 2}]}),
        "a value of the type set cannot be sent: express it as",
    )
    yield lambda: it.broadcast_object(object(), it.rank), "a value of the type object cannot be sent"


# One rank


def test_every_operation_of_one_rank_returns_what_several_ranks_would() -> None:
    assert not dist.is_initialized()
    for it in (
        Collective(),
        *(Component().collective(*dims) for dims in (("tp", "dp"), ("local",), ("world",))),
    ):
        assert (it.size, it.rank, it.ranks, it.device) == (1, 0, (0,), torch.device("cpu"))
        for dtype in DTYPES:
            for shape in SHAPES:
                for found, expected in results(it, dtype, shape):
                    same(found, expected)
        equal(it.all_gather_object(differing(2))[0], differing(2))
        equal(it.broadcast_object(differing(2)), differing(2))
        it.barrier()


def test_a_result_shares_no_memory_with_what_was_given() -> None:
    it, tensor = Collective(), torch.ones(3)
    shared = (it.all_gather(tensor)[0], it.all_gather_joined(tensor), it.reduce_scatter(tensor))
    for got in (*shared, it.all_to_all([tensor])[0]):
        got.zero_()
    assert tensor.tolist() == [1, 1, 1]
    value = {"a": [1]}
    it.broadcast_object(value)["a"].append(2)
    assert value == {"a": [1]}


@pytest.mark.parametrize("op", get_args(Op))
def test_dtypes_are_accepted_where_the_table_lists_them(op: Op) -> None:
    for dtype in DTYPES:
        assert (refusal(dtype, op) == "") == (dtype in LEGAL[op]), dtype


def test_alone_the_same_is_refused() -> None:
    for wrong, message in refused(Collective()):
        with pytest.raises(CollectiveError, match=message):
            wrong()


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((), "name the dims: one or several of pp, dp, fsdp, cp, tp or of a view's dims, `local` or `world`"),
        (
            ("expert",),
            "'expert' does not exist; available: .*; `local` is this node, `world` the whole group",
        ),
        (("tp", "tp"), "a dim must be named once, but tp is named 2 times"),
        (("data", "ep"), "data and ep cannot be used together: they are not dims of one view of the mesh"),
        (("tp", "local"), "`local` is not a dim of the mesh: name it alone, and not in tp, local"),
        (("tp",), r"a collective of the ranks 0, 1 needs torch.distributed"),
    ],
)
def test_dims_that_make_no_collective(dims: tuple[str, ...], message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        component(1).collective(*dims)
    assert component(3).collective("cp").ranks == (3,)


def test_the_ranks_of_a_group_by_node() -> None:
    job = replace(plan({"a": 2, "b": 5}, {"it": ("b", {})}, []), cluster=Cluster(nodes=2))
    assert ranks_by_node(job, "a") == [[0], [1]]
    assert ranks_by_node(job, "b") == [[0, 1, 2], [3, 4]]


# Four processes

CHECKS: list[worlds.Check] = []
_made: dict[int, Component] = {}


def check(function: worlds.Check) -> worlds.Check:
    CHECKS.append(function)
    return function


def collectives(rank: int) -> Iterator[Collective]:
    """All tested collectives, created once in each process."""
    it = _made.setdefault(rank, component(rank))
    for dims in ASKED:
        yield it.collective(*dims)


@check
def ranks_are_in_the_order_of_the_dims(rank: int) -> None:
    found = dict(zip(ASKED, collectives(rank), strict=True))
    assert found["tp",].ranks == MESH.ranks_along("tp", rank)
    assert found["dp", "tp"].ranks == (0, 1, 2, 3) and found["tp", "dp"].ranks == (0, 2, 1, 3)
    assert found["local",].ranks == ((3,) if rank == 3 else (0, 1, 2))
    assert found["world",].ranks == (0, 1, 2, 3) and found["fsdp",].ranks == (rank,)
    assert found["ep",].ranks == MESH.ranks_along("ep", rank) and found["ep_fsdp", "ep"].size == 4
    for it in found.values():
        assert it.ranks[it.rank] == rank and it.size == len(it.ranks) and it.device == torch.device("cpu")


@check
def every_operation_of_every_dtype(rank: int) -> None:
    """Every dtype for a collective whose ranks are not ascending, some for one of three ranks, and one for all
    others."""
    tried = {("tp", "dp"): DTYPES, ("local",): (torch.float32, torch.bool, torch.bfloat16)}
    for dims, it in zip(ASKED, collectives(rank), strict=True):
        for dtype in tried.get(dims, (torch.float32,)):
            for shape in SHAPES:
                for found, expected in results(it, dtype, shape):
                    same(found, expected)
        found = it.all_to_all([torch.ones(0) for _ in it.ranks], uneven=True)
        assert [part.shape for part in found] == [(0,)] * it.size


@check
def send_and_receive(rank: int) -> None:
    for it in collectives(rank):
        for dtype in DTYPES if it.size > 1 else ():
            for shape in SHAPES:
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
        same(mine.grad, inputs[it.rank].grad)

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
            same(mine.grad, inputs[it.rank].grad)

        mine.grad = None
        received = it.differentiable.all_to_all(list(mine.split(4)))
        sum((part * (number + 1)).sum() for number, part in enumerate(received)).backward()  # type: ignore[union-attr]
        same(mine.grad, torch.full_like(mine, it.rank + 1.0))


@check
def gradients_of_uneven_operations(rank: int) -> None:
    for it in collectives(rank):
        mine = torch.ones(it.rank + 1, 2, requires_grad=True)
        gathered = it.differentiable.all_gather(mine, uneven=True)
        (gathered * (it.rank + 1)).sum().backward()
        same(mine.grad, torch.full((it.rank + 1, 2), it.size * (it.size + 1) / 2))
        parts = [torch.ones(it.rank + other, 3, requires_grad=True) for other in range(it.size)]
        received = it.differentiable.all_to_all(parts, uneven=True)
        assert [len(part) for part in received] == [it.rank + other for other in range(it.size)]
        sum((part * (it.rank + 2)).sum() for part in received).backward()  # type: ignore[union-attr]
        for other, part in enumerate(parts):
            same(part.grad, torch.full_like(part, other + 2.0))


@check
def objects(rank: int) -> None:
    for it in collectives(rank):
        for one, other in zip(it.all_gather_object(differing(rank)), it.ranks, strict=True):
            equal(one, differing(other))
        for source, other in enumerate(it.ranks):
            equal(it.broadcast_object(differing(rank), source), differing(other))
        assert it.broadcast_object({1} if it.rank else "that of the source") == "that of the source"


@check
def tensors_of_any_kind(rank: int) -> None:
    for it in collectives(rank):
        base = torch.zeros(4, 6)
        base[:, 1] = rank  # a column: not contiguous
        it.all_reduce(base[:, 1])
        assert base[:, 1].tolist() == [float(sum(it.ranks))] * 4 and not base[:, 2].any()
        it.broadcast(base.t()[1:3], it.size - 1)
        same(it.all_gather(base.t()[::2])[it.rank], base.t()[::2])
        share = even_split(6, it.size, it.rank)
        same(it.reduce_scatter(base.t(), "max"), base.t()[share.start : share.stop])
        parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
        assert it.all_reduce(parameter, "mean") is parameter and parameter.is_leaf
        same(parameter.data, torch.full((3,), sum(it.ranks) / it.size))
        assert not it.all_gather(parameter)[0].requires_grad
        found = it.all_gather(torch.tensor([float(rank), -1.0])[::2])  # one element may have any stride
        assert [one.tolist() for one in found] == [[float(other)] for other in it.ranks]


@check
def halves_are_summed_in_32_bits(rank: int) -> None:
    it, half = component(rank).collective("world"), torch.tensor(40000.0).half()
    same(it.all_reduce(half.clone(), "mean"), half)  # their sum is no half
    same(it.all_reduce(torch.tensor([256.0, 1.0, 1.0, 1.0][rank]).bfloat16()), torch.tensor(259.0).bfloat16())


@check
def process_groups_are_made_once(rank: int) -> None:
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
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return worlds.run(SIZE, CHECKS, tmp_path_factory.mktemp("collective"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [function.__name__ for function in CHECKS])
def test_four_processes(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == worlds.PASSED, verdicts[name]


# Devices

CUDA = torch.cuda.device_count()
WITH_CUDA = pytest.mark.skipif(not CUDA, reason="there is no CUDA device here")
WITH_TWO = pytest.mark.skipif(CUDA < 2, reason="there are no two CUDA devices here")
WITH_MPS = pytest.mark.skipif(not torch.backends.mps.is_available(), reason="there is no MPS device here")


def every_operation(rank: int, size: int, device: torch.device) -> None:
    """Runs every operation. Results are on the device of the inputs."""
    made = Component()
    made._context = RankContext("it", DeviceMesh.from_sizes(tp_size=size), rank, device)
    it = made.collective("tp")
    assert it.device == device
    for dtype in (torch.bool, torch.int16, torch.bfloat16, torch.float32):
        for found, expected in results(it, dtype, (4, 2), str(device)):
            same(found, expected)
    assert it.broadcast_object({"t": torch.ones(2, device=device)})["t"].device == torch.device("cpu")
    it.barrier()


def one_of_two(rank: int, port: int, backend: str, kind: str) -> None:
    """Runs one of two processes on accelerators."""
    device = torch.device(kind, rank % torch.cuda.device_count() if kind == "cuda" else 0)
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    every_operation(rank, 2, device)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=WITH_CUDA), pytest.param("mps", marks=WITH_MPS)])
def test_one_process_on_a_device(kind: str) -> None:
    every_operation(0, 1, torch.device(kind, 0))


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
    """They are new processes, because a fork cannot use a device that its parent has initialized."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    call = f"one_of_two(int(sys.argv[1]), {store.port}, {backend!r}, {kind!r}); os._exit(0)"
    code = f"import os, sys; from {__name__} import one_of_two; {call}"
    words = [sys.executable, "-c", code]
    both = [subprocess.Popen([*words, str(n)], cwd=ROOT, stderr=subprocess.PIPE, text=True) for n in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors)
