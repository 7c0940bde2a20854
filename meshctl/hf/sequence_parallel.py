"""Sequence parallelism: between the regions of a layer that tp divides, each rank has a part of the tokens.

    layer      norm | attention     | + | norm | mlp           | +
    tokens     own  | all -> own    | own      | all -> own    | own

The first layer takes this rank's tokens, and the last one returns all of them. A region, such as attention,
is a child of a layer that contains modules of the plan for tp. All other weights of a layer compute with this
rank's tokens only, so their gradients are summed over tp (`Trainer.step`).

A region of column-wise layers with one row-wise layer after them adds the results of all ranks and divides
them in one operation, forward and backward. Any other region computes as it would without sequence
parallelism: it returns all tokens on each rank, of which the rank keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from meshctl.hf.options import ModelError

OWN = Shard(1)
"""The placement of hidden states, `[rows, tokens, width]`, of which each rank has a part of the tokens."""
REGION = re.compile(r"(.*\.\d+)\.([^.]+)\..+")
"""The name of a module in a layer: the layer, its child, and the place in this child."""
COLUMNS, ROWS = "colwise", "rowwise"
WITHOUT_FORWARD = "local_params"
"""The style of modules whose parameters only are divided."""


def regions_of(model: nn.Module, plan: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the name of each layer -> the names of its regions. `plan` has the modules and parameters that
    are divided. Raises `ModelError` for a model that this module cannot divide."""
    found: dict[str, list[str]] = {}
    for name in plan:
        if match := REGION.fullmatch(name):
            layer, child = match.groups()
            regions = found.setdefault(layer, [])
            if f"{layer}.{child}" not in regions:
                regions.append(f"{layer}.{child}")
    all_regions = {region for regions in found.values() for region in regions}
    mixing = [name for name, one in model.named_modules() if hasattr(one, "is_causal")]
    wrong = [name for name in mixing if not f"{name}.".startswith(tuple(f"{one}." for one in all_regions))]
    wrong += [name for name in plan if name in all_regions and plan[name] != WITHOUT_FORWARD]
    if wrong or not found:
        reason = f"`{wrong[0]}` is not inside a child of a layer" if wrong else "it has no layers"
        raise ModelError(f"`{type(model).__name__}` has no sequence parallelism: {reason}")
    return found


def partial_names(model: nn.Module, layers: Mapping[str, list[str]]) -> list[str]:
    """Returns the names of the modules and parameters of layers that compute with this rank's tokens only.
    `layers` is the result of `regions_of`."""
    found = []
    for layer, regions in layers.items():
        module = model.get_submodule(layer)
        own = [name for name, _ in module.named_parameters(recurse=False)]
        names = [f"{layer}.{name}" for name in (*own, *(name for name, _ in module.named_children()))]
        found += [name for name in names if name not in regions]
    return found


def is_reduced(model: nn.Module, plan: Mapping[str, str], region: str) -> bool:
    """Returns whether all inputs of a region go to column-wise layers, and its output is that of a row-wise
    one."""
    linear = [name for name, one in model.get_submodule(region).named_modules() if isinstance(one, nn.Linear)]
    styles = [plan.get(f"{region}.{name}") for name in linear]
    has_others = any(
        style not in (COLUMNS, ROWS) for name, style in plan.items() if name.startswith(f"{region}.")
    )
    return not has_others and COLUMNS in styles and styles.count(ROWS) == 1 and {*styles} == {COLUMNS, ROWS}


def divide_tokens(
    model: nn.Module,
    mesh: TorchDeviceMesh,
    layers: Mapping[str, list[str]],
    reduced: set[str],
    stages: Sequence[range] = (),
) -> None:
    """Replaces `forward` of layers and regions in place, so that they divide and join tokens. `reduced` are
    the regions whose row-wise layer returns this rank's tokens. Each pipeline stage, of which `stages` has
    the layers, takes and returns all tokens."""

    def own(whole: Tensor) -> Tensor:
        return DTensor.from_local(whole, mesh, [Replicate()], run_check=False).redistribute(
            placements=[OWN]
        ).to_local()  # fmt: skip

    def replicated(part: Tensor) -> DTensor:
        found = DTensor.from_local(part, mesh, [OWN], run_check=False).redistribute(placements=[Replicate()])
        assert isinstance(found, DTensor)
        return found

    def whole(part: Tensor) -> Tensor:
        return replicated(part).to_local()

    for regions in layers.values():
        for region in regions:
            module = model.get_submodule(region)
            if region in reduced:
                _replace(module, replicated, _same)
            else:
                _replace(module, whole, own)
    names = list(layers)
    for numbers in stages or (range(len(names)),):
        _replace(model.get_submodule(names[numbers.start]), own, _same)
        _replace(model.get_submodule(names[numbers.stop - 1]), _same, whole)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _replace(module: nn.Module, enter: Callable[[Tensor], Tensor], leave: Callable[[Tensor], Tensor]) -> None:
    """Replaces `forward` of a module by one that changes its hidden states and its first result."""
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if args:
            args = (enter(args[0]), *args[1:])
        else:
            kwargs["hidden_states"] = enter(kwargs["hidden_states"])
        found = inner(*args, **kwargs)
        return (leave(found[0]), *found[1:]) if isinstance(found, tuple) else leave(found)

    module.forward = forward
