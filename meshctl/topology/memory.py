"""The bytes of a model on one rank: its weights, gradients, optimizer state and sync buckets.

    numbers(Parameter("lm_head.weight", (151936, 4096), tp_dim=0), Split(fsdp=4, tp=2))    18992 * 4096

The bytes are those of the rank with the most. This is the first rank of a pipeline stage, because no other
rank of the stage has a larger shard of any parameter.

    dp      each rank has everything
    fsdp    each rank has a shard of dim 0 of every parameter, rounded up; cp shards it further
    tp      each rank has a shard of one dim, where the plan of the model's architecture names one
    ep      each rank has some of the experts; tp does not shard them then, and the rest of the ranks does
    pp      each rank has the layers of its stages, the first one the embedding, and the last one the head

They include what stays allocated between two steps, and not what a step allocates and frees: activations,
logits, the parameters of the layers that FSDP has gathered, unreduced gradients, copies in `compute_dtype`,
the counter of steps that optimizers have for each parameter, caches of kernels, and what torch, NCCL and the
driver need (on CUDA typically 1 GB).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from itertools import chain
from math import prod
from typing import Any

from meshctl.dataclass import SPARSE, dataclass
from meshctl.topology.device_ranges import DeviceRanges

MAX_BUCKET_BYTES = 128 << 20
"""Maximum size of a bucket of a sync: a larger shard is split, and its consumer puts it together."""
BUCKETS_IN_FLIGHT = 2
"""Buckets that a rank holds at a time in a sync without lag: one that is being read, and the next one."""
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
STATES = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop"), 2),
    **dict.fromkeys(("Adagrad", "RMSprop", "ASGD", "Muon"), 1),
    "SGD": 0,
}
"""Optimizer of `torch.optim` -> tensors of its state for each parameter, with default options. They have the
shape and the dtype of the parameter."""
STATE_OPTIONS = {
    "Adam": ("amsgrad",),
    "AdamW": ("amsgrad",),
    "RMSprop": ("momentum", "centered"),
    "SGD": ("momentum",),
}
"""Optimizer -> the options that add one tensor each, if they are neither 0 nor false."""


class UnknownBytes(Exception):
    """The bytes of a component are not known. The message is the reason."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a model, or the parameters with one name and shape in several layers."""

    name: str
    """The name in the model, with `*` for the number of the layer."""
    shape: tuple[int, ...]
    layers: int = 1
    """The number of layers that have such a parameter."""
    tp_dim: int | None = None
    """The dim that tp splits; None if each tp rank has the whole."""
    is_linear: bool = False
    """True if it is the weight of a linear layer, which an adapter can adapt."""

    @property
    def is_fused(self) -> bool:
        """True if it is a fused weight of experts, which an adapter adapts only if its target names it."""
        return len(self.shape) == 3 and not self.name.endswith(".weight")

    @property
    def module(self) -> str:
        """The last part of the name of its module."""
        return self.name.rpartition(".")[0].rpartition(".")[2]


@dataclass(frozen=True)
class Split:
    """The numbers of ranks in the dims of a mesh."""

    dp: int = 1
    fsdp: int = 1
    """The ranks over which FSDP shards: those of fsdp x cp."""
    tp: int = 1
    ep: int = 1
    ep_fsdp: int = 1
    """The ranks over which FSDP shards experts, if `ep` is above 1."""


@dataclass(frozen=True)
class Adapter:
    """The arguments of LoRA that determine its parameters."""

    r: int
    targets: tuple[str, ...] = ()
    """The names, or last parts of names, of the adapted layers and fused weights; empty for all linear layers
    but the head."""


@dataclass(frozen=True)
class Selection:
    """The arguments that select the trained parameters: patterns of names, or of the names of modules.

    With `train`, only its parameters are trained. Those of `freeze` are not.
    """

    freeze: tuple[str, ...] = ()
    train: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Returns whether a parameter is trained."""
        return (not self.train or _matches(name, self.train)) and not _matches(name, self.freeze)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Returns the patterns that match none of the names."""
        known = list(names)
        return [
            one for one in (*self.freeze, *self.train) if not any(_matches(name, [one]) for name in known)
        ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, one) or fnmatchcase(name, f"{one}.*") for one in patterns)


@dataclass(frozen=True)
class Training:
    """The properties of a component's training that determine its gradients and optimizer states."""

    dtype: str = "float32"
    optimizer: str = "AdamW"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the optimizer."""
    adapter: Adapter | None = None
    """None if all weights are trained."""
    is_trained: bool = True
    """True if some stage computes gradients."""
    selection: Selection = Selection()


@dataclass(frozen=True)
class RankBytes:
    """The bytes of a component on the rank with the most."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    sync: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.sync


EMBEDDING = "model.embed_tokens.weight"
HEADS = ("lm_head", "score")
"""The linear layers that an adapter without targets leaves out."""
WHOLE_WITH_ADAPTER = ("score",)
"""The modules that are trained as a whole beside an adapter."""


def numbers(parameter: Parameter, split: Split) -> int:
    """Returns the number of elements in the largest shard of a parameter, summed over its layers."""
    shape = list(parameter.shape)
    if parameter.is_fused and split.ep > 1:
        shape[0] = -(-shape[0] // split.ep // split.ep_fsdp)
        return prod(shape) * parameter.layers
    if parameter.tp_dim is not None:
        shape[parameter.tp_dim] = -(-shape[parameter.tp_dim] // split.tp)
    if shape:
        shape[0] = -(-shape[0] // split.fsdp)
    return prod(shape) * parameter.layers


def are_divisible(rows: int, tp: int, shards: int) -> bool:
    """Returns whether FSDP can shard `rows` that tp has divided before. The parts of all tp ranks need shards
    of the same size: torch describes the shards of a tensor by one size."""
    part = -(-rows // tp)
    parts = [min(part, rows - part * rank) for rank in range(tp)]
    return shards == 1 or len({-(-max(0, one) // shards) for one in parts}) == 1


def of_stages(
    parameters: Sequence[Parameter], stages: Sequence[range], own: Sequence[int]
) -> list[Parameter]:
    """Returns the parameters of a rank that has the pipeline stages `own`; `stages` are the layers of all.

    Raises `UnknownBytes` for parameters of some of the layers, since it is not known of which.
    """
    layers = sum(len(stages[stage]) for stage in own)
    is_first, is_last, total = 0 in own, len(stages) - 1 in own, sum(map(len, stages))
    is_tied = not any(one.module in HEADS for one in parameters)
    has_embedding = is_first or (is_last and is_tied)
    found = []
    for one in parameters:
        if "*" in one.name:
            if one.layers != total:
                raise UnknownBytes("how pp splits layers of different kinds is not known")
            found.append(replace(one, layers=layers))
        elif has_embedding if one.name == EMBEDDING else is_last:
            found.append(one)
    return found


def costs_of(parameters: Sequence[Parameter], experts: int, used: int) -> tuple[float, float]:
    """Returns the costs of a layer and of the head: the number of parameters with which a token is
    multiplied. `used` of `experts` experts compute a token."""
    part = used / experts if experts and used else 1.0
    layer = head = 0.0
    for one in parameters:
        if "*" in one.name:
            layer += prod(one.shape) * (part if one.is_fused else 1.0)
        elif one.module in HEADS:
            head += prod(one.shape)
    if not head:  # the head is the embedding
        head = float(sum(prod(one.shape) for one in parameters if one.name == EMBEDDING))
    return layer, head


def adapter_parameters(parameters: Iterable[Parameter], adapter: Adapter) -> list[Parameter]:
    """Returns the two small matrices of each adapted layer, `[r, in]` and `[out, r]`. tp splits only the
    matrix that has the dim along which it splits the layer's weight. The matrices of fused experts are as
    many times larger."""
    made: list[Parameter] = []
    for one in parameters:
        if not _is_adapted(one, adapter):
            continue
        *experts, rows, columns = one.shape
        rank = adapter.r * prod(experts)
        module = one.name.removesuffix(".weight")
        tp_dim = one.tp_dim if one.is_linear else None  # adapters of experts exclude tp
        inner_dim, outer_dim = (1, None) if tp_dim == 1 else (None, tp_dim)
        made.append(Parameter(f"{module}.lora_A.weight", (rank, columns), one.layers, inner_dim))
        made.append(Parameter(f"{module}.lora_B.weight", (rows, rank), one.layers, outer_dim))
    return made


def _is_adapted(one: Parameter, adapter: Adapter) -> bool:
    if not adapter.targets:
        return one.is_linear and one.module not in HEADS
    if not (one.is_linear or one.is_fused):
        return False
    module = one.name.removesuffix(".weight")
    return any(module == target or module.endswith(f".{target}") for target in adapter.targets)


def states_of(optimizer: str, options: Mapping[str, Any]) -> int | None:
    """Returns how many tensors of the size of a parameter an optimizer keeps for it; None if that is
    unknown."""
    name = optimizer.removeprefix("torch.optim.")
    if name not in STATES:
        return None
    return STATES[name] + sum(bool(options.get(option)) for option in STATE_OPTIONS.get(name, ()))


def rank_bytes(parameters: Iterable[Parameter], split: Split, training: Training) -> RankBytes:
    """Returns the bytes of a component without its syncs. The optimizer's are 0 if its state is unknown."""
    own = list(parameters)
    trained = trained_parameters(own, training)
    if training.adapter:
        own += adapter_parameters(own, training.adapter)
    weights = _bytes(own, split, training)
    if not training.is_trained:
        return RankBytes(weights)
    gradients = _bytes(trained, split, training)
    if split.dp * split.fsdp == 1 and any(one.module in HEADS for one in trained):
        # Without FSDP, the gradient's shard of an untied embedding is a view of the whole gradient, which
        # stays allocated. FSDP copies its shard, and the gradient of a tied embedding is a new sum.
        whole = [one for one in trained if one.name == EMBEDDING]
        gradients += _bytes(whole, Split(), training) - _bytes(whole, split, training)
    states = states_of(training.optimizer, training.options) or 0
    return RankBytes(weights, gradients, _bytes(trained, split, training) * states)


def trained_parameters(parameters: Sequence[Parameter], training: Training) -> list[Parameter]:
    """Returns the parameters that training changes: all of them, or the adapter's and those beside it."""
    if training.adapter is None:
        return [found for one in parameters for found in _selected(one, training.selection)]
    whole = [one for one in parameters if one.module in WHOLE_WITH_ADAPTER]
    return [*adapter_parameters(parameters, training.adapter), *whole]


def trained_part(parameters: Sequence[Parameter], training: Training) -> tuple[int, int] | None:
    """Returns the number of trained parameters and of all, with those of an adapter; None if all are trained,
    or none."""
    own = [*parameters, *(adapter_parameters(parameters, training.adapter) if training.adapter else ())]
    trained, every = (
        sum(numbers(one, Split()) for one in some) for some in (trained_parameters(parameters, training), own)
    )
    return (trained, every) if training.is_trained and trained < every else None


def _selected(one: Parameter, selection: Selection) -> Iterator[Parameter]:
    """Yields the parameter with the number of its layers in which it is trained, if there are some."""
    layers = sum(selection.has(one.name.replace("*", str(layer))) for layer in range(one.layers))
    if layers:
        yield one if layers == one.layers else replace(one, layers=layers)


def checkpoint_bytes(parameters: Sequence[Parameter], training: Training, split: Split | None = None) -> int:
    """Returns the least bytes of a component's state in a checkpoint: the trained weights and, if it is
    known, the state of the optimizer. All ranks together write each element once; with `split`, the bytes of
    the state on the rank with the most."""
    if not training.is_trained:
        return 0
    states = states_of(training.optimizer, training.options) or 0
    return _bytes(trained_parameters(parameters, training), split or Split(), training) * (1 + states)


def adapter_bytes(parameters: Iterable[Parameter], split: Split, training: Training) -> int:
    """Returns the bytes of the weights of the adapter; 0 without one."""
    if training.adapter is None:
        return 0
    return _bytes(adapter_parameters(parameters, training.adapter), split, training)


def _bytes(parameters: Iterable[Parameter], split: Split, training: Training) -> int:
    return sum(numbers(one, split) for one in parameters) * DTYPE_BYTES[training.dtype]


def with_sync(found: RankBytes, sent: int, lag: int) -> RankBytes:
    """Adds the buckets of a sync that moves `sent` bytes of this rank. Without lag, the rank holds two
    buckets at most. With a lag, it holds all buckets of `lag + 1` steps."""
    buckets = sent * (lag + 1) if lag else min(sent, MAX_BUCKET_BYTES * BUCKETS_IN_FLIGHT)
    return replace(found, sync=found.sync + buckets)


def sharing(devices: Mapping[str, DeviceRanges]) -> list[tuple[str, ...]]:
    """Returns the sets of groups that share a device, without those that are part of another set. `devices`
    maps the groups of one device type to their devices."""
    edges = sorted({edge for ranges in devices.values() for edge in chain(*ranges)})
    on_device: dict[int, list[str]] = {edge: [] for edge in edges}
    for group, ranges in devices.items():
        for start, stop in ranges:
            for edge in edges[bisect_left(edges, start) : bisect_left(edges, stop)]:
                on_device[edge].append(group)
    found = dict.fromkeys(tuple(groups) for groups in on_device.values() if groups)
    return [one for one in found if not any(set(one) < set(other) for other in found)]


# The result


@dataclass(frozen=True)
class Move:
    """The bytes that a rank sends in the collective operations of one kind over one dim."""

    dim: str
    operation: str
    bytes: float
    per_token: bool = field(default=False, metadata=SPARSE)
    """True if the bytes are those for each token of the texts of a data rank; otherwise for a micro-batch."""


@dataclass(frozen=True)
class ComponentMemory:
    """The bytes of a component on the rank with the most."""

    component: str
    weights: int = 0
    gradients: int = 0
    optimizer: int | None = 0
    """None if the state of its optimizer is unknown."""
    sync: int = 0
    """The buckets of its syncs."""
    optimizer_name: str = ""
    """Empty if it is not trained."""
    unknown: str = ""
    """The reason why its bytes are unknown; empty if they are known."""
    moves: tuple[Move, ...] = field(default=(), metadata=SPARSE)
    """The collective operations of the rank in a micro-batch."""
    stages: tuple[int, ...] = field(default=(), metadata=SPARSE)
    """The bytes of each pp rank; empty without pp."""
    trained: tuple[int, int] | None = field(default=None, metadata=SPARSE)
    """The number of trained parameters and of all parameters of the model; None if all are trained, or
    none."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + (self.optimizer or 0) + self.sync

    @property
    def is_complete(self) -> bool:
        return not self.unknown and self.optimizer is not None


@dataclass(frozen=True)
class DeviceMemory:
    """The bytes of all components with a known model that share a device, or on cpu a process."""

    groups: tuple[str, ...]
    components: tuple[str, ...]
    """The components with a known model."""
    total: int
    is_complete: bool
    """True if the bytes of all components are known whose class states what they follow from."""
    device_type: str
    device_memory: int = 0
    """The memory of the device; 0 if the recipe does not state it."""


@dataclass(frozen=True)
class Memory:
    """The bytes of all components of a recipe, and of the devices that they share."""

    components: tuple[ComponentMemory, ...] = ()
    """The components whose class states what their bytes follow from."""
    devices: tuple[DeviceMemory, ...] = ()
