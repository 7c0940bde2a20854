"""The loss of routers: it equals that of transformers where that one sees the whole batch, and refusals. Its
parity on meshes is tested in `test_parity.py`."""

from __future__ import annotations

import pytest
import torch

from meshctl.hf import Model
from meshctl.hf.options import ModelError
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.mesh import DeviceMesh
from tests.hf import parity
from tests.hf.parity import Case

ROUTERS = Case("qwen3_moe", routers=True)


def updated(model: Model, batch: Batch) -> dict[str, float]:
    model.use_mesh(DeviceMesh.from_sizes())
    return model.update(batch)


def made(case: Case = ROUTERS, **more: object) -> Model:
    return Model(parity.ALL[case.model], config=case.config, experts=case.experts, **more)  # type: ignore[arg-type]


def test_the_loss_of_one_whole_batch_is_that_of_transformers() -> None:
    rows = torch.randint(0, 96, (4, 9), generator=torch.Generator().manual_seed(1))
    model, batch = made(), Batch({"input_ids": Ragged.of(list(rows))}, ids=torch.arange(4))
    model.use_mesh(DeviceMesh.from_sizes())
    with torch.no_grad():
        expected = model.module(input_ids=rows, labels=rows)
    found = updated(model, batch)
    assert found["router_loss"] == pytest.approx(float(expected.aux_loss), rel=1e-5)
    assert found["loss"] == pytest.approx(float(expected.loss), rel=1e-5)


def test_the_number_of_micro_batches_changes_nothing() -> None:
    batch = parity.batch_of(1, False)
    whole, parts = (updated(made(micro_batch=size), batch) for size in (None, 3))
    assert parts["router_loss"] == pytest.approx(whole["router_loss"], rel=1e-6)
    assert parts["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)


def test_it_is_left_out_where_the_config_does_not_ask_for_it() -> None:
    assert "router_loss" not in updated(made(Case("qwen3_moe")), parity.batch_of(1, False))


def test_a_reference_model_does_not_count() -> None:
    pairs = parity.batch_of(1, False)["input_ids"]
    batch = Batch({"chosen_input_ids": pairs, "rejected_input_ids": pairs}, ids=torch.arange(len(pairs)))
    lora = {"r": 2, "target": ["q_proj"]}
    found = [
        updated(made(loss="dpo", lora=lora, micro_batch=size), batch)["router_loss"] for size in (None, 4)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-6) and found[0] > 0.5


def test_what_has_no_such_loss_is_refused() -> None:
    with pytest.raises(ModelError, match="exclude each other"):
        updated(made(share_prompts=True), parity.batch_of(1, False))
    model = made(Case("llama", routers=True))
    with pytest.raises(ModelError, match="`llama` model has no `output_router_logits`"):
        updated(model, parity.batch_of(1, False))
