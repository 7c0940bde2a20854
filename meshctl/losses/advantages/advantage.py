"""The table of advantages, the lookup by a name, and the result.

A new advantage is a file with a function, as described in `meshctl.losses.advantages`, and one line in
`ADVANTAGES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.losses.function import Function, LossError, find_function

ADVANTAGES = {
    "grpo": "meshctl.losses.advantages.grpo.grpo",
    "group_mean": "meshctl.losses.advantages.group_mean.group_mean",
    "rloo": "meshctl.losses.advantages.rloo.rloo",
    "gae": "meshctl.losses.advantages.gae.gae",
    "whitened": "meshctl.losses.advantages.whitened.whitened",
}
"""Name of an advantage -> dotted path of its function."""
DEFAULTS = {
    "grpo": "grpo",
    "dr_grpo": "group_mean",
    "dapo": "grpo",
    "gspo": "grpo",
    "cispo": "grpo",
    "rloo": "rloo",
    "ppo": "gae",
    "value": "gae",
}
"""Name of a loss -> the advantage of its paper."""


class Estimates(NamedTuple):
    """The result of an advantage."""

    advantages: Tensor
    """`[samples]` or `[samples, tokens]`, without a gradient."""
    returns: Tensor | None = None
    """`[samples, tokens]`: the targets of a critic's values."""


@dataclass(frozen=True)
class Advantage(Function):
    """A function that computes advantages, with its options."""

    def __call__(self, inputs: Mapping[str, Any]) -> Estimates:
        """Calls the function with `inputs`, a mapping from input names to values.

        Raises `LossError` if a required input is missing, or if the function returns something else.
        """
        found = self.apply(inputs)
        found = Estimates(found) if isinstance(found, Tensor) else found
        if not isinstance(found, Estimates):
            raise LossError(
                f"advantage `{self.name}` returned a {type(found).__name__}; it must return a tensor or "
                "Estimates"
            )
        return found


def find(name: str, **options: Any) -> Advantage:
    """Returns the advantage `name` with these options. `name` is a key of `ADVANTAGES` or the dotted path of
    a function.

    Raises `LossError` for an unknown name or option.
    """
    found = find_function("advantage", ADVANTAGES, name, options)
    return Advantage(found.kind, found.name, found.function, found.options, found.required, found.optional)
