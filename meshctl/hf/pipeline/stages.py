"""The pipeline stages of a rank: the layers of a model that it holds, and forward passes through each stage.

    pp 2            stage 0: embedding, layers 0 1      stage 1: layers 2 3, norm, head
    pp 2 x vpp 2    rank 0: stages 0 and 2              rank 1: stages 1 and 3

A rank builds the outline of the whole model, shards it over tp, adds adapters, and then drops the modules of
other stages. The names of the remaining parameters do not change, so checkpoints, syncs and exports have the
same names in every layout. An embedding that is tied to the head is in the first and in the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from meshctl.dataclass import dataclass
from meshctl.hf.errors import ModelError
from meshctl.hf.pipeline import stage_parts
from meshctl.hf.sizes import Sizes
from meshctl.text.english import counted
from meshctl.topology import stage_split

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
            costs, of_head = stage_parts.costs_of(config, head)
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

    def holds(self, layer: int) -> bool:
        """Returns whether this rank holds a layer."""
        return any(layer in self.layers[stage] for stage in self.own)

    @property
    def drops_embedding(self) -> bool:
        """True if this rank holds the last stage and not the first one."""
        return self.last in self.own and 0 not in self.own


def drop_other_stages(model: Any, stages: Stages) -> None:
    """Drops the modules of other stages from a model in place. Raises `ModelError` if transformers has no
    pipeline plan for the model."""
    parts = stage_parts.parts_of(model)
    for number in range(len(parts.layers)):
        if not stages.holds(number):
            parts.layers[number] = stage_parts.Absent()
    if 0 not in stages.own:
        parts.base.embed_tokens = stage_parts.Absent()
    if stages.last not in stages.own:
        parts.base.norm = stage_parts.Absent()
        setattr(model, parts.head, stage_parts.Absent())
    stage_parts.untie(model)
    setattr(model, STAGES, stages)


class StagedModel:
    """Forward passes through single stages of a model that holds the stages of this rank."""

    def __init__(self, model: Any) -> None:
        """`model` has the modules of this rank only (`drop_other_stages`)."""
        self._model = model
        self.stages: Stages = getattr(model, STAGES)
        self._parts = stage_parts.parts_of(model)
        self._checked: set[int] = set()

    def hidden(self, stage: int, forward: Callable[[], object], received: Tensor | None) -> Tensor:
        """Returns the hidden states after the layers of `stage`, which is not the last one. `forward` runs
        the model for the hidden states `received`, which are None in the first stage."""
        head = _Head()
        after: list[Tensor] = []
        with (
            self._with_layers_of(stage, received, after),
            _with_attribute(self._parts.base, "norm", stage_parts.Absent()),
            _with_attribute(self._model, self._parts.head, head),
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
        absent = stage_parts.Absent()
        every = [layer if number in own else absent for number, layer in enumerate(self._parts.layers)]
        handles = []
        if stage not in self._checked:

            def before(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
                if received is not None:
                    self._check_equal(received, given[0] if given else named["hidden_states"])

            def behind(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
                after.append(output[0] if isinstance(output, tuple) else output)

            first, last = self._parts.layers[own.start], self._parts.layers[own.stop - 1]
            handles = [first.register_forward_pre_hook(before, with_kwargs=True)]
            handles.append(last.register_forward_hook(behind))
        try:
            with _with_attribute(self._parts.base, "layers", every):
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
