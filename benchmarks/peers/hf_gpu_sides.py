"""A rank of `benchmarks/hf_gpu_step.py`: `hf.Model`, and the same loop by hand. torchrun starts it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available

from meshctl.hf import Model
from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.topology.mesh import DeviceMesh

LARGE = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
    "use_cache": False,
}
"""The shape of Qwen3-0.6B."""
TINY = {**LARGE, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
LR, CLIP = 1e-4, 1.0
ADAMW = {"weight_decay": 0.0, "fused": True}
WARMUP = 3
"""The rounds that are not counted."""

Step = Callable[[Tensor], float]


def main() -> None:
    wanted = json.loads(sys.argv[1])
    is_tiny, folder = wanted["tiny"], Path(wanted["folder"])
    rows, length, shape = (2, 32, TINY) if is_tiny else (2, 4096, LARGE)
    device = torch.device("cpu" if is_tiny else f"cuda:{os.environ['LOCAL_RANK']}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if is_tiny else "cpu:gloo,cuda:nccl")
    attention = "flash_attention_2" if is_flash_attn_2_available() and not is_tiny else "sdpa"
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **shape)).save_pretrained(folder)
    dist.barrier()
    sides = {
        "hf.Model": ours(folder, attention, rows),
        "by hand": by_hand(folder, attention, device),
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(wanted["rounds"] + WARMUP):
        generator = torch.Generator().manual_seed(number * dist.get_world_size() + dist.get_rank())
        ids = torch.randint(1, shape["vocab_size"], (rows, length), generator=generator)
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            rounds[name].append(measured(sides[name], ids, device))
    if dist.get_rank() == 0:
        tokens = rows * length * dist.get_world_size()
        found = {
            "rounds": {name: one[WARMUP:] for name, one in rounds.items()},
            "tokens": tokens,
            "flops": tokens * flops_of_a_token(shape, length),
            "attention": attention,
            "device": "CPU" if is_tiny else torch.cuda.get_device_name(device),
        }
        (folder / "rounds.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def flops_of_a_token(shape: dict[str, Any], length: int) -> float:
    """Returns the FLOPs of a forward and a backward pass: 6 for each weight that is multiplied, and those of
    causal attention, which sees half of the text."""
    width, heads = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    layer = width * (2 * heads + 2 * kv) + 3 * width * shape["intermediate_size"]
    weights = shape["num_hidden_layers"] * layer + width * shape["vocab_size"]
    return 6.0 * weights + 6.0 * shape["num_hidden_layers"] * heads * length


def measured(step: Step, ids: Tensor, device: torch.device) -> dict[str, float]:
    dist.barrier()
    begin = time.perf_counter()
    loss = step(ids)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"time": time.perf_counter() - begin, "loss": loss}


def ours(folder: Path, attention: str, rows: int) -> Step:
    """`hf.Model.update`, with the batch in a ragged column in CPU memory, as a pipeline gives it."""
    model = Model(
        str(folder),
        lr=LR,
        optimizer_options=ADAMW,
        clip=CLIP,
        compute_dtype="bfloat16",
        attention=attention,
        micro_batch=rows,
    )
    model.use_mesh(DeviceMesh.from_sizes(fsdp_size=dist.get_world_size()))
    model.setup()
    return lambda ids: model.update(Batch({"input_ids": Ragged.of(list(ids))}))["loss"]


def by_hand(folder: Path, attention: str, device: torch.device) -> Step:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, **ADAMW)  # type: ignore[arg-type]

    def step(ids: Tensor) -> float:
        model.train()
        ids = ids.to(device)
        logits = model(input_ids=ids).logits.float()
        labels = nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    return step


if __name__ == "__main__":
    main()
