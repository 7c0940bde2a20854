"""All of transformers that meshctl uses, beside the caches of `transformers_cache`.

`from_pretrained(distributed_config=...)` creates its own meshes, over the accelerator of the machine and all
processes. The functions here apply the same plans to the mesh of a component instead.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from logging import ERROR, getLogger
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    get_scheduler,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, apply_converters, revert_weight_conversion
from transformers.distributed import DistributedConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.fsdp import _get_fsdp_policy_kwargs, apply_fully_sharded_data_parallelism
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import RowwiseParallel, apply_tensor_parallelism
from transformers.distributed.utils import TransformersDeviceMesh
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from meshctl.argument_limits import UNUSABLE
from meshctl.hf import sequence_parallel
from meshctl.hf.options import ModelError, Sizes
from meshctl.text.english import nearest

HEADS = {
    "lm": AutoModelForCausalLM,
    "score": AutoModelForSequenceClassification,
    "classify": AutoModelForSequenceClassification,
}
"""Value of `args.head` -> class of transformers that selects the class of a model. `lm` returns logits of the
vocabulary, `score` a score for each position, and `classify` logits of the labels for each position."""
SUMMED_OVER_TP = "replicated_with_grad_allreduce"
"""The style of parameters that compute with the heads of this rank only. transformers sums their gradients
in a hook after each backward pass. Here, `Trainer.step` sums those of an update in one operation."""
DISPATCHED = "ep_dispatch_experts"
"""The style of experts that ep divides."""
ROWS_TO_TOKENS = "meshctl_rowwise_to_tokens"
"""The style of row-wise layers whose result is divided by tokens."""
ALL_PARALLEL_STYLES.register(ROWS_TO_TOKENS, RowwiseParallel(output_layouts=sequence_parallel.OWN))
Distribute = Callable[[nn.Module], None]
"""A function that shards the parameters of a model in place. The model may be on torch's `meta` device."""
PROBE_WIDTH = 4
"""The width of the numbered rows that `DiskFormat.rows_of` converts to find the stored place of each row."""
OTHER_SHAPES = "its weights have other shapes than its config"
LAYER = re.compile(r".*?\.\d+\.")
"""The prefix that the names of the parameters of one layer have in common."""
make_schedule = get_scheduler


IRRELEVANT_WARNING = "FSDP2-wrapped module .* returned a view tensor|DTensor random operators may not have"
"""The pattern of warnings of torch that concern code which a user cannot change."""
REDISTRIBUTION_LOG = "torch.distributed.tensor._redistribute"
"""The logger of torch that warns of each DTensor that two dims of a mesh gather one after the other."""


def quiet() -> None:
    """Turns off the output of transformers that every rank would print: progress bars, reports about single
    weights, and irrelevant warnings. The settings hold for the whole process."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore", IRRELEVANT_WARNING)
    getLogger(REDISTRIBUTION_LOG).setLevel(ERROR)


def read_config(model: str | Mapping[str, Any], head: str, changes: Mapping[str, Any]) -> Any:
    """Returns the config of a model: a folder, a name of the hub, or a mapping with `model_type`. `changes`
    replaces values of the config. Raises `ModelError` if the config cannot be read."""
    options = {"num_labels": 1} if head == "score" else {}
    try:
        if isinstance(model, str):
            found = AutoConfig.from_pretrained(model, **{**options, **changes}, trust_remote_code=False)
        else:
            found = AutoConfig.for_model(**{**options, **model, **changes})
    except Exception as error:  # of any kind: each config checks its own values
        shown = f"model `{model}`" if isinstance(model, str) else "the config of the model"
        own = (
            "its code is its own, and only that of transformers runs" if "trust_remote" in str(error) else ""
        )
        # the error of an invalid config has its reason in the second line
        reason = own or _unknown_type(model) or " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{shown} cannot be read: {reason}") from error
    text = found.get_text_config()
    if head == "classify":
        found.label2id = {name: number for number, name in found.id2label.items()}
    if head != "lm" and getattr(text, "pad_token_id", None) is None:  # transformers needs it for batches
        ends = getattr(text, "eos_token_id", None)
        text.pad_token_id = ends if isinstance(ends, int) else (ends or [0])[0]
    return found


def _unknown_type(model: str | Mapping[str, Any]) -> str:
    """Returns a text if a config has no model type, or one that does not exist in transformers."""
    if isinstance(model, str):
        return ""
    kind = str(model.get("model_type", ""))
    if not kind:
        return "it has no `model_type`"
    if kind in CONFIG_MAPPING:
        return ""
    help = nearest(kind, CONFIG_MAPPING.keys())
    asked = f"; did you mean `{help}`?" if help else ""
    return f"transformers {transformers.__version__} has no model type `{kind}`{asked}"


def class_of(config: Any, head: str) -> Any:
    """Returns the class of transformers for the model of a config with a head of `HEADS`. Raises `ModelError`
    if transformers has no such class."""
    try:
        return HEADS[head]._model_mapping[type(config)]
    except KeyError:
        kind = getattr(config, "model_type", type(config).__name__)
        raise ModelError(f"transformers has no class of a `{kind}` model with the head `{head}`") from None


def check_usable(config: Any, head: str, attention: str | None, sizes: Sizes) -> None:
    """Raises `ModelError` for a model whose tokens see those after them, a head without scores of tokens, a
    dim that the architecture excludes, and an implementation of attention that does not exist or whose
    package is missing."""
    kind = getattr(config, "model_type", "")
    class_of(config, head)
    if getattr(config, "is_decoder", None) is False:
        help = "a decoder needs `config: {is_decoder: true}`"
        raise ModelError(f"a `{kind}` model is an encoder, in which each token sees those after it: {help}")
    for dim, why in UNUSABLE.get(kind, {}).items():
        if getattr(sizes, dim, 1) > 1 or (dim == "cp" and sizes.ulysses > 1):
            raise ModelError(f"a `{kind}` model cannot be trained on {dim}: {why}; use fsdp")
    try:
        is_used = attention or head != "lm"
        found = outline(config, head, attn_implementation=attention) if is_used else None
    except (ImportError, ValueError) as error:
        raise ModelError(f"`attention: {attention}`: {_first_line(error)}") from None
    if head != "lm" and not isinstance(getattr(found, "score", None), nn.Module):
        raise ModelError(f"a `{kind}` model has no head with a score of each token")


def initialize(model: nn.Module, module: nn.Module) -> None:
    """Initializes the tensors that `module` itself holds, in place, as the model that contains it does."""
    model._init_weights(module)  # type: ignore[operator]


def is_model(module: nn.Module) -> bool:
    """Returns whether a module is a model of transformers, which initializes its modules."""
    return isinstance(module, PreTrainedModel)


def positions_of(config: Any) -> int | None:
    """Returns the maximum number of positions of a model, or None if its config states none."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def outline(config: Any, head: str, **options: Any) -> Any:
    """Returns a model without memory, on torch's `meta` device. `options` are those of `from_config`."""
    with torch.device("meta"):
        model = HEADS[head].from_config(deepcopy(config), **options)
    return _in_float64(model) if options.get("dtype") == torch.float64 else model


def _in_float64(model: Any) -> Any:
    """Returns a model with all weights in float64, also those that transformers always creates in float32."""
    for one in model.parameters():
        one.data = one.data.double()
    return model


def load_model(
    folder: str,
    config: Any,
    head: str,
    dtype: torch.dtype,
    attention: str | None,
    device: torch.device,
    distribute: Distribute,
    renamed: Mapping[str, str],
    resized: Collection[str] = (),
) -> tuple[Any, list[str]]:
    """Loads the model of a folder of safetensors. Each rank reads only its shards. Returns the model, and the
    names of its weights that the files lack, which have random values.

    `distribute` shards the model on torch's `meta` device, and `from_pretrained` reads the local shards to
    `device`. `renamed` maps regular expressions for names on disk to names in the sharded model. The weights
    `resized` have other shapes than in the files, and unspecified values. Raises `ModelError` if the model
    has no such head or a file cannot be read.
    """
    kind = class_of(config, head)

    class Loading(kind):  # type: ignore[misc, valid-type]
        @classmethod
        def prepare_distribute_model(cls, distributed_config: Any, device_map: Any = None) -> Any:
            return distributed_config, device, None

        @classmethod
        def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
            distribute(_in_float64(model) if dtype == torch.float64 else model)
            return model

        @staticmethod
        def _load_pretrained_model(model: Any, state: Any, files: Any, options: Any) -> Any:
            conversions = [_renamed_targets(one, renamed) for one in options.weight_mapping]
            options = replace(options, weight_mapping=conversions)
            return kind._load_pretrained_model(model, state, files, options)

    Loading.__name__, Loading.__module__ = kind.__name__, kind.__module__
    try:
        model, report = Loading.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            key_mapping=dict(renamed) or None,
            distributed_config=DistributedConfig(),
            output_loading_info=True,
            ignore_mismatched_sizes=bool(resized),
        )
    except (OSError, RuntimeError, SafetensorError) as error:
        has_other_shapes = "ignore_mismatched_sizes" in str(error)
        reason = OTHER_SHAPES if has_other_shapes else _first_line(error)
        raise ModelError(f"model `{folder}` cannot be loaded: {reason}") from error
    if {key for key, *_ in report["mismatched_keys"]} - {*resized}:
        raise ModelError(f"model `{folder}` cannot be loaded: {OTHER_SHAPES}")
    model.__class__ = kind
    return model, sorted({*report["missing_keys"]} - {*resized})


def vocabulary_tables(model: Any) -> list[str]:
    """Returns the names of the weights with a row for each token."""
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    return [
        f"{name}.weight" for name, module in model.named_modules() if any(module is one for one in tables)
    ]


def stored_tensor(folder: str, name: str) -> torch.Tensor:
    """Returns a tensor of the files of a model. Raises `ModelError` if the files do not have it."""
    file, index = Path(folder, "model.safetensors"), Path(folder, "model.safetensors.index.json")
    try:
        if index.is_file():
            file = Path(folder, json.loads(index.read_text(encoding="utf-8"))["weight_map"][name])
        with safe_open(file, "pt") as opened:
            return opened.get_tensor(name)  # type: ignore[no-any-return]
    except (OSError, KeyError, ValueError, SafetensorError):
        raise ModelError(f"`tokens`: `{folder}` has no file of safetensors with `{name}`") from None


def _renamed_targets(conversion: Any, renamed: Mapping[str, str]) -> Any:
    if not isinstance(conversion, WeightConverter):
        return conversion
    targets = conversion._original_target_patterns
    for pattern, name in renamed.items():
        targets = [re.sub(pattern, name, one) for one in targets]
    if targets == conversion._original_target_patterns:
        return conversion
    return conversion.copy(conversion._original_source_patterns, targets, operations=conversion.operations)


def shard_by_tp(
    model: Any, mesh: TorchDeviceMesh, sizes: Sizes, is_adapted: bool = False, stages: Sequence[range] = ()
) -> None:
    """Shards a model in place over the dim `tp`, by the model's own plan. With sequence parallelism, it also
    divides tokens between the parts that the plan divides. `is_adapted` states that adapters follow, and
    `stages` are the layers of each pipeline stage. Raises `ModelError` if the model has no such plan, or
    cannot divide its tokens."""
    model.config.distributed_config = _config_of_plans(sizes)
    model._device_mesh, model._tp_size = mesh["tp"], sizes.tp
    model._is_distributed_loading_by_transformers = True
    try:
        plan, of_experts, _ = model._resolve_parallel_plans(_config_of_plans(sizes))
    except ValueError as error:
        raise ModelError(_first_line(error)) from error
    of_parts = [name for name, style in plan.items() if style == SUMMED_OVER_TP]
    plan = {name: style for name, style in plan.items() if style != SUMMED_OVER_TP}
    if sizes.sequence == 1:
        apply_tensor_parallelism(model, mesh["tp"], plan)
        model.partial_over_tp = tuple(of_parts)
        return
    if not mixes_tokens_in_attention(model):
        raise ModelError(f"`{type(model).__name__}` has no sequence parallelism: it has a recurrent state")
    both = plan | of_experts
    layers = sequence_parallel.regions_of(model, both)
    regions = [region for regions in layers.values() for region in regions]
    reduced = {one for one in regions if not is_adapted and sequence_parallel.is_reduced(model, both, one)}
    for name, style in plan.items():
        if style == sequence_parallel.ROWS and name.startswith(tuple(f"{one}." for one in reduced)):
            plan[name] = ROWS_TO_TOKENS
    apply_tensor_parallelism(model, mesh["tp"], plan)
    model.partial_over_tp = (*of_parts, *sequence_parallel.partial_names(model, layers))
    sequence_parallel.divide_tokens(model, mesh["tp"], layers, reduced, stages)


def shard_by_ep(model: Any, mesh: TorchDeviceMesh, sizes: Sizes) -> None:
    """Divides the experts of a model in place over the dim `ep`, by the model's own plan. Tokens go to the
    ranks of their experts. Raises `ModelError` if the model has no such plan, or another number of
    experts."""
    model._is_distributed_loading_by_transformers = True
    try:
        _, plan, _ = model._resolve_parallel_plans(_config_of_plans(sizes))
        apply_expert_parallelism(model, mesh["ep"], mesh["tp"], plan)
    except ValueError as error:
        raise ModelError(_first_line(error)) from error
    if not any(getattr(module, "_is_expert_parallel", False) for module in model.modules()):
        raise ModelError(f"`{type(model).__name__}` has no experts, which ep divides: leave out `ep_size`")


def shard_by_fsdp(model: Any, mesh: TorchDeviceMesh, sizes: Sizes, compute: torch.dtype | None) -> None:
    """Shards a model in place over the dims `fsdp` and `cp` and replicates it over `dp`, with FSDP2 and the
    model's own plan. What ep leaves of all ranks, `ep_fsdp`, shards the experts.

    If `compute` is bfloat16, the forward and backward passes use bfloat16 copies of the weights, and
    gradients are reduced in float32.
    """
    config = _config(sizes, is_mixed=compute is not None)
    model.config.distributed_config = config
    model._is_distributed_loading_by_transformers = True
    _, of_experts, _ = model._resolve_parallel_plans(_config_of_plans(sizes))
    for name in [name for name, style in of_experts.items() if style == DISPATCHED]:
        _shard_experts(model.get_submodule(name), mesh["ep_fsdp"], sizes, _get_fsdp_policy_kwargs(config))
    _, _, plan = model._resolve_parallel_plans(config)
    present = {name: plan[name] for name in plan if any(True for _ in model.get_submodule(name).parameters())}
    apply_fully_sharded_data_parallelism(model, _Meshes(mesh), _of_other_dtypes(model) | present, {})


def _of_other_dtypes(model: Any) -> dict[str, str]:
    """Returns a plan for the modules with weights of another dtype than the model's, such as routers that
    transformers keeps in float32. FSDP2 shards only weights of one dtype together. Raises `ModelError` if
    such a module has submodules."""
    found = {}
    for name, module in model.named_modules():
        if any(one.dtype != model.dtype for one in module.parameters(recurse=False)):
            found[name] = "free_full_weight"
            if any(True for _ in module.children()):
                raise ModelError(
                    f"`{type(model).__name__}` has weights of another dtype than `dtype`, which dp and fsdp "
                    "cannot divide: use `dtype: float32`, for training with `compute_dtype: bfloat16`"
                )
    return found


def _shard_experts(
    experts: nn.Module, mesh: TorchDeviceMesh, sizes: Sizes, policy: Mapping[str, Any]
) -> None:
    """Shards the experts of a layer, which ep has divided. They see the samples of all ranks of dp, fsdp and
    cp, and FSDP2 shards them over fewer ranks. FSDP2 only adds their gradients, and a hook divides the sums:
    FSDP2 applies a divide factor twice on a mesh of one rank in float64."""
    fully_shard(experts, mesh=mesh, reshard_after_forward=True, **policy)
    assert isinstance(experts, FSDPModule)
    experts.set_gradient_divide_factor(1.0)
    experts.set_force_sum_reduction_for_comms(True)
    experts.set_all_reduce_hook(lambda gradient: torch._foreach_div_([gradient], sizes.averaged))


class _Meshes(TransformersDeviceMesh):  # type: ignore[misc]
    """The mesh of a component with the names of dims that transformers uses. Its `fsdp` includes cp."""

    def __init__(self, mesh: TorchDeviceMesh) -> None:
        self._names = {"dp_replicate": "dp"}
        self._mesh = mesh
        if mesh["cp"].size() > 1:
            both = mesh["fsdp", "cp"]._flatten("fsdp_cp")
            self._mesh = TorchDeviceMesh._concatenate([mesh["dp"], both, mesh["tp"]])
            self._names["fsdp"] = "fsdp_cp"

    def get_mesh(self, dims: str | tuple[str, ...]) -> TorchDeviceMesh:
        if isinstance(dims, str):
            return self._mesh[self._names.get(dims, dims)]
        return self._mesh[tuple(self._names.get(dim, dim) for dim in dims)]


def _config(sizes: Sizes, is_mixed: bool = False) -> Any:
    return DistributedConfig(
        tp_size=sizes.tp,
        fsdp_size=sizes.shards,
        dp_replicate_size=sizes.dp,
        fsdp_mixed_precision=is_mixed,
    )


def _config_of_plans(sizes: Sizes) -> Any:
    """Returns the config by which transformers resolves the plans for tp and ep. In transformers, ep divides
    fsdp x tp, and here dp and cp, too."""
    return DistributedConfig(tp_size=sizes.tp, fsdp_size=sizes.averaged, ep_size=sizes.ep)


def register_attention(name: str, attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Registers an implementation of attention, and the function that makes its masks."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def mixes_tokens_in_attention(model: Any) -> bool:
    """Returns whether a model passes information from token to token in functions of `AttentionInterface`
    only, and not also in a recurrent state."""
    return bool(model._supports_attention_backend and not model._is_stateful)


def untie(model: Any) -> None:
    """Replaces each tied parameter by a copy, in place. Parameters are sharded one at a time, so they cannot
    share memory."""
    for name in tied_names(model):
        module, _, attribute = name.rpartition(".")
        parameter = model.get_parameter(name)
        copy = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
        setattr(model.get_submodule(module), attribute, copy)


def tie(model: Any) -> None:
    """Ties the parameters again that `untie` replaced by copies."""
    model.tie_weights(recompute_mapping=False)


def scores_of(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns `[rows, length, labels]`: the output of the head `score` or `classify` at each position. The
    model's own forward returns that of the last position only."""
    found: list[torch.Tensor] = []
    handle = model.score.register_forward_hook(lambda module, given, output: found.append(output))
    try:
        model(**inputs)
    finally:
        handle.remove()
    return found[0]


def end_tokens(model: Any) -> list[int]:
    """Returns the ids of the tokens that end an answer, as the files of the model state them."""
    found = model.generation_config.eos_token_id
    if found is None:
        return []
    return [found] if isinstance(found, int) else list(found)


def tied_names(model: Any) -> frozenset[str]:
    """Returns the names of tied parameters, each of which is the second name of another parameter."""
    return frozenset(getattr(model, "all_tied_weights_keys", None) or {})


def summed_over_tp(model: Any) -> list[nn.Parameter]:
    """Returns the parameters whose gradients are parts of a sum over tp."""
    names = getattr(model, "partial_over_tp", ())
    inside = tuple(f"{name}." for name in names)
    return [one for name, one in model.named_parameters() if name in names or name.startswith(inside)]


class DiskFormat:
    """The names, shapes and files with which transformers stores the weights of a model.

    The names and shapes of a model's tensors in memory can be others than those in its files: transformers
    fuses the experts of a layer when it loads them.
    """

    def __init__(self, config: Any, head: str, dtype: torch.dtype, use_cache: bool = True) -> None:
        """`config` and `head` are those of the model, and `dtype` is that of its weights. `use_cache` is the
        value of the exported config."""
        plain = deepcopy(config)
        plain.distributed_config, plain.use_cache = None, use_cache
        self._outline = outline(plain, head)
        self._outline.config.dtype = str(dtype).removeprefix("torch.")
        conversions = get_model_conversion_mapping(self._outline, add_legacy=False)
        self._has_conversions = bool(conversions)
        reversed_ones = [one.reverse_transform() for one in conversions[::-1]]
        self._converters = [one for one in reversed_ones if isinstance(one, WeightConverter)]
        sources = [one.reverse_transform().source_patterns for one in conversions]
        self._joins = any(len(patterns) > 1 or "*" in patterns[0] for patterns in sources)
        """True if a tensor in a file may be made of several tensors in memory."""

    def is_stored(self, name: str) -> bool:
        """Returns whether a tensor in memory is stored in files."""
        return name not in (self._outline._keys_to_ignore_on_save or ())

    def is_converted(self, name: str) -> bool:
        """Returns whether the shape or the elements of a tensor in memory differ from those in files."""
        return apply_converters(name, self._converters)[1] is not None

    def renamed(self, name: str) -> str:
        """Returns the name in files of a tensor that is not converted."""
        if not self._has_conversions:
            return name
        [stored] = self.convert({name: torch.empty(0, device="meta")})
        return stored

    def unit_of(self, name: str) -> str:
        """Returns a key that is equal for all tensors that are converted together."""
        return str(apply_converters(name, self._converters)[0])

    def rows_of(self, name: str, shape: tuple[int, ...]) -> dict[str, torch.Tensor] | None:
        """Returns name in files -> the rows of the tensor `name` that are stored under it.

        A row is a vector of the last dim. The rows have the shape of the stored tensor without its last dim,
        and are numbered in the order of the tensor in memory. The result is None if a stored tensor does not
        consist of whole rows of this tensor.
        """
        elements = torch.arange(prod(shape[:-1]) * PROBE_WIDTH).view(*shape[:-1], PROBE_WIDTH)
        stored = self.convert({name: torch.empty(shape, device="meta")})
        try:
            probes = self.convert({name: elements})
        except (ValueError, RuntimeError):
            return None
        rows = {key: probe[..., 0] // PROBE_WIDTH for key, probe in probes.items()}
        row = torch.arange(PROBE_WIDTH)
        for key, probe in probes.items():
            is_whole = torch.equal(probe, rows[key][..., None] * PROBE_WIDTH + row)
            if not is_whole or stored[key].shape != (*rows[key].shape, shape[-1]):
                return None
        return rows

    def units(self, names: Iterable[str]) -> list[tuple[str, ...]]:
        """Returns the names in memory, in units that `convert` accepts. The names that are not stored are
        left out.

        A unit is one name, or the names of one layer if tensors of a layer are stored as one.
        """
        stored = [name for name in names if self.is_stored(name)]
        if not self._joins:
            return [(name,) for name in stored]
        units: dict[str, list[str]] = {}
        for name in stored:
            layer = LAYER.match(name)
            units.setdefault(layer.group() if layer else "", []).append(name)
        return [tuple(unit) for unit in units.values()]

    def convert(self, unit: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the stored tensors of a unit: name in a file -> tensor, of the device of `unit`."""
        return dict(revert_weight_conversion(self._outline, dict(unit)))

    def save_config(self, folder: Path) -> None:
        """Writes the config of the model, and that of its generation, to `folder`."""
        model = self._outline
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
