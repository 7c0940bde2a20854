"""The lookup of losses, the result of a loss, and log-probabilities of labels with their cross entropy.

A loss is a function, as `meshctl.losses` describes it: its positional parameters name its inputs, and its
keyword-only parameters are its options. A new one is a function and one line in `LOSSES`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from meshctl.dataclass import dataclass
from meshctl.labels import IGNORED
from meshctl.named_function import import_function, parameters_of
from meshctl.runtime.component import ComponentError

LOSSES = {
    "cross_entropy": "meshctl.losses.loss.cross_entropy",
    "classification": "meshctl.losses.loss.classification",
    "dpo": "meshctl.losses.preferences.dpo",
    "ipo": "meshctl.losses.preferences.ipo",
    "simpo": "meshctl.losses.preferences.simpo",
    "orpo": "meshctl.losses.preferences.orpo",
    "kto": "meshctl.losses.preferences.kto",
    "bradley_terry": "meshctl.losses.preferences.bradley_terry",
    "grpo": "meshctl.losses.policy.grpo",
    "dr_grpo": "meshctl.losses.policy.dr_grpo",
    "dapo": "meshctl.losses.policy.dapo",
    "gspo": "meshctl.losses.policy.gspo",
    "cispo": "meshctl.losses.policy.cispo",
    "rloo": "meshctl.losses.policy.rloo",
    "ppo": "meshctl.losses.policy.ppo",
    "value": "meshctl.losses.policy.value",
    "distill": "meshctl.losses.distill.distill",
}
"""Name of a loss -> dotted path of its function."""
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
    "label": "a source of texts with labels, `meshctl.data.Labelled`",
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
    """A function that a recipe names, with its options."""

    KIND: ClassVar[str]
    """`loss` or `advantage`, for messages."""
    TABLE: ClassVar[Mapping[str, str]]
    """Name -> dotted path of a function."""
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
            raise LossError(lacking(f"{self.KIND} `{self.name}`", missing, inputs))
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


Found = TypeVar("Found", bound=Function)


def find_function(kind: type[Found], name: str, options: Mapping[str, Any]) -> Found:
    """Returns the function `name` with these options. `name` is a key of `kind.TABLE`, or a dotted path.
    Raises `LossError` for an unknown name or option."""
    function = import_function(kind.KIND, kind.TABLE, name, LossError)
    found = parameters_of(f"{kind.KIND} `{name}`", function, options, LossError)
    defaults = {one.name: one.default for one in inspect.signature(function).parameters.values()}
    needs = {one: _is_needed(one, {**defaults, **options}) for one in found.optional}
    required = tuple(one for one, is_needed in needs.items() if is_needed)
    optional = tuple(one for one, is_needed in needs.items() if is_needed is None)
    return kind(name, function, options, (*found.required, *required), optional)


def _is_needed(name: str, options: Mapping[str, Any]) -> bool | None:
    """Returns whether an input with a default is required, or not used; None for an optional input."""
    for option, values in SWITCHES.get(name, {}).items():
        if option in options and values:
            return True if options[option] in values else None
        if option in options:
            return bool(options[option])
    return None


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

    KIND, TABLE = "loss", LOSSES

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
    function. Raises `LossError` for an unknown name or option."""
    return find_function(Loss, name, options)


def token_logprobs(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Returns the log-probability of each label, `[...]`, in float32 or float64. The result is 0 where the
    label is -100. `temperature` divides the logits.

    `logits` is `[..., vocabulary]` and `labels` is int64 `[...]`. The logits at position t predict the label
    at position t. For a causal model, the caller therefore shifts the labels by one.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    logits = logits if temperature == 1 else logits / temperature
    tokens = logits.flatten(0, -2), labels.flatten()
    negated = nn.functional.cross_entropy(*tokens, ignore_index=IGNORED, reduction="none")
    return -negated.view(labels.shape)


def cross_entropy(logprobs: Tensor, mask: Tensor) -> LossSum:
    """The loss of pre-training and supervised fine-tuning: the sum of `-mask * logprobs` over all tokens,
    with the sum of `mask` as the count.

    `logprobs` and `mask` are `[tokens]`, or have any other shape in common. `mask` is boolean or has weights.
    The log-probability of a token with weight 0 is not used, so it may be infinite or NaN.
    """
    weights = mask.to(logprobs.dtype)
    used = torch.where(mask != 0, logprobs, 0.0)
    return LossSum(-(used * weights).sum(), weights.sum().detach())


def classification(class_logprobs: Tensor, label: Tensor) -> LossSum:
    """The cross entropy of the labels of whole texts, with the number of texts as the count.

    `class_logprobs` is `[samples, labels]` and `label` is int64 `[samples]`. `metrics` has the number of
    texts whose likeliest label is the right one, as `accuracy`.
    """
    total = -class_logprobs.gather(1, label[:, None]).sum()
    right = (class_logprobs.detach().argmax(1) == label).sum().to(total.dtype)
    return LossSum(total, torch.full_like(right, len(label)), {"accuracy": right})
