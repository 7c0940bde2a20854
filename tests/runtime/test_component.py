"""A component alone, on one process, without a launcher."""

from __future__ import annotations

import torch

from meshctl import Batch, Component, endpoint
from meshctl.runtime.component import Endpoint, endpoint_of


class Adder(Component):
    @endpoint
    def plain(self, batch: Batch) -> Batch:
        return batch.with_columns(y=batch["x"] + 1)

    @endpoint(dispatch="all", collect="sum", execute="first")
    def words(self, batch: Batch) -> float:
        return float(self.collective("dp").all_reduce(batch["x"].sum()))

    def helper(self) -> None: ...


def test_it_works_without_a_launcher() -> None:
    adder = Adder()
    batch = Batch({"x": torch.arange(3)})
    assert adder.plain(batch)["y"].tolist() == [1, 2, 3]
    assert adder.words(batch) == 3.0
    assert (adder.rank, adder.mesh.world_size, adder.device.type, adder.step) == (0, 1, "cpu", 0)
    adder.log({"x": 1.0})
    adder.stop("nobody listens")
    assert [len(part) for part in adder.micro_batches(batch, 2)] == [2, 1]
    assert (adder.alloc(2, 3).shape, adder.alloc(2, 3).dtype, adder.alloc(0, 5, dtype=torch.bool).shape) == (
        (2, 3),
        torch.float32,
        (0, 5),
    )
    assert (
        adder.alloc(batch["x"].shape).shape == (3,)
        and adder.alloc([2, 0]).shape == (2, 0)
        and adder.alloc(()).shape == ()
    )


def test_a_collective_of_one_is_the_identity() -> None:
    one = Adder().collective("tp", "dp")
    tensor = torch.arange(3.0)
    assert torch.equal(one.all_reduce(tensor.clone(), "mean"), tensor)
    assert torch.equal(one.all_gather(tensor)[0], tensor) and torch.equal(one.broadcast(tensor), tensor)
    assert one.all_gather_object({"a": [1]}) == [{"a": [1]}]
    one.barrier()
    assert (one.size, one.rank, one.ranks) == (1, 0, (0,))


def test_what_a_decorator_says() -> None:
    assert endpoint_of(Adder, "plain") == Endpoint()
    assert endpoint_of(Adder, "words") == Endpoint("all", "sum", "first")
    assert endpoint_of(Adder, "helper") is None and endpoint_of(Adder, "gone") is None
