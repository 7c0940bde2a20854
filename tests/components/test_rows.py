"""Rows of a file: the row of each sample number, the types of columns, and the errors of invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshctl import Ragged
from meshctl.components import Cycle, Rows
from meshctl.components.rows import column
from meshctl.data.errors import DataError


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rows") / 'odd name " .jsonl'
    path.write_text(
        "".join(json.dumps({"number": number, "text": f"row\u2028{number}"}) + "\n" for number in range(10))
    )
    return str(path)


def numbers(source: Cycle, samples: range) -> list[int]:
    batch = source.next(samples)
    assert batch is not None
    assert batch.ids.flatten().tolist() == list(samples)
    assert batch["text"] == [f"row\u2028{number}" for number in batch["number"]]
    return [int(number) for number in batch["number"]]


def test_an_epoch_has_every_row_once_and_the_next_another_order(file: str) -> None:
    source = Rows(file)
    first, second = numbers(source, range(10)), numbers(source, range(10, 20))
    assert first != numbers(Rows(file, seed=1), range(10))
    assert numbers(Cycle(file, shuffle=False), range(8, 13)) == [8, 9, 0, 1, 2]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second and first != list(range(10))


@given(st.integers(0, 100), st.integers(0, 30), st.integers(0, 30))
def test_a_sample_is_the_same_row_wherever_the_cuts_are(file: str, start: int, one: int, other: int) -> None:
    source = Cycle(file, seed=3)
    whole = numbers(source, range(start, start + one + other))
    fresh = Cycle(file, seed=3)
    tail = numbers(fresh, range(start + one, start + one + other))
    assert [*numbers(fresh, range(start, start + one)), *tail] == whole


def test_only_rows_have_a_length(file: str) -> None:
    assert len(Rows(file)) == 10
    assert not hasattr(Cycle(file), "__len__")


def test_columns_by_what_is_in_them() -> None:
    for values, dtype in (([1, 2], torch.int64), ([1, 2.5], torch.float32), ([True, False], torch.bool)):
        made = column(list(values))
        assert isinstance(made, torch.Tensor) and made.dtype == dtype
    ragged = column([[1], [], [2, 3]])
    assert (
        isinstance(ragged, Ragged)
        and ragged.lengths.tolist() == [1, 0, 2]
        and ragged.values.dtype == torch.int64
    )
    assert column(["a", None]) == ["a", None]
    assert column([1, "a"]) == [1, "a"]


def test_a_row_with_other_keys_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"a": 1}\n\n{"b": 1}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:3: this row has the keys b, the first has a"):
        Rows(str(path))
