"""Texts that share the computation of their beginning have the outputs and gradients of whole texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.hf import Model
from meshctl.hf.options import ModelError
from meshctl.runtime.batch.batch import Batch, Ragged
from tests.hf.parity import MODELS

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


def model(share_prompts: bool, **more: Any) -> Model:
    made = Model(CONFIG, dtype="float64", share_prompts=share_prompts, **{"temperature": 0.7, **more})
    made.setup()
    return made


def both(batch: Batch, names: list[str], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the inputs `names` of a loss, computed from whole texts and from shared prompts."""
    whole, shared = (model(is_shared, **more).loss_inputs(batch, names) for is_shared in (False, True))
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
    first, second = (model(is_shared, top_logprobs=3).teacher_logprobs(batch) for is_shared in (False, True))
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


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_updates_are_equal(micro_batch: int | None) -> None:
    weights = []
    for is_shared in (False, True):
        made = model(is_shared, optimizer="SGD", lr=1e-2, micro_batch=micro_batch)
        metrics = [made.update(answers()) for _ in range(3)]
        weights.append((metrics, dict(made.weights())))
    assert weights[0][0] == [pytest.approx(one, rel=1e-6) for one in weights[1][0]]
    for name, tensor in weights[0][1].items():
        assert torch.allclose(tensor, weights[1][1][name], atol=1e-7), name


def test_an_empty_batch() -> None:
    empty = answers().between(0, 0)
    assert model(True).logprobs(empty)["logprobs"].values.shape == (0,)
    assert model(True).update(empty)["units"] == 0


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
        model(True).update(batch)
