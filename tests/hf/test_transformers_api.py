"""Parts of transformers that no test of a model reaches."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.distributed.tensor import _redistribute
from transformers.core_model_loading import Chunk, WeightConverter

from meshctl.hf import ModelError, transformers_api
from meshctl.hf.building import check_tied
from meshctl.hf.options import Sizes
from meshctl.topology.memory import are_divisible
from tests.hf.parity import MODELS


def outline(name: str) -> transformers_api.Any:
    return transformers_api.outline(transformers_api.read_config(MODELS[name], "lm", {}), "lm")


def test_the_logger_that_would_warn_of_each_redistribution_is_silenced() -> None:
    assert _redistribute.logger.name == transformers_api.REDISTRIBUTION_LOG
    transformers_api.quiet()
    assert not _redistribute.logger.isEnabledFor(logging.WARNING)


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
