"""Loads datasets of the hub with the library `datasets`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from meshctl.hub_cache import has_dataset
from meshctl.runtime.extras import extra


def load(name: str, split: str) -> Any:
    """Returns a split of a dataset as a `datasets.Dataset`. A dataset that is in the cache is loaded without
    a request to the hub. Raises what the library raises."""
    with extra("hf"):
        import datasets
    if has_dataset(name, os.environ):
        with suppress(Exception), _offline(datasets):  # the cache may have another config of the dataset
            return datasets.load_dataset(name, split=split, streaming=False)
    return datasets.load_dataset(name, split=split, streaming=False)


def stream(name: str, split: str) -> Any:
    """Returns a split of a dataset as a `datasets.IterableDataset`. It is read from the hub and not stored.
    Raises what the library raises."""
    with extra("hf"):
        import datasets
    return datasets.load_dataset(name, split=split, streaming=True)


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
