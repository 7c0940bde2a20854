"""Adapts pyarrow and `datasets`: rows of parquet files, of saved datasets and of datasets of the hub."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from meshctl.data.errors import DataError
from meshctl.hub_cache import has_dataset
from meshctl.runtime.extras import extra
from meshctl.split_files import data_suffix

ROWS_AT_ONCE = 256
"""The number of rows of a parquet file that are in memory at the same time."""


PlacedRow = tuple[str, Mapping[str, Any]]
"""The place of a row for messages, and the row."""
Epoch = Callable[[int], Iterator[PlacedRow]]
"""A function of the number of an epoch. It yields all rows, in the order of this epoch."""


class ArrowRow(dict[str, Any]):
    """A row of a table. Each struct in it has the keys of the structs of all rows; a key that it lacks itself
    is null."""


class Table:
    """The rows of an Arrow table or of a `datasets.Dataset`. Messages number the rows from 0."""

    def __init__(self, name: str, table: Any, *, is_arrow: bool) -> None:
        self._name, self._table, self._is_arrow = name, table, is_arrow

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        return ArrowRow(
            self._table.slice(number, 1).to_pylist()[0] if self._is_arrow else self._table[number]
        )

    def place(self, number: int) -> str:
        return f"{self._name}, row {number}"


def parquet_stream(files: Sequence[Path], seed: int, buffer: int, epoch: int) -> Iterator[PlacedRow]:
    """Yields the rows of parquet files, read in order. If `buffer` is not 0, each row is drawn at random from
    `buffer` rows in memory. Raises `DataError` for an unreadable file."""
    held, draw = list[PlacedRow](), random.Random(f"{seed} {epoch}")
    for row in _in_order(files):
        if len(held) < buffer:
            held.append(row)
        elif not buffer:
            yield row
        else:
            index = draw.randrange(buffer)
            held[index], row = row, held[index]
            yield row
    draw.shuffle(held)
    yield from held


def _in_order(files: Sequence[Path]) -> Iterator[PlacedRow]:
    with extra("hf"):
        import pyarrow
        from pyarrow import parquet
    for path in files:
        try:
            parts = parquet.ParquetFile(path).iter_batches(batch_size=ROWS_AT_ONCE)
            rows = (ArrowRow(row) for part in parts for row in part.to_pylist())
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path} cannot be read: {_first_line(error)}") from None


def from_file(path: Path, file: Path | BinaryIO) -> Table:
    """Reads a parquet or csv file, whose content is in `file`. The columns of a parquet file that is not
    packed are mapped into memory. Raises `DataError` if it cannot be read."""
    with extra("hf"):
        import pyarrow
        from pyarrow import csv, parquet
    try:
        if data_suffix(path) == ".csv":
            table = csv.read_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True))
        else:
            table = parquet.read_table(file, memory_map=file == path)
        return Table(str(path), table, is_arrow=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {_first_line(error)}") from None


def from_disk(folder: Path, split: str) -> Table:
    """Opens a folder of `datasets.save_to_disk`. Raises `DataError` if the folder cannot be read or has no
    such split."""
    with extra("hf"):
        import datasets
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises what its readers raise
        raise DataError(f"{folder} cannot be read: {_first_line(error)}") from None
    if isinstance(found, Mapping):
        if split not in found:
            raise DataError(f"{folder} has no split `{split}`; there are {', '.join(found)}")
        found = found[split]
    elif split not in ("train", str(found.split)):
        raise DataError(f"{folder} has no split `{split}`: it is one dataset, saved as `{found.split}`")
    return Table(str(folder), found, is_arrow=False)


def from_hub(name: str, split: str) -> Table:
    """Loads a dataset of the hub, from the local cache if it is there. Raises `DataError` if loading
    fails."""
    return Table(f"dataset {name}[{split}]", _loaded(name, split, is_stream=False), is_arrow=False)


def hub_stream(name: str, split: str, *, seed: int, buffer: int) -> Epoch:
    """Opens a dataset of the hub that is read in order and not stored. If `buffer` is not 0, each row is
    drawn at random from `buffer` rows in memory. Raises `DataError` if opening fails."""
    dataset = _loaded(name, split, is_stream=True)
    dataset = dataset.shuffle(seed=seed, buffer_size=buffer) if buffer else dataset

    def rows(epoch: int) -> Iterator[PlacedRow]:
        dataset.set_epoch(epoch)
        for count, row in enumerate(dataset):
            yield f"dataset {name}[{split}], row {count} of epoch {epoch}", ArrowRow(row)

    return rows


def _loaded(name: str, split: str, *, is_stream: bool) -> Any:
    """Returns a split of a dataset of the hub. A dataset that is in the cache is loaded without a request to
    the hub, and a stream is never stored."""
    with extra("hf"):
        import datasets
    options: dict[str, Any] = {"split": split, "streaming": is_stream}
    if not is_stream and has_dataset(name, os.environ):
        with suppress(Exception), _offline(datasets):  # the cache may have another config of the dataset
            return datasets.load_dataset(name, **options)
    try:
        return datasets.load_dataset(name, **options)
    except Exception as error:  # the library raises what its readers and the hub raise
        raise DataError(f"dataset `{name}`, split `{split}`: {_first_line(error)}") from None


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Makes the library use its cache alone, without its warning about that."""
    config, before = datasets.config, datasets.config.HF_HUB_OFFLINE
    verbosity = datasets.logging.get_verbosity()
    config.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
        datasets.logging.set_verbosity(verbosity)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
