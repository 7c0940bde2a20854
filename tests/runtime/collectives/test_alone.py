"""Collectives of one process, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.distributed as dist

from meshctl import Component, DeviceMesh
from meshctl.plan.model import Cluster
from meshctl.runtime.collectives.collective import Collective, CollectiveError, Op, refusal
from meshctl.runtime.world import ranks_by_node
from tests.runtime.collectives.cases import (
    DTYPES,
    LEGAL,
    SHAPES,
    component,
    differing,
    equal,
    given,
    refused,
    same,
)
from tests.runtime.plans import plan

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
        (("tp", "local"), "`local` is not a dim of the mesh: name it alone, and not in tp, local"),
    ],
)
def test_dims_that_make_no_collective(dims: tuple[str, ...], message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        component(1).collective(*dims)


def test_ranks_that_are_no_processes() -> None:
    with pytest.raises(CollectiveError, match=r"a collective of the ranks 0, 1 needs torch.distributed"):
        component(1).collective("tp")
    with pytest.raises(
        CollectiveError, match=r"a collective of the ranks 0, 1, 2, 3, 4, 5, 6, 7, \.\.\. needs"
    ):
        component(1, DeviceMesh.from_sizes(dp_size=100)).collective("world")
    assert component(1).collective("cp").ranks == (1,)
    assert component(3).collective("cp").ranks == (3,)


def test_the_ranks_of_a_group_by_node() -> None:
    job = replace(plan({"a": 2, "b": 5}, {"it": ("b", {})}, []), cluster=Cluster(nodes=2))
    assert ranks_by_node(job, "a") == [[0], [1]]
    assert ranks_by_node(job, "b") == [[0, 1, 2], [3, 4]]
