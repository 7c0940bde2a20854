"""The bytes that each rank of a model sends to its peers in a micro-batch, by dim and collective operation.

    fsdp      an all-gather of the weights for each pass, and a reduce-scatter of their gradients
    dp        an all-reduce of the gradients of its shards, in the last micro-batch of an update
    tp        an all-reduce behind each row-wise layer, and of the gradient in front of each column-wise one
    cp        an all-gather of keys and values, and a reduce-scatter of their gradients
    ulysses   an all-to-all of queries, keys, values and results, in both directions
    pp        a send of hidden states to the next stage, and of their gradients to the previous one
    ep        an all-to-all of tokens to their experts, and of the results back

The operations are those of FSDP2 and of the plans of transformers, as `hf.Model` uses them. What a rank sends
is that of ring algorithms: (n - 1) / n of the result of an all-gather over n ranks, and twice that for an
all-reduce. The bytes of activations are those for one token of the texts. Those of experts assume that all
are chosen alike. Left out are losses, metrics, and the outputs of texts that several ranks divide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshctl.dataclass import dataclass
from meshctl.topology.memory import (
    DTYPE_BYTES,
    EMBEDDING,
    HEADS,
    Move,
    Parameter,
    Split,
    Training,
    numbers,
    trained_parameters,
)
from meshctl.topology.mesh import DeviceMesh

GATHER, SCATTER, REDUCE, EXCHANGE = "all-gather", "reduce-scatter", "all-reduce", "all-to-all"
SEND = "send"
REDUCED_BYTES = 4
"""The bytes of an element of a gradient that is reduced, where the weights are computed in bfloat16."""


@dataclass(frozen=True)
class Layout:
    """The properties of a component's layout and model that determine what its ranks send."""

    split: Split
    mesh: DeviceMesh
    compute_bytes: int = 0
    """The bytes of an element in forward and backward passes; 0 for those of the weights."""
    experts_per_token: int = 0


def moves(parameters: Sequence[Parameter], training: Training, layout: Layout) -> tuple[Move, ...]:
    """Returns what a rank sends in a micro-batch, without the operations that send nothing. With pp, it is a
    rank of the first stage, which has `parameters`."""
    found = [*_of_weights(parameters, training, layout), *_of_tokens(parameters, training, layout)]
    return tuple(replace(one, bytes=round(one.bytes)) for one in found if round(one.bytes))


def _of_weights(parameters: Sequence[Parameter], training: Training, layout: Layout) -> Iterable[Move]:
    split, width = layout.split, DTYPE_BYTES[training.dtype]
    compute = layout.compute_bytes or width
    reduced = REDUCED_BYTES if layout.compute_bytes else width
    trained = trained_parameters(parameters, training) if training.is_trained else []
    is_tied = layout.mesh.size("pp") == 1 and not any(one.module in HEADS for one in parameters)

    def passes(one: Parameter) -> int:
        """The number of times that FSDP gathers a parameter: those of the last modules stay gathered."""
        stays = "*" not in one.name and one.name != EMBEDDING
        return 1 if stays or not training.is_trained else 2

    for dim, ranks, of_experts in (("fsdp", split.fsdp, False), ("ep_fsdp", split.ep_fsdp, True)):
        whole = Split(tp=split.tp, ep=split.ep)
        own = [one for one in parameters if _is_divided(one, split) == of_experts]
        changed = sum(numbers(one, whole) for one in trained if _is_divided(one, split) == of_experts)
        if is_tied:  # FSDP reduces the gradients of both of its modules
            changed += sum(numbers(one, whole) for one in trained if one.name == EMBEDDING and not of_experts)
        gathered = sum(numbers(one, whole) * passes(one) for one in own)
        yield Move(dim, GATHER, gathered * compute * (ranks - 1) / ranks)
        yield Move(dim, SCATTER, changed * reduced * (ranks - 1) / ranks)
        if dim == "fsdp":
            yield Move("dp", REDUCE, 2 * changed / ranks * reduced * (split.dp - 1) / split.dp)


def _is_divided(one: Parameter, split: Split) -> bool:
    return one.is_fused and split.ep > 1


def _of_tokens(parameters: Sequence[Parameter], training: Training, layout: Layout) -> Iterable[Move]:
    """Yields what a rank sends for each token of the texts of its data rank."""
    split, ways = layout.split, 2 if training.is_trained else 1
    cp, ulysses, vpp = layout.mesh.size("cp"), layout.mesh.ulysses_size, layout.mesh.vpp_size
    hidden = next((one.shape[1] for one in parameters if one.name == EMBEDDING), 0)
    own = (layout.compute_bytes or DTYPE_BYTES[training.dtype]) / (cp * ulysses)
    if split.tp > 1:
        yield from _of_tp(parameters, training, layout, hidden * own)
    query = sum(one.shape[1] * one.layers for one in parameters if one.module == "o_proj" and one.is_linear)
    fused = sum(one.shape[0] * one.layers for one in parameters if one.module == "qkv_proj" and one.is_linear)
    key = sum(one.shape[0] * one.layers for one in parameters if one.module == "k_proj" and one.is_linear)
    key = key or max(0, fused - query) // 2
    kv = 2 * key / split.tp * own
    sent = vpp + (vpp - 1) * (ways - 1) if layout.mesh.size("pp") > 1 else 0
    yield Move("pp", SEND, sent * hidden * own, True)
    yield Move("cp", GATHER, kv * (cp - 1), True)
    yield Move("cp", SCATTER, kv * (cp - 1) * (ways - 1), True)
    exchanged = 2 * (query + key) / split.tp * own * ways
    yield Move("ulysses", EXCHANGE, exchanged * (ulysses - 1) / ulysses, True)
    of_experts = 2 * ways * layout.experts_per_token * hidden * own * _layers_of_experts(parameters)
    yield Move("ep", EXCHANGE, of_experts / split.tp * (split.ep - 1) / split.ep, True)


def _of_tp(
    parameters: Sequence[Parameter], training: Training, layout: Layout, hidden: float
) -> Iterable[Move]:
    """Yields what tp sends for a token. `hidden` is the size of its hidden state in bytes."""
    split, is_trained = layout.split, training.is_trained
    part = (split.tp - 1) / split.tp
    linear = [one for one in parameters if one.is_linear and "*" in one.name]
    rows = sum(one.layers for one in linear if one.tp_dim == 1)
    columns = sum(one.layers for one in linear if one.tp_dim == 0)
    experts = _layers_of_experts(parameters)
    is_reduced = layout.mesh.sequence_parallel and training.adapter is None
    reduces = 0 if is_reduced else rows + columns * is_trained
    reduces += (1 + is_trained) * experts * (split.ep == 1)
    gathers = scatters = 0
    if layout.mesh.sequence_parallel:
        ways = 1 + is_trained
        gathers = ways * (rows + experts + 1)  # at the end of the last layer, and of the first one backward
        scatters = ways * rows if is_reduced else 0
    logits = 0.0
    if vocabulary := next((one.shape[0] for one in parameters if one.module == HEADS[0]), 0):
        logits = vocabulary * hidden / next(one.shape[1] for one in parameters if one.name == EMBEDDING)
        reduces += 2 * is_trained  # in torch 2.13, the gradient of the head's input takes two operations
    yield Move("tp", REDUCE, 2 * reduces * hidden * part, True)
    yield Move("tp", GATHER, (gathers * hidden + logits) * part, True)
    yield Move("tp", SCATTER, scatters * hidden * part, True)


def _layers_of_experts(parameters: Sequence[Parameter]) -> int:
    return sum(one.layers for one in parameters if one.is_fused and one.name.endswith("down_proj"))
