"""Builds a model on its mesh: loading, tensor parallelism, adapters, and FSDP, in this order.

No other order is correct. An adapter that is added before tensor parallelism is not sharded with its layer.
The gradients of an adapter that is added after FSDP are never reduced over ranks. Tied parameters are
separated before sharding and tied again afterwards.

Random weights are drawn one layer at a time. The seed and the name of a layer determine its weights, so that
they are the same in every layout. Each rank draws a whole layer, copies its own shards, and drops the layer.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from meshctl.dataclass import dataclass
from meshctl.hf import peft_api, transformers_api
from meshctl.hf.options import ModelError, Sizes
from meshctl.hf.peft_api import Lora
from meshctl.hf.sharding import check_rows, local_of, part_of
from meshctl.hf.stages import Stages, drop_other_stages, first_names, listed_names
from meshctl.hf.transformers_api import tied_names
from meshctl.hf.weights import adapter_of, copy_named, held
from meshctl.hub_cache import MODEL_FILES, local_folder, missing_weights
from meshctl.text.english import counted, nearest
from meshctl.topology.memory import Selection

NEW_HEAD = "score."
"""The beginning of the names of the weights of a head other than `lm`, which a language model lacks."""


@dataclass(frozen=True)
class Build:
    """The arguments of `build`."""

    model: str | Mapping[str, Any]
    """The folder of a model, a name of the hub, or the values of a config with `model_type`. A model that is
    built from config values has random weights."""
    head: str = "lm"
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace those of the model's config."""
    dtype: torch.dtype = torch.float32
    compute_dtype: torch.dtype | None = None
    attention: str | None = None
    experts: str | None = None
    lora: Lora | None = None
    selection: Selection = Selection()
    """The parameters that are trained, without an adapter."""
    seed: int = 0
    sizes: Sizes = Sizes()
    mesh: TorchDeviceMesh | None = None
    """The mesh of torch with the dims dp, fsdp, cp and tp; None if one rank holds the whole model."""
    device: torch.device = torch.device("cpu")
    split: str | Sequence[int] = "count"
    """The division of the layers over pipeline stages: a name of `SPLITS`, or the layers of each stage."""
    pp_rank: int = 0
    added: range = range(0)
    """The ids of tokens that are added to the vocabulary of the model."""

    def stages(self, config: Any) -> Stages | None:
        """Returns the pipeline stages of a model with this config; None if a rank holds the whole model."""
        if self.sizes.pp == 1:
            return None
        return Stages.of(config, self.head, self.split, self.sizes, self.pp_rank)


def build(wanted: Build) -> nn.Module:
    """Returns the model with the shards of this rank, on `wanted.device` and in training mode.

    This function is a collective operation: all ranks of the mesh call it. Raises `ModelError` if the model
    cannot be read, or cannot be sharded as `wanted` requires.
    """
    transformers_api.quiet()
    named = wanted.model
    if isinstance(named, str):
        # It may be below a folder from which modules are imported, such as the recipe's. Without such a
        # folder, or if that one lacks weights, transformers resolves the name.
        found = local_folder(named, sys.path, os.environ, MODEL_FILES)
        named = named if found is None or missing_weights(found) else str(found)
    config = read_config(named, wanted.head, wanted.config, wanted.added)
    if wanted.selection != Selection():
        names = [name for name, _ in transformers_api.outline(config, wanted.head).named_parameters()]
        for pattern in wanted.selection.unused(names):
            raise ModelError(f"no parameter is called `{pattern}`; there are {', '.join(names[:3])}, ...")
    transformers_api.check_usable(config, wanted.head, wanted.attention, wanted.sizes)
    _check_changes(config, transformers_api.read_config(named, wanted.head, {}), wanted.config)
    model = _loaded(named, config, wanted) if isinstance(named, str) else new_model(config, wanted)
    if wanted.experts:
        model.set_experts_implementation(wanted.experts)
    _select_trained(model, wanted)
    model.exported_use_cache = getattr(config, "use_cache", True)
    model.config.use_cache = False  # with a cache, transformers does not look for the borders of packed texts
    model.train()
    return model  # type: ignore[no-any-return]


def read_config(model: str | Mapping[str, Any], head: str, changes: Mapping[str, Any], added: range) -> Any:
    """Returns the config of a model whose vocabulary has the ids `added`. Raises `ModelError` if it cannot be
    read."""
    config = transformers_api.read_config(model, head, changes)
    text = config.get_text_config()
    if added:
        text.vocab_size = max(text.vocab_size, added.stop)
    return config


def _select_trained(model: Any, wanted: Build) -> None:
    """Selects the trained parameters, because transformers trains all that it loads, and initializes an
    adapter."""
    if wanted.lora is None:
        select(model, wanted.selection)
        return
    for name, parameter in model.named_parameters():
        is_new_head = wanted.head != "lm" and name.startswith(NEW_HEAD)
        parameter.requires_grad_(is_new_head or peft_api.is_adapter(name))
    reset_adapter(model, wanted.seed)
    if wanted.lora.folder:
        load_adapter(model, wanted.lora, wanted.sizes.pp == 1)


def _check_changes(config: Any, plain: Any, changes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for a quantized model, and if values that replace those of `plain` have no effect,
    or would drop layers."""
    if getattr(config, "quantization_config", None) or changes.get("quantization_config"):
        raise ModelError("quantized models are not supported: name the model with its full weights")
    for key in changes:
        if not hasattr(plain, key):
            help = f"; did you mean `{close}`?" if (close := nearest(key, vars(plain))) else ""
            raise ModelError(f"the config of a `{plain.model_type}` model has no `{key}`{help}")
    before, after = (getattr(one.get_text_config(), "num_hidden_layers", 0) for one in (plain, config))
    if after < before:
        raise ModelError(f"`config` leaves {after} of the {counted(before, 'layer')} of the model")


def _loaded(folder: str, config: Any, wanted: Build) -> Any:
    outline = transformers_api.outline(config, wanted.head)
    renamed: dict[str, str] = {}
    if (stages := wanted.stages(config)) and stages.last in stages.own and 0 not in stages.own:
        tied = first_names(outline)
        renamed = {rf"^{re.escape(first)}$": second for second, first in tied.items()}
    if wanted.lora:
        peft_api.inject(outline, wanted.lora)
        renamed |= peft_api.renamed_by(outline)
    tables = transformers_api.vocabulary_tables(outline) if wanted.added else []
    model, missing = transformers_api.load_model(
        folder,
        config,
        wanted.head,
        wanted.dtype,
        wanted.attention,
        wanted.device,
        lambda model: distribute(model, wanted),
        renamed,
        tables,
    )
    _extend(model, folder, wanted, {name: outline.get_parameter(name).shape for name in tables})
    new = {name for name in missing if wanted.head != "lm" and name.startswith(NEW_HEAD)}
    if lacking := [name for name in missing if name not in new and not peft_api.is_adapter(name)]:
        first, others = peft_api.plain_name(lacking[0]), len(lacking) - 1
        more = f" and {counted(others, 'further weight')} of the model" if others else ""
        raise ModelError(f"model `{folder}` cannot be loaded: its files lack `{first}`{more}")
    if new:  # transformers has drawn other values on each rank
        draw(model, transformers_api.outline(config, wanted.head), new, wanted.seed)
    return model


@torch.no_grad()
def _extend(model: Any, folder: str, wanted: Build, tables: Mapping[str, Sequence[int]]) -> None:
    """Fills the tables of a vocabulary that is larger than in the files of the model, in place: an added
    token has the mean of the tokens before it. `tables` maps their names to their shapes."""
    if not tables:
        return
    own, added = held(model), wanted.added
    disk = transformers_api.DiskFormat(model.config, wanted.head, wanted.dtype)
    for name in own.keys() & tables.keys():
        old = transformers_api.stored_tensor(folder, disk.renamed(name))
        known = old[: added.start]
        table = known.double().mean(0).to(old.dtype).repeat(tables[name][0], 1)
        table[: len(known)] = known
        table[added.stop : len(old)] = old[added.stop :]
        copy_named(own, [(name, table)])


def distribute(model: Any, wanted: Build) -> None:
    """Shards a model in place over tp and ep, adds adapters, drops the layers of other pipeline stages, and
    shards the rest over fsdp, cp and dp.

    Steps that `wanted` does not request are left out. Raises `ModelError` if the model does not support a
    step.
    """
    sizes, stages = wanted.sizes, wanted.stages(model.config)
    if sizes.tp > 1:
        assert wanted.mesh is not None
        layers = stages.layers if stages else ()
        transformers_api.shard_by_tp(model, wanted.mesh, sizes, bool(wanted.lora), layers)
    if sizes.ep > 1:
        assert wanted.mesh is not None
        transformers_api.shard_by_ep(model, wanted.mesh, sizes)
    if wanted.lora:
        peft_api.inject(model, wanted.lora)
    if stages:
        drop_other_stages(model, stages)
    select(model, wanted.selection)
    if sizes.averaged > 1 or wanted.compute_dtype is not None:
        assert wanted.mesh is not None
        check_tied(model, sizes)
        check_rows(model, sizes.tp, sizes.shards)
        transformers_api.shard_by_fsdp(model, wanted.mesh, sizes, wanted.compute_dtype)


def select(model: nn.Module, selection: Selection) -> None:
    """Freezes the parameters of `model` that are not selected."""
    for name, parameter in model.named_parameters() if selection != Selection() else ():
        parameter.requires_grad_(selection.has(name))


def check_tied(model: Any, sizes: Sizes) -> None:
    """Raises `ModelError` if the rows of a tied parameter cannot be divided evenly over fsdp, cp and tp.

    FSDP pads uneven shards in a buffer for each of the two modules of the parameter. Only one of the buffers
    would follow the optimizer, so the model would train wrongly without an error.
    """
    shards = sizes.shards * sizes.tp
    for name in sorted(tied_names(model)):
        rows = model.get_parameter(name).shape[0]
        if sizes.shards > 1 and rows % shards:
            dims = {"fsdp": sizes.fsdp, "cp": sizes.cp, "tp": sizes.tp}
            drawn = ", ".join(f"{dim} {size}" for dim, size in dims.items() if size > 1)
            raise ModelError(
                f"`{name}` is tied to the embedding, and its {rows} rows have no equal shards on {shards} "
                f"ranks ({drawn}); use dp, or sizes whose product divides {rows}"
            )


def new_model(config: Any, wanted: Build) -> Any:
    """Returns a model with random weights on `wanted.device`. Each rank holds only its shards.

    The model is created on torch's `meta` device, where it is sharded. The seed determines the weights, which
    are the same in every layout. Raises `ModelError` if the model has no such head.
    """
    transformers_api.class_of(config, wanted.head)
    options = {"dtype": wanted.dtype, "attn_implementation": wanted.attention}
    model, whole = (transformers_api.outline(config, wanted.head, **options) for _ in range(2))
    transformers_api.untie(model)
    distribute(model, wanted)
    model.to_empty(device=wanted.device)
    tied = transformers_api.tied_names(whole)
    draw(model, whole, {name for name, _ in _tensors(whole)} - tied, wanted.seed)
    transformers_api.tie(model)
    return model


@torch.no_grad()
def draw(model: nn.Module, whole: nn.Module, names: Set[str], seed: int) -> None:
    """Fills the parameters and buffers `names` of `model`, which may be sharded, in place.

    `whole` is the same model without shards and adapters, on torch's `meta` device. Its classes initialize
    the weights.
    """
    own = {peft_api.plain_name(name): tensor for name, tensor in _tensors(model)}
    own = {listed: own[name] for name, listed in listed_names(model, own).items()}
    names = names & own.keys()
    for owner, name, layer in _layers(whole, whole, ""):
        is_alone = not _has_lists(layer)
        paths = [f"{name}.{key}" if name else key for key, _ in _tensors(layer, is_alone)]
        if names.isdisjoint(paths):
            continue
        layer.to_empty(device="cpu", recurse=is_alone)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, name))
            if is_alone:
                _initialize(owner, layer)
            else:
                transformers_api.initialize(owner, layer)
        for path, (_, tensor) in zip(paths, _tensors(layer, is_alone), strict=True):
            if path in names:
                target = local_of(own[path])
                target.copy_(part_of(tensor.to(target), own[path]))
        layer.to("meta")


@torch.no_grad()
def reset_adapter(model: Any, seed: int) -> None:
    """Initializes a new adapter in place: `lora_A` to random values with the distribution of peft, and
    `lora_B` to 0. `seed` determines the values, which are the same in every layout."""
    for name, tensor in held(model).items():
        if ".lora_B." in name:
            local_of(tensor).zero_()
        elif ".lora_A." in name:
            generator = torch.Generator().manual_seed(seed_of(seed, name))
            bound = tensor.shape[1] ** -0.5  # kaiming_uniform_ with a = sqrt(5)
            drawn = torch.empty(tensor.shape, dtype=torch.float64).uniform_(
                -bound, bound, generator=generator
            )
            local_of(tensor).copy_(part_of(drawn.to(tensor.device, tensor.dtype), tensor))


def load_adapter(model: Any, lora: Lora, is_whole: bool) -> None:
    """Copies the weights of a saved adapter into `model`. `is_whole` is whether all layers are in this rank.
    Raises `ModelError` if the adapter has other layers or shapes."""
    own = dict(adapter_of(model))
    arrived = set()
    for name, tensor in lora.weights():
        if name in own or is_whole:
            arrived.add(name)
            copy_named(own, [(name, tensor)])
    if lacking := own.keys() - arrived:
        raise ModelError(f"`lora.from`: the adapter in `{lora.folder}` lacks `{min(lacking)}`")


def seed_of(seed: int, name: str) -> int:
    """Returns a seed that is different for each `name`."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest(), "big")


def _layers(owner: nn.Module, module: nn.Module, name: str) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yields (the model of transformers that initializes a layer, name, layer), in order.

    A layer is a module that contains no list of modules. A module with such lists is yielded after its
    children, for the tensors that it holds itself.
    """
    if _has_lists(module):
        for key, child in module.named_children():
            path = f"{name}.{key}" if name else key
            yield from _layers(_owner_of(child, owner), child, path)
    yield owner, name, module


def _has_lists(module: nn.Module) -> bool:
    return any(isinstance(one, nn.ModuleList) for one in module.modules())


def _initialize(owner: nn.Module, module: nn.Module) -> None:
    """Initializes a module after its children, as transformers does."""
    for child in module.children():
        _initialize(_owner_of(child, owner), child)
    transformers_api.initialize(owner, module)


def _owner_of(module: nn.Module, owner: nn.Module) -> nn.Module:
    """Returns the model of transformers that initializes a module: the module itself if it is such a model,
    and otherwise `owner`, the innermost model that contains it."""
    return module if transformers_api.is_model(module) else owner


def _tensors(module: nn.Module, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    parameters = module.named_parameters(recurse=recurse, remove_duplicate=False)
    buffers = module.named_buffers(recurse=recurse, remove_duplicate=False)
    return chain(parameters, buffers)
