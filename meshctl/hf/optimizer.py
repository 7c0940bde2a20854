"""Creates the optimizer and its learning-rate schedule by name, and saves and loads the optimizer's state."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from meshctl.hf.errors import ModelError
from meshctl.hf.sharding import in_blocks, placed_like
from meshctl.hf.transformers_api import make_schedule

UNFIT = ("Optimizer", "LBFGS", "SparseAdam")
"""The classes of torch.optim whose steps need more than dense gradients."""
ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")
"""The schedules without an end."""


def make_optimizer(
    name: str, named: Sequence[tuple[str, nn.Parameter]], options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Creates an optimizer of the parameters in `named`. `name` is a class of `torch.optim` or the dotted
    path of a class, and `options` are its arguments.

    Plain parameters form one parameter group, and the DTensors of each mesh form another. An operation on
    many tensors (`foreach`) cannot mix them. Raises `ModelError` for an unknown name or option, and if there
    are no parameters.
    """
    kind = _class(name)
    groups: dict[Any, list[nn.Parameter]] = {}
    for _, parameter in named:
        key = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(key, []).append(parameter)
    if not groups:
        raise ModelError("the model has no parameter that is trained")
    try:
        return kind([{"params": group} for group in groups.values()], **options)
    except (TypeError, ValueError) as error:
        raise ModelError(f"optimizer `{name}`: {error}") from error


def make_lr_schedule(given: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """Creates a learning-rate schedule of transformers from `given`.

    The keys of `given` are `name` (such as `cosine` or `linear`; default `constant`), `warmup` and `steps`
    (in updates), and further options of the schedule. Raises `ModelError` for an unknown schedule or option.
    """
    options = {"name": "constant", **given}
    name, warmup, steps = options.pop("name"), options.pop("warmup", 0), options.pop("steps", None)
    if warmup and name == "constant":
        name = "constant_with_warmup"
    if name not in ENDLESS and steps is None:
        raise ModelError(f"`schedule` {name} needs `steps`, the number of updates after which it ends")
    if name in ENDLESS[:2] and options:
        raise ModelError(f"`schedule` {name} has no option `{next(iter(options))}`")
    try:
        made = make_schedule(name, optimizer, warmup, steps, scheduler_specific_kwargs=options)
    except (TypeError, ValueError) as error:
        raise ModelError(f"`schedule` {name}: {error}") from error
    if not isinstance(made, LambdaLR):
        raise ModelError(f"`schedule` {name} does not follow from the number of updates")
    return made


def _class(name: str) -> type[torch.optim.Optimizer]:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module or "torch.optim"), attribute, None)
    except ModuleNotFoundError as error:
        raise ModelError(f"optimizer `{name}`: {error}") from None
    is_unfit = module in ("", "torch.optim") and attribute in UNFIT
    if is_unfit or not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        raise ModelError(
            f"optimizer `{name}` is neither a class of torch.optim that needs gradients alone nor the dotted "
            "path of an optimizer"
        )
    return found


def state_of(
    optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, nn.Parameter]]
) -> dict[str, dict[str, Any]]:
    """Returns the optimizer's state: name of a parameter -> its state. The names are the same in every
    layout.

    If the optimizer has no state yet, this function creates the state by a step with gradients of 0 and a
    learning rate of 0. A checkpoint can then be loaded into the tensors of this state.
    """
    if not optimizer.state:
        _make_state(optimizer)
    return {name: _in_blocks(optimizer.state[parameter]) for name, parameter in named}


def _in_blocks(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: in_blocks(value) if isinstance(value, Tensor) else value for key, value in state.items()}


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"].zero_()


def load_state(
    optimizer: torch.optim.Optimizer,
    named: Sequence[tuple[str, nn.Parameter]],
    saved: Mapping[str, Mapping[str, Any]],
) -> None:
    """Replaces the optimizer's state by `saved`, a result of `state_of`. The layout may be another one."""
    for name, parameter in named:
        optimizer.state[parameter] = {
            key: placed_like(value, parameter) if isinstance(value, Tensor) else value
            for key, value in saved[name].items()
        }
