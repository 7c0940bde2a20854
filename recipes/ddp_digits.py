"""A script that knows nothing of meshctl: written for torchrun, it classifies the handwritten digits that
scikit-learn ships, with DDP.

torchrun --nproc-per-node 2 ddp_digits.py --epochs 30
"""

import argparse
import gc

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,797 images of 8 x 8: four fifths to learn from, one fifth to be asked about."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
    return TensorDataset(inputs[rest], targets[rest]), TensorDataset(inputs[held_out], targets[held_out])


def main() -> None:
    arguments = argparse.ArgumentParser(description="Handwritten digits, with DDP.")
    arguments.add_argument("--epochs", type=int, default=30)
    arguments.add_argument("--batch-size", type=int, default=64, help="images per rank")
    arguments.add_argument("--lr", type=float, default=3e-3)
    told = arguments.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, exam = digits()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=told.lr)
    sampler: DistributedSampler = DistributedSampler(train)
    loader = DataLoader(train, told.batch_size, sampler=sampler)
    for epoch in range(1, told.epochs + 1):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0 and (epoch % 10 == 0 or epoch == told.epochs):
            with torch.no_grad():
                inputs, targets = exam.tensors
                accuracy = (model.module(inputs).argmax(1) == targets).float().mean()
            print(
                f"epoch {epoch}: loss {loss.item():.3f}, accuracy on held-out digits {accuracy:.3f}",
                flush=True,
            )
    # What holds the process group goes first: a thread of gloo's that outlives the interpreter may abort the
    # process at its exit.
    del model, loss, optimizer
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
