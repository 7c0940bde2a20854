"""A rank of `benchmarks/dims.py`: a layout of `hf.Model`, and perhaps the same layout by hand in torch.

The sides alternate step by step. torchrun starts this file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import AutoConfig, AutoModelForCausalLM

from meshctl.hf import Model
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.mesh import DeviceMesh

ROWS, LENGTH = 4, 128
LR, CLIP = 1e-3, 1.0
WARMUP = 2
"""The rounds that are not counted."""

Step = Callable[[Tensor], float]
"""One update with the texts of this rank, `[rows, tokens]`. It returns the loss."""


def main() -> None:
    wanted = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sizes, config = wanted["sizes"], wanted["model"]
    folder = str(Path(wanted["file"]).parent / "model")
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    dist.barrier()
    model = Model(folder, lr=LR, clip=CLIP, experts=wanted["experts"])
    model.use_mesh(
        DeviceMesh.from_sizes(
            **{key if key in SWITCHES else f"{key}_size": size for key, size in sizes.items()}
        )
    )
    model.setup()
    sides: dict[str, Step] = {
        "hf.Model": lambda ids: model.update(Batch({"input_ids": Ragged.of([*ids])}))["loss"]
    }
    if wanted["by_hand"]:
        sides["by hand"] = by_hand(folder, sizes)
    gradients: list[int] = []
    model.trainer.optimizer.register_step_pre_hook(lambda *_: gradients.append(_bytes(_gradients(model))))
    rounds = alternated(sides, model.mesh.data_size, wanted["rounds"])
    state = [value for one in model.trainer.optimizer.state.values() for value in one.values()]
    found = {
        "rounds": rounds,
        "weights": _bytes(model.module.parameters()),
        "gradients": max(gradients),
        "optimizer": _bytes(one for one in state if one.ndim),
    }
    if dist.get_rank() == 0:
        Path(wanted["file"]).write_text(json.dumps(found))
    dist.destroy_process_group()


SWITCHES = ("sequence_parallel",)


def alternated(sides: dict[str, Step], data_size: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Returns the rounds of each side: the CPU time of both ranks, the time, and the loss."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds + WARMUP):
        generator = torch.Generator().manual_seed(10 * number + (dist.get_rank() if data_size > 1 else 0))
        ids = torch.randint(1, 1000, (ROWS, LENGTH), generator=generator)
        for name, step in sides.items():
            dist.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            loss = step(ids)
            spent = torch.tensor([time.process_time() - cpu])
            took = time.perf_counter() - began
            dist.all_reduce(spent)
            if number >= WARMUP:
                tokens = ROWS * LENGTH * data_size
                found[name].append({"cpu": float(spent), "time": took, "loss": loss, "tokens": tokens})
    return found


def by_hand(folder: str, sizes: dict[str, int]) -> Step:
    """The same model, sharded as torchtitan shards its models."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.use_cache = False
    (name, _), *_ = sizes.items()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=(name,))
    if name == "tp":
        _shard_by_tp(model, mesh, "sequence_parallel" in sizes)
    else:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    groups = [
        [one for one in parameters if isinstance(one, DTensor) == is_sharded] for is_sharded in (True, False)
    ]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups if group], lr=LR)

    def step(ids: Tensor) -> float:
        logits = model(input_ids=ids).logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        norms = [torch.nn.utils.get_total_norm([one.grad for one in group]) for group in groups if group]
        whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        norm = torch.stack(whole).norm()
        for group in groups:
            if group:
                torch.nn.utils.clip_grads_with_norm_(group, CLIP, norm)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()

    return step


def _shard_by_tp(model: Any, mesh: TorchDeviceMesh, is_sequence: bool) -> None:
    into, out = (Shard(1), Shard(1)) if is_sequence else (Replicate(), Replicate())
    hidden = {
        "input_kwarg_layouts": {"hidden_states": into},
        "desired_input_kwarg_layouts": {"hidden_states": Replicate()},
    }
    plan: dict[str, Any] = {
        **{f"self_attn.{one}_proj": ColwiseParallel() for one in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=out),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=out),
    }
    if is_sequence:
        plan |= {
            "self_attn": PrepareModuleInput(**hidden),
            "mlp": PrepareModuleInput(input_layouts=(into,), desired_input_layouts=(Replicate(),)),
            "input_layernorm": SequenceParallel(use_local_output=True),
            "post_attention_layernorm": SequenceParallel(use_local_output=True),
        }
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    if is_sequence:
        first = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
        )
        parallelize_module(model.model.layers[0], mesh, first)
        parallelize_module(model.model, mesh, {"norm": SequenceParallel(use_local_output=True)})
    head = ColwiseParallel(input_layouts=into, output_layouts=Replicate())
    parallelize_module(model, mesh, {"lm_head": head})


def _gradients(model: Model) -> list[Tensor]:
    return [one.grad for one in model.module.parameters() if one.grad is not None]


def _bytes(tensors: Any) -> int:
    return sum((one.to_local() if isinstance(one, DTensor) else one).nbytes for one in tensors)


if __name__ == "__main__":
    main()
