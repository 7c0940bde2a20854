"""The pipeline stages of a rank: the layers of a model that it holds, and forward passes through each stage.

    pp 2            stage 0: embedding, layers 0 1      stage 1: layers 2 3, norm, head
    pp 2 x vpp 2    rank 0: stages 0 and 2              rank 1: stages 1 and 3

A rank builds the outline of the whole model, shards it over tp, adds adapters, and then drops the modules of
other stages. The names of the remaining parameters do not change, so checkpoints, syncs and exports have the
same names in every layout. An embedding that is tied to the head is in the first and in the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from meshctl.dataclass import dataclass
from meshctl.hf import transformers_api
from meshctl.hf.options import ModelError, Sizes
from meshctl.hf.sharding import whole_of
from meshctl.runtime.collectives.collective import Collective
from meshctl.text.english import counted
from meshctl.topology import stage_split

DIVIDED = ("embed_tokens", "layers", "norm")
"""The modules of a base model that runs as the embedding, the layers one after another, and the norm."""
FIRST_NAMES = "_meshctl_first_names"
"""The attribute of a divided model with its tied parameters: second name, in the last stage -> first name, in
the first one."""


class Absent(nn.Module):
    """Stands in place of a module that another rank or another stage holds, and returns its input."""

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden


def parts_of(model: Any) -> tuple[Any, nn.ModuleList, str]:
    """Returns the parts of a model: the model without its head, whose attributes are those of `DIVIDED`, its
    layers, and the attribute with the head. Raises `ModelError` if transformers has no plan that divides the
    model into these parts."""
    base, plan = model.base_model, getattr(model.config, "base_model_pp_plan", None) or {}
    heads = [name for name in ("lm_head", "score") if isinstance(getattr(model, name, None), nn.Module)]
    if {*plan} != {*DIVIDED} or base is model or len(heads) != 1:
        raise ModelError(
            f"`{type(model).__name__}` cannot be divided over pp: transformers has no pipeline plan of an "
            "embedding, layers and a norm for it; use fsdp or tp"
        )
    return base, base._modules["layers"], heads[0]


def costs_of(config: Any, head: str) -> tuple[list[float], float]:
    """Returns the costs of each layer and of the head: the number of parameters with which a token is
    multiplied."""
    model = transformers_api.outline(config, head)
    _, layers, name = parts_of(model)
    text = config.get_text_config()
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
    used = (getattr(text, "num_experts_per_tok", None) or 1) / experts
    costs = [
        sum(one.numel() * (used if one.ndim == 3 else 1) for one in layer.parameters()) for layer in layers
    ]
    return costs, float(sum(one.numel() for one in getattr(model, name).parameters()))


def untie(model: Any) -> None:
    """Unties the parameters of a model in place, and records which ones were tied (`first_names`). Each stage
    then holds a copy of its own."""
    setattr(model, FIRST_NAMES, dict(getattr(model, "all_tied_weights_keys", None) or {}))
    model.all_tied_weights_keys = {}


def first_names(model: Any) -> Mapping[str, str]:
    """Returns the tied parameters of a model: second name -> first name."""
    return getattr(model, FIRST_NAMES, None) or getattr(model, "all_tied_weights_keys", None) or {}


def listed_names(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Returns name in memory -> the name under which a tensor is listed, for `names` of the model's tensors.

    A tied parameter is listed under its first name only, also by a stage that holds it under its second name
    alone.
    """
    firsts, every = first_names(model), [*names]
    listed = {name: firsts.get(name, name) for name in every}
    held = {*every}
    return {name: first for name, first in listed.items() if first == name or first not in held}


STAGES = "_meshctl_stages"
"""The attribute of a model with its `Stages`."""


@dataclass(frozen=True)
class Stages:
    """The pipeline stages of a model, and those of this rank."""

    layers: tuple[range, ...]
    """The layers of each stage."""
    own: tuple[int, ...]
    """The stages of this rank."""

    @classmethod
    def of(cls, config: Any, head: str, split: str | Sequence[int], sizes: Sizes, pp_rank: int) -> Stages:
        """Divides the layers of a model. Raises `ModelError` if the model cannot be divided, or not in this
        way."""
        number = sizes.pp * sizes.vpp
        layers = config.get_text_config().num_hidden_layers
        if layers < number:
            raise ModelError(
                f"the model has {counted(layers, 'layer')} for {counted(number, 'pipeline stage')}; use a "
                "smaller `pp_size` or `vpp_size`"
            )
        own = tuple(range(pp_rank, number, sizes.pp))
        if split == "count":
            return cls(stage_split.by_count(layers, number), own)
        if split == "cost":
            costs, of_head = costs_of(config, head)
            return cls(stage_split.by_cost(costs, number, of_head), own)
        if isinstance(split, str) or len(split) != number or sum(split) != layers or min(split) < 1:
            words = " or ".join(f"`{word}`" for word in stage_split.SPLITS)
            raise ModelError(
                f"`split` is {words}, or {counted(number, 'number')} of layers whose sum is {layers}"
            )
        return cls(stage_split.of_counts(split), own)

    @property
    def last(self) -> int:
        """The number of the last stage."""
        return len(self.layers) - 1


def drop_other_stages(model: Any, stages: Stages) -> None:
    """Drops the modules of other stages from a model in place. Raises `ModelError` if transformers has no
    pipeline plan for the model."""
    base, layers, head = parts_of(model)
    held = {number for stage in stages.own for number in stages.layers[stage]}
    for number in range(len(layers)):
        if number not in held:
            layers[number] = Absent()
    if 0 not in stages.own:
        base.embed_tokens = Absent()
    if stages.last not in stages.own:
        base.norm = Absent()
        setattr(model, head, Absent())
    untie(model)
    setattr(model, STAGES, stages)


class StagedModel:
    """Forward passes through single stages of a model that holds the stages of this rank."""

    def __init__(self, model: Any) -> None:
        """`model` has the modules of this rank only (`drop_other_stages`)."""
        self._model = model
        self.stages: Stages = getattr(model, STAGES)
        self._base, self._layers, self._head = parts_of(model)
        self._checked: set[int] = set()

    def hidden(self, stage: int, forward: Callable[[], object], received: Tensor | None) -> Tensor:
        """Returns the hidden states after the layers of `stage`, which is not the last one. `forward` runs
        the model for the hidden states `received`, which are None in the first stage."""
        head = _Head()
        after: list[Tensor] = []
        with (
            self._with_layers_of(stage, received, after),
            _with_attribute(self._base, "norm", Absent()),
            _with_attribute(self._model, self._head, head),
        ):
            forward()
        assert head.received is not None
        if stage not in self._checked:
            self._check_equal(head.received, after[0])
            self._checked.add(stage)
        return head.received

    @contextmanager
    def last(self, received: Tensor) -> Iterator[None]:
        """Returns a context in which the model consists of its last stage. `received` are the hidden states
        with which it is called."""
        with self._with_layers_of(self.stages.last, received, []):
            yield
        self._checked.add(self.stages.last)

    @contextmanager
    def _with_layers_of(self, stage: int, received: Tensor | None, after: list[Tensor]) -> Iterator[None]:
        """Returns a context in which the model has the layers of `stage` only. The first pass checks that the
        model calls its first layer with `received`, and appends the result of its last layer to `after`."""
        own = self.stages.layers[stage]
        absent = Absent()
        every = [layer if number in own else absent for number, layer in enumerate(self._layers)]
        handles = []
        if stage not in self._checked:

            def before(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
                if received is not None:
                    self._check_equal(received, given[0] if given else named["hidden_states"])

            def behind(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
                after.append(output[0] if isinstance(output, tuple) else output)

            first, last = self._layers[own.start], self._layers[own.stop - 1]
            handles = [first.register_forward_pre_hook(before, with_kwargs=True)]
            handles.append(last.register_forward_hook(behind))
        try:
            with _with_attribute(self._base, "layers", every):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _check_equal(self, one: Tensor, other: Tensor) -> None:
        """Raises `ModelError` if the model computes something between two stages: the hidden states of one
        would be another tensor than those of the other."""
        if one.data_ptr() != other.data_ptr():
            raise ModelError(
                f"`{type(self._model).__name__}` cannot be divided over pp, because it changes the hidden "
                "states outside of its layers"
            )


class _Head(nn.Module):
    """Stands in place of the head in a stage that has none, and keeps the hidden states that it receives."""

    received: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        self.received = hidden
        return hidden


@contextmanager
def _with_attribute(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Returns a context in which an attribute of a module has another value. The submodule with this name
    stays registered, so that FSDP and the names of parameters do not change."""
    module.__dict__[name] = value
    try:
        yield
    finally:
        del module.__dict__[name]


Outlines = Mapping[str, Tensor]
"""Name -> tensor of torch's `meta` device with the whole shape."""


def of_all_stages(
    own: Outlines, tensors: Iterable[tuple[str, Tensor]], names: Sequence[str], pp: Collective
) -> tuple[Outlines, Iterator[tuple[str, Tensor]]]:
    """Returns the outlines of the weights of all stages, and an iterator of (name, whole tensor) for them.

    `own` and `tensors` are the outlines and the shards of this rank, in the order of `names`, the names of
    the whole model. All ranks of `pp` call this together, iterate together, and hold one tensor at a time.
    """
    rows = {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in own.items()}
    every = pp.all_gather_object(rows)
    owners = {name: next(rank for rank, row in enumerate(every) if name in row) for name in names}
    found = {}
    for name, owner in owners.items():
        shape, dtype = every[owner][name]
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    def whole() -> Iterator[tuple[str, Tensor]]:
        remaining = iter(tensors)
        for name, outline in found.items():
            if owners[name] == pp.rank:
                tensor = whole_of(next(one for key, one in remaining if key == name)).contiguous()
            else:
                tensor = torch.empty(outline.shape, dtype=outline.dtype, device=pp.device)
            yield name, pp.broadcast(tensor, owners[name])

    return found, whole()
