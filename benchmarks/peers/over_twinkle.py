"""Twinkle in its Ray mode: the driver collects a dict of tensors and dispatches it by data rank."""

from __future__ import annotations

import time

import ray
import torch
import twinkle
from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function
from twinkle.infra import collect_tensor_dict

from benchmarks import samples
from benchmarks.peers import serve

STORE = 6 << 30
"""Bytes of the object store: a few of the largest batches."""
CPUS = 32
"""Claimed: Twinkle wants a quarter of them to be as many as the processes of a node."""


@remote_class()
class Maker:
    def __init__(
        self, nbytes: int, producers: int, device_mesh: DeviceMesh | None = None, **where: str
    ) -> None:
        torch.set_num_threads(1)
        self._columns = samples.columns(nbytes, twinkle.Platform.get_rank(), producers)

    @remote_function(dispatch="all", collect=collect_tensor_dict, lazy_collect=False)
    def make(self) -> dict[str, torch.Tensor]:
        return self._columns


@remote_class()
class Consumer:
    def __init__(self, consumers: int, device_mesh: DeviceMesh | None = None, **where: str) -> None:
        torch.set_num_threads(1)
        self._mine = samples.share(twinkle.Platform.get_rank(), consumers)
        self._checked = False

    @remote_function(dispatch="slice_dp", collect="none", lazy_collect=False)
    def take(self, columns: dict[str, torch.Tensor]) -> None:
        if not self._checked:
            samples.check(columns, torch.arange(self._mine.start, self._mine.stop))
            self._checked = True
        for column in columns.values():
            samples.touch(column)


class Twinkle:
    forms = ("hop",)

    def open(self, producers: int, consumers: int, nbytes: int) -> tuple[str, ...]:
        ray.init(
            address="local",
            num_cpus=CPUS,
            object_store_memory=STORE,
            include_dashboard=False,
            log_to_driver=False,
        )
        groups = [
            DeviceGroup(name="one", ranks=producers, device_type="CPU"),
            DeviceGroup(name="two", ranks=consumers, device_type="CPU"),
        ]
        twinkle.initialize("ray", groups=groups, lazy_collect=False)
        self._maker = Maker(
            nbytes, producers, device_mesh=DeviceMesh.from_sizes(dp_size=producers), remote_group="one"
        )
        self._consumer = Consumer(
            consumers, device_mesh=DeviceMesh.from_sizes(dp_size=consumers), remote_group="two"
        )
        self.steps("hop", 1)
        return self.forms

    def steps(self, form: str, count: int) -> list[float]:
        return [self._step() for _ in range(count)]

    def close(self) -> None:
        ray.shutdown()

    def _step(self) -> float:
        begin = time.perf_counter()
        self._consumer.take(self._maker.make())
        return time.perf_counter() - begin


if __name__ == "__main__":
    serve(Twinkle())
