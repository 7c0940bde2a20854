"""All of peft that meshctl uses.

A LoRA layer stands in place of a linear layer, which it holds as `base_layer`:

    q_proj.weight                                  before
    q_proj.base_layer.weight                       after
    q_proj.lora_A.default.weight                   [r, in]
    q_proj.lora_B.default.weight                   [out, r]

It also stands in place of the module with the fused weights of experts, once for each adapted weight:

    experts.down_proj, experts.gate_up_proj        before, [experts, out, in]
    experts.base_layer.base_layer.down_proj        after, as for `gate_up_proj`
    experts.base_layer.lora_A.default.weight       [experts x r, in], of the weight that is adapted first
    experts.lora_A.default.weight                  of the other weight
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import Linear, LoraLayer, ParamWrapper
from safetensors import SafetensorError, safe_open
from torch import Tensor, einsum, nn

from meshctl.dataclass import dataclass
from meshctl.hf.options import ModelError
from meshctl.hub_cache import local_folder

ADAPTER = "default"
LINEAR = "all-linear"
KEYS = ("r", "alpha", "target", "dropout", "from")
"""The keys of the argument `lora`."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter."""
UNUSED = (
    *("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform"),
    *("layers_pattern", "trainable_token_indices", "lora_bias", "exclude_modules", "fan_in_fan_out"),
)
"""The keys of `adapter_config.json` that change what an adapter computes, and that are not supported."""
STYLES = ("colwise", "rowwise")
"""The styles of tensor parallelism whose layers peft can adapt."""
ADAPTED = (Linear, ParamWrapper)
"""The classes of LoRA layers whose weights `change_of` computes."""
BASE = re.compile(r"\.base_layer(?=\.|$)")


@dataclass(frozen=True)
class Lora:
    """The argument `lora` of `hf.Model`."""

    r: int = 8
    alpha: float = 16
    target: str | Sequence[str] = LINEAR
    """A list with the last parts of the names of the adapted linear layers and fused weights of experts, or
    `all-linear` for all linear layers except the head."""
    dropout: float = 0.0
    folder: Path | None = None
    """The folder of the adapter whose weights are the first ones; None for a new adapter."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Lora:
        """Returns the options in a mapping such as `{r: 16}` or `{from: FOLDER}`. Raises `ModelError` for an
        unknown key, and for an adapter that cannot be read or has other options than the mapping."""
        if unknown := [key for key in given if key not in KEYS]:
            raise ModelError(f"`lora` has no key `{unknown[0]}`; its keys are {', '.join(KEYS)}")
        options = {key: value for key, value in given.items() if key != "from"}
        return cls(**options) if "from" not in given else cls._saved(str(given["from"]), options)

    @classmethod
    def _saved(cls, name: str, given: Mapping[str, Any]) -> Lora:
        folder = local_folder(name, sys.path, os.environ, [CONFIG])
        if folder is None:
            raise ModelError(f"`lora.from`: `{name}` does not name an adapter: the folder has no {CONFIG}")
        try:
            values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            target, fused = values["target_modules"] or [], values.get("target_parameters") or ()
            target = target if isinstance(target, str) else sorted([*target, *fused])
            written = {"r": int(values["r"]), "alpha": float(values["lora_alpha"]), "target": target}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"`lora.from`: {folder / CONFIG} cannot be read: {error}") from None
        unused = [key for key in UNUSED if values.get(key)]
        if values.get("peft_type") != "LORA" or unused or values.get("bias", "none") != "none":
            what = f"`{unused[0]}`" if unused else f"`{values.get('peft_type')}` with biases, or another kind"
            raise ModelError(f"`lora.from`: the adapter `{name}` uses {what}, which is not supported")
        for key, value in given.items():
            own = sorted(value) if isinstance(value, (list, tuple)) else value
            if key in written and own not in (written[key], LINEAR):
                has = f"that of the adapter `{name}` is {written[key]}"
                raise ModelError(f"`lora.{key}` is {value}, and {has}")
        return cls(**written, dropout=given.get("dropout", 0.0), folder=folder)  # type: ignore[arg-type]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the names and the whole tensors of the saved adapter. Raises `ModelError` if its file cannot
        be read."""
        assert self.folder is not None
        try:
            with safe_open(self.folder / WEIGHTS, "pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(f"`lora.from`: {self.folder / WEIGHTS} cannot be read: {error}") from None


def inject(model: Any, lora: Lora) -> None:
    """Adds adapters to a model in place, and freezes all other parameters.

    This function is called after tensor parallelism and before FSDP. The gradients of adapters that are added
    to an FSDP model are not reduced over ranks: such adapters train wrongly without an error. Raises
    `ModelError` if peft cannot adapt a target.
    """
    target = linear_targets(model) if lora.target == LINEAR else lora.target
    fused: list[str] = []
    if not isinstance(target, str):  # a string is a regular expression of peft
        _check_targets(model, target)
        head = next(
            (one for one, module in model.named_modules() if module is model.get_output_embeddings()), ""
        )
        if f"{head}.weight" in (getattr(model, "all_tied_weights_keys", None) or {}) and any(
            _named(one, [head]) for one in target
        ):
            raise ModelError(f"`lora` cannot adapt `{head}`, whose weight is that of the embedding")
        fused = [name for name in target if _named(name, fused_names(model))]
        target = [name for name in target if _named(name, dict(model.named_modules()))]
    if fused and lora.dropout:
        raise ModelError(f"`lora` has no dropout for `{fused[0]}`, a fused weight of experts; leave it out")
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=target,
        target_parameters=fused or None,
        bias="none",
    )
    model.adapter_config = config
    with warnings.catch_warnings(), _exact_names(model.config):
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


@contextmanager
def _exact_names(config: Any) -> Iterator[None]:
    """Returns a context in which the targets of an adapter are exactly those that it names.

    peft takes the names of certain linear layers of experts in files, such as `down_proj`, for the fused
    weights in memory. It would not adapt the linear layers with these names that exist beside the experts. It
    knows such architectures by their `model_type`.
    """
    config.__dict__["model_type"] = ""
    try:
        yield
    finally:
        del config.__dict__["model_type"]


def linear_names(model: Any) -> list[str]:
    """Returns the last parts of the names of all linear layers except the head, sorted and without
    duplicates. Neither the fused weights of experts nor routers that return several values are linear
    layers."""
    heads = (model.get_output_embeddings(), getattr(model, "score", None))
    linear = [
        name
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and one not in heads and type(one).forward is nn.Linear.forward
    ]
    return sorted({name.rpartition(".")[2] for name in linear})


def linear_targets(model: Any) -> list[str]:
    """Returns the targets of `all-linear`: `linear_names`, or the whole names where a fused weight of experts
    has the same last part."""
    fused = fused_names(model)
    shared = {name for name in linear_names(model) if _named(name, fused)}
    modules = [name for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    return [
        *(name for name in linear_names(model) if name not in shared),
        *(name for name in modules if name.rpartition(".")[2] in shared),
    ]


def fused_names(model: nn.Module) -> list[str]:
    """Returns the names of the fused weights of experts, `[experts, out, in]` or `[experts, in, out]`."""
    sizes = [(name, one.ndim) for name, one in model.named_parameters()]
    return [name for name, dims in sizes if dims == 3 and not name.endswith(".weight")]  # of a convolution


def _named(target: str, names: Iterable[str]) -> bool:
    """Returns whether `target` is the last part of one of the names, or several last parts."""
    return any(f".{name}".endswith(f".{target}") for name in names)


def _check_targets(model: nn.Module, targets: Sequence[str]) -> None:
    """Raises `ModelError` for a target that does not exist. peft ignores such a target if another one
    exists."""
    fused = fused_names(model)
    for target in targets:
        if not _named(target, [*dict(model.named_modules()), *fused]):
            experts = sorted({name.rpartition(".")[2] for name in fused})
            more = f", and the fused weights of experts {', '.join(experts)}" if experts else ""
            linear = ", ".join(linear_names(model))
            raise ModelError(f"`lora`: no module is called `{target}`; the linear layers are {linear}{more}")


def _refuse_others(model: nn.Module) -> None:
    """Raises `ModelError` for an adapter whose results or exported weights would be wrong."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module, ADAPTED):
            raise ModelError(
                f"`lora` can adapt linear layers only, and `{name}` is none; change its `target`"
            )
    for name, layer in layers(model).items():
        if getattr(layer.get_base_layer(), "_is_expert_parallel", False):
            raise ModelError(f"`lora` cannot adapt the experts `{plain_name(name)}` with ep; use fsdp")
        style = getattr(layer.get_base_layer(), "_hf_tp_plan", None)
        if style not in (None, *STYLES):
            raise ModelError(
                f"`lora` cannot adapt `{plain_name(name)}` with tp: its style in the plan is `{style}`, and "
                f"peft supports {' and '.join(STYLES)}; change its `target`, or use fsdp"
            )


def layers(model: nn.Module) -> dict[str, Any]:
    """Returns the layers with an adapter: name of the adapted weight -> LoRA layer."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, ADAPTED):
            own, path = layer, name
            while isinstance(own, LoraLayer):
                own, path = own.base_layer, f"{path}.base_layer"
            found[f"{path}.{getattr(layer, 'parameter_name', 'weight')}"] = layer
    return found


def change_of(layer: Any, inner: Tensor, outer: Tensor) -> Tensor:
    """Returns what an adapter adds to the weight of a layer. `inner` and `outer` are its whole matrices
    `lora_A` and `lora_B`."""
    if isinstance(layer, ParamWrapper):
        shared = (
            inner.view(layer.num_experts, -1, inner.shape[1]),
            outer.view(len(outer), -1, layer.num_experts),
        )
        change = einsum("eri,ore->eoi" if layer._did_swap_in_out_features else "eri,ore->eio", *shared)
    else:
        change = outer @ inner
    return change * float(layer.scaling[ADAPTER])


def plain_name(name: str) -> str:
    """Returns the name that a parameter of the base model has in a model without adapters."""
    return BASE.sub("", name)


def is_adapter(name: str) -> bool:
    """Returns whether a parameter is part of an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def renamed_by(model: nn.Module) -> dict[str, str]:
    """Returns the new names of the weights of adapted modules: regular expression for the name on disk ->
    name in the model with adapters.

    An expression contains the end of a name if all weights with this end are adapted, and otherwise the whole
    name. It does not match the single experts of files, which transformers fuses in memory.
    """
    names = {plain_name(name): name for name, _ in model.named_parameters() if not is_adapter(name)}
    whole = {_end(plain) for plain, name in names.items() if plain == name}
    found = {}
    for plain, name in names.items():
        if plain != name:
            end = plain if _end(plain) in whole else _end(plain)
            found[rf"\b{re.escape(end)}$"] = name.removeprefix(plain.removesuffix(end))
    return found


def _end(name: str) -> str:
    """Returns the last part of a weight's name with those of two modules, or of one with fused weights."""
    parts = name.split(".")
    return ".".join(parts[-3:] if parts[-1] in ("weight", "bias") else parts[-2:])


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
