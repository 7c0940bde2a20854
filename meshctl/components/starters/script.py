"""A script that knows nothing of meshctl: written for torchrun, it learns with DDP to tell two spirals apart.

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
    """Points, and which of the two spirals each is on."""
    numbers = torch.arange(count, dtype=torch.float64)
    along, side = numbers * 0.6180339887 % 1, numbers % 2
    angle = along * 3 * math.pi + side * math.pi
    return (torch.stack([angle.cos(), angle.sin()], 1) * (0.1 + along[:, None])).float(), side.long()


def main() -> None:
    arguments = argparse.ArgumentParser(description="Two spirals, with DDP.")
    arguments.add_argument("--device", default="cpu", help="cpu, cuda, npu or mps")
    arguments.add_argument("--steps", type=int, default=200)
    arguments.add_argument("--lr", type=float, default=0.01)
    told = arguments.parse_args()

    device = torch.device(
        f"{told.device}:{os.environ['LOCAL_RANK']}" if told.device in ("cuda", "npu") else told.device
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
    optimizer = torch.optim.AdamW(model.parameters(), told.lr)
    points, sides = (part[rank::ranks].to(device) for part in spirals(256))
    for step in range(1, told.steps + 1):
        said = model(points)
        loss = nn.functional.cross_entropy(said, sides)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(
                f"step {step}: loss {loss.item():.3f}, accuracy {(said.argmax(1) == sides).float().mean():.3f}",
                flush=True,
            )
    # What holds the process group goes first: a thread of gloo's that outlives the interpreter may abort the process at its exit.
    del model, optimizer, said, loss
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
