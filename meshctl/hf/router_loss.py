"""The loss by which the routers of a model learn to use all experts alike, over the whole batch of an update.

    loss = coefficient x experts x sum over experts of (chosen / tokens) x (probability / tokens)

`chosen` counts the tokens of all layers whose router chooses an expert, and `probability` adds the
probabilities of this expert. The loss is that of transformers (`output_router_logits`,
`router_aux_loss_coef`), except that both sums are those of all micro-batches and all ranks, and leave out the
padding. It is no sum over tokens, so a rank that knew only its own tokens would minimize another one.

The gradient of a micro-batch needs the sums of the whole batch. With one micro-batch, they are added after
its forward pass. With several, each has a forward pass without gradients before the first backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, nn

from meshctl.hf.options import ModelError, Sizes
from meshctl.losses import LossSum
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.collectives.collective import Collective

FUNCTION = "load_balancing_loss_func"
"""The function of the modules of transformers that computes the loss of routers."""
LIKE = 1e-5
"""The largest relative difference between the results of this function and of `Choices.loss`."""


@dataclass(frozen=True, eq=False)
class Choices:
    """The decisions of the routers of all layers for some tokens, in the dtype of the sums."""

    chosen: Tensor
    """`[experts]`"""
    probability: Tensor
    """`[experts]`, with a gradient in a forward pass for training."""
    tokens: Tensor
    """0-dim: the number of tokens, counted once for each layer."""

    @staticmethod
    def of(logits: Sequence[Tensor], is_real: Tensor, top: int) -> Choices:
        """Returns the `top` experts of each token by the `logits` of each layer, `[tokens, experts]`.
        `is_real` is false for padding."""
        dtype = torch.promote_types(logits[0].dtype, torch.float32)
        probabilities = torch.stack([layer.to(dtype) for layer in logits]).softmax(-1)
        best = probabilities.detach().topk(top, -1).indices
        real = is_real.flatten().to(dtype)
        chosen = torch.zeros_like(probabilities).scatter_(-1, best, 1.0)
        counted, summed = ((one * real[:, None]).sum((0, 1)) for one in (chosen, probabilities))
        return Choices(counted, summed, real.sum() * len(logits))

    def __add__(self, other: Choices) -> Choices:
        return Choices(
            self.chosen + other.chosen, self.probability + other.probability, self.tokens + other.tokens
        )

    def loss(self, chosen: Tensor, tokens: Tensor) -> Tensor:
        """Returns the part of these tokens in the loss of a batch with `chosen` and `tokens` in all, without
        its coefficient."""
        return len(chosen) * (chosen * self.probability).sum() / tokens.clamp(min=1) ** 2


class RouterLoss:
    """Adds the loss of the routers of a model to the losses of its micro-batches, if its config has
    `output_router_logits`."""

    def __init__(self, model: Any, world: Collective, sizes: Sizes) -> None:
        config = model.config.get_text_config()
        self.is_added = bool(getattr(config, "output_router_logits", False))
        self._top: int = getattr(config, "num_experts_per_tok", 0)
        self.coefficient: float = getattr(config, "router_aux_loss_coef", 0.0)
        self._world, self._sizes = world, sizes
        self._is_real: Tensor | None = None
        self._found: list[Choices] | None = None
        """The choices of the forward passes so far of a micro-batch, while its loss is computed."""
        self.value = 0.0
        """The loss of the last batch, without its coefficient."""
        if self.is_added:
            model.base_model.register_forward_hook(self._note)
        self._model = model

    def expect(self, is_real: Tensor) -> None:
        """Notes which tokens of the next forward pass are no padding, bool `[rows, tokens]`."""
        self._is_real = is_real

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Returns a context whose forward passes are not counted: those of a reference model."""
        found, self._found = self._found, None
        try:
            yield
        finally:
            self._found = found

    def added(self, parts: Sequence[Batch], loss_of: Callable[[Batch], LossSum]) -> Iterator[LossSum]:
        """Yields the loss of each micro-batch. Its gradient includes the loss of the routers, and its value
        does not. All ranks call this together, with as many micro-batches. Raises `ModelError` if the model
        has no such loss, or computes it in another way."""
        if not self.is_added:
            yield from map(loss_of, parts)
            return
        if not self._is_known:
            kind = self._model.config.get_text_config().model_type
            raise ModelError(
                f"`{kind}` has no loss of routers that is known here; leave out `output_router_logits`"
            )
        if len(parts) == 1:
            loss, own = self._counted(loss_of, parts[0])
            yield self._with(loss, own, *self._sums(own, loss.count))
            return
        with torch.no_grad():
            loss, own = self._counted(loss_of, parts[0])
            count = torch.as_tensor(loss.count)
            for part in parts[1:]:
                loss, further = self._counted(loss_of, part)
                own, count = own + further, count + torch.as_tensor(loss.count)
        sums = self._sums(own, count)
        for part in parts:
            yield self._with(*self._counted(loss_of, part), *sums)

    def metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of an update with those of this loss: `router_loss`, and its part of `loss`."""
        if not self.is_added:
            return dict(metrics)
        loss = metrics["loss"] + self.coefficient * self.value
        return {**metrics, "loss": loss, "router_loss": self.value}

    def _counted(self, loss_of: Callable[[Batch], LossSum], part: Batch) -> tuple[LossSum, Choices]:
        found = self._found = []
        loss = loss_of(part)
        self._found = None
        if not found:
            raise ModelError("`output_router_logits` is set, and the model returned no logits of its routers")
        return loss, reduce(Choices.__add__, found)

    def _sums(self, own: Choices, count: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns `chosen`, `tokens` and the number of units of all ranks, and stores the loss."""
        # The ranks of tp have the same tokens. Those of cp and ulysses have other tokens of the same units.
        sizes, experts = self._sizes, len(own.chosen)
        units = torch.as_tensor(count, dtype=torch.float64, device=own.chosen.device).reshape(1)
        numbers = [own.chosen, own.probability.detach(), own.tokens.reshape(1)]
        parts = [*(number.double() / sizes.tp for number in numbers), units.detach() / sizes.peers]
        found = self._world.all_reduce(torch.cat(parts))
        chosen, probability, (tokens, units) = found[:experts], found[experts:-2], found[-2:]
        self.value = float(Choices(chosen, probability, tokens).loss(chosen, tokens))
        return chosen, tokens, units

    def _with(self, loss: LossSum, own: Choices, chosen: Tensor, tokens: Tensor, units: Tensor) -> LossSum:
        """Adds the gradient of these tokens. That of an update is divided by the number of units later."""
        of_routers = own.loss(chosen.to(own.chosen.dtype), tokens) * self.coefficient * units
        of_routers = of_routers.to(torch.promote_types(own.probability.dtype, loss.total.dtype))
        return LossSum(loss.total + (of_routers - of_routers.detach()), loss.count, loss.metrics)

    def _note(self, module: nn.Module, given: Any, output: Any) -> None:
        logits = getattr(output, "router_logits", None)
        if logits and self._found is not None and self._is_real is not None:
            self._found.append(Choices.of(logits, self._is_real, self._top))

    @cached_property
    def _is_known(self) -> bool:
        """True if the loss of routers in the module of the model has the same value for some logits."""
        kinds = type(self._model).__mro__  # FSDP has changed the class of the model
        modules = [sys.modules.get(kind.__module__) for kind in kinds]
        function = next((getattr(one, FUNCTION) for one in modules if hasattr(one, FUNCTION)), None)
        if function is None or not (top := self._top):
            return False
        logits = tuple(torch.randn(7, top + 3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        own = Choices.of(logits, torch.ones(7, dtype=torch.bool), top)
        found = float(function(logits, top + 3, top))
        return abs(found - float(own.loss(own.chosen, own.tokens))) <= LIKE * abs(found)
