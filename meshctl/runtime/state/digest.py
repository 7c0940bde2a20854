"""Digests of tensors: 64 bits of their bytes, computed where they are, on the CPU or on a device.

The bytes are taken as rows of 32-bit words. The digest of a row is the sum of its words times odd random
weights, modulo 2**64, so that it depends on the order of the words; the digest of a tensor is that of its
rows, its dtype and its shape.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b, sha256, shake_128
from typing import Any

import torch
from torch import Tensor

ROW_WORDS = 1 << 15
"""Words of a row: its products stay in the caches of a CPU."""
DEVICE_ROWS = 1 << 8
"""Rows that a device multiplies at once: 64 MiB of products."""


def text_digest(text: str) -> str:
    """Returns 16 hexadecimal digits."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    """Returns 16 hexadecimal digits, which are equal for tensors with equal dtype, shape and bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    found = blake2b(f"{plain.dtype} {list(plain.shape)}".encode(), digest_size=8)
    data = plain.reshape(-1).view(torch.uint8)
    whole = data.numel() // 4 * 4
    words = data[:whole]
    if words.storage_offset() % 4:
        words = words.clone()
    for sums in _row_sums(words.view(torch.int32)):
        found.update(sums.cpu().numpy().tobytes())
    found.update(bytes(data[whole:].tolist()))
    return found.hexdigest()


def buffer_digest(tensor: Tensor) -> str:
    """As `tensor_digest`, with other digits for a tensor in CPU memory. It calls one function for all
    bytes, because a thread beside training may wait 5 ms for the interpreter's lock after each call."""
    if tensor.device.type != "cpu":
        return tensor_digest(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    found = sha256(f"{plain.dtype} {list(plain.shape)}".encode())
    data: Any = plain.reshape(-1).view(torch.uint8).numpy()
    found.update(data)
    return found.hexdigest()[:16]


def _row_sums(words: Tensor) -> list[Tensor]:
    """Returns the digests of the rows, several rows at a time."""
    weights = _weights(words.device)
    rows_at_once = 1 if words.device.type == "cpu" else DEVICE_ROWS
    whole = words.numel() // ROW_WORDS * ROW_WORDS
    rows = words[:whole].view(-1, ROW_WORDS)
    starts = range(0, len(rows), rows_at_once)
    sums = [(rows[start : start + rows_at_once] * weights).sum(dim=1) for start in starts]
    rest = words[whole:]
    return [*sums, (rest * weights[: rest.numel()]).sum()[None]]


@lru_cache
def _weights(device: torch.device) -> Tensor:
    """Returns int64 `[ROW_WORDS]`, odd numbers that are the same in every process."""
    data = bytearray(shake_128(b"meshctl").digest(8 * ROW_WORDS))
    return (torch.frombuffer(data, dtype=torch.int64) | 1).to(device)
