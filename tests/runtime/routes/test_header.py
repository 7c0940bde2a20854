"""What a peer tells of its samples is input: whatever it is, a taker gets its samples, or an error that names
who told it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, BatchError, Ragged
from meshctl.runtime.routes.channel import TOGETHER, Channel, Party, Taken
from meshctl.runtime.routes.header import (
    Cut,
    Form,
    Row,
    Said,
    batch_row,
    form_in,
    layout_of,
    outline_of,
    row_in,
    rows_in,
    table_of,
    told,
)
from meshctl.runtime.transports.buffers.frames import Frame, unpack
from meshctl.runtime.transports.data_plane import PeerLost
from meshctl.runtime.transports.memory import MemoryTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.samples import Grid, RouteError, Run
from tests.topology.meshes import parts_for

BATCH = Batch(
    {"x": torch.arange(4.0), "r": Ragged.of([torch.ones(n) for n in range(4)]), "t": list("abcd")},
    ids=torch.arange(4)[:, None],
)
PLAIN: list[Any] = [
    None,
    True,
    -1,
    2**70,
    0.5,
    float("nan"),
    "",
    "x",
    [],
    [1],
    {},
    {"kind": "batch"},
    b"b",
    (),
]
ODD = [*PLAIN, torch.ones(2), torch.tensor(3), BATCH]


def opened() -> dict[str, Any]:
    """What a teller sends, and inside it the row, and inside that its form."""
    form, ids, numbers = unpack(told(batch_row(BATCH, Dispatch(balance="tokens"), alone=False)))
    return {"rows": [[unpack(form), ids, numbers]], "part": BATCH}


def closed(said: Any) -> Any:
    """The same as it is sent: forms and rows are bytes, and the layout is that of these rows."""
    if not isinstance(said, dict) or not isinstance(said.get("rows"), list):
        return said
    rows = []
    for row in said["rows"]:
        if isinstance(row, list) and row and not isinstance(row[0], (bytes, int)):
            row = [Frame(row[0]).inline(), *row[1:]]
        rows.append(Frame(row).inline())
    return {"layout": layout_of(channel()._seed, rows), "table": rows, "part": said["part"]}


def channel(transport: Any = None) -> Channel:
    one = DeviceMesh.from_sizes()
    route = Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens"))
    return Channel(route, Party(one, 0), Party(one, 1), transport, 0)


def taken(said: Any) -> Taken:
    """What a taker makes of it."""
    hub: dict[int, MemoryTransport] = {}
    giver, taker = (MemoryTransport(place, {}, hub) for place in (0, 1))
    giver.send(1, 0, Frame(said))
    return channel(taker).take(0)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Everything in it that could be something else."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], odd)
    return copy


def test_what_is_told_comes_back() -> None:
    said = closed(opened())
    found = taken(said)
    assert torch.equal(found.value["x"], BATCH["x"]) and found.value["t"] == BATCH["t"]
    assert rows_in(said["table"], 1) is not None and rows_in(said["table"], 2) is None
    assert all(rows_in(odd, 1) is None and rows_in([odd], 1) is None for odd in ODD)


@settings(max_examples=400)
@given(st.sampled_from([*places(opened())]), st.sampled_from(ODD))
def test_whatever_else_is_told_is_an_error_that_names_who_told_it(path: tuple[Any, ...], odd: Any) -> None:
    try:
        found = taken(closed(changed(opened(), path, odd)))
    except PeerLost as error:
        assert "place 0 sent" in str(error)
    except (RouteError, BatchError):
        pass  # numbers that could be right, and do not fit
    else:
        assert path[:1] == ("rows",) or len(found.value) <= 4


@settings(max_examples=100)
@given(st.sampled_from([*places(closed(opened()))]), st.sampled_from(ODD))
def test_nor_does_it_help_to_leave_the_digest_as_it_was(path: tuple[Any, ...], odd: Any) -> None:
    try:
        found = taken(changed(closed(opened()), path, odd))
    except PeerLost as error:
        assert "place 0 sent" in str(error)
    else:
        assert (path == ("part",) and found.value is BATCH) or len(found.value) == 4


@settings(max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 300), st.integers(0, 7))
def test_a_row_of_turned_bits_is_a_row_or_none(more: bytes, at: int, bit: int) -> None:
    row = bytearray(told(batch_row(BATCH, Dispatch(balance="tokens"), alone=False)))
    row[at % len(row)] ^= 1 << bit
    assert row_in(more) is None
    assert row_in(bytes(row)) is None or isinstance(row_in(bytes(row)), Row)
    assert form_in(more) is None


FORM: list[Any] = [[2], 0, {}, {}, None, None, []]


@pytest.mark.parametrize(
    "row",
    [
        [FORM],
        [1, "1"],
        [1, True],
        [FORM, "0", []],
        [FORM, 2**63 - 2, []],
        [FORM, -(2**63) - 1, []],
        [[[0], *FORM[1:]], 0, []],
        [[[-1], *FORM[1:]], 0, []],
        [[[], *FORM[1:]], torch.ones(2, 1), []],
        [[[2], -1, *FORM[2:]], 0, []],
        [[[2], 0, {"x": ["tensor", "int64"]}, *FORM[3:]], 0, []],
        [[[2], 0, {"x": ["tensor", "torch.nothing", []]}, *FORM[3:]], 0, []],
        [[[2], 0, {"x": ["ragged", "torch.int64", []]}, {"x": 0}, None, None], 0, [torch.tensor([1, -1])]],
        [[[2], 0, {"x": ["ragged", "torch.int64", []]}, {"x": 1}, None, None], 0, [torch.tensor([1, 1])]],
        [[[2], 0, {"x": ["ragged", "torch.int64", []]}, {"y": 0}, None, None], 0, [torch.tensor([1, 1])]],
        [[[2], 0, {}, {}, 0, None], 0, [torch.tensor([1])]],
        [[[2], 0, {}, {}, 0, None], 0, []],
        [[[2], 0, {}, {}, None, -1], 0, [torch.tensor([1, 1])]],
    ],
)
def test_what_is_no_row(row: Any) -> None:
    if isinstance(row[0], list):
        row = [Frame(row[0]).inline(), *row[1:]]
    assert row_in(Frame(row).inline()) is None


def test_rows_of_one_table_say_the_same_numbers() -> None:
    batch = Batch({"x": torch.ones(2)}, ids=torch.arange(2))
    one, other = (told(batch_row(batch, Dispatch(balance=balance), alone=True)) for balance in ("tokens", ""))
    assert (
        rows_in([one, one], 2) is not None
        and rows_in([one, told(Row())], 2) is not None
        and rows_in([one, other], 2) is None
    )


def test_a_table_lists_only_ids_that_are_not_even() -> None:
    rows = [
        batch_row(Batch({}, ids=torch.tensor(ids)), Dispatch(), alone=True) for ids in ([5, 6, 7], [9, 12])
    ]
    table = table_of(rows)
    assert table is not None and table.ids == (Grid(5, (3,)), ((9,), (12,)))


def test_columns_that_are_ragged_alike_tell_their_lengths_once() -> None:
    ragged = Ragged.of([torch.ones(n) for n in (2, 0, 1)])
    batch = Batch(
        {"a": ragged, "b": Ragged(ragged.values.int(), ragged.offsets), "c": Ragged.of([torch.ones(1)] * 3)}
    )
    row = batch_row(batch, Dispatch(balance="tokens"), alone=False)
    assert row.form and row.form.ragged == {"a": 0, "b": 0, "c": 1} and row.form.lengths == 0
    assert [each.tolist() for each in row.numbers] == [[2, 0, 1], [1, 1, 1]]


def test_a_form_changes_with_what_it_is_a_form_of() -> None:
    columns = [
        ("x", torch.ones(2)),
        ("x", torch.ones(3)),
        ("x", torch.ones(2).int()),
        ("x", torch.ones(2, 1)),
        ("y", torch.ones(2)),
    ]
    batches = [Batch({name: column}, ids=torch.arange(len(column))) for name, column in columns]
    assert len({told(batch_row(batch, Dispatch(), alone=True)) for batch in batches}) == 5


starts = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=3, max_size=3)


@settings(max_examples=300)
@given(starts, starts, st.sampled_from([(), (2,)]), st.sampled_from(["all", "first", "peer"]), st.booleans())
def test_tables_of_one_outline_are_cut_alike(
    one: list[tuple[int, int]], other: list[tuple[int, int]], inner: tuple[int, ...], execute: str, even: bool
) -> None:
    if even:
        other = [(start * 3, count) for start, count in one]
    rows = [
        [_counted(Grid(start, (count, *inner))) if count else Row() for start, count in some]
        for some in (one, other)
    ]
    outlines = [outline_of(some) for some in rows]
    if outlines[0] is not None and outlines[0] == outlines[1] and any(row.form for row in rows[0]):
        mesh, dispatch = DeviceMesh.from_sizes(dp_size=3), Dispatch(allow_empty=True)
        cuts = [parts_for(execute, dispatch, mesh, table_of(some)) for some in rows]
        assert cuts[0] == cuts[1]


def _counted(grid: Grid) -> Row:
    return batch_row(Batch({}, ids=grid, group_depth=len(grid.shape) - 1), Dispatch(), alone=True)


def test_what_is_shared_out_by_its_samples_has_no_outline() -> None:
    batch = Batch({"x": torch.ones(2)}, ids=torch.tensor([5, 9]))
    assert outline_of([batch_row(batch, Dispatch(), alone=True)]) is None
    assert outline_of([batch_row(BATCH, Dispatch(balance="tokens"), alone=True)]) is None
    assert outline_of([_counted(Grid(4, (2,))), _counted(Grid(2, (2,)))]) is None
    assert outline_of([_counted(Grid(4, (2,))), _counted(Grid(6, (2,)))]) is not None


@pytest.mark.parametrize(
    "form",
    [
        [[2**62, 4], 0, {}, {}, None, None, []],
        [[2**40], 0, {}, {}, None, None, []],
        [[3], 2, {}, {}, None, None, []],
        [[3], 0, {7: ["list"]}, {}, None, None, []],
        [[3], 0, {"x": ["list"]}, {}, None, None, [7]],
        [[3], 0, {"x": ["list"]}, {}, None, None],
    ],
)
def test_a_form_of_more_than_can_be_is_none(form: list[Any]) -> None:
    assert form_in(Frame(form).inline()) is None


def test_a_group_is_a_part_of_an_id() -> None:
    form = Frame([[], 2, {}, {}, None, None, []]).inline()
    assert row_in(Frame([form, torch.zeros(3, 2, dtype=torch.int64), []]).inline())
    assert row_in(Frame([form, torch.zeros(3, 1, dtype=torch.int64), []]).inline()) is None


Runs = list[tuple[int, int, int]]
"""Speaker, its first row, and the one after its last."""


@pytest.mark.parametrize(
    ("runs", "width", "mappable", "copied"),
    [
        ([(0, 0, 16), (1, 0, 16)], 1024, "both", False),
        ([(0, 1, 17), (1, 0, 16)], 1024, "both", False),
        ([(0, 0, 128), (1, 0, 3)], 1000, "both", False),  # 125 pages, and what comes last may end anywhere
        ([(0, 0, 3), (1, 0, 128)], 1000, "both", True),
        ([(0, 1, 17), (1, 0, 16)], 512, "both", True),  # it begins within a page
        ([(1, 0, 16), (0, 0, 16)], 1024, "both", True),  # whoever gets them joins speakers in their order
        ([(0, 0, 8), (1, 0, 16), (0, 8, 16)], 1024, "both", True),
        ([(0, 0, 16), (1, 0, 16)], 1024, "first", True),
        ([(0, 0, 4), (1, 0, 4)], 1024, "none", False),  # 32 KiB: too little to matter
    ],
)
def test_what_is_copied_is_what_nobody_could_map(runs: Runs, width: int, mappable: str, copied: bool) -> None:
    schema = {"x": ["tensor", "torch.float32", [width]], "y": ["tensor", "torch.int64", []]}
    named = {"both": ("x", "x"), "first": ("x", ""), "none": ("", "")}[mappable]
    rows = [
        Row(Form((200,), 0, schema, {}, None, None, tuple(names)), 200 * number)
        for number, names in enumerate(named)
    ]
    said = Said(rows, Cut([[Run(*run) for run in runs]]), 0)
    assert said.must_copy(0, schema, TOGETHER) == copied


@pytest.mark.parametrize("offsets", [[0, 2, 9], [0, 3, 2, 4], [1, 2, 4], [-1, 2, 4], [0, 2, 3]])
def test_offsets_that_do_not_fit_their_values_are_told_to_who_made_them(offsets: list[int]) -> None:
    column = Ragged(torch.arange(4), torch.tensor(offsets))
    with pytest.raises(BatchError, match="column 'tokens' is ragged, and its offsets do not fit its values"):
        batch_row(
            Batch({"x": Ragged.of([torch.arange(2)] * (len(offsets) - 1)), "tokens": column}),
            Dispatch(),
            alone=True,
        )


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.eye(4).to_sparse(), "a tensor of sparse_coo cannot be sent"),
        (torch.zeros(4, dtype=torch.float8_e5m2), "a tensor of float8_e5m2 cannot be sent"),
        (torch.zeros(4, *[1] * 64), "a tensor of 65 dims cannot be sent"),
    ],
)
def test_a_tensor_that_is_no_column_is_told_to_who_made_it(tensor: Tensor, why: str) -> None:
    with pytest.raises(BatchError, match=f"column 'x': {why}"):
        batch_row(Batch({"x": tensor}), Dispatch(), alone=True)
