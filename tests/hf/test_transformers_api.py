"""Pins what meshctl uses of transformers: a version that changes it fails here, with the reason."""

from __future__ import annotations

import inspect
import logging

import pytest
import torch
from torch.distributed.tensor import _redistribute
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen3Config
from transformers.core_model_loading import Chunk, WeightConverter
from transformers.distributed import DistributedConfig
from transformers.distributed.fsdp import apply_fully_sharded_data_parallelism
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from meshctl.hf import ModelError, building, transformers_api
from meshctl.hf.building import check_tied
from meshctl.hf.options import Sizes
from meshctl.topology.memory import are_divisible
from tests.hf.parity import MODELS


def outline(name: str) -> transformers_api.Any:
    return transformers_api.outline(transformers_api.read_config(MODELS[name], "lm", {}), "lm")


def test_plans_name_modules_and_parameters() -> None:
    model = outline("qwen3")
    tp, ep, fsdp = model._resolve_parallel_plans(DistributedConfig(tp_size=2, fsdp_size=2))
    assert tp["model.layers.0.self_attn.q_proj"] == "colwise" and not ep
    assert {"model.layers.0", "model.layers.1", "model.norm", "lm_head"} <= set(fsdp)


def test_the_arguments_of_the_functions_that_shard() -> None:
    assert list(inspect.signature(apply_tensor_parallelism).parameters) == ["model", "tp_mesh", "tp_plan"]
    names = ["model", "mesh_manager", "fsdp_plan", "ep_plan"]
    assert list(inspect.signature(apply_fully_sharded_data_parallelism).parameters) == names


def test_the_style_of_parameters_whose_gradients_are_summed_over_tp() -> None:
    assert transformers_api.SUMMED_OVER_TP in ALL_PARALLEL_STYLES
    plan, _, _ = outline("qwen3")._resolve_parallel_plans(DistributedConfig(tp_size=2))
    norms = {f"model.layers.{layer}.self_attn.{one}_norm.weight" for layer in range(2) for one in "qk"}
    found = {name for name, style in plan.items() if style == transformers_api.SUMMED_OVER_TP}
    assert found == norms | {name.removesuffix(".weight") for name in norms}
    assert not transformers_api.summed_over_tp(outline("qwen3"))


def test_the_logger_that_would_warn_of_each_redistribution_is_silenced() -> None:
    assert _redistribute.logger.name == transformers_api.REDISTRIBUTION_LOG
    transformers_api.quiet()
    assert not _redistribute.logger.isEnabledFor(logging.WARNING)


def test_tied_names_are_second_names() -> None:
    assert transformers_api.tied_names(outline("llama_tied")) == {"lm_head.weight"}
    assert not transformers_api.tied_names(outline("llama"))


def test_tied_parameters_without_equal_shards_are_refused() -> None:
    tied = outline("llama_tied")
    for sizes in (Sizes(fsdp=5), Sizes(fsdp=2, tp=64)):
        with pytest.raises(
            ModelError, match=r"its 96 rows have no equal shards on \d+ ranks \(fsdp \d(, tp \d+)?\)"
        ):
            check_tied(tied, sizes)
    for model, sizes in ((outline("llama"), Sizes(fsdp=5)), (tied, Sizes(dp=5)), (tied, Sizes(tp=5))):
        check_tied(model, sizes)
    check_tied(tied, Sizes(fsdp=3, tp=2))


def test_classes_are_found_by_config() -> None:
    assert transformers_api.class_of(LlamaConfig(), "lm").__name__ == "LlamaForCausalLM"
    assert transformers_api.class_of(Qwen3Config(), "score").__name__ == "Qwen3ForSequenceClassification"
    assert AutoConfig.for_model("llama", vocab_size=8).vocab_size == 8


def test_from_pretrained_calls_the_class_to_prepare_and_to_shard() -> None:
    kind = AutoModelForCausalLM._model_mapping[LlamaConfig]
    names = list(inspect.signature(kind.prepare_distribute_model).parameters)
    assert names == ["distributed_config", "device_map"]
    names = list(inspect.signature(kind.maybe_distribute_model).parameters)
    assert names == ["model", "distributed_config", "mesh_manager"]


def test_padding_at_the_end_and_packed_positions_need_no_mask() -> None:
    config = transformers_api.read_config(MODELS["llama"], "lm", {})
    model = building.new_model(config, "lm", torch.float64, None, 0)
    model.config.use_cache = False  # with a cache, the borders of packed texts are not looked for
    first, second = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
    packed, positions = torch.cat([first, second], 1), torch.tensor([[0, 1, 2, 0, 1]])
    found = model(input_ids=packed, position_ids=positions).logits
    torch.testing.assert_close(found[:, :3], model(input_ids=first).logits)
    torch.testing.assert_close(found[:, 3:], model(input_ids=second).logits)
    padded = model(input_ids=torch.cat([first, first * 0], 1)).logits
    torch.testing.assert_close(padded[:, :3], model(input_ids=first).logits)


def test_only_some_architectures_join_tensors_in_their_files() -> None:
    for name in ("qwen3", "qwen3_moe"):
        disk = transformers_api.DiskFormat(outline(name).config, "lm", torch.float32)
        names = list(outline(name).state_dict())
        assert disk.units(names) == [(one,) for one in names]
    fused = torch.empty(4, 32, 32, device="meta")
    found = disk.convert({"model.layers.0.mlp.experts.gate_up_proj": fused})
    assert len(found) == 8
    assert found["model.layers.0.mlp.experts.3.up_proj.weight"].shape == (16, 32)


def test_a_layer_is_a_unit_where_files_join_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = WeightConverter("qkv.weight", ["q.weight", "k.weight"], operations=[Chunk(dim=0)])
    monkeypatch.setattr(transformers_api, "get_model_conversion_mapping", lambda *_, **__: [joined])
    disk = transformers_api.DiskFormat(outline("llama").config, "lm", torch.float32)
    names = ["model.layers.1.q.weight", "norm.weight", "model.layers.1.k.weight", "model.layers.11.q.weight"]
    assert disk.units(names) == [(names[0], names[2]), (names[1],), (names[3],)]


@pytest.mark.parametrize(("rows", "is_divisible"), [(96, True), (97, False), (98, True), (105, False)])
def test_rows_that_fsdp_can_shard_after_tp(rows: int, is_divisible: bool) -> None:
    """torch has the sizes of all shards from one size: 97 rows are 49 and 48, and 13 and 12 for 4 ranks."""
    assert are_divisible(rows, 2, 4) == is_divisible
    assert are_divisible(rows, 2, 1)
