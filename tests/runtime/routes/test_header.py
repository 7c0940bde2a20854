"""Headers of peers are untrusted input: for any header, a consumer receives its samples, or an error that
names the sender."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, BatchError, Ragged
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import Received, RouteContext, RouteSide
from meshctl.runtime.routes.header import (
    BatchSchema,
    ProducerHeader,
    decode,
    decode_schema,
    decode_table,
    describe,
    digest_of,
    encode,
    encode_parts,
)
from meshctl.runtime.transports.buffers.frames import Frame, bytes_of, pack, unpack
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from meshctl.topology.samples import RouteError, Run
from tests.examples import examples
from tests.runtime.memory import MemoryDataPlane

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
    """Returns the message of a leader, with its header and the header's schema decoded."""
    header = describe(BATCH, Dispatch(balance="tokens"), alone=False)
    assert header.schema
    return {"headers": [[unpack(header.schema.encoded), header.ids, header.numbers]], "part": BATCH}


def closed(opened: Any) -> Any:
    """The inverse of `opened`: encodes schemas and headers, with their digest."""
    if not isinstance(opened, dict) or not isinstance(opened.get("headers"), list):
        return opened
    headers = []
    for header in opened["headers"]:
        if isinstance(header, list) and header and not isinstance(header[0], (bytes, int)):
            header = [bytes_of(pack(header[0])), *header[1:]]
        headers.append(bytes_of(pack(header)))
    return [0, digest_of(channel()._seed, headers), headers, opened["part"]]


def channel(transport: Any = None) -> Channel:
    one = DeviceMesh.from_sizes()
    route = Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens"))
    transport = transport or MemoryDataPlane(0, {}, {})
    return Channel(RouteContext(route, RouteSide(one, 0), RouteSide(one, 1), transport))


def received(frame: Any) -> Received:
    """Returns the values that a consumer receives, or its error."""
    hub: dict[int, MemoryDataPlane] = {}
    producer, consumer = (MemoryDataPlane(job_rank, {}, hub) for job_rank in (0, 1))
    producer.send(1, 0, Frame(frame))
    return channel(consumer).receive(1)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all parts of a message that could be replaced."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], odd)
    return copy


def test_what_is_sent_comes_back() -> None:
    sent = closed(opened())
    found = received(sent)
    assert torch.equal(found.value["x"], BATCH["x"]) and found.value["t"] == BATCH["t"]
    assert decode_table(sent[2], 1, 1) is not None and decode_table(sent[2], 2, 1) is None
    assert all(decode_table(odd, 1, 1) is None and decode_table([odd], 1, 1) is None for odd in ODD)


@settings(max_examples=examples(100, 400))
@given(st.sampled_from([*paths(opened())]), st.sampled_from(ODD))
def test_any_other_message_is_an_error_that_names_its_sender(path: tuple[Any, ...], odd: Any) -> None:
    try:
        found = received(closed(changed(opened(), path, odd)))
    except PeerLost as error:
        assert "job rank 0 sent" in str(error)
    except (RouteError, BatchError):
        pass  # numbers that could be right, and do not fit
    else:
        assert path[:1] == ("headers",) or len(found.value) <= 4


@settings(max_examples=examples(50, 200))
@given(st.binary(max_size=40), st.integers(0, 300), st.integers(0, 7))
def test_a_row_of_turned_bits_is_a_row_or_none(more: bytes, at: int, bit: int) -> None:
    row = bytearray(encode(describe(BATCH, Dispatch(balance="tokens"), alone=False)))
    row[at % len(row)] ^= 1 << bit
    assert more == encode(ProducerHeader()) or decode(more) is None
    assert decode(bytes(row)) is None or isinstance(decode(bytes(row)), ProducerHeader)
    assert decode_schema(more) is None


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
        row = [bytes_of(pack(row[0])), *row[1:]]
    assert decode(bytes_of(pack(row))) is None


def test_rows_of_one_table_show_the_same_numbers() -> None:
    batch = Batch({"x": torch.ones(2)}, ids=torch.arange(2))
    one, other = (
        encode(describe(batch, Dispatch(balance=balance), alone=True)) for balance in ("tokens", "")
    )
    assert (
        decode_table([one, one], 2, 1) is not None
        and decode_table([one, encode(ProducerHeader())], 2, 1) is not None
        and decode_table([one, other], 2, 1) is None
    )


PARTS = [[Run(0, 0, 2), Run(1, 1, 2)], [Run(1, 0, 1)]]


def test_parts_are_read_as_they_were_sent() -> None:
    batch = Batch({"x": torch.ones(2)}, ids=torch.arange(2))
    rows = [encode(describe(batch, Dispatch(), alone=True)), encode(describe(batch, Dispatch(), alone=True))]
    table = decode_table([*rows, encode_parts(PARTS)], 2, 2)
    assert table is not None and table[1] == PARTS
    assert decode_table(rows, 2, 2) == (table[0], None)
    listed = encode(describe(Batch({"x": torch.ones(2)}, ids=torch.tensor([5, 1])), Dispatch(), alone=True))
    table = decode_table([rows[0], listed, encode_parts(PARTS)], 2, 2)
    assert table is not None and table[1] == PARTS


@pytest.mark.parametrize(
    "parts",
    [
        PARTS[:1],
        [*PARTS, []],
        [[], [[0, 0, 3]]],
        [[], [[0, -1, 1]]],
        [[], [[0, 1, 1]]],
        [[], [[2, 0, 1]]],
        [[], [[-1, 0, 1]]],
        [[], [[0, 0]]],
        [[], [[0, 0, 1.0]]],
        [[], [7]],
        [[], 7],
        7,
    ],
)
def test_runs_that_nobody_has_are_no_table(parts: Any) -> None:
    batch = Batch({"x": torch.ones(2)}, ids=torch.arange(2))
    rows = [encode(describe(batch, Dispatch(), alone=True))] * 2
    assert decode_table([*rows, encode_parts(parts)], 2, 2) is None
    assert decode_table([*rows, b"", encode_parts(PARTS)], 2, 2) is None


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
    assert decode_schema(bytes_of(pack(form))) is None


@pytest.mark.parametrize("offsets", [[0, 2, 9], [0, 3, 2, 4], [1, 2, 4], [-1, 2, 4], [0, 2, 3]])
def test_offsets_that_do_not_fit_their_values_are_reported_to_their_producer(offsets: list[int]) -> None:
    column = Ragged(torch.arange(4), torch.tensor(offsets))
    with pytest.raises(BatchError, match="column 'tokens' is ragged, and its offsets do not fit its values"):
        describe(
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
def test_a_tensor_that_is_no_column_is_reported_to_its_producer(tensor: Tensor, why: str) -> None:
    with pytest.raises(BatchError, match=f"column 'x': {why}"):
        describe(Batch({"x": tensor}), Dispatch(), alone=True)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("torch.float32", [1 << 62, 1 << 62, 0]),
        ("torch.float32", [0, 1 << 63]),
        ("torch.int8", [1 << 47]),
        ("torch.int8", [1] * 64),
        ("torch.qint8", []),
        ("torch.float8_e5m2", []),
        ("torch.nn", []),
    ],
)
def test_columns_that_torch_cannot_hold_are_no_schema(dtype: str, shape: list[int]) -> None:
    def schema(dtype: str, shape: list[int]) -> BatchSchema:
        return BatchSchema((4,), 0, {"x": ["tensor", dtype, shape]}, {}, None, None)

    assert decode_schema(schema(dtype, shape).encoded) is None
    assert decode_schema(schema("torch.int8", [1 << 40, 0]).encoded) is not None
