"""Ray: the driver fetches and shares out (`hop`), or passes references on (`refs`), with torch tensors or
numpy arrays.

    hop usual    get, torch.cat, slices, put: what is usually written; a slice is a view, and pickle ships all
                 that it is a part of
    hop torch    the same with slices in memory of their own
    hop numpy    the same with arrays, of which Ray pickles the slice alone, and which it reads in place

The first batch of every form is checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import ray
import torch

from benchmarks import samples
from benchmarks.peers import serve

STORE = 6 << 30
"""Bytes of the object store: a few of the largest batches."""
Columns = Mapping[str, Any]


@ray.remote(num_cpus=0)
class Maker:
    def __init__(self, nbytes: int, rank: int, producers: int) -> None:
        torch.set_num_threads(1)
        self._torch = samples.columns(nbytes, rank, producers)
        self._numpy = {name: column.numpy() for name, column in self._torch.items()}

    def torch(self) -> Columns:
        return self._torch

    def numpy(self) -> Columns:
        return self._numpy

    def nothing(self) -> None:
        pass


@ray.remote(num_cpus=0)
class Consumer:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._checked = set[str]()

    def take(self, form: str, first: int, *parts: Columns) -> None:
        """`parts` are segments of this consumer's samples, in order, the first of which has that number."""
        for part in parts:
            columns = {
                name: column if isinstance(column, torch.Tensor) else torch.as_tensor(column)
                for name, column in part.items()
            }
            count = len(columns["tokens"])
            if form not in self._checked:
                samples.check(columns, torch.arange(first, first + count))
            for column in columns.values():
                samples.touch(column)
            first += count
        self._checked.add(form)

    def nothing(self, *given: None) -> None:
        pass


class Ray:
    forms = ("refs torch", "refs numpy", "hop usual", "hop torch", "hop numpy")

    def open(self, producers: int, consumers: int, nbytes: int) -> tuple[str, ...]:
        if not ray.is_initialized():
            ray.init(
                address="local",
                num_cpus=32,
                object_store_memory=STORE,
                include_dashboard=False,
                log_to_driver=False,
            )
        self._makers = [Maker.remote(nbytes, rank, producers) for rank in range(producers)]
        self._consumers = [Consumer.remote() for _ in range(consumers)]
        self._firsts = [samples.share(rank, consumers).start for rank in range(consumers)]
        for form in self.forms if nbytes else ("nothing",):
            self._step(form)
        return self.forms

    def steps(self, form: str, count: int) -> list[float]:
        return [self._step(form) for _ in range(count)]

    def close(self) -> None:
        for actor in (*self._makers, *self._consumers):
            ray.kill(actor)

    def _step(self, form: str) -> float:
        how, _, kind = form.partition(" ")
        step: Callable[[str, str], list[Any]] = {
            "refs": self._refs,
            "hop": self._hop,
            "nothing": self._nothing,
        }[how]
        begin = time.perf_counter()
        ray.get(step(form, kind))
        return time.perf_counter() - begin

    def _made(self, kind: str) -> list[Any]:
        return [(maker.numpy if kind == "numpy" else maker.torch).remote() for maker in self._makers]

    def _refs(self, form: str, kind: str) -> list[Any]:
        given = self._made(kind)
        fan_in = len(given) // len(self._consumers)
        return [
            consumer.take.remote(form, first, *given[number * fan_in : (number + 1) * fan_in])
            for number, (consumer, first) in enumerate(zip(self._consumers, self._firsts, strict=True))
        ]

    def _hop(self, form: str, kind: str) -> list[Any]:
        """Get, join, cut, put."""
        given = ray.get(self._made(kind))
        join = numpy.concatenate if kind == "numpy" else torch.cat
        whole = {name: join([part[name] for part in given]) for name in samples.FIELDS}
        done = []
        for number, (consumer, first) in enumerate(zip(self._consumers, self._firsts, strict=True)):
            mine = samples.share(number, len(self._consumers))
            part = {name: column[mine.start : mine.stop] for name, column in whole.items()}
            if kind == "torch":
                part = {name: column.clone() for name, column in part.items()}
            done.append(consumer.take.remote(form, first, ray.put(part)))
        return done

    def _nothing(self, form: str, kind: str) -> list[Any]:
        given = [maker.nothing.remote() for maker in self._makers]
        fan_in = len(given) // len(self._consumers)
        return [
            consumer.nothing.remote(*given[number * fan_in : (number + 1) * fan_in])
            for number, consumer in enumerate(self._consumers)
        ]


if __name__ == "__main__":
    serve(Ray())
