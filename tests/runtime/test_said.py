"""What a peer tells of its samples is input: whatever it is, a taker gets its samples, or an error that names who told it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.mesh import DeviceMesh
from meshctl.routes import Dispatch, Route, RouteError
from meshctl.runtime.batch import Batch, BatchError, Ragged
from meshctl.runtime.channel import Channel, Party, Taken
from meshctl.runtime.frames import Frame, pack
from meshctl.runtime.said import batch_row, is_row, rows_in, table_of
from meshctl.runtime.transports import PeerLost
from meshctl.runtime.transports.memory import MemoryTransport
from meshctl.shares import Grid

BATCH = Batch({"x": torch.arange(4.0), "r": Ragged.of([torch.ones(n) for n in range(4)]), "t": list("abcd")}, ids=torch.arange(4)[:, None])
PLAIN: list[Any] = [None, True, -1, 2**70, 0.5, float("nan"), "", "x", [], [1], {}, {"kind": "batch"}, b"b", ()]
ODD = [*PLAIN, torch.ones(2), torch.tensor(3), BATCH]


def told() -> dict[str, Any]:
    return {"rows": [batch_row(BATCH, Dispatch(balance="tokens"), alone=False)], "part": BATCH}


def taken(said: Any) -> Taken:
    """What a taker makes of it; rows are told in a frame of their own."""
    if isinstance(said, dict) and "rows" in said:
        said = {"table": pack(said["rows"]), "part": said["part"]}
    hub: dict[int, MemoryTransport] = {}
    giver, taker = (MemoryTransport(place, {}, hub) for place in (0, 1))
    giver.send(1, 0, Frame(said))
    one = DeviceMesh.from_sizes()
    route = Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens"))
    return Channel(route, Party(one, 0), Party(one, 1), taker, 0).take(0)


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
    found = taken(told())
    assert torch.equal(found.value["x"], BATCH["x"]) and found.value["t"] == BATCH["t"]
    table = {"table": pack(told()["rows"])}
    assert rows_in(table, 1) is not None and rows_in(table, 2) is None
    assert all(rows_in({"table": odd}, 1) is None for odd in ODD)


@settings(max_examples=400)
@given(st.sampled_from([*places(told())]), st.sampled_from(ODD))
def test_whatever_else_is_told_is_an_error_that_names_who_told_it(path: tuple[Any, ...], odd: Any) -> None:
    try:
        found = taken(changed(told(), path, odd))
    except PeerLost as error:
        assert "place 0 sent" in str(error)
    except (RouteError, BatchError):
        pass  # numbers that could be right, and do not fit
    else:
        assert len(found.value) <= 4


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "batch"},
        {"kind": "value", "value": 1},
        {"kind": "value", "value": 1, "weight": "1"},
        {"kind": "batch", "ids": [0], "groups": 0, "columns": {}},
        {"kind": "batch", "ids": [0, -1], "groups": 0, "columns": {}},
        {"kind": "batch", "ids": torch.ones(2, 1), "groups": 0, "columns": {}},
        {"kind": "batch", "ids": [0, 2], "groups": 0, "columns": {"x": ["tensor", "int64"]}},
        {"kind": "batch", "ids": [0, 2], "groups": 0, "columns": {}, "ragged": {"x": torch.tensor([1, -1])}},
        {"kind": "batch", "ids": [0, 2], "groups": 0, "columns": {}, "lengths": torch.tensor([1])},
    ],
)
def test_what_is_no_row(row: Any) -> None:
    assert not is_row(row)


def test_a_table_lists_only_ids_that_are_not_even() -> None:
    rows = [batch_row(Batch({}, ids=torch.tensor(ids)), Dispatch(), alone=True) for ids in ([5, 6, 7], [9, 12])]
    table = table_of(rows)
    assert table is not None and table.ids == (Grid(5, (3,)), ((9,), (12,)))
