"""`logits_chunk_tokens`: the logits of a batch are never in memory. `test_parity.py` compares its results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshctl.hf import Model, ModelError
from meshctl.runtime.batch.batch import Batch
from tests.hf.parity import MODELS, batch_of

VOCABULARY = 96
"""The vocabulary of all models in `parity`; no other size of theirs is equal to it."""


class LargestLogits(TorchDispatchMode):
    """Records the largest number of rows of all tensors whose last dim is the vocabulary."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, Tensor) and one.ndim > 1 and one.shape[-1] == VOCABULARY:
                self.rows = max(self.rows, one.numel() // VOCABULARY)
        return result


def model(**arguments: Any) -> Model:
    made = Model(MODELS["qwen3"], **{"dtype": "float64", "loss": "cross_entropy", **arguments})
    made.setup()
    return made


def largest_logits(one: Model, batch: Batch) -> int:
    with LargestLogits() as largest:
        one.update(batch)
    return largest.rows


def test_no_tensor_has_the_logits_of_more_tokens_than_a_chunk() -> None:
    batch = batch_of(1, True)
    positions = len(batch) * (int(batch["input_ids"].lengths.max()) - 1)
    assert largest_logits(model(), batch) >= positions > 50
    assert largest_logits(model(logits_chunk_tokens=8), batch) <= MODELS["qwen3"]["hidden_size"]


def test_a_loss_that_is_not_finite_is_reported_as_such() -> None:
    one = model(logits_chunk_tokens=8)
    with torch.no_grad():
        one.module.get_parameter("model.norm.weight").fill_(torch.nan)
    with pytest.raises(ModelError, match="is not finite; the weights were not changed"):
        one.update(batch_of(1, False))


def test_a_model_that_changes_its_logits_after_the_head_is_refused() -> None:
    granite = {**MODELS["llama"], "model_type": "granite", "logits_scaling": 8.0}
    one = Model(granite, logits_chunk_tokens=8)
    one.setup()
    with pytest.raises(ModelError, match="`GraniteForCausalLM` changes them after its head"):
        one.update(batch_of(1, False))


class Capped(Model):
    def forward(self, texts: Any) -> Tensor:
        return super().forward(texts).clamp(-30, 30)


@pytest.mark.parametrize("kind", [Model, Capped])
def test_a_model_without_the_logits_of_the_head_is_refused(kind: type[Model]) -> None:
    head = "score" if kind is Model else "lm"
    with pytest.raises(ModelError, match=r"needs `head: lm` and the `forward` of `hf.Model`"):
        kind(MODELS["qwen3"], head=head, logits_chunk_tokens=8)


def entropy_loss(entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return (entropy * mask).sum(), mask.sum()


def test_outputs_that_need_all_logits_are_refused() -> None:
    one = model(logits_chunk_tokens=8, loss=f"{__name__}.entropy_loss")
    with pytest.raises(ModelError, match="`entropy` needs the logits of all tokens"):
        one.update(batch_of(1, False))
    with pytest.raises(ModelError, match="this one has `head: lm`"):
        one.scores(batch_of(1, False))
