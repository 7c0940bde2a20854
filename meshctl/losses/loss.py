"""The table of losses, the lookup of a loss by its name, and the result of a loss.

A new loss is a file with a function, as described in `meshctl.losses`, and one line in `LOSSES`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from meshctl.runtime.component import ComponentError

LOSSES = {
    "cross_entropy": "meshctl.losses.cross_entropy.cross_entropy",
    "dpo": "meshctl.losses.dpo.dpo",
    "ipo": "meshctl.losses.ipo.ipo",
    "simpo": "meshctl.losses.simpo.simpo",
    "orpo": "meshctl.losses.orpo.orpo",
    "kto": "meshctl.losses.kto.kto",
    "bradley_terry": "meshctl.losses.bradley_terry.bradley_terry",
}
"""Name of a loss -> dotted path of its function."""
KEYWORD = inspect.Parameter.KEYWORD_ONLY
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class LossError(ComponentError):
    """Raised if a loss does not exist, does not have a given option, or lacks an input."""


@dataclass(frozen=True, eq=False)
class LossSum:
    """A loss summed over the local units, which are tokens, samples or pairs."""

    total: Tensor
    """0-dim: the weighted sum. It requires a gradient."""
    count: Tensor
    """0-dim: the sum of the weights, or the number of units. It has no gradient."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """The sums of further values over the same units, 0-dim and without a gradient. Their means are `sum /
    count`."""


@dataclass(frozen=True)
class Loss:
    """A loss function with its options."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    required: tuple[str, ...]
    """The inputs without a default, in the order of the function's parameters."""
    optional: tuple[str, ...]
    """The inputs with a default."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.required + self.optional

    def __call__(self, inputs: Mapping[str, Any]) -> LossSum:
        """Calls the function with `inputs`, a mapping from input names to values, and returns its loss.

        Inputs that the function does not have are ignored. Raises `LossError` if a required input is missing,
        or if the function does not return a sum and a count.
        """
        if missing := [f"`{name}`" for name in self.required if name not in inputs]:
            raise LossError(
                f"loss `{self.name}` needs {', '.join(missing)}, which neither the model nor the batch "
                f"provides; there are {', '.join(sorted(inputs)) or 'none'}"
            )
        own = {name: inputs[name] for name in self.inputs if name in inputs}
        result = self.function(**own, **self.options)
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
    function = _function(name)
    parameters = inspect.signature(function).parameters.values()
    inputs = [one for one in parameters if one.kind in POSITIONAL]
    known = [one.name for one in parameters if one.kind is KEYWORD]
    if unknown := [option for option in options if option not in known]:
        raise LossError(
            f"loss `{name}` has no option `{unknown[0]}`; its options are {', '.join(known) or 'none'}"
        )
    required = tuple(one.name for one in inputs if one.default is one.empty)
    optional = tuple(one.name for one in inputs if one.default is not one.empty)
    return Loss(name, function, options, required, optional)


def _function(name: str) -> Callable[..., Any]:
    path = LOSSES.get(name, name)
    module, _, attribute = path.rpartition(".")
    if not module:
        raise LossError(f"loss `{name}` does not exist{_suggestion(name)}; the names are {', '.join(LOSSES)}")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise LossError(f"loss `{name}`: module {error.name!r} does not exist") from None
    if not callable(found):
        raise LossError(f"loss `{name}`: module {module} has no function {attribute!r}")
    return found  # type: ignore[no-any-return]


def _suggestion(name: str) -> str:
    near = get_close_matches(name, LOSSES, n=1)
    return f", did you mean `{near[0]}`" if near else ""
