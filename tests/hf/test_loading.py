"""A rank that builds a sharded model allocates its shards, and one whole tensor or layer more at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshctl.hf import Model, building, peft_api, transformers_api
from meshctl.hf.sharding import local_of
from meshctl.topology.mesh import DeviceMesh
from tests.hf.memory import AllocatedPeak
from tests.runtime import worlds

SHARED = Path()
"""The folder of a world, set before its processes are forked."""
CONFIG = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
"""190 MB of weights in fp32."""
TENSOR, LAYER = 4 * 1024 * 4096, 4 * 1024 * (3 * 4096 + 3 * 1024)
"""Bytes of the largest tensor, and of a layer."""
SLACK = 6 << 20
"""Bytes for everything that is no weight, such as the objects of a model."""
TWO = ({"fsdp": 2, "lora": {"r": 4}}, {"tp": 2})


def built(model: Any, fsdp: int = 1, tp: int = 1, **arguments: Any) -> Model:
    made = Model(model, **arguments)
    made.use_mesh(DeviceMesh.from_sizes(fsdp_size=fsdp, tp_size=tp))
    return made


def check_peak(made: Model, most: int) -> None:
    """Builds the module, and checks the memory that this allocates beside the shards."""
    with AllocatedPeak() as peak:
        made.setup()
    trained = {name for name, one in made.module.named_parameters() if one.requires_grad}
    assert all((made.lora is None) != peft_api.is_adapter(name) for name in trained)
    shards = sum(local_of(one).nbytes for one in made.module.state_dict().values())
    assert 80e6 < shards < 110e6, shards
    assert peak.bytes <= shards + most + SLACK, (peak.bytes, shards, made.sizes)


def files_are_read_as_shards(rank: int) -> None:
    folder = SHARED / "llama"
    if rank == 0:
        config = transformers_api.read_config(CONFIG, "lm", {})
        plain = building.new_model(config, building.Build("", dtype=torch.float32))
        plain.save_pretrained(folder, max_shard_size="60MB")
        del plain
    dist.barrier()
    built(str(folder), fsdp=2).setup()  # imports
    for sizes in TWO:
        check_peak(built(str(folder), **sizes), TENSOR)


def random_weights_are_drawn_as_shards(rank: int) -> None:
    for sizes in TWO:
        check_peak(built(CONFIG, **sizes), LAYER + TENSOR)


CHECKS: tuple[worlds.Check, ...] = (files_are_read_as_shards, random_weights_are_drawn_as_shards)


@pytest.mark.slow
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_in_two_processes(name: str, results: dict[str, str]) -> None:
    assert results[name] == worlds.PASSED
