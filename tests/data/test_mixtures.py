"""Mixtures of data: the shares of the parts, in each window and over epochs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")

from meshctl.data import DataError, Text
from meshctl.data.mixtures import Mixture, part_names


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 10_000), st.integers(1, 500))
def test_each_window_has_the_shares(shares: list[int], start: int, length: int) -> None:
    mixture = Mixture(shares)
    found = [mixture[number] for number in range(start, start + length)]
    for part, share in enumerate(shares):
        numbers = [number for one, number in found if one == part]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert abs(len(numbers) - share / sum(shares) * length) < 2
        if start == 0:
            assert abs(len(numbers) - share / sum(shares) * length) < 1


@pytest.mark.parametrize("shares", [[], [1, 0], [1, -1], [1, float("nan")], [1, "a"]])
def test_shares_are_positive_numbers(shares: list[float]) -> None:
    with pytest.raises(DataError, match="the shares of a mixture are positive numbers"):
        Mixture(shares)


def test_a_list_without_paths_is_refused() -> None:
    with pytest.raises(DataError, match="`path` names no data"):
        Text([], "byte")


def texts(tmp_path: Path) -> dict[str, float]:
    for letter, count in (("a", 30), ("b", 4), ("c", 9)):
        rows = [{"text": letter * (n + 1)} for n in range(count)]
        (tmp_path / f"{letter}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {str(tmp_path / "a.jsonl"): 0.5, str(tmp_path / "b.jsonl"): 0.3, str(tmp_path / "c.jsonl"): 0.2}


@pytest.mark.parametrize(
    "options", [{}, {"max_length": 12, "over_length": "drop"}, {"max_length": 40, "pack": True}]
)
def test_a_mixture_of_files(tmp_path: Path, options: dict[str, object]) -> None:
    path = texts(tmp_path)
    source = Text(path, "byte", seed=3, **options)  # type: ignore[arg-type]
    epochs = {letter: Text(one, "byte", seed=3, **options) for letter, one in zip("abc", path, strict=True)}  # type: ignore[arg-type]
    assert len(source) == sum(map(len, epochs.values()))
    logged: list[dict[str, float]] = []
    source.place.log = lambda values, weight: logged.append(dict(values))
    for start in (0, 1000):
        batch = source.next(range(start, start + 100))
        assert batch is not None
        rows = [row.tolist() for row in batch["input_ids"].rows()]
        assert Counter(chr(row[0]) for row in rows) == {"a": 50, "b": 30, "c": 20}
        for letter, alone in epochs.items():
            own = [row for row in rows if chr(row[0]) == letter]
            first = start * len(own) // 100
            expected = alone.next(range(first, first + len(own)))
            assert logged[-1] == {"share/a": 0.5, "share/b": 0.3, "share/c": 0.2}
            assert expected is not None and own == [row.tolist() for row in expected["input_ids"].rows()]


def test_the_names_of_parts_are_unique() -> None:
    assert part_names([["a/x.jsonl.gz"], ["hub/chats"]]) == ["x", "chats"]
    assert part_names([["a/x.jsonl"], ["b/x.jsonl"]]) == ["a/x.jsonl", "b/x.jsonl"]


def test_a_list_of_files_is_one_part(tmp_path: Path) -> None:
    names = list(texts(tmp_path))
    source = Text(names, "byte", shuffle=False)
    batch = source.next(range(43))
    assert batch is not None and len(source) == 43
    assert [chr(row[0]) for row in batch["input_ids"].rows()] == [*"a" * 30, *"b" * 4, *"c" * 9]
