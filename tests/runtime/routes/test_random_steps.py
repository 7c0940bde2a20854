"""Random steps over a route, compared with samples that are gathered and split one by one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import (
    END,
)
from meshctl.runtime.transports.buffers.frames import bytes_of
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.samples import Id, SampleTable
from tests.runtime.routes.test_channel import run
from tests.runtime.routes.test_rows import DTYPES
from tests.topology.meshes import samples_by_rank

STEPS = 6
MESHES = [
    DeviceMesh.from_sizes(**sizes)
    for sizes in (
        {"dp_size": 1}, {"dp_size": 2}, {"dp_size": 3}, {"dp_size": 5}, {"dp_size": 2, "tp_size": 2}, {"fsdp_size": 4},
    )
]  # fmt: skip
WORDS: list[Any] = [
    "",
    "ä\u0000€",
    None,
    {"a": [1, None, {"b": b"\xff"}]},
    -(2**63),
    2**70,
    1.5,
    [],
    True,
    (1, ("x",)),
]


@dataclass(frozen=True)
class Kind:
    """The kind of a column: generates its rows."""

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def random_kind(random: Random) -> Kind:
    kind = random.choice(["tensor"] * 6 + ["ragged", "list"])
    # sizes around those at which a frame takes another path
    width = random.choice([0, 1, 1, 3, 3, 40, 511, 512, 513, 4096])
    shape = random.choice([(), (width,), (1, width), (2, 3), (2, 0)])
    return Kind(kind, random.choice(DTYPES), shape)


def random_tensor(random: Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(random.getrandbits(32))

    def numbers(*shape: int) -> Tensor:
        found = torch.randint(-100, 100, shape, generator=generator)
        return (found + 1j * found.flip(0) if dtype.is_complex else found).to(dtype)

    match random.randrange(7):
        case 0:
            return numbers(2 * shape[0], *shape[1:])[::2]
        case 1:
            return numbers(*shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
        case 2:
            return numbers(1, *shape[1:]).expand(shape)
        case 3 if dtype.is_floating_point:
            return numbers(*shape).requires_grad_()
        case 4 if dtype.is_complex:
            return numbers(*shape).conj()
        case 5 if dtype in (torch.float32, torch.float64):
            return (
                numbers(*shape)
                .to(torch.complex64 if dtype is torch.float32 else torch.complex128)
                .conj()
                .imag
            )
        case 6 if dtype.is_floating_point:
            return torch.nn.Parameter(numbers(*shape))
    return numbers(*shape)


def random_column(random: Random, kind: Kind, rows: int) -> Any:
    if kind.kind == "list":
        return [random.choice(WORDS) for _ in range(rows)]
    if kind.kind == "ragged":
        lengths = [random.choice([0, 0, 1, 2, 7]) for _ in range(rows)]
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        return Ragged(random_tensor(random, (sum(lengths), *kind.shape), kind.dtype), offsets)
    return random_tensor(random, (rows, *kind.shape), kind.dtype)


def random_ids(random: Random, producers: int) -> tuple[list[list[Id]], int]:
    """Returns the ids of each producer's samples, and the depth of their groups."""
    count = random.choice([0, 1, producers, 7, 16, 40])
    first = random.choice([0, 0, 0, 17, -3, 2**40, 2**62])
    numbers = [first + number for number in range(count)]
    style = random.choice(["even"] * 4 + ["filtered", "any"])
    if style == "filtered":
        numbers = [number for number in numbers if random.random() < 0.7]
    if style == "any":
        random.shuffle(numbers)
    cuts = [len(numbers) * part // producers for part in range(producers + 1)]
    if random.random() < 0.5:
        cuts = [0, *sorted(random.randint(0, len(numbers)) for _ in range(producers - 1)), len(numbers)]
    held: list[list[Id]] = [[(n,) for n in numbers[start:stop]] for start, stop in pairwise(cuts)]
    depth = 0
    for _ in range(random.choice([0, 0, 1, 2])):
        times, depth = random.choice([1, 2, 3]), depth + 1
        held = [[(*id, index) for id in ids for index in range(times)] for ids in held]
    return held, depth


def plain(row: Any) -> Any:
    """Returns a row so that equal ones have the same dtype, shape and bytes."""
    if not isinstance(row, Tensor):
        return repr(row)
    whole = torch.empty(row.shape, dtype=row.dtype).copy_(row.detach())
    return str(row.dtype), tuple(row.shape), bytes_of(whole)


def rows_of(batch: Batch) -> dict[Id, dict[str, Any]]:
    ids = [tuple(id) for id in batch.ids.tolist()]
    return {id: {name: plain(c[row]) for name, c in batch.columns.items()} for row, id in enumerate(ids)}


def random_steps(random: Random, producers: int, balance: bool) -> list[list[Any]]:
    """Returns the batch of each producer in each step; a batch may come a second time, with other ids."""
    steps: list[list[Any]] = []
    kinds: dict[str, Kind] = {}
    for _ in range(STEPS):
        if not kinds or random.random() < 0.5:
            names = random.sample(["x", "y", "z", "@version", "ö b"], random.randint(0, 3))
            kinds = {name: random_kind(random) for name in names}
        elif random.random() < 0.3:
            kinds = dict(reversed(kinds.items()))
        held, group_depth = random_ids(random, producers)
        depth = group_depth + 1
        step = []
        for ids in held:
            columns = {name: random_column(random, kind, len(ids)) for name, kind in kinds.items()}
            listed = torch.tensor(ids, dtype=torch.int64).view(len(ids), depth)
            step.append(Batch(columns, ids=listed, group_depth=group_depth))
        steps.append(step)
    return steps


def wanted_of(step: list[Batch], execute: str, dispatch: Dispatch, mesh: DeviceMesh) -> dict[int, list[Id]]:
    held = [[tuple(id) for id in batch.ids.tolist()] for batch in step]
    lengths = tuple(tuple(batch.lengths.tolist()) for batch in step) if dispatch.balance else None
    table = SampleTable(tuple(map(tuple, held)), lengths, group_depth=step[0].group_depth)
    parts = samples_by_rank(execute, dispatch, mesh, table)
    return {rank: [held[producer][row] for producer, row in part] for rank, part in parts.items()}


@pytest.mark.parametrize("seed", range(16))
def test_random_steps_arrive_as_they_were(seed: int) -> None:
    """Compares the values of each consumer with its part of the steps that were sent."""
    choice = Random(seed)
    nodes = choice.choice([1, 1, 2])
    producers, consumers = choice.choice(MESHES), choice.choice(MESHES)
    execute = choice.choice(["all", "all", "first", "peer"])
    balance: Any = choice.choice(["", "", "tokens"])
    dispatch = Dispatch(
        choice.choice(["slice_dp", "slice", "all"]), balance, allow_empty=True, split_groups=choice.random() < 0.3,
        equal_counts=bool(balance) and choice.random() < 0.3,
    )  # fmt: skip
    steps = random_steps(choice, producers.data_size, bool(balance))
    route = Route("a -> b", "a", "b", dispatch=dispatch)

    def send(channel: Channel, rank: int) -> None:
        for number, step in enumerate(steps, 1):
            channel.send(step[producers.data_rank(rank)], number)
        channel.send(END, STEPS + 1)

    def receive(channel: Channel, rank: int) -> list[Any]:
        found: list[Any] = []
        for number in range(1, STEPS + 2):
            value = channel.receive(number).value
            found.append(value if value is END else (value.clone(), value.most))
        return found

    together = choice.choice([0, 1, 1 << 16])
    with patch("meshctl.runtime.routes.shared_write.SHARED_PART_MIN_BYTES", together):
        found = run(route, producers, consumers, send, receive, execute, nodes)
    for number, step in enumerate(steps):
        sent = {id: row for batch in step for id, row in rows_of(batch).items()}
        wanted = wanted_of(step, execute, dispatch, consumers)
        assert found.keys() == wanted.keys()
        most = max(map(len, wanted.values()))
        for rank, ids in wanted.items():
            batch, announced = found[rank][number]
            assert [tuple(id) for id in batch.ids.tolist()] == ids and announced == most
            rows = rows_of(batch)
            assert [rows[id] for id in ids] == [sent[id] for id in ids]
            if ids:
                assert batch.group_depth == step[0].group_depth
            if ids or len(step) == 1:
                assert list(batch.columns) == list(step[0].columns)
    assert all(values[-1] is END for values in found.values())
