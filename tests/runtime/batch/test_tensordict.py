"""Conversion of batches to TensorDicts and back, and endpoints that return a TensorDict."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, BatchError, Ragged
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from tests.runtime import in_process
from tests.runtime.pipelines import Echo
from tests.runtime.plans import call, plan

tensordict = pytest.importorskip("tensordict")
TensorDict = tensordict.TensorDict
NonTensorData = tensordict.NonTensorData
NonTensorStack = tensordict.NonTensorStack


def plain(column: Any) -> Any:
    """Returns a value that `==` can compare, including the dtype and shape of tensors."""
    if isinstance(column, Tensor):
        return str(column.dtype), tuple(column.shape), column.tolist()
    return [plain(row) for row in column.rows()] if isinstance(column, Ragged) else column


def facts(batch: Batch) -> dict[str, Any]:
    columns = {name: (type(column), plain(column)) for name, column in batch.columns.items()}
    ids = plain(batch.ids) if batch.has_ids else None
    return {
        "columns": columns,
        "ids": ids,
        "group_depth": batch.group_depth,
        "most": batch.most,
        "length": len(batch),
    }


def whole() -> Batch:
    columns = {
        "x": torch.arange(6, dtype=torch.int32).reshape(3, 2),
        "rows": Ragged.of([torch.arange(2), torch.arange(0), torch.arange(3)]),
        "obs.left": torch.tensor([True, False, True]),
        "obs.deep.text": ["a", "a", "a"],
        "any": [None, [1, {"k": b"v"}], (2.5, "s")],
        "@version": torch.tensor([4, 5, 6]),
        "@home.gen": torch.tensor([0, 1, 0]),
    }
    return Batch(columns, ids=torch.tensor([[7, 0], [7, 1], [8, 0]]), group_depth=1, most=9)


ITEMS = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3)
KEYS = st.text(max_size=2)
DATA = st.recursive(
    ITEMS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=3
)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
NAMES = st.text("ab.@", min_size=1, max_size=4).filter(lambda name: name != "@")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count, dtype = draw(st.integers(0, 4)), draw(DTYPES)

    def column() -> Any:
        kind = draw(st.integers(0, 2))
        if kind == 0:
            return torch.ones(count, *draw(st.lists(st.integers(0, 2), max_size=2)), dtype=dtype)
        if kind == 1:
            lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
            return Ragged.of([torch.arange(length * 2).reshape(length, 2).to(dtype) for length in lengths])
        return draw(st.lists(DATA, min_size=count, max_size=count))

    names: list[str] = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        if not any(name.startswith(other + ".") or other.startswith(name + ".") for other in names):
            names.append(name)
    ids = torch.arange(count * 2).reshape(count, 2) if draw(st.booleans()) else None
    most = draw(st.none() | st.integers(count, 9))
    return Batch({name: column() for name in names}, ids=ids, group_depth=draw(st.integers(0, 1)), most=most)


@settings(max_examples=30, deadline=None)
@given(batches())
def test_a_round_trip_keeps_everything(batch: Batch) -> None:
    assert facts(Batch.from_tensordict(batch.to_tensordict())) == facts(batch)


def test_what_a_batch_looks_like_as_a_tensordict() -> None:
    td = whole().to_tensordict()
    assert (
        td.batch_size == (3,)
        and td["obs", "left"].tolist() == [True, False, True]
        and td["obs", "deep"].batch_size == (3,)
    )
    assert (
        td["rows"].is_nested
        and td["rows"].layout is torch.jagged
        and td["rows"].offsets().tolist() == [0, 2, 2, 5]
    )
    assert td.get("any").tolist() == whole()["any"] and td["@home.gen"].tolist() == [0, 1, 0]
    assert {key for key in map(str, td.keys()) if key.startswith("@")} == {
        "@version",
        "@home.gen",
        "@ids",
        "@group_depth",
        "@most",
    }


@pytest.mark.parametrize("rows", [[2, 0], [1], []], ids=str)
def test_samples_that_are_selected_there_are_known_here(rows: list[int]) -> None:
    cut = Batch.from_tensordict(whole().to_tensordict()[torch.tensor(rows, dtype=torch.int64)])
    assert facts(cut) == facts(whole().take(rows))


def test_parts_put_together_have_room_for_all() -> None:
    td = whole().to_tensordict()
    assert Batch.from_tensordict(torch.cat([td] * 4)).most == 12
    other = Batch.from_tensordict(td)
    other.most = 30
    assert Batch.from_tensordict(torch.cat([td, other.to_tensordict()])).most == 30


def test_a_tensordict_of_somebody_elses_making() -> None:
    td = TensorDict(
        {
            "a": torch.zeros(2, 5),
            "n": {"b": torch.ones(2)},
            "same": "hello",
            "text": ["x", "y"],
            "data": NonTensorStack([1], {"k": 2}),
        },
        batch_size=[2],
    )
    batch = Batch.from_tensordict(td)
    assert batch.names == ("a", "n.b", "same", "text", "data") and not batch.has_ids
    assert (
        batch["same"] == ["hello", "hello"]
        and batch["text"] == ["x", "y"]
        and batch["data"] == [[1], {"k": 2}]
    )
    wide = Batch.from_tensordict(TensorDict({"a": torch.zeros(2, 5, 3)}, batch_size=[2, 5]))
    assert len(wide) == 2 and wide["a"].shape == (2, 5, 3)


NESTED = {
    "cut out": lambda: torch.nested.nested_tensor_from_jagged(
        torch.arange(9), torch.tensor([0, 4, 9]), lengths=torch.tensor([2, 3])
    ),
    "from the middle": lambda: torch.nested.nested_tensor_from_jagged(
        torch.arange(-4, 9), torch.tensor([4, 6, 6])
    ),
    "narrow offsets": lambda: torch.nested.nested_tensor_from_jagged(
        torch.arange(3), torch.tensor([0, 1, 3], dtype=torch.int32)
    ),
}
ROWS = {"cut out": [[0, 1], [4, 5, 6]], "from the middle": [[0, 1], []], "narrow offsets": [[0], [1, 2]]}


@pytest.mark.parametrize("case", NESTED)
def test_every_layout_of_a_jagged_tensor(case: str) -> None:
    rows = Batch.from_tensordict(TensorDict({"rows": NESTED[case]()}, batch_size=[2]))["rows"]
    assert [row.tolist() for row in rows.rows()] == ROWS[case]
    assert rows.offsets.dtype == torch.int64 and rows.offsets[0] == 0 and rows.offsets[-1] == len(rows.values)


def test_a_lazy_stack_of_rows_of_different_length() -> None:
    parts = [
        TensorDict({"rows": torch.arange(count), "n": TensorDict({"s": str(count)})}) for count in (2, 0, 3)
    ]
    batch = Batch.from_tensordict(tensordict.lazy_stack(parts))
    assert [row.tolist() for row in batch["rows"].rows()] == [[0, 1], [], [0, 1, 2]] and batch["n.s"] == [
        "2",
        "0",
        "3",
    ]


def jagged_elsewhere() -> Any:
    return torch.nested.nested_tensor_from_jagged(torch.zeros(5, 2), torch.tensor([0, 2, 5])).transpose(1, 2)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TensorDict({"loss": torch.tensor(1.0)}), r"without batch dim has no samples: its batch_size is \[\]"),
        (lambda: {"a": torch.zeros(2)}, "expected a TensorDict, not a dict"),
        (lambda: TensorDict({}, batch_size=[3]), "a TensorDict of 3 samples without entries"),
        (lambda: TensorDict({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, batch_size=[1]), "entry 'a.b' is given twice"),
        (lambda: TensorDict({"t": jagged_elsewhere()}, batch_size=[2]), "'t' is a nested tensor whose rows differ in more"),
        (lambda: TensorDict({"@ids": ["a", "b"]}, batch_size=[2]), "'@ids' is not a tensor"),
        (lambda: TensorDict({"a": torch.zeros(1), "@most": "many"}, batch_size=[1]), "'@most' is not a whole number"),
        (lambda: tensordict.lazy_stack([TensorDict({"a": torch.ones(1)}), TensorDict({"a": torch.ones(1), "b": torch.ones(1)})]),
         "'b' is not in every sample"),
        (lambda: tensordict.lazy_stack([TensorDict({"a": torch.ones(1)}), TensorDict({"a": torch.ones(1, 2)})]), "entry 'a'"),
    ],
)  # fmt: skip
def test_a_tensordict_that_makes_no_batch(made: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        Batch.from_tensordict(made())


@pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a"), ("a.b.c", "a.b")])
def test_columns_that_make_no_tensordict(names: tuple[str, ...]) -> None:
    with pytest.raises(
        BatchError, match="is nested in a name that is a column itself, or has columns nested in it"
    ):
        Batch({name: torch.zeros(1) for name in names}).to_tensordict()


def test_the_library_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "tensordict":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ImportError, match="needs the library tensordict, which is not installed: pip install tensordict"
    ):
        whole().to_tensordict()


# Endpoints


class Dicts(Component):
    """A source and a stage that return TensorDicts."""

    @endpoint
    def next(self, samples: range) -> Any:
        numbers = torch.tensor(list(samples), dtype=torch.int64)
        return TensorDict(
            {"x": numbers, "obs": {"text": [str(number) for number in samples]}}, batch_size=[len(samples)]
        )

    @endpoint
    def odd(self, batch: Batch) -> Any:
        """Returns some of the samples in another order, with additional columns."""
        td = batch.to_tensordict()
        td["obs", "twice"] = td["x"] * 2
        return td[td["x"] % 2 == 1].flip(0)

    @endpoint
    def repeated(self, batch: Batch) -> Any:
        rows = Ragged.of([torch.arange(int(number)) for number in batch["x"]])
        return batch.with_columns(rows=rows).repeat(2).to_tensordict()

    @endpoint
    def loss(self, batch: Batch) -> Any:
        return TensorDict({"loss": torch.tensor(1.0)})


def seen_by(method: str, dp: int) -> tuple[list[Any], dict[int, Exception]]:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": dp},
        {"source": ("a", {}), "work": ("b", {"dp_size": dp}), "sink": ("a", {})},
        [
            call("batch", "source.next", samples=7),
            call("made", f"work.{method}", "batch"),
            call("end", "sink.take", "made"),
        ],
        steps=1,
    )
    outcome = in_process.run(job, lambda name, rank: Echo(seen) if name == "sink" else Dicts())
    return [batch for _, _, batch in seen], outcome.faults


@pytest.mark.parametrize("dp", [1, 2])
def test_an_endpoint_returns_a_tensordict_and_its_samples_keep_their_ids(dp: int) -> None:
    [batch], faults = seen_by("odd", dp)
    assert not faults
    assert batch.ids.tolist() == [[1], [3], [5]] and batch["x"].tolist() == [
        1,
        3,
        5,
    ]  # collected in the order of their ids
    assert batch["obs.text"] == ["1", "3", "5"] and batch["obs.twice"].tolist() == [2, 6, 10]


@pytest.mark.parametrize("dp", [1, 2])
def test_several_rows_of_a_sample_are_its_children(dp: int) -> None:
    [batch], faults = seen_by("repeated", dp)
    assert not faults
    assert batch.ids.tolist() == [[number, place] for number in range(7) for place in (0, 1)]
    assert batch.group_ids is not None and batch["x"].tolist() == [
        number for number in range(7) for _ in (0, 1)
    ]


def test_a_recording_without_samples_is_reported_in_one_line() -> None:
    _, faults = seen_by("loss", 1)
    [fault] = [fault for fault in faults.values() if isinstance(fault, StageError)]
    assert "without batch dim" in str(fault)
