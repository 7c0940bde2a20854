"""Sources that wrap a user's torch `Dataset`, `DataLoader` or iterable.

    {_target_: meshctl.data.FromDataset, group: train, args: {dataset: digits.Digits, options: {train: true}}}

Each of `dataset`, `loader` and `iterable` is the dotted path of a user's class or function. The source calls
it with `options`. An item is a mapping from column names to values, or a tuple whose names `columns` lists.
"""

from __future__ import annotations

import importlib
import inspect
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from meshctl.data.errors import DataError
from meshctl.data.examples import DTYPES
from meshctl.data.prefetch import Prefetch
from meshctl.data.rows import Permutation
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.component import Component, endpoint


class _Indexed(Component):
    """A source whose items are read by their sample numbers. A subclass sets `_prefetch`, and has `_index`
    and `_columns_at`."""

    _prefetch: Prefetch[dict[str, Column]]

    @endpoint
    def next(self, samples: range) -> Batch | None:
        """Returns the items of these sample numbers, which continue across epochs."""
        return Batch(self._prefetch(samples), ids=torch.tensor(samples, dtype=torch.int64))

    def close(self) -> None:
        self._prefetch.close()

    def _read(self, samples: range) -> dict[str, Column]:
        if samples:
            return self._columns_at([self._index(number) for number in samples])
        first = Batch(self._columns_at([self._index(0)]))  # for the names and dtypes
        return dict(first.between(0, 0).columns)

    @abstractmethod
    def _index(self, number: int) -> int:
        """Returns the index of the item with a sample number."""

    @abstractmethod
    def _columns_at(self, indices: Sequence[int]) -> dict[str, Column]:
        """Returns the columns of items."""


class FromDataset(_Indexed):
    """Returns the items of a map-style `Dataset`. Each epoch has an order of its own if `shuffle` is true."""

    def __init__(
        self,
        dataset: str,
        options: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str] = (),
        ragged: Sequence[str] = (),
        shuffle: bool = True,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        """Creates the dataset by calling `dataset` with `options`.

        `columns` names the parts of tuple items, or selects keys of mapping items. `ragged` names the columns
        whose rows differ in length. The tensors of other columns are stacked. `seed` determines the order of
        each epoch. `workers` is the number of processes that read items ahead. Raises `DataError` if the
        result is not a map-style dataset or has no items.
        """
        self._items = _maker(dataset, options)()
        if not hasattr(self._items, "__getitem__") or not hasattr(self._items, "__len__"):
            raise DataError(f"{dataset} has no `__getitem__` and `__len__`: use meshctl.data.FromIterable")
        if not len(self._items):
            raise DataError(f"{dataset} has no items")
        self._columns, self._ragged, self._shuffle, self._seed = columns, ragged, shuffle, seed
        self._prefetch = Prefetch(self._read, workers)

    def __len__(self) -> int:
        """The number of samples of one epoch."""
        return len(self._items)

    def _columns_at(self, indices: Sequence[int]) -> dict[str, Column]:
        return _columns_of([self._items[index] for index in indices], self._columns, self._ragged)

    def _index(self, number: int) -> int:
        epoch, position = divmod(number, len(self))
        return Permutation(len(self), self._seed, epoch)[position] if self._shuffle else position


class FromDataLoader(_Indexed):
    """Returns the items of a `DataLoader` of a map-style dataset, in the order of the loader's sampler.

    Each call of `next` calls the loader's `collate_fn` once, with all items of the call. The loader's
    `num_workers` processes read items ahead. The stage's `samples` determines the number of items of a call.
    The loader's `batch_size` is not used.
    """

    def __init__(
        self,
        loader: str,
        options: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        """Creates the loader by calling `loader` with `options`.

        `columns` names the parts of a collated tuple, or selects keys of a collated mapping. `seed`
        determines the order of a random sampler in each epoch. Raises `DataError` if the result is not a
        `DataLoader`, if its dataset is an `IterableDataset`, or if its sampler is a `DistributedSampler`.
        """
        made = _maker(loader, options)()
        if not isinstance(made, DataLoader):
            raise DataError(f"{loader} returned a {type(made).__name__}, not a DataLoader")
        self._loader, self._seed, self._columns = made, seed, columns
        if isinstance(made.dataset, IterableDataset):
            raise DataError(f"the dataset of {loader} has no index: use meshctl.data.FromIterable")
        if isinstance(made.sampler, DistributedSampler):
            raise DataError(
                f"the DistributedSampler of {loader} divides the samples among ranks, which the run does "
                "already: leave it out"
            )
        self._sampler: Iterable[Any] = made.sampler if made.batch_sampler is None else made.batch_sampler
        self._order: tuple[int, list[int]] = (0, self._order_of(0))
        self._length = len(self._order[1])
        self._prefetch = Prefetch(self._read, made.num_workers)

    def __len__(self) -> int:
        """The number of samples of one epoch."""
        return self._length

    def _columns_at(self, indices: Sequence[int]) -> dict[str, Column]:
        rows = self._loader.collate_fn([self._loader.dataset[index] for index in indices])
        found = _named(rows, self._columns)
        for name, column in found.items():
            if not hasattr(column, "__len__") or len(column) != len(indices):
                raise DataError(
                    f"`{name}` of the collate_fn has not one row for each of {len(indices)} items"
                )
        return found

    def _index(self, number: int) -> int:
        epoch, position = divmod(number, self._length)
        if self._order[0] != epoch:
            self._order = (epoch, self._order_of(epoch))
            if len(self._order[1]) != self._length:
                counts = f"{len(self._order[1])} items in epoch {epoch}, {self._length} in the first"
                raise DataError(f"the sampler gave {counts}")
        return self._order[1][position]

    def _order_of(self, epoch: int) -> list[int]:
        """Returns the indices that the sampler yields in an epoch, the same on all ranks. The function seeds
        the generators of the loader and of the sampler."""
        seed = random.Random(f"{self._seed} {epoch}").getrandbits(63)
        inner = getattr(self._sampler, "sampler", self._sampler)
        for generator in {
            id(one): one for one in (self._loader.generator, getattr(inner, "generator", None))
        }.values():
            if generator is not None:
                generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            found = list(self._sampler)
        is_batched = self._loader.batch_sampler is not None
        return [index for batch in found for index in batch] if is_batched else found


class FromIterable(Component):
    """Returns the items of an `IterableDataset`, a generator function or another iterable, in their order.

    Every rank iterates over all items and keeps its own. A resumed run iterates over all earlier items again.
    """

    def __init__(
        self,
        iterable: str,
        options: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str] = (),
        ragged: Sequence[str] = (),
        repeat: bool = False,
    ) -> None:
        """Checks `iterable`, a dotted path that is later called with `options`.

        `columns` names the parts of tuple items, or selects keys of mapping items. `ragged` names the columns
        whose rows differ in length. If `repeat` is true, the iterable is created again at its end; otherwise
        the run ends there. Raises `DataError` if the path does not exist or does not accept `options`.
        """
        self._path, self._make, self._repeat = iterable, _maker(iterable, options), repeat
        self._columns, self._ragged = columns, ragged
        self._position, self._items = 0, self._all_items()

    @endpoint
    def next(self, samples: range) -> Batch | None:
        """Returns the items of these sample numbers. At the end of the iterable it returns fewer items, and
        after the end None."""
        if samples.start < self._position:
            self._position, self._items = 0, self._all_items()
        for _ in islice(self._items, samples.start - self._position):
            pass
        self._position = samples.stop
        items = list(islice(self._items, len(samples)))
        if not items:
            return None
        ids = torch.arange(samples.start, samples.start + len(items))
        return Batch(_columns_of(items, self._columns, self._ragged), ids=ids)

    def _all_items(self) -> Iterator[Any]:
        for epoch in count() if self._repeat else range(1):
            is_empty = True
            for item in self._make():
                is_empty = False
                yield item
            if is_empty:
                raise DataError(f"{self._path} has no items in epoch {epoch}")


def _maker(path: str, options: Mapping[str, Any] | None) -> Callable[[], Any]:
    """Returns a function without parameters that calls the class or function at the dotted path `path` with
    `options`. Raises `DataError` if the path does not exist, or if the class or function does not accept
    `options`."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None) if module else None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        found = None
    if not callable(found):
        raise DataError(f"`{path}` is not the dotted path of a class or a function")
    try:
        inspect.signature(found).bind(**(options or {}))
    except TypeError as error:
        raise DataError(f"`options` of {path}: {error}") from None
    return partial(found, **(options or {}))


def _columns_of(items: Sequence[Any], names: Sequence[str], ragged: Sequence[str]) -> dict[str, Column]:
    """Returns the columns of items, each of which is a mapping or a tuple.

    `names` names the parts of tuples, or selects keys of mappings. `ragged` names the columns whose rows
    differ in length. Raises `DataError` if items differ in their names, or if the rows of a column that is
    not ragged differ in shape.
    """
    rows = [_named(item, names) for item in items]
    if unknown := [name for name in ragged if name not in rows[0]]:
        raise DataError(f"`ragged` names {unknown[0]}, the items have {', '.join(rows[0])}")
    for row in rows:
        if row.keys() != rows[0].keys():
            raise DataError(f"an item has {', '.join(row)}, another one {', '.join(rows[0])}")
    return {name: _column(name, [row[name] for row in rows], name in ragged) for name in rows[0]}


def _named(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the parts of an item: column name -> value. `names` names the parts of a tuple, or selects keys
    of a mapping; if it is empty, all keys are used. Raises `DataError` if a tuple has more or fewer parts
    than names."""
    if isinstance(item, Mapping):
        return {str(name): item[name] for name in (names or item)}
    parts = item if isinstance(item, (tuple, list)) else [item]
    if len(parts) != len(names):
        raise DataError(
            f"an item has {len(parts)} parts and `columns` names {len(names)}: name each part in `columns`"
        )
    return dict(zip(names, parts, strict=True))


def _column(name: str, values: list[Any], is_ragged: bool) -> Column:
    if all(type(value) in DTYPES for value in values):
        kinds = {type(value) for value in values}
        return torch.tensor(values, dtype=DTYPES[float if float in kinds else type(values[0])])
    tensors = [_tensor(value) for value in values]
    found = [tensor for tensor in tensors if tensor is not None]
    if len(found) < len(values):
        return values
    if is_ragged:
        return Ragged.of(found)
    if len({tensor.shape for tensor in found}) > 1:
        raise DataError(f"rows of `{name}` differ in shape: name it in `ragged`")
    return torch.stack(found)


def _tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value) if hasattr(value, "__array_interface__") else None
