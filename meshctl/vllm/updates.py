"""The stream of a sync, as the engine reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from meshctl.vllm.errors import SamplerError

Weights = Iterable[tuple[str, Tensor]]
CHUNK_BYTES = 16 << 20
"""Minimum size in bytes of the tensors that the engine loads in one call."""
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
"""The ends of the names of an embedding in a file of weights."""
HEAD = "lm_head.weight"


def chunks(stream: Weights) -> Iterator[list[tuple[str, Tensor]]]:
    """Yields the tensors of `stream` in parts of about `CHUNK_BYTES`."""
    part: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in stream:
        part.append((name, tensor))
        size += tensor.nbytes
        if size >= CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def with_tied_head(stream: Weights) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of `stream`, and after the embedding the same tensor as the output layer.

    The engine packs the output layer on its own and would keep the old one, although a file of a model with
    tied weights has only the embedding. Raises `SamplerError` if the stream has neither.
    """
    has_head = False
    for name, tensor in stream:
        if name == HEAD and has_head:
            continue
        has_head = has_head or name == HEAD
        yield name, tensor
        if name.endswith(EMBEDDINGS) and not has_head:
            has_head = True
            yield HEAD, tensor
    if not has_head:
        raise SamplerError(
            "the output layer of the model has the weights of its embedding, and the sync sends no tensor "
            f"with a name that ends with {' or '.join(EMBEDDINGS)}"
        )
