"""The optimizer and its schedule, by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from meshctl.hf.errors import ModelError
from meshctl.hf.transformers_api import make_schedule

OPTIONS_OF_SCHEDULE = ("steps", "warmup")


def make_optimizer(
    name: str, named: Sequence[tuple[str, nn.Parameter]], options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Returns the optimizer of `torch.optim` of this name, or of the dotted path of a class.

    Plain parameters and those of each mesh are a group each, because one operation on many tensors cannot
    have both. Raises `ModelError` for an unknown name or option.
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
    """Returns the schedule `{name, warmup, steps, ...}` of transformers, such as `cosine` or `linear`.

    Raises `ModelError` if there is no such schedule.
    """
    options = {"name": "constant", **given}
    name, warmup, steps = options.pop("name"), options.pop("warmup", 0), options.pop("steps", None)
    if warmup and name == "constant":
        name = "constant_with_warmup"
    try:
        return make_schedule(name, optimizer, warmup, steps, scheduler_specific_kwargs=options)
    except (TypeError, ValueError) as error:
        raise ModelError(f"`schedule` {name}: {error}") from error


def _class(name: str) -> type[torch.optim.Optimizer]:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module or "torch.optim"), attribute, None)
    except ModuleNotFoundError as error:
        raise ModelError(f"optimizer `{name}`: {error}") from None
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        raise ModelError(f"optimizer `{name}` is no class of torch.optim, and no dotted path of an optimizer")
    return found


def state_of(
    optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, nn.Parameter]]
) -> dict[str, dict[str, Any]]:
    """Returns the optimizer's state by the names of parameters, which no layout changes.

    A state that does not exist yet is made by a step with gradients of 0 and a learning rate of 0, so that a
    checkpoint can be loaded into its tensors.
    """
    if not optimizer.state:
        _make_state(optimizer)
    return {name: dict(optimizer.state[parameter]) for name, parameter in named}


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
    """Sets the optimizer's state to what `state_of` returned, in any layout."""
    for name, parameter in named:
        optimizer.state[parameter] = dict(saved[name])
