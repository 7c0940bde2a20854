"""The parts of a transformers model that pipeline stages divide: the embedding, the layers, the norm, and the
head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from meshctl.dataclass import dataclass
from meshctl.hf import transformers_api
from meshctl.hf.errors import ModelError

DIVIDED = ("embed_tokens", "layers", "norm")
"""The modules of a base model that runs as the embedding, the layers one after another, and the norm."""
FIRST_NAMES = "_meshctl_first_names"
"""The attribute of a divided model with its tied parameters: second name -> first name."""


@dataclass(frozen=True)
class StageParts:
    """The modules of a model that pipeline stages divide."""

    base: Any
    """The model without its head. Its attributes are those of `DIVIDED`."""
    head: str
    """The attribute of the model with its head."""

    @property
    def layers(self) -> nn.ModuleList:
        layers: nn.ModuleList = self.base._modules["layers"]
        return layers


class Absent(nn.Module):
    """Stands in place of a module that another rank or another stage holds, and returns its input."""

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden


def parts_of(model: Any) -> StageParts:
    """Returns the parts of a model. Raises `ModelError` if transformers has no plan that divides the model
    into these parts."""
    base, plan = model.base_model, getattr(model.config, "base_model_pp_plan", None) or {}
    heads = [name for name in ("lm_head", "score") if isinstance(getattr(model, name, None), nn.Module)]
    if {*plan} != {*DIVIDED} or base is model or len(heads) != 1:
        raise ModelError(
            f"`{type(model).__name__}` cannot be divided over pp: transformers has no pipeline plan of an "
            "embedding, layers and a norm for it; use fsdp or tp"
        )
    return StageParts(base, heads[0])


def costs_of(config: Any, head: str) -> tuple[list[float], float]:
    """Returns the costs of each layer and of the head: the number of parameters with which a token is
    multiplied."""
    model = transformers_api.outline(config, head)
    parts = parts_of(model)
    text = config.get_text_config()
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
    used = (getattr(text, "num_experts_per_tok", None) or 1) / experts
    costs = [
        sum(one.numel() * (used if one.ndim == 3 else 1) for one in layer.parameters())
        for layer in parts.layers
    ]
    return costs, float(sum(one.numel() for one in getattr(model, parts.head).parameters()))


def untie(model: Any) -> None:
    """Unties the parameters of a model in place, and records which ones were tied (`first_names`). Each stage
    then holds a copy of its own."""
    setattr(model, FIRST_NAMES, dict(getattr(model, "all_tied_weights_keys", None) or {}))
    model.all_tied_weights_keys = {}


def shared_by_stages(model: Any, named: Iterable[tuple[str, nn.Parameter]]) -> list[nn.Parameter]:
    """Returns the parameters of the first or last stage of a divided model that both stages hold. `named` are
    the pairs (listed name, parameter) of the model."""
    tied = {*getattr(model, FIRST_NAMES, {}).values()}
    return [one for name, one in named if name in tied]


def copies_of_first_stage(model: Any) -> list[nn.Parameter]:
    """Returns the parameters of the last stage of a divided model that are copies of the first stage's."""
    own = dict(model.named_parameters())
    return [own[second] for second in getattr(model, FIRST_NAMES, {}) if second in own]


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
