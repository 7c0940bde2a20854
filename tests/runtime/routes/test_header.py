"""Headers of batches, from a producer through the table of a step, and batches that cannot be sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, BatchError, Ragged
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.routes.header import describe, digest_of, encode
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.errors import PeerLost
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route
from tests.runtime.memory import MemoryDataPlane

BATCH = Batch(
    {"x": torch.arange(4.0), "r": Ragged.of([torch.ones(n) for n in range(4)]), "t": list("abcd")},
    ids=torch.arange(4)[:, None],
)
ROW = encode(describe(BATCH, Dispatch(balance="tokens")))


def received(table: list[bytes], seen: Any = None) -> Any:
    """Returns the batch that a consumer receives with a table, whose digest is that of the table `seen`."""
    hub: dict[int, MemoryDataPlane] = {}
    producer, consumer = (MemoryDataPlane(job_rank, {}, hub) for job_rank in (0, 1))
    one = DeviceMesh.from_sizes()
    route = Route("a -> b", "a", "b", dispatch=Dispatch(balance="tokens"))
    channel = Channel(RouteContext(route, RouteSide(one, 0), RouteSide(one, 1), consumer))
    producer.send(1, 0, Frame([0, digest_of(channel._seed, seen or table), table, BATCH]))
    return channel.receive(1).value


def test_what_is_sent_comes_back_and_a_changed_row_is_an_error_that_names_its_sender() -> None:
    found = received([ROW])
    assert torch.equal(found["x"], BATCH["x"]) and found["t"] == BATCH["t"]
    for at in range(len(ROW)):
        changed = ROW[:at] + bytes([ROW[at] ^ 1]) + ROW[at + 1 :]
        with pytest.raises(PeerLost, match="job rank 0 sent another layout of the samples on `a -> b`"):
            received([changed], seen=[ROW])


@pytest.mark.parametrize("offsets", [[0, 2, 9], [0, 3, 2, 4], [1, 2, 4], [-1, 2, 4], [0, 2, 3]])
def test_offsets_that_do_not_fit_their_values_are_reported_to_their_producer(offsets: list[int]) -> None:
    column = Ragged(torch.arange(4), torch.tensor(offsets))
    with pytest.raises(BatchError, match="column 'tokens' is ragged, and its offsets do not fit its values"):
        describe(
            Batch({"x": Ragged.of([torch.arange(2)] * (len(offsets) - 1)), "tokens": column}), Dispatch()
        )


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.eye(4).to_sparse(), "a tensor of sparse_coo cannot be sent"),
        (torch.zeros(4, dtype=torch.float8_e5m2), "a tensor of float8_e5m2 cannot be sent"),
        (torch.zeros(4, *[1] * 64), "a tensor of 65 dims cannot be sent"),
    ],
)
def test_a_tensor_that_is_no_column_is_reported_to_its_producer(tensor: Tensor, why: str) -> None:
    with pytest.raises(BatchError, match=f"column 'x': {why}"):
        describe(Batch({"x": tensor}), Dispatch())
