"""The components of `doctor --run`, in one process: they accept right values, and find each wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshctl.components import paths
from meshctl.components.paths import OPERATIONS, Mesh, Receiver, Sender, Source, Weights, rank_values
from meshctl.runtime.batch.batch import Batch, Ragged

WIDTH = 40


def made() -> Batch:
    return Sender(WIDTH).make(Source().ask(range(5, 12)))


def test_what_was_made_is_right() -> None:
    assert Receiver(WIDTH).take(made()) == {"rows": 7.0, "wrong": 0.0}


@pytest.mark.parametrize("column", ["row", "tokens", "text", "number"])
def test_each_wrong_value_is_found(column: str) -> None:
    batch = made()
    rows = batch["row"].clone()
    rows[3, 17] += 1
    tokens = [batch["tokens"][place] + int(place == 3) for place in range(7)]
    text = ["9" if place == 3 else batch["text"][place] for place in range(7)]
    numbers = batch["number"] + torch.tensor([0, 0, 0, 1, 0, 0, 0])
    wrong = {"row": rows, "tokens": Ragged.of(tokens), "text": text, "number": numbers}[column]
    assert Receiver(WIDTH).take(batch.with_columns(**{column: wrong})) == {"rows": 7.0, "wrong": 1.0}


def test_reduced_numbers() -> None:
    batch = Source().ask(range(5, 12))
    number = Sender(WIDTH).count(batch)
    assert Receiver(WIDTH).compare(number, batch)["wrong"] == 0.0
    assert Receiver(WIDTH).compare(number + 1, batch)["wrong"] == 1.0


def test_a_collective_that_returns_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Mesh(32).exchange() == {"rows": float(len(OPERATIONS)), "wrong": 0.0}
    broken = replace(OPERATIONS["all_gather"], call=lambda peers, own: own.flip(0))
    monkeypatch.setattr(paths, "OPERATIONS", {**OPERATIONS, "all_gather": broken})
    assert Mesh(32).exchange()["wrong"] == 1.0


def test_what_three_ranks_must_get() -> None:
    values = [rank_values(rank, 8) for rank in range(3)]
    assert OPERATIONS["all_reduce"].expected(values, 1).tolist() == [39 + 3 * place for place in range(8)]
    assert OPERATIONS["reduce_scatter"].expected(values, 2).tolist() == [57.0, 60.0]
    assert OPERATIONS["all_to_all"].expected(values, 2).tolist() == [6, 7, 19, 20, 32, 33]
    assert torch.equal(OPERATIONS["send_recv"].expected(values, 0), values[2])
    assert len(OPERATIONS["all_gather"].expected(values, 0)) == 24


def test_weights_of_another_step_are_found() -> None:
    sender, receiver = Weights(16, "fsdp", 0), Weights(16, "tp", 1)
    for component in (sender, receiver):
        component.setup()
    sent = [(name, tensor.detach().clone()) for name, tensor in sender.weights()]
    receiver.load_weights(iter(sent))
    assert receiver.check() == {"rows": 2.0, "wrong": 0.0}
    receiver.load_weights((name, tensor + 1) for name, tensor in sent)
    assert receiver.check()["wrong"] == 2.0
