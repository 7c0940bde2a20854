"""MC450 and MC472: the bytes of each component's model on a rank, read from the recipe, from facts about
ready-made classes, and from configs on this machine.

Bytes that are not known are unknown, with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.architectures import parameters_of
from meshctl.recipe.code.files import adapter_config
from meshctl.recipe.code.transformers_plans import LIBRARY
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.meshes import sizes_of
from meshctl.recipe.model import Component, Stage
from meshctl.recipe.rules.components import STATE_METHODS
from meshctl.recipe.rules.facts import ALL_LINEAR, Facts
from meshctl.text.english import listed, size
from meshctl.topology.memory import (
    DTYPE_BYTES,
    Adapter,
    ComponentMemory,
    DeviceMemory,
    Memory,
    Move,
    Parameter,
    RankBytes,
    Selection,
    Split,
    Training,
    UnknownBytes,
    adapter_bytes,
    checkpoint_bytes,
    costs_of,
    of_stages,
    rank_bytes,
    sharing,
    states_of,
    trained_part,
    with_sync,
)
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.stage_split import by_cost, by_count, of_counts
from meshctl.topology.traffic import Layout, moves

SPLITTING = ("pp", "dp", "fsdp", "cp", "tp")
"""The dims whose effect on parameters is known."""


def memory_of(facts: Facts) -> Memory:
    """Returns the bytes of all components of a recipe, and of the devices that they share."""
    found = {name: _component(facts, name) for name in facts.recipe.components}
    components = {name: one for name, one in found.items() if one is not None}
    return Memory(tuple(components.values()), tuple(_devices(facts, components)))


def _component(facts: Facts, name: str) -> ComponentMemory | None:
    try:
        model = model_of(facts, facts.recipe.components[name])
    except UnknownBytes as unknown:
        return ComponentMemory(name, unknown=str(unknown))
    if model is None:
        return None
    found, training = model.rank_bytes, model.training
    is_known = not training.is_trained or states_of(training.optimizer, training.options) is not None
    return ComponentMemory(
        name,
        found.weights,
        found.gradients,
        found.optimizer if is_known else None,
        found.sync,
        training.optimizer.rpartition(".")[2] if training.is_trained else "",
        moves=model.moves,
        stages=tuple(one.total for one in model.bytes_of_stages) if len(model.stages) > 1 else (),
        trained=trained_part(model.parameters, training),
    )


def _devices(facts: Facts, components: Mapping[str, ComponentMemory]) -> Iterator[DeviceMemory]:
    """Yields the sets of groups that share a device and have a component with a known model. Groups on cpu
    share no process."""
    if facts.allocation is None:
        return
    groups, devices = facts.recipe.groups, facts.allocation.devices
    for device_type in dict.fromkeys(group.device_type for group in groups.values()):
        own = [name for name, group in groups.items() if group.device_type == device_type]
        limit = facts.recipe.cluster.device_memory if device_type != "cpu" else 0
        shared: list[tuple[str, ...]] = [(name,) for name in own]
        if device_type != "cpu":
            shared = sharing({name: devices[name] for name in own})
        for together in shared:
            names = [name for name in components if facts.recipe.components[name].group in together]
            if known := [name for name in names if not components[name].unknown]:
                total = sum(components[name].total for name in known)
                is_complete = all(components[name].is_complete for name in names)
                yield DeviceMemory(together, tuple(known), total, is_complete, device_type, limit)


@dataclass(frozen=True)
class Model:
    """A model whose parameters are known."""

    parameters: tuple[Parameter, ...]
    training: Training
    split: Split
    syncs: tuple[Stage, ...]
    """The syncs that send or load its weights."""
    stages: tuple[tuple[Parameter, ...], ...]
    """The parameters of each pp rank."""
    moves: tuple[Move, ...] = ()
    """The collective operations of a rank in a micro-batch; empty if they are unknown."""

    @property
    def rank_bytes(self) -> RankBytes:
        """Its bytes on the rank with the most."""
        return max(self.bytes_of_stages, key=lambda one: one.total)

    @property
    def bytes_of_stages(self) -> list[RankBytes]:
        """Its bytes on each pp rank."""
        return [self._bytes_of(parameters) for parameters in self.stages]

    def _bytes_of(self, parameters: Sequence[Parameter]) -> RankBytes:
        found = rank_bytes(parameters, self.split, self.training)
        adapter = adapter_bytes(parameters, self.split, self.training)
        for sync in self.syncs:
            sent = adapter if sync.method == "adapter" else found.weights - adapter
            found = with_sync(found, sent, sync.lag)
        return found


def checkpoint_bytes_of(facts: Facts) -> int:
    """Returns the least bytes of a checkpoint of the recipe: those of the components with a known model."""
    return sum(checkpoint_bytes(one.parameters, one.training) for one in _saved_models(facts).values())


def copy_bytes_of(facts: Facts) -> dict[str, int]:
    """Returns component -> the least bytes of a copy of its state, on the rank with the most."""
    return {
        name: max(checkpoint_bytes(stage, one.training, one.split) for stage in one.stages)
        for name, one in _saved_models(facts).items()
    }


def _saved_models(facts: Facts) -> dict[str, Model]:
    found = dict[str, Model]()
    for name, component in facts.recipe.components.items():
        declared = facts.class_of(name)
        if component.frozen or declared is None or not declared.methods.issuperset(STATE_METHODS):
            continue
        with suppress(UnknownBytes):
            if model := model_of(facts, component):
                found[name] = model
    return found


def model_of(facts: Facts, component: Component) -> Model | None:
    """Returns the model of a component; None if the bytes of its class are unknown, or its layout is wrong.
    Raises `UnknownBytes` if its parameters are not known."""
    name, found, mesh = component.name, facts.class_of(component.name), facts.meshes.get(component.name)
    if found is None or not found.is_component or found.declares.shipped.trained_by is None or mesh is None:
        return None
    training, layouts = _training(facts, component), found.declares.layouts
    parameters = _parameters(facts, name, _text(facts, name, "head", "lm"))
    sizes = zip(mesh.mesh_dim_names, mesh.shape, strict=True)
    others = [dim for dim, size in sizes if size > 1 and dim not in SPLITTING]
    others += ["pp"] if mesh.size("pp") > 1 and not layouts.pp_plan else []
    others += ["etp"] if mesh.etp_size > 1 else []
    if others:
        raise UnknownBytes(f"how {others[0]} splits its parameters is not known")
    if mesh.size("tp") > 1 and not (layouts.tp_plan and any(one.tp_dim is not None for one in parameters)):
        raise UnknownBytes("how tp splits its parameters is not known")
    stages = _stages(facts, name, mesh, parameters)
    shards = mesh.size("fsdp") * mesh.size("cp")
    split = Split(mesh.size("dp"), shards, mesh.size("tp"), mesh.ep_size, mesh.size("ep_fsdp"))
    pipeline = facts.recipe.pipeline.values()
    syncs = tuple(one for one in pipeline if one.kind == "sync" and name in (one.component, one.to))
    compute_bytes = DTYPE_BYTES.get(_text(facts, name, "compute_dtype", ""), 0)
    layout = Layout(split, mesh, compute_bytes, _experts_per_token(facts, name))
    moved = moves(stages[0], training, layout) if layouts.tp_plan == LIBRARY else ()
    return Model(tuple(parameters), training, split, syncs, tuple(map(tuple, stages)), moved)


def _experts_per_token(facts: Facts, component: str) -> int:
    tree = facts.config_values(component)
    found = tree.get("num_experts_per_tok") if tree is not None and tree.is_mapping else None
    return found.value if found is not None and type(found.value) is int else 0


def _stages(
    facts: Facts, name: str, mesh: DeviceMesh, parameters: Sequence[Parameter]
) -> list[Sequence[Parameter]]:
    """Returns the parameters of each pp rank. Raises `UnknownBytes` if the layers of a stage are unknown."""
    pp, number = mesh.size("pp"), mesh.pp_stages
    if pp == 1:
        return [parameters]
    layers = max((one.layers for one in parameters if "*" in one.name), default=0)
    argument = facts.argument(name, facts.declares(name).layouts.split)
    split = "count" if argument is None else plain(argument)
    if layers < number or (isinstance(split, list) and sum(split) != layers):
        raise UnknownBytes("its layers do not fit its pipeline stages")
    if split == "cost":
        costs, head = costs_of(
            parameters, facts.models[name].get("num_experts"), _experts_per_token(facts, name)
        )
        ranges = by_cost([costs] * layers, number, head)
    else:
        ranges = of_counts(split) if isinstance(split, list) else by_count(layers, number)
    return [of_stages(parameters, ranges, range(rank, number, pp)) for rank in range(pp)]


def _value(facts: Facts, component: str, argument: str) -> Any:
    """Returns the value of an argument, or its default. Raises `UnknownBytes` if it is not in the recipe."""
    node, found = facts.node("components", component, "args", argument), facts.class_of(component)
    if node is None:
        return found.constructor.defaults.get(argument) if found and found.constructor else None
    if node.from_environment or node.is_interpolated:
        raise UnknownBytes(f"`args.{argument}` is known at launch only")
    return plain(node)


def _text(facts: Facts, component: str, argument: str, default: str) -> str:
    value = _value(facts, component, argument)
    return value if isinstance(value, str) else default


def _training(facts: Facts, component: Component) -> Training:
    """Returns how a component is trained. Raises `UnknownBytes` if an argument that decides it is unknown."""
    name = component.name
    dtype, options = _text(facts, name, "dtype", "float32"), _value(facts, name, "optimizer_options")
    if dtype not in DTYPE_BYTES:
        raise UnknownBytes(f"`{dtype}` is not a dtype of weights")
    adapter, lora = None, _value(facts, name, "lora")
    if isinstance(lora, dict):
        if "from" in lora:
            saved = adapter_config(str(lora["from"]), facts.code.path) or {}
            lora = {"r": saved.get("r"), "target": saved.get("target_modules")}
        r, target = lora.get("r", 8), lora.get("target", ALL_LINEAR)
        if type(r) is not int or r < 1 or not (target == ALL_LINEAR or isinstance(target, list)):
            raise UnknownBytes("the `r` and the `target` of its adapter are not known")
        adapter = Adapter(r, () if target == ALL_LINEAR else tuple(map(str, target)))
    endpoints = facts.declares(name).shipped.trained_by or ()
    calls = [one for one in facts.recipe.pipeline.values() if one.component == name]
    return Training(
        dtype,
        _text(facts, name, "optimizer", "AdamW"),
        options if isinstance(options, dict) else {},
        adapter,
        not component.frozen and any(one.method in endpoints for one in calls),
        Selection(*(_patterns(facts, name, argument) for argument in ("freeze", "train"))),
    )


def _patterns(facts: Facts, component: str, argument: str) -> tuple[str, ...]:
    value = _value(facts, component, argument)
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _parameters(facts: Facts, component: str, head: str) -> list[Parameter]:
    tree = facts.config_values(component)
    if tree is not None and (values := plain(tree)):
        if head == "classify" and isinstance(labels := _value(facts, component, "num_labels"), int):
            values = {**values, "num_labels": labels}
        return parameters_of(values, head)
    missing = [file.wrong for _, file in facts.declared_configs(component) if file.wrong]
    raise UnknownBytes(missing[0] if missing else "no config of its model was found")


SHORT = ("bfloat16", "float16", "half")


def models_fit_device(facts: Facts) -> Iterator[Diagnostic]:
    """The models on a device need at most its memory."""
    if not facts.recipe.cluster.device_memory or not facts.is_valid("cluster"):
        return
    memory = memory_of(facts)
    totals = {one.component: one.total for one in memory.components}
    for device in memory.devices:
        if device.total > device.device_memory > 0:
            need = "needs" if len(device.components) == 1 else "need"
            has = size(device.device_memory)
            what = f"{listed(device.components)} {need} {size(device.total)}"
            message = f"{what} on each device, which has {has}"
            largest = max(device.components, key=lambda name: totals[name])
            owner = sizes_of(facts.recipe, facts.recipe.components[largest])[0].name
            path = ("components", owner, "parallel")
            span = facts.value(*path) if facts.is_named(*path) else facts.key("components", owner)
            second = facts.value("cluster", "device_memory").with_word(f"{has} each")
            help = "divide the model over more ranks (`fsdp_size`), or train an adapter (`lora`)"
            yield Diagnostic("MC450", message, span, (second,), help, "warning")


def updates_are_not_rounded_away(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """Weights that an optimizer of torch changes are stored in more than 16 bits."""
    name = component.name
    dtype, optimizer, lora = (facts.memory_argument(name, key) for key in ("dtype", "optimizer", "lora"))
    if dtype is None or dtype.value not in SHORT or lora is not None:
        return
    is_own = optimizer and "." in str(optimizer.value) and not str(optimizer.value).startswith("torch.")
    trained_by = facts.declares(name).shipped.trained_by or ()
    calls = [one for one in facts.recipe.pipeline.values() if one.component == name and one.kind == "call"]
    if not is_own and any(one.method in trained_by for one in calls):
        message = f"`{name}` trains weights in {dtype.value}, which rounds most small updates away"
        help = "leave it out, and compute in 16 bits: compute_dtype: bfloat16"
        yield Diagnostic("MC472", message, dtype.span, help=help, severity="warning")
