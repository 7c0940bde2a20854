"""All of peft that meshctl uses. `tests/hf/test_peft_api.py` pins it.

A LoRA layer stands in place of a linear layer, which it holds as `base_layer`:

    q_proj.weight                       before
    q_proj.base_layer.weight            after
    q_proj.lora_A.default.weight        [r, in]
    q_proj.lora_B.default.weight        [out, r]
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear, LoraLayer
from torch import nn

from meshctl.dataclass import dataclass
from meshctl.hf.errors import ModelError

ADAPTER = "default"
LINEAR = "all-linear"
STYLES = ("colwise", "rowwise")
"""The styles of tensor parallelism whose layers peft can adapt."""
BASE = re.compile(r"\.base_layer(?=\.|$)")


@dataclass(frozen=True)
class Lora:
    """The argument `lora` of `hf.Model`."""

    r: int = 8
    alpha: float = 16
    target: str | Sequence[str] = LINEAR
    """A list with the last parts of the names of the adapted modules, or `all-linear` for all linear layers
    except the head."""
    dropout: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Lora:
        """Returns the options in a mapping such as `{r: 16}`. Raises `ModelError` for an unknown key."""
        known = tuple(cls.__dataclass_fields__)
        if unknown := [key for key in given if key not in known]:
            raise ModelError(f"`lora` has no key `{unknown[0]}`; its keys are {', '.join(known)}")
        return cls(**given)


def inject(model: Any, lora: Lora) -> None:
    """Adds adapters to a model in place, and freezes all other parameters.

    This function is called after tensor parallelism and before FSDP. The gradients of adapters that are added
    to an FSDP model are not reduced over ranks: such adapters train wrongly without an error. Raises
    `ModelError` if peft cannot adapt a target.
    """
    target = linear_names(model) if lora.target == LINEAR else lora.target
    if not isinstance(target, str):  # a string is a regular expression of peft
        _check_targets(model, target)
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=target, bias="none"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of is an error below
        try:
            inject_adapter_in_model(config, model, ADAPTER)
        except ValueError as error:
            raise ModelError(f"`lora`: {str(error).splitlines()[0]}") from error
    _refuse_others(model)
    # peft gives the layers of a sharded module their local widths, and transformers expects global ones.
    for layer in layers(model).values():
        inner, outer = layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]
        inner.in_features, outer.out_features = inner.weight.shape[1], outer.weight.shape[0]


def linear_names(model: Any) -> list[str]:
    """Returns the last parts of the names of all linear layers except the head, sorted and without
    duplicates. The fused weights of experts are not linear layers."""
    heads = (model.get_output_embeddings(), getattr(model, "score", None))
    linear = [name for name, one in model.named_modules() if isinstance(one, nn.Linear) and one not in heads]
    return sorted({name.rpartition(".")[2] for name in linear})


def _check_targets(model: nn.Module, targets: Sequence[str]) -> None:
    """Raises `ModelError` for a target without a module. peft ignores such a target if another one has
    modules."""
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    for target in targets:
        if any(f".{name}".endswith(f".{target}") for name in modules):
            continue
        if any(f".{name}".endswith(f".{target}") for name in parameters):
            raise ModelError(
                f"`lora` cannot adapt `{target}`: it is a fused weight of experts, and adapters need linear "
                "layers; change its `target`"
            )
        raise ModelError(
            f"`lora`: no module is called `{target}`; the linear layers are {', '.join(linear_names(model))}"
        )


def _refuse_others(model: nn.Module) -> None:
    """Raises `ModelError` for an adapter whose results or exported weights would be wrong."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module, Linear):
            raise ModelError(
                f"`lora` can adapt linear layers only, and `{name}` is none; change its `target`"
            )
    for name, layer in layers(model).items():
        style = getattr(layer.get_base_layer(), "_hf_tp_plan", None)
        if style not in (None, *STYLES):
            raise ModelError(
                f"`lora` cannot adapt `{name}` with tp: its style in the plan is `{style}`, and peft "
                f"supports {' and '.join(STYLES)}; change its `target`, or use fsdp"
            )


def layers(model: nn.Module) -> dict[str, Any]:
    """Returns the layers with an adapter: name of the module -> LoRA layer."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Linear)}


def scaling(layer: Any) -> float:
    """Returns the factor by which `lora_B @ lora_A` is multiplied before it is added to the weights of a
    layer."""
    return float(layer.scaling[ADAPTER])


def plain_name(name: str) -> str:
    """Returns the name that a parameter of the base model has in a model without adapters."""
    return BASE.sub("", name)


def is_adapter(name: str) -> bool:
    """Whether a parameter is part of an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def adapter_name(name: str) -> str:
    """Returns the name that a parameter of an adapter has in the files of peft."""
    return f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"


def renamed_by(model: nn.Module) -> dict[str, str]:
    """Returns the new names of the weights of adapted modules: regular expression for the name on disk ->
    name in the model with adapters."""
    last = sorted({name.rpartition(".")[2] for name in layers(model)})
    return {rf"\.{name}\.(weight|bias)$": rf".{name}.base_layer.\1" for name in last}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Disables the adapters inside the context, so that the model computes as its base model. The context
    supports forward passes without gradients only."""
    own = layers(model).values()
    for layer in own:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in own:
            layer._disable_adapters = False
