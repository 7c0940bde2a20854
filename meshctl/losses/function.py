"""Functions that a recipe names: a key of a table, or the dotted path of a user's function.

The positional parameters of such a function name its inputs; one with a default is optional. The keyword-only
parameters are its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.named_function import import_function
from meshctl.runtime.component import ComponentError

KEYWORD = inspect.Parameter.KEYWORD_ONLY
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
SWITCHES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ref_logprobs": {"kl": ()},
    "logprobs": {"divergence": ("sampled",)},
    "teacher_logprobs": {"divergence": ("sampled",)},
    "top_logprobs": {"divergence": ("forward_kl", "reverse_kl", "jsd")},
    "teacher_top_logprobs": {"divergence": ("forward_kl", "reverse_kl", "jsd")},
}
"""Optional input -> the option that requires it, and the option's values that do. If there are none, each
value other than 0 and None requires the input. With 0 or None it is not used then, so that no model computes
it."""
PROVIDERS = {
    "logprobs": "a source of single texts, such as `meshctl.data.Chat`",
    "chosen_logprobs": "a source of pairs, `meshctl.data.Pairs`",
    "chosen_scores": "a source of pairs, `meshctl.data.Pairs`",
    "advantages": "`update` of `hf.Model` from `rewards`, by the function that `advantage` names",
    "returns": "`update` of `hf.Model` from `rewards` and `values`, with `advantage: gae`",
    "rewards": "a stage that calls a reward component",
    "sampled_logprobs": "the stage that calls `sample` of a sampler",
    "old_logprobs": "a stage that calls `old_logprobs` of the trained model, before its update",
    "ref_logprobs": "a stage that calls `ref_logprobs` of a reference model",
    "values": "a stage that calls `values` of a critic, an `hf.Model` with `head: score`",
    "teacher_logprobs": "a stage that calls `teacher_logprobs` of a teacher",
    "teacher_top_logprobs": "a stage that calls `teacher_logprobs` of a teacher with `top_logprobs`",
    "top_logprobs": "the model, if the batch has `teacher_top_ids` of a teacher with `top_logprobs`",
    "group_tokens": "`update` of `hf.Model`, for the groups of a sampler with `group_size`,",
    "group_index": "`update` of `hf.Model`, for the groups of a sampler with `group_size`,",
}
"""Input -> what provides it."""


class LossError(ComponentError):
    """Raised if a loss or an advantage does not exist, does not have a given option, or lacks an input."""


@dataclass(frozen=True)
class Function:
    """A function with its options."""

    kind: str
    """`loss` or `advantage`, for messages."""
    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    required: tuple[str, ...]
    """The inputs without a default, and those that an option requires, in the order of the parameters."""
    optional: tuple[str, ...]
    """The inputs with a default, without those that an option switches off."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.required + self.optional

    def apply(self, inputs: Mapping[str, Any]) -> Any:
        """Calls the function with `inputs`, a mapping from input names to values. Inputs that the function
        does not have are ignored. Raises `LossError` if a required input is missing."""
        if missing := [name for name in self.required if name not in inputs]:
            raise LossError(lacking(f"{self.kind} `{self.name}`", missing, inputs))
        own = {name: inputs[name] for name in self.inputs if name in inputs}
        return self.function(**own, **self.options)


def lacking(what: str, missing: list[str], inputs: Mapping[str, Any]) -> str:
    """Returns the message for a function that lacks inputs. `what` names the function, and `inputs` are those
    that there are."""
    named = ", ".join(f"`{name}`" for name in missing)
    providers = "".join(f"; {PROVIDERS[name]} provides `{name}`" for name in missing if name in PROVIDERS)
    return (
        f"{what} needs {named}, which neither the model nor the batch provides; there are "
        f"{', '.join(sorted(inputs)) or 'none'}{providers}"
    )


def find_function(kind: str, table: Mapping[str, str], name: str, options: Mapping[str, Any]) -> Function:
    """Returns the function `name` with these options. `name` is a key of `table`, which has dotted paths as
    its values, or a dotted path. Raises `LossError` for an unknown name or option."""
    function = import_function(kind, table, name, LossError)
    parameters = inspect.signature(function).parameters.values()
    inputs = [one for one in parameters if one.kind in POSITIONAL]
    known = {one.name: one.default for one in parameters if one.kind is KEYWORD}
    if unknown := [option for option in options if option not in known]:
        raise LossError(
            f"{kind} `{name}` has no option `{unknown[0]}`; its options are {', '.join(known) or 'none'}"
        )
    chosen = {**known, **options}
    needs = {one.name: _is_needed(one, chosen) for one in inputs}
    required = [name for name, is_needed in needs.items() if is_needed]
    off = [name for name, is_needed in needs.items() if is_needed is False]
    optional = [one.name for one in inputs if one.name not in (*required, *off)]
    return Function(kind, name, function, options, tuple(required), tuple(optional))


def _is_needed(parameter: inspect.Parameter, options: Mapping[str, Any]) -> bool | None:
    """Returns whether an input is required, or not used; None for an optional input."""
    if parameter.default is parameter.empty:
        return True
    for option, values in SWITCHES.get(parameter.name, {}).items():
        if option in options and values:
            return True if options[option] in values else None
        if option in options:
            return bool(options[option])
    return None
