"""`logits_chunk_tokens`: the logits of a batch are never in memory. `test_parity.py` compares its results. And
`share_prompts`: texts that share the computation of their beginning have the outputs and gradients of whole texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from meshctl.hf import Model, ModelError
from meshctl.runtime.batch.batch import Batch, Ragged
from tests.hf import parity
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
    return parity.made("qwen3", **{"dtype": "float64", "loss": "cross_entropy", **arguments})


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
    one = parity.made(granite, logits_chunk_tokens=8)
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


CONFIG = {**MODELS["qwen3"], "initializer_range": 0.2}
PROMPTS, ANSWERS = ([5, 6, 7], [9]), ([1, 2, 3, 4], [8], [2, 2], [6, 1, 5])


def column(rows: list[list[int]]) -> Ragged:
    return Ragged.of([torch.tensor(row) for row in rows])


def answers(has_gap: bool = False) -> Batch:
    """Four answers to each of two prompts, and a text without labels."""
    pairs = [(prompt, answer) for prompt in PROMPTS for answer in ANSWERS]
    labels = [[-100] * len(prompt) + answer for prompt, answer in pairs]
    if has_gap:
        labels[0][len(PROMPTS[0]) + 1] = -100
    rows = [*(prompt + answer for prompt, answer in pairs), [3, 3]]
    columns = {"input_ids": column(rows), "labels": column([*labels, [-100, -100]])}
    count = len(rows)
    return Batch({**columns, "rewards": torch.arange(float(count))}, ids=torch.arange(count))


def sharing(share_prompts: bool, **more: Any) -> Model:
    options = {"dtype": "float64", "share_prompts": share_prompts, "temperature": 0.7, **more}
    return parity.made(CONFIG, **options)


def both(batch: Batch, names: list[str], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the inputs `names` of a loss, computed from whole texts and from shared prompts."""
    whole, shared = (sharing(is_shared, **more).loss_inputs(batch, names) for is_shared in (False, True))
    return whole, shared


@pytest.mark.parametrize("has_gap", [False, True])
def test_outputs_of_labels_are_equal(has_gap: bool) -> None:
    names = ["logprobs", "mask", "entropy", "sequence_logprobs", "sequence_tokens", "sample_index"]
    whole, shared = both(answers(has_gap), names)
    for name in names:
        is_label = whole["mask"] if len(whole[name]) == len(whole["mask"]) else 1
        assert torch.allclose(whole[name] * is_label, shared[name] * is_label, rtol=0, atol=1e-12), name


def test_likeliest_tokens_are_equal() -> None:
    batch = answers()
    first, second = (
        sharing(is_shared, top_logprobs=3).teacher_logprobs(batch) for is_shared in (False, True)
    )
    is_label = batch["labels"].values != -100
    for name in first.names:
        assert torch.allclose(first[name].values[is_label], second[name].values[is_label], atol=1e-12), name


def test_pairs_share_their_prompt() -> None:
    rows = {"chosen_input_ids": [[5, 6, 7, 1], [9, 2, 2]], "rejected_input_ids": [[5, 6, 7, 4, 4], [9, 3]]}
    rows |= {
        "chosen_labels": [[-100] * 3 + [1], [-100, 2, 2]],
        "rejected_labels": [[-100] * 3 + [4, 4], [-100, 3]],
    }
    batch = Batch({name: column(one) for name, one in rows.items()}, ids=torch.arange(2))
    whole, shared = both(batch, ["chosen_logprobs", "rejected_logprobs"], loss="orpo")
    for name, value in whole.items():
        assert torch.allclose(value, shared[name], atol=1e-12), name


def test_an_empty_batch() -> None:
    empty = answers().between(0, 0)
    assert sharing(True).logprobs(empty)["logprobs"].values.shape == (0,)
    assert sharing(True).update(empty)["units"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": "score"}, "needs `head: lm`"),
        ({"activation_checkpointing": True}, "and `activation_checkpointing` exclude"),
    ],
)
def test_what_cannot_share_prompts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"`share_prompts` {message}"):
        Model(CONFIG, share_prompts=True, **arguments)


def test_packed_texts_cannot_share_prompts() -> None:
    batch = answers().with_columns(
        position_ids=column([list(range(len(row))) for row in answers()["input_ids"].rows()])
    )
    with pytest.raises(ModelError, match="`share_prompts` needs one text in each row"):
        sharing(True).update(batch)
