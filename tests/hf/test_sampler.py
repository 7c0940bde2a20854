"""A sampler: columns, groups, ends of answers, log-probabilities of the actor, independence of batches, and the
streams of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from meshctl import Batch
from meshctl.hf import Model, ModelError, Sampler
from meshctl.hf.decoding import draw, logprobs_of, uniforms
from meshctl.runtime.batch.batch import Ragged
from meshctl.sampling.answers import seeds_of
from meshctl.sampling.continuous import Sampling
from tests.hf.parity import MODELS, label_logprobs

SIZES = {"vocab_size": 259, "max_position_embeddings": 64, "initializer_range": 0.3}
CONFIG: dict[str, Any] = {**MODELS["qwen3"], **SIZES}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "tied": {"tie_word_embeddings": True},
    "sliding": {"model_type": "mistral", "sliding_window": 8},
    "moe": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
"""Name -> values of a config that are added to `CONFIG`."""


def sampler(config: dict[str, Any] = CONFIG, **options: Any) -> Sampler:
    defaults = {"tokenizer": "byte", "max_new_tokens": 12, "dtype": "float64"}
    made = Sampler(config, **{**defaults, **options})
    made.setup()
    return made


def prompts(lengths: Sequence[int] = (5, 9, 2, 5), first_id: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(97, 123, (length,), generator=draw) for length in lengths]
    columns = {"prompt_ids": Ragged.of(rows), "n": torch.arange(len(lengths))}
    return Batch(columns, ids=torch.arange(first_id, first_id + len(lengths)))


def rows_of(batch: Batch, name: str = "input_ids") -> list[list[int]]:
    column = batch[name]
    assert isinstance(column, Ragged)
    return [row.tolist() for row in column.rows()]


def answers(batch: Batch) -> list[list[int]]:
    return [[label for label in row if label != -100] for row in rows_of(batch, "labels")]


def logprobs(actor: Model, batch: Batch, temperature: float = 1.0) -> Tensor:
    return torch.cat(label_logprobs(actor.module.eval(), batch, temperature))


def test_an_adapter_is_sent_alone() -> None:
    lora = {"r": 4, "alpha": 8}
    actor, made = Model(CONFIG, dtype="float64", lora=lora), sampler(lora=lora)
    for name, tensor in actor.module.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(tensor, std=0.3)
    before = made.sample(prompts())
    made.load_weights(Model(CONFIG, dtype="float64").weights())
    made.load_adapter(actor.adapter())
    batch = made.sample(prompts())
    assert rows_of(before) != rows_of(batch)
    found = torch.cat(
        [
            row[label != -100]
            for row, label in zip(batch["sampled_logprobs"].rows(), batch["labels"].rows(), strict=True)
        ]
    )
    expected = logprobs(actor, batch)
    torch.testing.assert_close(found, expected[expected != 0], rtol=0, atol=1e-10)
    with pytest.raises(ModelError, match="is sent to the model, which has no such parameter"):
        sampler().load_adapter(actor.adapter())


# Columns


def test_the_answers_are_children_of_their_prompts() -> None:
    given = prompts()
    found = sampler(group_size=3, stop=list(range(200, 220))).sample(given)
    assert len(found) == 12 and found.group_depth == 1
    assert found.ids.tolist() == [[prompt, child] for prompt in range(4) for child in range(3)]
    assert found["n"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found.tokens is found["input_ids"], "these lengths are the ones that `balance` uses"
    for number, (ids, labels, prompt) in enumerate(
        zip(rows_of(found), rows_of(found, "labels"), rows_of(found, "prompt_ids"), strict=True)
    ):
        assert prompt == given["prompt_ids"][number // 3].tolist()
        assert ids[: len(prompt)] == prompt and labels[: len(prompt)] == [-100] * len(prompt)
        assert ids[len(prompt) :] == labels[len(prompt) :] and 1 <= len(ids) - len(prompt) <= 12
    expected = [
        bytes(token for token in row if token < 256).decode(errors="replace") for row in answers(found)
    ]
    assert found["response"] == expected
    reasons = ["stop" if row[-1] == 258 or row[-1] in range(200, 220) else "length" for row in answers(found)]
    assert found["finish_reason"] == reasons and set(reasons) == {"stop", "length"}
    assert len({tuple(row) for row in answers(found)}) == 12


def test_a_rank_without_prompts_returns_columns_of_the_same_types() -> None:
    made = sampler(dtype="float32")
    found, empty = made.sample(prompts()), made.sample(prompts(())[:0])
    assert len(empty) == 0 and empty.names == found.names
    for name in ("input_ids", "labels", "sampled_logprobs"):
        assert empty[name].values.dtype == found[name].values.dtype
    assert found["sampled_logprobs"].values.dtype == torch.float32


def test_the_mean_length_and_the_share_of_cut_answers_are_metrics() -> None:
    made, logged = sampler(), []
    made.place.log = lambda values, weight: logged.append((values, weight))  # type: ignore[assignment]
    found = made.sample(prompts())
    lengths = [len(row) for row in answers(found)]
    cut = found["finish_reason"].count("length") / 4
    assert logged == [({"length": sum(lengths) / 4, "cut": cut}, 4)]


# Is the sampler the actor?


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("qwen3", "float64", 1e-9),
        ("tied", "float32", 1e-5),
        pytest.param("sliding", "float64", 1e-9, marks=pytest.mark.nightly),
        pytest.param("moe", "float64", 1e-9, marks=pytest.mark.nightly),
        pytest.param("gpt2", "float64", 1e-9, marks=pytest.mark.nightly),
    ],
)
def test_log_probabilities_are_those_of_the_actor(name: str, dtype: str, tolerance: float) -> None:
    config = {**CONFIG, **ARCHITECTURES[name]}
    options = {"dtype": dtype, "experts": "eager" if name == "moe" else None}
    actor = Model(config, **options)
    for temperature in (0.7, 0.0):
        made = sampler(config, temperature=temperature, group_size=2, **options)
        found = made.sample(prompts())
        expected = logprobs(actor, found, temperature or 1.0)
        difference = (found["sampled_logprobs"].values - expected).abs().max()
        assert difference <= tolerance
        if temperature:
            column = Model(config, temperature=temperature, **options).logprobs(found)["logprobs"]
            assert (found["sampled_logprobs"].values - column.values).abs().max() <= tolerance


@pytest.mark.parametrize(
    ("name", "lora"),
    [("qwen3", {"r": 4}), ("tied", None), pytest.param("moe", None, marks=pytest.mark.nightly)],
)
def test_after_a_sync_the_sampler_has_the_new_weights(name: str, lora: dict[str, Any] | None) -> None:
    config = {**CONFIG, **ARCHITECTURES[name]}
    options = {"dtype": "float64", "experts": "eager" if name == "moe" else None}
    made = sampler(config, temperature=0.7, **options)
    actor = Model(config, lora=lora, lr=1e-1, **options)
    before = made.sample(prompts())
    actor.update(before)
    made.load_weights(actor.weights())
    found = made.sample(prompts())
    assert answers(found) != answers(before)
    expected = logprobs(actor, found, 0.7)
    assert (found["sampled_logprobs"].values - expected).abs().max() <= 1e-9
    assert (logprobs(actor, before, 0.7) - before["sampled_logprobs"].values).abs().max() > 1e-3


def test_a_truncated_distribution_has_larger_log_probabilities() -> None:
    made = sampler(top_k=4)
    found = made.sample(prompts())
    sampled, model = found["sampled_logprobs"].values, logprobs(Model(CONFIG, dtype="float64"), found)
    is_answer = found["labels"].values != -100
    assert (sampled[is_answer] > model[is_answer]).all()
    assert not sampled[~is_answer].any()


def test_a_model_of_files_has_its_own_end_tokens_and_tokenizer(tmp_path: Path) -> None:
    module = Model(CONFIG, dtype="float64").module
    module.generation_config.eos_token_id = [98, 99]  # type: ignore[union-attr]
    module.save_pretrained(tmp_path)  # type: ignore[operator]
    assert AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id == [98, 99]
    found = Sampler(str(tmp_path), tokenizer="byte", dtype="float64", max_new_tokens=24).sample(prompts())
    plain = sampler(max_new_tokens=24).sample(prompts())
    for short, long in zip(answers(found), answers(plain), strict=True):
        assert short == long[: len(short)]
        assert short[-1] in (98, 99, 258) or len(short) == 24
    assert answers(found) != answers(plain)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"tie_word_embeddings": True}, "the sync does not send `lm_head.weight`: the sampler and"),
        ({"num_hidden_layers": 3}, "`model.layers.2.*` is sent to the model, which has no such"),
        ({"hidden_size": 16}, "has the shape"),
    ],
)
def test_weights_of_another_model_are_refused(sent: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        sampler().load_weights(Model({**CONFIG, **sent}, dtype="float64").weights())


# Independence


@pytest.mark.parametrize("options", [{"batch_size": 5}, {"max_batch_tokens": 60}])
def test_answers_do_not_depend_on_the_batches_in_which_they_are_generated(options: dict[str, int]) -> None:
    given = prompts((5, 9, 2, 5, 14, 1, 7))
    whole = sampler(group_size=3).sample(given)
    found = sampler(group_size=3, **options).sample(given)
    assert rows_of(found) == rows_of(whole)
    assert (found["sampled_logprobs"].values - whole["sampled_logprobs"].values).abs().max() < 1e-12


def test_answers_do_not_depend_on_the_ranks_that_have_the_prompts() -> None:
    given, made = prompts((5, 9, 2, 5, 14)), sampler(group_size=2)
    whole = made.sample(given)
    parts = [made.sample(given.take(rows)) for rows in ([3, 0], [1, 4, 2])]
    found = {
        tuple(id): row for part in parts for id, row in zip(part.ids.tolist(), rows_of(part), strict=True)
    }
    assert [found[tuple(id)] for id in whole.ids.tolist()] == rows_of(whole)


def test_answers_depend_on_the_id_of_the_sample_and_the_seed() -> None:
    first, same, other = (sampler().sample(prompts(first_id=id)) for id in (0, 0, 100))
    assert answers(first) == answers(same) != answers(other)
    seeded = sampler()
    seeded.seed = 7
    assert answers(seeded.sample(prompts())) != answers(first)


def test_greedy_answers_are_those_of_generate() -> None:
    given, made = prompts((5, 9, 2)), sampler(temperature=0, max_new_tokens=20)
    found = made.sample(given)
    for prompt, answer in zip(given["prompt_ids"].rows(), answers(found), strict=True):
        expected = made.module.generate(  # type: ignore[operator]
            prompt[None],
            attention_mask=torch.ones_like(prompt[None]),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=258,
            pad_token_id=0,
        )
        assert answer == expected[0, len(prompt) :].tolist()


# Ends of answers


@pytest.mark.parametrize("stop", [["zz", 101], ["e"]])
def test_an_answer_ends_with_the_stop_token_or_text(stop: list[int | str]) -> None:
    given = prompts((5, 9, 2, 5, 14, 1))
    whole = sampler(max_new_tokens=32, group_size=3).sample(given)
    found = sampler(max_new_tokens=32, group_size=3, stop=stop).sample(given)
    for short, long, reason in zip(answers(found), answers(whole), found["finish_reason"], strict=True):
        ends = [place for place, token in enumerate(long) if token in (101, 258)]
        length = ends[0] + 1 if ends else len(long)
        assert short == long[:length]
        assert reason == ("stop" if ends else "length")
    assert any(row[-1] == 101 for row in answers(found))


def test_a_stop_text_of_several_tokens_is_found_and_kept() -> None:
    given = prompts()
    whole = sampler(max_new_tokens=24).sample(given)
    row = next(number for number, text in enumerate(whole["response"]) if len(text) > 8)
    plain = bytes(answers(whole)[row])
    place = next(n for n in range(len(plain) - 2) if max(plain[n : n + 3]) < 128)
    text = plain[place : place + 3].decode()
    found = sampler(max_new_tokens=24, stop=[text]).sample(given)
    assert bytes(answers(found)[row]) == plain[: plain.index(text.encode()) + 3]
    assert found["response"][row].endswith(text) and found["finish_reason"][row] == "stop"


# Bad input


def test_prompts_that_do_not_fit_are_named() -> None:
    message = r"samples 8, 10 \(up to 60 tokens\) and answers of 12 tokens exceed"
    with pytest.raises(ModelError, match=message):
        sampler().sample(prompts((5, 60, 2, 53), 7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` is 0; it must be at least 1"),
        ({"tokenizer": ""}, "`tokenizer` is needed with a model of config values"),
        ({"stop": [""]}, "`stop` is an empty text"),
        ({"dtype": "int8"}, "`int8` is not a floating-point dtype"),
        ({"temperature": float("nan")}, "`temperature` is nan; it must be at least 0"),
        ({"top_p": 1.5}, "`top_p` is .*; it must be above 0 and at most 1"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        sampler(**options)


def some_logits(rows: int = 5, vocabulary: int = 40) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    "sampling", [Sampling(9, 0.5, top_k=7), Sampling(9, 1.3, top_p=0.6), Sampling(9, 1.0, 0.5, 9)]
)
def test_the_truncated_distribution_is_that_of_transformers(sampling: Sampling) -> None:
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    expected = some_logits()
    chain: list[Any] = [TemperatureLogitsWarper(sampling.temperature), TopPLogitsWarper(sampling.top_p)]
    if sampling.top_k:
        chain.insert(1, TopKLogitsWarper(sampling.top_k))
    for warp in chain:
        expected = warp(None, expected)
    torch.testing.assert_close(
        logprobs_of(sampling, some_logits()), expected.log_softmax(-1), rtol=0, atol=1e-12
    )


def test_temperature_0_takes_the_most_likely_token_and_logs_the_model_s_distribution() -> None:
    greedy = Sampling(9, temperature=0, top_k=3)
    found = logprobs_of(greedy, some_logits())
    torch.testing.assert_close(found, some_logits().log_softmax(-1), rtol=0, atol=1e-12)
    assert draw(greedy, found, torch.rand(5)).tolist() == some_logits().argmax(-1).tolist()


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    """A token without a probability is never drawn, not even at the ends."""
    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    count = 1000
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for uniforms_of, expected in ((grid, [0, 500, 0, 200, 300, 0]), ([0, 1 - 2.0**-48], [0, 1, 0, 0, 1, 0])):
        numbers = torch.as_tensor(uniforms_of, dtype=torch.float64)
        drawn = draw(Sampling(9), probabilities.log().expand(len(numbers), -1), numbers)
        assert torch.bincount(drawn, minlength=6).tolist() == expected


GOLDEN = [
    [37458596637137, 57650757105427, 33648245768422],
    [251622562667365, 256873276627958, 61778680394354],
]
"""The first 48 bits of numbers of splitmix64."""


def test_the_numbers_are_the_same_in_every_version() -> None:
    found = uniforms(torch.tensor([12345, -1]), 3) * 2**48
    assert found.tolist() == GOLDEN


def test_the_numbers_are_uniform_and_differ_between_samples_and_words() -> None:
    ids = torch.arange(2000)[:, None]
    found = uniforms(torch.tensor(seeds_of((0, "sampler", 1), ids)), 50)
    assert found.min() >= 0 and found.max() < 1
    histogram = torch.histc(found, 10, 0, 1)
    assert (histogram - 10_000).abs().max() < 500
    assert len(found.flatten().unique()) == found.numel()
    again = uniforms(torch.tensor(seeds_of((0, "sampler", 1), ids[::7])), 50)
    assert torch.equal(again, found[::7]), "a stream does not depend on the other samples"
    other = uniforms(torch.tensor(seeds_of((0, "sampler", 2), ids)), 50)
    assert not (other == found).any()
    assert seeds_of((0,), torch.tensor([[1, 2]])) != seeds_of((0,), torch.tensor([[12]]))
