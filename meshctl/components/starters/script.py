"""A plain torchrun script without meshctl: it learns with DDP to tell two spirals apart.

torchrun --nproc-per-node 2 THIS_FILE --device cpu
"""

from __future__ import annotations

import argparse
import gc
import math
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def spirals(count: int) -> tuple[Tensor, Tensor]:
    """Returns points `[count, 2]` and the spiral of each, 0 or 1."""
    numbers = torch.arange(count, dtype=torch.float64)
    along, side = numbers * 0.6180339887 % 1, numbers % 2
    angle = along * 3 * math.pi + side * math.pi
    return (torch.stack([angle.cos(), angle.sin()], 1) * (0.1 + along[:, None])).float(), side.long()


def main() -> None:
    arguments = argparse.ArgumentParser(description="Two spirals, with DDP.")
    arguments.add_argument("--device", default="cpu", help="cpu, cuda, npu or mps")
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--lr", type=float, default=0.01)
    options = arguments.parse_args()

    device = torch.device(
        f"{options.device}:{os.environ['LOCAL_RANK']}"
        if options.device in ("cuda", "npu")
        else options.device
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group({"cuda": "nccl", "npu": "hccl"}.get(device.type, "gloo"))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
    ).to(device)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr)
    points, sides = (part[rank::ranks].to(device) for part in spirals(256))
    for step in range(1, options.steps + 1):
        logits = model(points)
        loss = nn.functional.cross_entropy(logits, sides)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            accuracy = (logits.argmax(1) == sides).float().mean()
            print(f"step {step}: loss {loss.item():.3f}, accuracy {accuracy:.3f}", flush=True)
    # References to the process group go first: a thread of gloo that outlives the interpreter may abort the
    # process at its exit.
    del model, optimizer, logits, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
