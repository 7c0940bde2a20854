"""A user's torch data as sources: columns of items, the order of samplers, and items that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, WeightedRandomSampler

from meshctl import Batch, Component
from meshctl.data import DataError, FromDataLoader, FromDataset, FromIterable


class Squares(Dataset[Any]):
    def __init__(self, size: int = 10) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {"x": torch.full((2,), index), "y": index**2, "name": f"row {index}"}
        return row | {"z": np.full(3, index), "r": torch.arange(index)}


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, float]]:
        return ((torch.tensor([n]), n / 2) for n in range(7))


def loader(kind: str = "random", size: int = 10, workers: int = 0) -> Any:
    data = [(torch.tensor([n, n]), n) for n in range(size)]
    samplers: dict[str, dict[str, Any]] = {
        "sequential": {},
        "random": {"shuffle": True},
        "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        "weighted": {"sampler": WeightedRandomSampler(torch.arange(size).float(), size)},
        "batches": {"batch_sampler": [[8, 1], [5, 5, 2]]},
        "distributed": {"sampler": DistributedSampler(data, 2, 0)},  # type: ignore[arg-type]
    }
    return DataLoader(data, num_workers=workers, **samplers[kind])  # type: ignore[arg-type]


def streaming_loader() -> Any:
    return DataLoader(Counting())


def none() -> list[Any]:
    return []


def uneven() -> list[Any]:
    return [torch.zeros(1), torch.zeros(2)]


def mixed() -> list[Any]:
    return [{"a": 1}, {"b": 1}]


def path(function: Any) -> str:
    return f"{__name__}.{function.__name__}"


def batch_of(source: Any, samples: range) -> Batch:
    assert isinstance(source, Component)
    batch: Batch = source.next(samples)  # type: ignore[attr-defined]
    assert batch.ids.flatten().tolist() == list(samples)
    return batch


def test_items_of_a_dataset_are_columns() -> None:
    batch = batch_of(FromDataset(path(Squares), shuffle=False, ragged=["r"]), range(2, 5))
    assert batch["x"].tolist() == [[2, 2], [3, 3], [4, 4]] and batch["x"].dtype == torch.int64
    assert batch["y"].tolist() == [4, 9, 16] and batch["name"] == ["row 2", "row 3", "row 4"]
    assert batch["z"].tolist() == [[2] * 3, [3] * 3, [4] * 3]
    assert [row.tolist() for row in batch["r"].rows()] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_no_samples_have_the_same_columns() -> None:
    source = FromDataset(path(Squares), {"size": 4}, ragged=["r"])
    empty, one = batch_of(source, range(3, 3)), batch_of(source, range(3, 4))
    assert empty.names == one.names and len(empty) == 0
    assert empty["x"].shape == (0, 2) and empty["r"].values.dtype == torch.int64
    empty = batch_of(FromDataLoader(path(loader), columns=["x", "y"]), range(3, 3))
    assert empty["x"].shape == (0, 2) and empty["y"].dtype == torch.int64


def test_a_dataset_has_an_order_of_each_epoch() -> None:
    source = FromDataset(path(Squares), columns=["y"])
    first, second = (batch_of(source, range(start, start + 10))["y"].tolist() for start in (0, 10))
    assert sorted(first) == sorted(second) == [n * n for n in range(10)] and first != second
    assert batch_of(source, range(7, 12))["y"].tolist() == first[7:] + second[:2]


@pytest.mark.parametrize("kind", ["sequential", "random", "generator", "weighted", "batches"])
def test_a_sampler_has_one_order_on_all_ranks(kind: str) -> None:
    def numbers(samples: range, noise: int) -> list[int]:
        torch.manual_seed(noise)
        source = FromDataLoader(path(loader), {"kind": kind}, columns=["x", "y"])
        found: list[int] = batch_of(source, samples)["y"].tolist()
        return found

    size = 5 if kind == "batches" else 10
    whole = numbers(range(2 * size), 0)
    assert numbers(range(3, size + 3), 1) == whole[3 : size + 3]
    if kind in ("random", "generator"):
        assert sorted(whole[:size]) == list(range(size)) and whole[:size] != whole[size:]
    if kind == "batches":
        assert whole[:size] == [8, 1, 5, 5, 2]


def test_the_generators_of_the_run_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    batch_of(FromDataLoader(path(loader), columns=["x", "y"]), range(12))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.slow
def test_the_processes_of_a_loader_read_ahead() -> None:
    here, ahead = (FromDataLoader(path(loader), {"workers": n}, columns=["x", "y"]) for n in (0, 2))
    for start in (0, 4, 8, 12):
        assert batch_of(ahead, range(start, start + 2))["y"].tolist() == (
            batch_of(here, range(start, start + 2))["y"].tolist()
        )
    ahead.close()


def test_an_iterable_ends_or_repeats() -> None:
    once = FromIterable(path(Counting), columns=["x", "y"])
    assert batch_of(once, range(2, 5))["y"].tolist() == [1.0, 1.5, 2.0]
    last = once.next(range(5, 9))
    assert last is not None and last["x"].tolist() == [[5], [6]]
    assert once.next(range(9, 12)) is None
    again = FromIterable(path(Counting), columns=["x", "y"], repeat=True)
    assert batch_of(again, range(5, 9))["x"].flatten().tolist() == [5, 6, 0, 1]
    assert batch_of(again, range(0, 2))["x"].flatten().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: FromDataset("nowhere.Data"),
            "`nowhere.Data` is not the dotted path of a class or a function",
        ),
        (lambda: FromDataset("Data"), "`Data` is not the dotted path"),
        (
            lambda: FromDataset(path(Squares), {"sise": 3}),
            "`options` of .*Squares: got an unexpected keyword",
        ),
        (
            lambda: FromDataset(path(Counting)),
            "has no `__getitem__` and `__len__`: use meshctl.data.FromIterable",
        ),
        (lambda: FromDataLoader(path(Squares)), "returned a Squares, not a DataLoader"),
        (lambda: FromDataLoader(path(streaming_loader)), "has no index: use meshctl.data.FromIterable"),
        (lambda: FromDataLoader(path(loader), {"kind": "distributed"}), "divides the samples among ranks"),
        (
            lambda: FromDataset(path(Squares)).next(range(2)),
            "rows of `r` differ in shape: name it in `ragged`",
        ),
        (
            lambda: FromDataset(path(Squares), ragged=["q"]).next(range(1)),
            "`ragged` names q, the items have x",
        ),
        (lambda: FromDataset(path(none)), "has no items"),
        (lambda: FromDataLoader(path(loader)).next(range(1)), "has 2 parts and `columns` names 0"),
        (lambda: FromIterable(path(none)).next(range(1)), "has no items in epoch 0"),
        (lambda: FromIterable(path(mixed)).next(range(2)), "an item has b, another one a"),
        (lambda: FromIterable(path(uneven), columns=["x"]).next(range(2)), "rows of `x` differ in shape"),
    ],
)
def test_what_does_not_fit_is_named(make: Any, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        make()
