"""The table of losses, the lookup of a loss by its name, and the result of a loss.

A new loss is a file with a function, as described in `meshctl.losses`, and one line in `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.losses.function import Function, find_function
from meshctl.losses.function import LossError as LossError

LOSSES = {
    "cross_entropy": "meshctl.losses.cross_entropy.cross_entropy",
    "dpo": "meshctl.losses.dpo.dpo",
    "ipo": "meshctl.losses.ipo.ipo",
    "simpo": "meshctl.losses.simpo.simpo",
    "orpo": "meshctl.losses.orpo.orpo",
    "kto": "meshctl.losses.kto.kto",
    "bradley_terry": "meshctl.losses.bradley_terry.bradley_terry",
    "grpo": "meshctl.losses.grpo.grpo",
    "dr_grpo": "meshctl.losses.dr_grpo.dr_grpo",
    "dapo": "meshctl.losses.dapo.dapo",
    "gspo": "meshctl.losses.gspo.gspo",
    "cispo": "meshctl.losses.cispo.cispo",
    "rloo": "meshctl.losses.rloo.rloo",
    "ppo": "meshctl.losses.ppo.ppo",
    "value": "meshctl.losses.value.value",
    "distill": "meshctl.losses.distill.distill",
}
"""Name of a loss -> dotted path of its function."""


@dataclass(frozen=True, eq=False)
class LossSum:
    """A loss summed over the local units, which are tokens, samples, groups or pairs."""

    total: Tensor
    """0-dim: the weighted sum. It requires a gradient."""
    count: Tensor
    """0-dim: the sum of the weights, or the number of units. It has no gradient."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """The sums of further values over the same units, 0-dim and without a gradient. Their means are `sum /
    count`."""


@dataclass(frozen=True)
class Loss(Function):
    """A loss function with its options."""

    def __call__(self, inputs: Mapping[str, Any]) -> LossSum:
        """Calls the function with `inputs`, a mapping from input names to values, and returns its loss.

        Inputs that the function does not have are ignored. Raises `LossError` if a required input is missing,
        or if the function does not return a sum and a count.
        """
        result = self.apply(inputs)
        if isinstance(result, LossSum):
            return result
        if isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, Tensor) for one in result):
            return LossSum(result[0], result[1].detach())
        raise LossError(
            f"loss `{self.name}` returned a {type(result).__name__}; it must return a LossSum or the pair "
            "(sum, count) of 0-dim tensors, not a mean"
        )


def find(name: str, **options: Any) -> Loss:
    """Returns the loss `name` with these options. `name` is a key of `LOSSES` or the dotted path of a
    function.

    Raises `LossError` for an unknown name or option.
    """
    found = find_function("loss", LOSSES, name, options)
    return Loss(found.kind, found.name, found.function, found.options, found.required, found.optional)
