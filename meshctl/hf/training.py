"""One optimizer step of a model: gradients of several micro-batches, their norm, clipping, and the update.

A backward pass adds the gradient of a sum over units (tokens, samples or pairs). FSDP averages it over the
ranks of dp, fsdp and cp. At the end, one all-reduce over all ranks adds the counts, the losses and the
squared norms, and one factor turns the gradients into those of the mean over all units, clipped.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from meshctl.hf import transformers_api
from meshctl.hf.options import ModelError, Sizes
from meshctl.hf.sharding import in_blocks, local_of, placed_like, squared_norm
from meshctl.hf.stages import FIRST_NAMES
from meshctl.hf.transformers_api import make_schedule
from meshctl.hf.weights import copy_named
from meshctl.losses import LossSum
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.batch.ids import shown_ids
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.rank_context import RankContext
from meshctl.text.english import did_you_mean


class Sums:
    """Losses of several micro-batches, summed over their units. The sums are 0-dim float64 tensors on the
    device of the losses, because the host would wait for the device to read a number."""

    def __init__(self) -> None:
        self._total = self._count = torch.zeros((), dtype=torch.float64)
        self._metrics: dict[str, Tensor] = {}

    def add(self, loss: LossSum) -> None:
        self._total = self._total + _number(loss.total)
        self._count = self._count + _number(loss.count)
        for name, value in loss.metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + _number(value)

    def over_ranks(
        self, world: Collective, peers: int, *further: Tensor
    ) -> tuple[dict[str, float], float, list[float]]:
        """Returns the means over the units of all data ranks of the loss, as `loss`, and of the metrics; the
        number of units; and the sums of the 0-dim tensors `further` over all ranks. The means are 0 without
        units.

        The function makes one all-reduce over `world`, which all ranks call. The `peers` ranks of a data rank
        have the same sums, so each of them adds 1/`peers` of its own. All ranks have metrics of the same
        names.
        """
        names = sorted(self._metrics)
        own = [self._count, self._total, *(self._metrics[name] for name in names)]
        numbers = [*(value / peers for value in own), *map(_number, further)]
        summed = world.all_reduce(torch.stack([value.to(world.device) for value in numbers]))
        count, *rest = summed.tolist()
        means = {
            name: value / count if count else 0.0 for name, value in zip(("loss", *names), rest, strict=False)
        }
        return means, count, rest[len(names) + 1 :]


def _number(value: Tensor) -> Tensor:
    """Returns a tensor of one element as 0-dim float64, without a gradient and on the same device."""
    return local_of(torch.as_tensor(value, dtype=torch.float64)).reshape(())


def not_finite(culprits: Sequence[Batch], batch: Batch, data: Collective) -> str:
    """Returns which samples of all data ranks make an update not finite. `culprits` are the micro-batches of
    this rank's `batch` whose loss is not finite. All ranks of `data` call this together."""
    own = [*chain.from_iterable(part.ids.tolist() for part in culprits)]
    if found := [*chain.from_iterable(data.all_gather_object(own))]:
        return f"the loss of samples {shown_ids(found)} is not finite"
    ids = [*chain.from_iterable(data.all_gather_object(batch.ids.tolist()))]
    return f"each loss is finite, and the gradient of samples {shown_ids(ids)} is not"


class Trainer:
    """Runs the backward passes and the optimizer steps of a model, on one rank."""

    def __init__(
        self,
        model: nn.Module,
        named: Sequence[tuple[str, nn.Parameter]],
        optimizer: torch.optim.Optimizer,
        rates: LearningRates,
        world: Collective,
        tp: Collective,
        sizes: Sizes,
        clip: float | None,
    ) -> None:
        self.named, self.optimizer, self.rates = list(named), optimizer, rates
        self.updates, self.skipped = 0, 0
        """The number of steps, and the number of steps that were skipped because they had no units or no
        finite gradient."""
        self._model, self._world, self._tp, self._sizes, self._clip = model, world, tp, sizes, clip
        tied: Mapping[str, str] = getattr(model, FIRST_NAMES, {})
        self.shared = [one for name, one in self.named if name in tied.values()]
        """The parameters that this rank and another pipeline stage hold."""
        copies = {id(one) for name, one in model.named_parameters() if name in tied}
        self._counted = [one for _, one in self.named if id(one) not in copies]
        """The parameters whose gradients this rank counts in the norm: not those of the last stage that are
        copies of the first stage's."""
        self.sums = Sums()
        """The losses of the update whose backward passes have run."""
        self._partial = [one for one in transformers_api.summed_over_tp(model) if one.requires_grad]

    def backward(self, loss: LossSum, is_last: bool) -> None:
        """Runs the backward pass of a micro-batch and accumulates its gradient. `is_last` is true for the
        last micro-batch of an update. All ranks have the same number of micro-batches."""
        if isinstance(self._model, FSDPModule) and self._sizes.dp > 1:
            self._model.set_requires_all_reduce(is_last)
        loss.total.backward()  # type: ignore[no-untyped-call]
        self.sums.add(loss)

    def step(self) -> Mapping[str, float]:
        """Updates the weights, clears the gradients, and returns the metrics of the step. All ranks call this
        together.

        The metrics are the means of the losses, `grad_norm` before clipping, `lr`, `units`, and `skipped`,
        the number of skipped steps so far. If the gradient or the loss is not finite, no rank changes its
        weights.
        """
        self._sum_over_tp()
        grads = [parameter.grad for _, parameter in self.named if parameter.grad is not None]
        counted = [parameter.grad for parameter in self._counted if parameter.grad is not None]
        squared = squared_norm(counted, self._world.size // self._sizes.pp)
        means, units, [squared_sum] = self.sums.over_ranks(self._world, self._sizes.peers, squared)
        self.sums = Sums()
        mean = self._sizes.averaged / units if units else 0.0
        norm = squared_sum**0.5 * mean
        lr = self.rates.set(self.updates - self.skipped)
        is_finite = isfinite(norm) and isfinite(means["loss"])
        if is_finite and units:
            clipped = min(1.0, self._clip / (norm + 1e-6)) if self._clip else 1.0
            if grads:
                torch._foreach_mul_([local_of(grad) for grad in grads], mean * clipped)
            self.optimizer.step()
        else:
            self.skipped += 1
        self.optimizer.zero_grad()
        self.updates += 1
        found = {"grad_norm": norm, "lr": lr, "units": units, "skipped": float(self.skipped)}
        return {**means, **found}

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint has of the model: `hf.Model.state_dict`."""
        return {
            "weights": {name: in_blocks(one.detach()) for name, one in self.named},
            "optimizer": state_of(self.optimizer, self.named),
            "updates": self.updates,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a result of `state_dict`. The layout may be another one."""
        copy_named({name: one.detach() for name, one in self.named}, state["weights"].items())
        for name, parameter in self.named:
            self.optimizer.state[parameter] = {
                key: placed_like(value, parameter) if isinstance(value, Tensor) else value
                for key, value in state["optimizer"][name].items()
            }
        self.updates, self.skipped = state["updates"], state["skipped"]

    def _sum_over_tp(self) -> None:
        """Adds the gradients of all tp ranks for the parameters that have seen a part of the heads, or of the
        tokens, on each."""
        own = [local_of(one.grad) for one in self._partial if one.grad is not None]
        if own:
            summed = self._tp.all_reduce(torch.cat([grad.flatten() for grad in own]))
            parts = torch.split(summed, [grad.numel() for grad in own])
            torch._foreach_copy_(own, [part.view_as(grad) for part, grad in zip(parts, own, strict=True)])


UNFIT = ("Optimizer", "LBFGS", "SparseAdam")
"""The classes of torch.optim whose steps need more than dense gradients."""
ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")
"""The schedules without an end."""
SCHEDULE_KEYS = (
    "name", "warmup", "steps", "num_cycles", "power", "lr_end", "timescale", "min_lr", "min_lr_rate",
    "warmup_lr_rate", "num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio",
)  # fmt: skip
"""The keys of the argument `schedule`: those of meshctl, and the options of the schedules of transformers."""


def make_optimizer(
    name: str, named: Sequence[tuple[str, nn.Parameter]], options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Creates an optimizer of the parameters in `named`. `name` is a class of `torch.optim` or the dotted
    path of a class, and `options` are its arguments.

    Plain parameters form one parameter group, and the DTensors of each mesh form another. An operation on
    many tensors (`foreach`) cannot mix them. Norms, which have one dim, and biases form groups
    without weight decay. Raises `ModelError` for an unknown name or option, and if there are no parameters.
    """
    kind = _class(name)
    groups: dict[Any, list[nn.Parameter]] = {}
    for full_name, parameter in named:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        decays = parameter.ndim > 1 and not full_name.endswith("bias")
        groups.setdefault((mesh, decays), []).append(parameter)
    if not groups:
        raise ModelError("the model has no parameter that is trained")
    try:
        made = kind([{"params": group} for group in groups.values()], **options)
    except (TypeError, ValueError) as error:
        raise ModelError(f"optimizer `{name}`: {error}") from error
    for group, (_, decays) in zip(made.param_groups, groups, strict=True):
        if "weight_decay" in group and not decays:
            group["weight_decay"] = 0.0
    return made


class LearningRates:
    """Sets the learning rate of each update, by a schedule of transformers.

    With `steps`, the schedule counts the updates of the model. Without, it counts the steps of the run, up to
    its last one. The count determines the rate, so a resumed run continues the schedule.
    """

    def __init__(
        self, given: Mapping[str, Any], optimizer: torch.optim.Optimizer, place: RankContext
    ) -> None:
        """`given` has the keys `name` (such as `cosine` or `linear`; default `constant`), `warmup` (a number,
        or below 1 a share of all), `steps`, and further options of the schedule. Raises `ModelError` for an
        unknown schedule or option."""
        self._given, self._optimizer, self._place = dict(given), optimizer, place
        for key in given:
            if key not in SCHEDULE_KEYS:
                raise ModelError(f"`schedule` has no key `{key}`; {did_you_mean(key, SCHEDULE_KEYS)}")
        warmup, name = given.get("warmup", 0), given.get("name", "constant")
        for key in ("warmup", "steps"):
            if key in given and not isinstance(given[key], (int, float)):
                raise ModelError(f"`schedule.{key}` is {given[key]!r}: it must be a number")
        if warmup > 1 and warmup % 1:
            raise ModelError(f"`schedule.warmup` is {warmup}: it must be a whole number, or a share below 1")
        self._follows_run = "steps" not in given and (name not in ENDLESS or 0 < warmup < 1)
        self._length = 1
        self._made = self._schedule()

    def _schedule(self) -> LambdaLR:
        options = {"name": "constant", "steps": self._length, **self._given}
        name, warmup, steps = options.pop("name"), options.pop("warmup", 0), options.pop("steps")
        warmup = round(warmup * steps) if warmup < 1 else int(warmup)
        if warmup and name == "constant":
            name = "constant_with_warmup"
        if name in ENDLESS[:2] and options:
            raise ModelError(f"`schedule` {name} has no option `{next(iter(options))}`")
        try:
            made = make_schedule(name, self._optimizer, warmup, steps, scheduler_specific_kwargs=options)
        except (TypeError, ValueError) as error:
            raise ModelError(f"`schedule` {name}: {error}") from error
        if not isinstance(made, LambdaLR):
            raise ModelError(f"`schedule` {name} does not follow from the number of updates")
        return made

    def set(self, updates: int) -> float:
        """Sets and returns the learning rate of the next update. `updates` is the number of finished
        updates. Raises `ModelError` if the length of the run is needed and unknown."""
        count = updates
        if self._follows_run:
            count = max(0, self._place.step - 1)
            if not self._place.last_step:
                raise ModelError(
                    "`schedule` needs `steps`, because the number of steps of this run is unknown"
                )
            if self._length != self._place.last_step:
                self._length = self._place.last_step
                self._made = self._schedule()
        made, groups = self._made, self._optimizer.param_groups
        for group, base, factor in zip(groups, made.base_lrs, made.lr_lambdas, strict=True):
            group["lr"] = base * factor(count)
        return float(groups[0]["lr"])


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
    return {
        name: {
            key: in_blocks(value) if isinstance(value, Tensor) else value
            for key, value in optimizer.state[parameter].items()
        }
        for name, parameter in named
    }


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
