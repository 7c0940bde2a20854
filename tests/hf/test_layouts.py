"""What a mesh must not change: weights read from files, checkpoints that resume in another layout, exports,
log-probabilities, weights for a sync, and mixed precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from meshctl.hf import Model, building, transformers_api, weights
from meshctl.hf.options import ModelError
from meshctl.hf.sharding import whole_of
from meshctl.hf.texts import texts_of
from meshctl.runtime import checkpoint
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.mesh import DeviceMesh
from tests.hf import parity
from tests.hf.parity import LORA, Case, mesh, whole_tensors
from tests.runtime import worlds

SHARED = Path()
"""The folder of a world, set before its processes are forked."""
DP, FSDP, TP = {"dp": 2}, {"fsdp": 2}, {"tp": 2}
CP, ULYSSES, PP = {"cp": 2}, {"fsdp": 2, "ulysses": 2}, {"pp": 2}
SEQUENCE = {"tp": 2, "sequence_parallel": True}
RESUMED = {
    Case("llama_tied"): ((PP, FSDP),),
    Case("qwen3", lora=True): ((CP, TP),),
}
"""Case -> pairs of the layout of a run, and the one in which it continues. `test_resume.py` has all pairs."""
READ = {
    "llama_tied": ((FSDP, None), (TP, LORA), (PP, LORA)),
    "qwen3_moe": ((DP, None), (FSDP, LORA), (TP, None), (PP, None)),
}
"""Model -> the layouts and adapters with which its files are read."""


def on(sizes: dict[str, int], case: Case, **arguments: Any) -> Model:
    return parity.component(case, sizes, **arguments)


def train(model: Model, case: Case, steps: range) -> list[float]:
    return [model.update(parity.share_of(model, step, case.packed))["loss"] for step in steps]


def mesh_of(model: Model) -> DeviceMesh:
    return model.mesh.at(dist.get_rank())


def of_all_stages(model: Model, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for stage in model.collective("pp").all_gather_object(own):
        found |= stage
    return found


def checkpoints_resume_in_other_layouts(rank: int) -> None:
    for case, pairs in RESUMED.items():
        expected = parity.by_hand(case)
        for first, second in pairs:
            model = on(first, case)
            train(model, case, range(1, 2))
            folder = SHARED / f"{case.name} {next(iter(first))}"
            checkpoint.save(folder, "actor", model.state_dict(), mesh_of(model))
            other = on(second, case)
            state = checkpoint.load(folder, "actor", other.state_dict(), mesh_of(other))
            other.load_state_dict(state)
            losses = train(other, case, range(2, parity.STEPS + 1))
            assert losses == parity.approx(expected.losses[1:], 1e-8), (first, second, losses)
            merged = dict(whole_tensors(weights.merged_weights(other.module)))
            for name, tensor in of_all_stages(other, merged).items():
                torch.testing.assert_close(tensor, expected.weights[name], rtol=0, atol=1e-8)


def models_are_read_from_files_as_shards(rank: int) -> None:
    for name in READ:
        config = transformers_api.read_config(parity.MODELS[name], "lm", {})
        plain = building.new_model(config, building.Build("", dtype=torch.float64, seed=3))
        folder = SHARED / name
        if rank == 0:
            plain.save_pretrained(folder)
        dist.barrier()
        expected = load_file(folder / "model.safetensors")
        for sizes, lora in READ[name]:
            model = Model(str(folder), dtype="float64", lora=lora, experts="eager")
            model.use_mesh(mesh(sizes))
            model.setup()
            found = of_all_stages(model, dict(whole_tensors(model.weights())))
            assert found.keys() == expected.keys(), (sizes, found.keys() ^ expected.keys())
            for key, tensor in found.items():
                assert torch.equal(tensor, expected[key]), (name, sizes, lora, key)


def added_tokens_have_the_mean_of_the_others_in_every_layout(rank: int) -> None:
    """This check reads the files that `models_are_read_from_files_as_shards` has written. The tokenizer has
    more tokens than these models, so both of their tables grow to 260 rows."""
    for name in READ:
        stored, found = load_file(SHARED / name / "model.safetensors"), []
        embedding = stored["model.embed_tokens.weight"]
        for sizes in (DP, FSDP, TP, PP, CP):
            model = Model(
                str(SHARED / name), dtype="float64", tokenizer="byte", tokens=["<a>"], experts="eager"
            )
            model.use_mesh(mesh(sizes))
            whole = of_all_stages(model, dict(whole_tensors(model.weights())))
            for key in {"model.embed_tokens.weight", "lm_head.weight"} & whole.keys():
                old = stored[key]
                assert whole[key].shape == (260, old.shape[1]) and torch.equal(whole[key][: len(old)], old), (
                    sizes
                )
                torch.testing.assert_close(whole[key][len(old) :], old.mean(0).expand(260 - len(old), -1))
            found.append(model.update(parity.share_of(model, 1, False))["loss"])
        assert found[1:] == parity.approx([found[0]] * 4, 1e-10) and len(embedding) < 259


def a_new_head_is_the_same_in_every_layout_and_on_every_rank(rank: int) -> None:
    """Of `models_are_read_from_files_as_shards`, whose files have no head `score`."""
    found = []
    for sizes in (FSDP, TP):
        torch.manual_seed(rank)
        model = Model(str(SHARED / "qwen3_moe"), head="score", dtype="float64")
        model.use_mesh(mesh(sizes))
        weight = whole_of(model.module.score.weight)  # type: ignore[union-attr, arg-type]
        found += [torch.empty_like(weight) for _ in range(2)]
        dist.all_gather(found[-2:], weight)
    assert float(found[0].std()) > 0
    assert all(torch.equal(one, found[0]) for one in found)


def bfloat16_computes_and_float32_is_stored(rank: int) -> None:
    case = Case("llama")
    exact = parity.by_hand(case, parity.SINGLE)
    for sizes in (FSDP, TP):
        model = on(sizes, case, gate=parity.SINGLE, compute_dtype="bfloat16")
        losses = train(model, case, range(1, parity.STEPS + 1))
        assert losses == parity.approx(exact.losses, 5e-2) and losses != exact.losses
        for name, tensor in model.module.named_parameters():
            assert tensor.dtype == torch.float32, name
        logits = model.forward(texts_of(parity.share_of(model, 1, False), "", model.device))
        assert logits.dtype == torch.bfloat16, logits.dtype


def a_step_that_is_not_finite_is_skipped_on_all_ranks(rank: int) -> None:
    for sizes in (FSDP, TP):
        model = on(sizes, Case("llama"), skip_nonfinite=True)
        before = {name: tensor.clone() for name, tensor in whole_tensors(model.weights())}
        function = model.loss_function.function
        if rank == 1 or "tp" in sizes:
            object.__setattr__(model.loss_function, "function", _not_finite)
        metrics = model.update(parity.share_of(model, 1, False))
        assert metrics["skipped"] == 1, metrics
        for name, tensor in whole_tensors(model.weights()):
            assert torch.equal(tensor, before[name]), name
        object.__setattr__(model.loss_function, "function", function)
        assert model.update(parity.share_of(model, 2, False))["skipped"] == 1


def _not_finite(logprobs: torch.Tensor, mask: torch.Tensor) -> Any:
    return (logprobs * torch.inf * mask).sum(), mask.sum()


def uneven_shares_are_summed_by_tokens(rank: int) -> None:
    case = Case("llama", micro_batch=2)
    model, alone = on(FSDP, case), parity.by_hand(case.task)
    batch = parity.batch_of(1, False)
    own = batch.between(0, 7) if rank == 0 else batch.between(7, 8)
    own.most = 7
    assert model.evaluate(own)["loss"] == parity.approx(alone.losses[0], 1e-10)
    metrics = model.update(own)
    assert metrics["loss"] == parity.approx(alone.losses[0], 1e-10)
    assert metrics["grad_norm"] == parity.approx(alone.norms[0], 1e-10)


def outputs_for_divided_texts_are_those_for_whole_texts(rank: int) -> None:
    """Against dp 2, of which each rank gets all samples here."""
    texts = parity.batch_of(1, False)
    pairs = Batch({f"{side}_input_ids": texts["input_ids"] for side in ("chosen", "rejected")}, ids=texts.ids)
    calls = {
        "lm": (("teacher_logprobs", texts), ("logprobs", pairs), ("logprobs", parity.batch_of(1, True))),
        "score": (("values", texts), ("scores", pairs)),
    }
    for head, of_head in calls.items():
        found = []
        for sizes in (DP, CP, ULYSSES, PP, SEQUENCE, TP):
            options = {"dtype": "float64", "head": head, "top_logprobs": 3, "micro_batch": 3}
            model = parity.made("llama", sizes, **options)
            columns = [getattr(model, endpoint)(batch) for endpoint, batch in of_head]
            found.append([_values(one[name]) for one in columns for name in one.names])
        whole, *divided = found
        for one in divided:
            torch.testing.assert_close(one, whole, rtol=0, atol=1e-12, msg=head)


def _values(column: Any) -> torch.Tensor:
    values: torch.Tensor = column.values if isinstance(column, Ragged) else column
    return values


def each_tp_rank_has_a_part_of_the_tokens_between_the_regions_of_a_layer(rank: int) -> None:
    model = on({"tp": 2, "sequence_parallel": True}, Case("llama"))
    texts = model._texts(parity.share_of(model, 1, False), "")
    found = {}

    def note(name: str) -> Any:
        def hook(module: Any, given: Any, output: torch.Tensor) -> None:
            found[name] = output.shape[1]

        return hook

    layer = model.module.get_submodule("model.layers.0")
    for name in ("input_layernorm", "self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp"):
        layer.get_submodule(name).register_forward_hook(note(name))
    logits = model.forward(texts)
    whole = texts.input_ids.shape[1]
    assert logits.shape[1] == whole and whole % 2 == 0
    assert found.pop("self_attn.q_proj") == found.pop("mlp.up_proj") == whole
    assert {*found.values()} == {whole // 2}, found


def models_that_cannot_be_divided_are_refused(rank: int) -> None:
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    mamba = {"model_type": "mamba", "vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 1}
    for config, sizes, message in (
        ({"model_type": "gemma4_text", **parity.COMMON, **experts}, SEQUENCE, "has no sequence parallelism"),
        (mamba, CP, "cannot be divided over cp or ulysses"),
    ):
        model = Model(config)
        model.use_mesh(mesh(sizes))
        with pytest.raises(ModelError, match=message):
            model.logprobs(parity.batch_of(1, False))


def preferences_with_an_adapter(rank: int) -> None:
    """The reference is the model without its adapter. With pp, its outputs are computed before the update."""
    texts, others = parity.batch_of(1, False), parity.batch_of(2, False)
    columns = {"chosen_input_ids": texts["input_ids"], "rejected_input_ids": others["input_ids"]}
    found = []
    for sizes in (DP, PP):
        options = {"dtype": "float64", "loss": "dpo", "lora": LORA, "lr": 1e-3, "micro_batch": 3}
        model = parity.made("llama", sizes, **options)
        own = parity.share(model, Batch(columns, ids=texts.ids))
        updates = [model.update(own) for _ in range(2)]
        found.append([metrics[name] for metrics in updates for name in ("loss", "grad_norm")])
    assert found[1] == parity.approx(found[0], 1e-10) and found[0][0] != found[0][2]


def labels_are_learned_alike_in_every_layout(rank: int) -> None:
    texts, found = parity.batch_of(1, False), []
    labelled = Batch({"input_ids": texts["input_ids"], "label": torch.arange(len(texts)) % 3}, ids=texts.ids)
    for sizes in (DP, FSDP, TP, CP, ULYSSES, PP, SEQUENCE):
        options = {"dtype": "float64", "head": "classify", "num_labels": 3, "loss": "classification"}
        model = parity.made("llama", sizes, **options, lr=1e-2, micro_batch=3)
        updates = [model.update(parity.share(model, labelled)) for _ in range(3)]
        found.append([one[name] for one in updates for name in ("loss", "grad_norm", "accuracy")])
    for one in found[1:]:
        assert one == parity.approx(found[0], 1e-10)
    assert found[0][-1] > found[0][2]


CHECKS: tuple[worlds.Check, ...] = (
    labels_are_learned_alike_in_every_layout,
    preferences_with_an_adapter,
    outputs_for_divided_texts_are_those_for_whole_texts,
    each_tp_rank_has_a_part_of_the_tokens_between_the_regions_of_a_layer,
    models_that_cannot_be_divided_are_refused,
    checkpoints_resume_in_other_layouts,
    models_are_read_from_files_as_shards,
    added_tokens_have_the_mean_of_the_others_in_every_layout,
    a_new_head_is_the_same_in_every_layout_and_on_every_rank,
    bfloat16_computes_and_float32_is_stored,
    a_step_that_is_not_finite_is_skipped_on_all_ranks,
    uneven_shares_are_summed_by_tokens,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_two_processes(name: str, results: dict[str, str]) -> None:
    assert results[name] == worlds.PASSED
