"""Copies of states, from which a checkpoint is written while the run goes on."""

from __future__ import annotations

from typing import Any

import torch

from meshctl.runtime.checkpoint_writer import Staging
from meshctl.runtime.state.tree import StateTree, decode
from tests.runtime.state.trees import same


def copied(staging: Staging, state: dict[str, Any]) -> StateTree:
    return staging.copy("actor", StateTree.of("actor", state))


def test_a_copy_does_not_change_with_the_state() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    state = {"w": weight, "row": weight[1], "turned": weight.t(), "n": [1], "half": torch.ones(2).bfloat16()}
    before = {key: value.detach().clone() if torch.is_tensor(value) else [1] for key, value in state.items()}
    tree = copied(Staging(), state)
    with torch.no_grad():
        weight.add_(1.0)
    state["n"].append(2)
    found = decode(tree.document, tree.tensors)
    assert same(found, before) and not any(tensor.requires_grad for tensor in tree.tensors.values())


def test_memory_is_used_again_until_a_tensor_has_another_form() -> None:
    staging = Staging()
    first = copied(staging, {"a": torch.zeros(3), "b": torch.zeros(2)})
    second = copied(staging, {"a": torch.ones(3), "b": torch.ones(4)})
    assert second.tensors["a"].data_ptr() == first.tensors["a"].data_ptr()
    assert second.tensors["b"].shape == (4,) and first.tensors["b"].tolist() == [0.0, 0.0]
    copied(staging, {"b": torch.zeros(4)})
    assert copied(staging, {"a": torch.zeros(3)}).tensors["a"] is not second.tensors["a"]
