"""The components of `doctor --run`, in one process: they accept right values, and find each wrong one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshctl.components.paths import Mesh, Receiver, Sender, Source, Weights
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.collectives.collective import Collective

WIDTH = 40


def made() -> Batch:
    return Sender(WIDTH).make(Source().ask(range(7, 14)))


def test_what_was_made_is_right() -> None:
    assert Receiver(WIDTH, 7).take(made()) == {"rows": 7.0}


@pytest.mark.parametrize("column", ["row", "tokens", "text", "number"])
def test_each_wrong_value_is_found(column: str) -> None:
    batch = made()
    rows = batch["row"].clone()
    rows[3, 17] += 1
    tokens = [batch["tokens"][place] + int(place == 3) for place in range(7)]
    text = ["9" if place == 3 else batch["text"][place] for place in range(7)]
    numbers = batch["number"] + torch.tensor([0, 0, 0, 1, 0, 0, 0])
    wrong = {"row": rows, "tokens": Ragged.of(tokens), "text": text, "number": numbers}[column]
    with pytest.raises(RuntimeError, match="wrong values arrived"):
        Receiver(WIDTH, 7).take(batch.with_columns(**{column: wrong}))


def test_a_lost_sample_is_found() -> None:
    with pytest.raises(RuntimeError, match="samples: wrong"):
        Receiver(WIDTH, 7).take(made()[:6])


def test_reduced_numbers() -> None:
    batch = Source().ask(range(5, 12))
    number = Sender(WIDTH).count(batch)
    assert Receiver(WIDTH, 7).compare(number, batch) == {"rows": 1.0}
    with pytest.raises(RuntimeError, match="a reduced number"):
        Receiver(WIDTH, 7).compare(number + 1, batch)


def test_a_collective_that_returns_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mesh(32).exchange() == {"rows": 5.0}

    def reversed_(self: Collective, tensor: Tensor) -> Tensor:
        return tensor.flip(0)

    monkeypatch.setattr(Collective, "all_gather_joined", reversed_)
    with pytest.raises(RuntimeError, match="all_gather: wrong"):
        Mesh(32).exchange()


def test_weights_of_another_step_are_found() -> None:
    sender, receiver = Weights(16, "fsdp", 0), Weights(16, "tp", 1)
    for component in (sender, receiver):
        component.setup()
    sent = [(name, tensor.detach().clone()) for name, tensor in sender.weights()]
    receiver.load_weights(iter(sent))
    assert receiver.check() == {"rows": 2.0}
    receiver.load_weights((name, tensor + 1) for name, tensor in sent)
    with pytest.raises(RuntimeError, match="weights `first`"):
        receiver.check()
