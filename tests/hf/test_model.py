"""`hf.Model` in one process: its endpoints, weights, checkpoints, exports, and messages about wrong input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from meshctl.data import Text
from meshctl.hf import Model, ModelError, Sampler
from meshctl.hf.pipeline import by_tokens
from meshctl.hf.training import Sums
from meshctl.losses import LossSum
from meshctl.package import SHIPPED_TOKENIZERS
from meshctl.runtime.batch.batch import Batch, Ragged
from tests.hf import parity
from tests.hf.parity import LORA, MODELS, Case, batch_of, label_logprobs


def model(name: str = "qwen3", **arguments: Any) -> Model:
    return parity.made(name, **{"dtype": "float64", "lr": 1e-2, **arguments})


def pairs() -> Batch:
    chosen, rejected = batch_of(1, False), batch_of(2, False)
    columns = {"chosen_input_ids": chosen["input_ids"], "chosen_labels": chosen["labels"]}
    columns |= {"rejected_input_ids": rejected["input_ids"], "rejected_labels": rejected["labels"]}
    return Batch(columns, ids=torch.arange(len(chosen)))


@pytest.mark.parametrize("packed", [False, True])
def test_logprobs_are_those_of_each_text_alone(packed: bool) -> None:
    one, batch = model(micro_batch=3), batch_of(1, packed)
    found = one.logprobs(batch)
    torch.testing.assert_close(found["logprobs"].values, torch.cat(label_logprobs(one.module, batch)))
    assert found.ids.equal(batch.ids)


def test_packed_texts_without_labels_do_not_predict_each_other() -> None:
    one, packed = model(), batch_of(1, True).select("input_ids", "position_ids")
    texts = [ids for ids, _ in parity.texts_in(batch_of(1, True))]
    alone = Batch({"input_ids": Ragged.of(texts)}, ids=torch.arange(len(texts)))
    assert one.evaluate(packed) == pytest.approx(one.evaluate(alone))


def test_pairs_are_cut_by_the_tokens_of_both_sides() -> None:
    one = model(loss="simpo", micro_batch_tokens=30)
    whole = model(loss="simpo")
    parts = list(by_tokens(pairs(), 30, ("chosen_", "rejected_"), one.collective("world")))
    tokens = [sum(len(part[f"{side}_input_ids"].values) for side in ("chosen", "rejected")) for part in parts]
    assert len(parts) > 3 and max(tokens) <= 30 and sum(map(len, parts)) == len(pairs())
    assert one.update(pairs()) == pytest.approx(whole.update(pairs()))


def test_logprobs_of_pairs_are_sums_of_each_side() -> None:
    one = model()
    found = one.logprobs(pairs())
    expected = torch.stack([text.sum() for text in label_logprobs(one.module, batch_of(2, False))])
    torch.testing.assert_close(found["rejected_logprobs"], expected)


def test_an_empty_batch_gives_empty_columns_and_a_loss_of_nothing() -> None:
    one, empty = model(), batch_of(1, False).between(0, 0)
    assert len(one.logprobs(empty)) == 0
    loss = one.loss(empty)
    loss.total.backward()
    assert loss.total.item() == 0 and float(loss.count) == 0
    assert all(bool((parameter.grad == 0).all()) for parameter in one.module.parameters())


def test_the_reference_of_an_adapted_model_is_its_base_model() -> None:
    plain, adapted, batch = model(), model(lora=LORA), batch_of(1, False)
    before = adapted.ref_logprobs(batch)["ref_logprobs"].values
    for _ in range(2):
        adapted.update(batch)
    torch.testing.assert_close(adapted.ref_logprobs(batch)["ref_logprobs"].values, before)
    torch.testing.assert_close(plain.logprobs(batch)["logprobs"].values, before)
    assert not adapted.logprobs(batch)["logprobs"].values.allclose(before)


def test_dpo_with_an_adapter_needs_no_reference_and_equals_one_with_columns() -> None:
    adapted = model(lora=LORA, loss="dpo", micro_batch=3)
    first = adapted.update(pairs())
    assert first["loss"] == pytest.approx(torch.tensor(2.0).log().item()) and first["units"] == 8
    second = adapted.evaluate(pairs())
    assert second["loss"] < first["loss"] and second["margin"] > 0
    columns = model().ref_logprobs(pairs())
    with_columns = adapted.evaluate(pairs().joined(columns))
    assert with_columns == pytest.approx(second)
    with pytest.raises(ValueError, match="needs `ref_chosen_logprobs`"):
        model(loss="dpo").evaluate(pairs())


def test_values_are_scores_of_each_token_and_the_last_is_the_score() -> None:
    critic, batch = model(head="score"), batch_of(1, False)
    values, scores = critic.values(batch)["values"], critic.scores(batch)["scores"]
    assert values.offsets.equal(batch["input_ids"].offsets)
    torch.testing.assert_close(torch.stack([row[-1] for row in values.rows()]), scores)
    alone = critic.values(batch.between(3, 4))["values"].values
    torch.testing.assert_close(values[3], alone)


def test_evaluate_is_the_loss_of_the_next_update() -> None:
    one, batch = model(micro_batch=3), batch_of(1, False)
    assert one.evaluate(batch)["loss"] == pytest.approx(one.update(batch)["loss"], rel=1e-12)


def test_a_compiled_model_trains_equally() -> None:
    case = Case("llama", logits_chunk_tokens=8)
    parity.check_equal(parity.on_mesh(case, {}, compile={"backend": "eager"}), parity.by_hand(case.task))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"name": "linear"}, [1, 0.75, 0.5, 0.25]),
        ({"name": "linear", "warmup": 0.5}, [0, 0.5, 1, 0.5]),
        ({"name": "linear", "warmup": 4, "steps": 8}, [0, 0.25, 0.5, 0.75]),
        ({"warmup": 0.5}, [0, 0.5, 1, 1]),
        ({"warmup": 2}, [0, 0.5, 1, 1]),
        ({"name": "cosine_with_min_lr", "min_lr_rate": 0.5, "num_cycles": 1}, [1, 0.75, 0.5, 0.75]),
    ],
)
def test_a_schedule_has_the_length_of_the_run(schedule: dict[str, Any], rates: list[float]) -> None:
    one, found = model(schedule=schedule, lr=1.0, optimizer="SGD"), []
    one.place.last_step = 4
    for step in range(1, 5):
        one.place.step = step
        found.append(one.update(batch_of(1, False))["lr"])
        if step == 2:  # as in a run that is resumed here
            state = one.state_dict()
            one = model(schedule=schedule, lr=1.0, optimizer="SGD")
            one.place.last_step = 4
            one.load_state_dict(state)
    assert found == pytest.approx(rates)


@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        (
            {"freeze": ["model.embed_tokens", "model.layers.0"]},
            {"model.layers.1", "model.norm", "lm_head.weight"},
        ),
        ({"train": ["model.layers.[1-9]"]}, {"model.layers.1"}),
        ({"train": ["*norm*"], "freeze": ["model.norm.*"]}, {"model.layers"}),
    ],
)
def test_the_parts_that_are_trained(arguments: dict[str, Any], trained: set[str]) -> None:
    one = model(**arguments, lr=0.1)
    before = {name: tensor.clone() for name, tensor in one.module.state_dict().items()}
    one.update(batch_of(1, False))
    after = one.module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(any(name.startswith(part) for part in trained) for name in changed)
    assert {name for name in before if any(name.startswith(part) for part in trained)} >= changed
    assert one.state_dict()["weights"].keys() == changed
    assert one.trainer.named and len(one.trainer.named) == len(changed)


def test_a_schedule_without_length_is_refused_by_the_first_update() -> None:
    with pytest.raises(ModelError, match="`schedule` needs `steps`, because the number of steps of this run"):
        model(schedule={"name": "cosine"}).update(batch_of(1, False))


def test_norms_and_biases_have_no_weight_decay() -> None:
    one = Model({**MODELS["llama"], "attention_bias": True}, lr=1.0, optimizer_options={"weight_decay": 0.5})
    before = {name: tensor.clone() for name, tensor in one.module.state_dict().items()}
    for _, parameter in one.trainer.named:
        parameter.grad = torch.zeros_like(parameter)
    one.trainer.optimizer.step()
    after = one.module.state_dict()
    decayed = {name for name in before if not torch.equal(before[name], after[name])}
    assert decayed == {name for name in before if name.endswith("weight") and "norm" not in name}


def test_adding_a_micro_batch_reads_no_number() -> None:
    """A tensor on the device `meta` has no number, so reading it raises an error."""
    number = torch.zeros((), device="meta")
    Sums().add(LossSum(number.clone().requires_grad_(), number, {"accuracy": number}))


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "torch.optim.RMSprop"])
def test_any_optimizer_of_torch_trains(optimizer: str) -> None:
    one = model(optimizer=optimizer)
    losses = [one.update(batch_of(1, False))["loss"] for _ in range(3)]
    assert losses[2] < losses[0]


def broken(**arguments: Any) -> Model:
    one = model(**arguments)
    with torch.no_grad():
        one.module.get_parameter("model.embed_tokens.weight")[7] = torch.nan
    return one


def rows_of(*tokens: int) -> Batch:
    column = Ragged.of([torch.tensor([3, token, 4]) for token in tokens])
    return Batch({"input_ids": column}, ids=torch.arange(len(tokens)) + 40)


def test_a_loss_that_is_not_finite_names_its_samples_and_changes_nothing() -> None:
    one = broken(micro_batch=1)
    before = {name: tensor.clone() for name, tensor in one.weights()}
    message = r"^the loss is nan and .* the loss of samples 41 is not finite; the weights were not"
    with pytest.raises(ModelError, match=message):
        one.update(rows_of(5, 7, 6))
    for name, tensor in one.weights():
        torch.testing.assert_close(tensor, before[name], equal_nan=True)


class Overflow(torch.autograd.Function):
    """Has a finite value and no finite gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * torch.inf


def overflowing(logprobs: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return -(Overflow.apply(logprobs) * mask).sum(), mask.sum()  # type: ignore[no-untyped-call]


def test_a_gradient_that_is_not_finite_names_the_samples_of_the_step() -> None:
    one = model(loss=f"{__name__}.overflowing")
    message = (
        "each loss is finite, and the gradient of samples 40, 41, 42, 43, 44 and 2 more is not; the weights"
    )
    with pytest.raises(ModelError, match=message):
        one.update(rows_of(5, 7, 6, 8, 9, 10, 11))


@pytest.mark.parametrize("packed", [False, True])
def test_a_text_with_more_tokens_than_positions_is_named(packed: bool) -> None:
    batch, one = batch_of(1, packed), model(config={"max_position_embeddings": 9})
    with pytest.raises(ModelError, match=r"`input_ids`: samples \d+.* are longer than the 9 positions"):
        one.update(batch)
    with pytest.raises(ModelError, match=r"the first with 1\d tokens; shorten them, or raise"):
        one.logprobs(batch)
    fitting = model(config={"max_position_embeddings": 12})
    assert torch.isfinite(torch.tensor(fitting.update(batch)["loss"]))


def test_steps_that_are_not_finite_are_skipped_and_counted() -> None:
    one = broken(skip_nonfinite=True)
    skipped = one.update(rows_of(5, 7))
    assert skipped == {"lr": 1e-2, "units": 4, "skipped": 1}
    assert one.update(rows_of(5, 6))["skipped"] == 1
    assert all(bool(torch.isfinite(tensor).all()) for name, tensor in one.weights() if "embed" not in name)


def test_an_exported_reward_model_keeps_its_score(tmp_path: Path) -> None:
    reward = model(head="score", loss="bradley_terry")
    reward.update(pairs())
    reward.export(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64)
    ids = batch_of(1, False)["input_ids"][2]
    found = reward.scores(batch_of(1, False))["scores"][2]
    torch.testing.assert_close(plain(input_ids=ids[None]).logits[0, 0].detach(), found)


def test_an_exported_model_has_the_added_tokens(tmp_path: Path) -> None:
    config = {**MODELS["qwen3"], "vocab_size": 259}
    Model(config, tokenizer="byte").export(tmp_path / "base")
    trained = Model(str(tmp_path / "base"), tokens=["<call>", "</call>"], lr=1e-2)
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "<call>1+1</call>"}\n')
    batch = Text(str(texts), str(tmp_path / "base"), tokens=["<call>", "</call>"]).next(range(1))
    assert batch is not None and batch["input_ids"][0].tolist()[:2] == [259, ord("1")]
    losses = [trained.update(batch)["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]
    trained.export(tmp_path / "new")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert tokenizer("</call>")["input_ids"][:1] == [260] and len(tokenizer) == 261
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert plain.generation_config.eos_token_id == tokenizer.eos_token_id == plain.config.eos_token_id
    assert plain.get_input_embeddings().weight.shape[0] == plain.config.vocab_size == 261
    sampler = Sampler(str(tmp_path / "base"), tokens=["<call>", "</call>"], max_new_tokens=2)
    sampler.setup()
    sampler.load_weights(trained.weights())
    assert sampler.tokenizer.text("<call>") == [259]
    with pytest.raises(ModelError, match="`tokens` needs `tokenizer` with a model of config values"):
        Model(config, tokens=["<call>"])
    with pytest.raises(ModelError, match="`lora` and `tokens` exclude each other"):
        Model(str(tmp_path / "base"), tokens=["<call>"], lora=LORA)


def test_an_exported_classifier_keeps_its_labels_in_padded_batches(tmp_path: Path) -> None:
    config = {"id2label": {0: "bad", 1: "good", 2: "open"}, "eos_token_id": 95, "vocab_size": 259}
    classifier = model(head="classify", num_labels=3, loss="classification", config=config, lr=1e-2)
    texts = batch_of(1, False)
    names = [["bad", "good", "open"][row % 3] for row in range(len(texts))]
    batch = Batch({"input_ids": texts["input_ids"], "label": names}, ids=texts.ids)
    found = [classifier.update(batch) for _ in range(8)]
    assert found[-1]["accuracy"] == 1 > found[0]["accuracy"] and found[-1]["loss"] < found[0]["loss"] / 2
    for tokenizer, padding in (
        ("", 95),
        ("byte", AutoTokenizer.from_pretrained(SHIPPED_TOKENIZERS["byte"]).pad_token_id),
    ):
        classifier.export_tokenizer = tokenizer
        classifier.export(tmp_path / tokenizer)
        plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / tokenizer, dtype=torch.float64)
        assert plain.config.id2label == {0: "bad", 1: "good", 2: "open"}
        assert plain.config.pad_token_id == padding and plain.config.label2id["open"] == 2
        logits = plain(input_ids=texts["input_ids"].padded(padding)).logits
        assert [plain.config.id2label[one] for one in logits.argmax(1).tolist()] == names
    for label in ("new", 3):
        wrong = Batch({"input_ids": texts["input_ids"], "label": [label] * len(texts)}, ids=texts.ids)
        with pytest.raises(ModelError, match=r"`label` of samples .* is none of the 3 labels"):
            classifier.evaluate(wrong)
    with pytest.raises(ModelError, match="a loss of whole texts needs one text in each row"):
        classifier.evaluate(batch_of(1, True).with_columns(label=torch.zeros(8, dtype=torch.int64)))


def test_an_adapter_reaches_another_model_alone() -> None:
    trained, other = model(lora=LORA), model(lora=LORA)
    trained.update(batch_of(1, False))
    sent = dict(trained.adapter())
    assert sent and all(name.startswith("base_model.model.model.layers.") for name in sent)
    other.load_adapter(sent.items())
    with pytest.raises(ModelError, match="this model has no adapter to send"):
        [*model().adapter()]
    batch = batch_of(2, False)
    torch.testing.assert_close(
        other.logprobs(batch)["logprobs"].values, trained.logprobs(batch)["logprobs"].values
    )


def test_weights_with_an_unknown_name_or_shape_are_refused() -> None:
    with pytest.raises(ModelError, match="`nothing` is sent"):
        model().load_weights([("nothing", torch.zeros(1))])
    with pytest.raises(ModelError, match=r"`model.norm.weight` has the shape \[32\], and \[3\] is sent"):
        model().load_weights([("model.norm.weight", torch.zeros(3))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "/nowhere"}, "model `/nowhere` cannot be read"),
        ({"model": {"model_type": "qwen33"}}, "no model type `qwen33`; did you mean `qwen3`"),
        ({"model": {"hidden_size": 8}}, "the config of the model cannot be read: it has no `model_type`"),
        ({"model": {"model_type": "qwen3", "hidden_size": "x"}}, "the config of the model cannot be read"),
        ({"head": "tail"}, "`head` is lm or score or classify"),
        ({"num_labels": 3}, "`num_labels` needs `head: classify`"),
        (
            {"head": "classify", "num_labels": 3, "config": {"id2label": {0: "a", 1: "b"}}},
            "`num_labels` is 3, and `config.id2label` has 2 names",
        ),
        ({"model": {"model_type": "vit"}}, "transformers has no class of a `vit` model with the head `lm`"),
        (
            {"model": {"model_type": "mamba"}, "head": "score"},
            "no class of a `mamba` model with the head `score`",
        ),
        (
            {"model": {"model_type": "xlm-roberta"}},
            "`xlm-roberta` model is an encoder, in which each token sees",
        ),
        (
            {"attention": "flash_attention_2"},
            "`attention: flash_attention_2`: FlashAttention2 has been toggled on",
        ),
        ({"attention": "sage"}, "`attention: sage`: Specified `attn_implementation"),
        ({"dtype": "int64"}, "`int64` is not a floating-point dtype"),
        ({"compute_dtype": "float16"}, "`compute_dtype` is bfloat16"),
        ({"lora": {"rank": 4}}, "`lora` has no key `rank`"),
        (
            {"freeze": ["model.nothing"]},
            "no parameter is called `model.nothing`; there are model.embed_tokens",
        ),
        ({"freeze": ["*"]}, "the model has no parameter that is trained"),
        ({"lora": {"target": ["q_proj", "nothing"]}}, "`lora`: no module is called `nothing`; the linear"),
        ({"loss": "dop"}, "did you mean `dpo`"),
        ({"micro_batch": 1, "micro_batch_tokens": 8}, "exclude each other"),
        ({"optimizer": "Adamw"}, "optimizer `Adamw` is neither a class of torch.optim"),
        ({"optimizer_options": {"rho": 1}}, "optimizer `AdamW`: .*rho"),
        ({"optimizer": "LBFGS"}, "optimizer `LBFGS` is neither a class of torch.optim that needs gradients"),
        ({"optimizer": "lr_scheduler"}, "optimizer `lr_scheduler` is neither"),
        ({"schedule": {"name": "sawtooth", "steps": 2}}, "`schedule` sawtooth"),
        ({"schedule": {"name": "cosine", "warmups": 0.1}}, "`schedule` has no key `warmups`; did you mean"),
        ({"schedule": {"name": "cosine", "power": 2}}, "`schedule` cosine: .*power"),
        ({"schedule": {"warmup": 2, "power": 2}}, "constant_with_warmup has no option `power`"),
        ({"schedule": {"warmup": "few"}}, "`schedule.warmup` is 'few': it must be a number"),
        ({"schedule": {"name": "cosine", "steps": "all"}}, "`schedule.steps` is 'all': it must be a number"),
        ({"schedule": {"warmup": 2.5}}, "`schedule.warmup` is 2.5: it must be a whole number, or a share"),
        ({"schedule": {"name": "reduce_lr_on_plateau", "steps": 9}}, "does not follow from the number of"),
        ({"schedule": {"warmup": -1}}, "`schedule.warmup` is -1; it must be at least 0"),
        ({"config": {"num_hiden_layers": 1}}, "no `num_hiden_layers`; did you mean `num_hidden_layers`"),
        ({"config": {"num_hidden_layers": 1}}, "`config` leaves 1 of the . layers of the model"),
        ({"config": {"quantization_config": {"bits": 4}}}, "quantized models are not supported"),
        (
            {"model": {**MODELS["llama"], "tie_word_embeddings": True}, "lora": {"target": ["lm_head"]}},
            "`lora` cannot adapt `lm_head`, whose weight is that of the embedding",
        ),
    ],
)
def test_wrong_arguments_are_one_clear_message(arguments: dict[str, Any], message: str) -> None:
    given = {"model": MODELS["llama"], **arguments}
    with pytest.raises(ValueError, match=message) as error:
        made = Model(**given)
        made.setup()
    assert "\n" not in str(error.value)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ModelError, match="no column `input_ids`; it has tokens"):
        model().update(Batch({"tokens": Ragged.of([torch.arange(3)])}))
