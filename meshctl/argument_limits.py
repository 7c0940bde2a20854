"""Facts about ready-made component classes that `validate` needs, above all the limits of their arguments.

    SHIPPED = {"Sampler": Shipped(ranges={"top_p": "> 0, <= 1", "stop": ">= 0, nonempty"})}    ROOM/checks.py

`validate` looks a class up by its room and its name. A constructor checks the values that it gets, which may
come from the environment, with `check_arguments`. Nested arguments are written with dots: `lora.r`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from math import isfinite
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass

COMPARISONS: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    ">=": (operator.ge, "at least"),
    ">": (operator.gt, "above"),
    "<=": (operator.le, "at most"),
    "<": (operator.lt, "below"),
}
"""Sign -> its function, and its words in a message."""
NONEMPTY, WHOLE = "nonempty", "whole"
"""The words for texts that are not empty, and for whole numbers."""
ALWAYS = ""
"""In `needs`: the component itself, which always needs one of some arguments."""
UNKNOWN = object()
"""The value of an argument that is known at the launch only."""
UNUSABLE: Mapping[str, Mapping[str, str]] = {
    "deepseek_v4": {"pp": "it changes the hidden states between its layers"},
    "gemma4_text": {"ep": "its plan divides experts without a dispatch of tokens"},
    "glm_moe_dsa": {
        "cache": "its indexer keeps keys of its own",
        "cp": "its indexer selects among all tokens of a text",
        "pp": "its layers pass the selected tokens on",
    },
    "llama4_text": {"tp": "its layers add to the sum over tp ranks in place, which torch refuses"},
}
"""Architecture -> dim -> why the dim cannot be used for training, although transformers has a plan. `cp`
stands for ulysses, too, and `cache` for the continuation of texts from a cache of keys and values."""


class Problem(NamedTuple):
    """An argument that a class does not accept. A message is `subject`, the component, and `rest`."""

    code: str
    argument: str
    subject: str
    """The arguments, as a message names them."""
    rest: str
    """The rest of the message."""
    value: object = None
    """The wrong value, which may be an item of the argument."""
    others: tuple[str, ...] = ()
    """The other arguments that the problem is about."""
    help: str = ""


@dataclass(frozen=True)
class Shipped:
    """The facts about a ready-made class."""

    ranges: Mapping[str, str] = field(default_factory=dict)
    """Argument -> the range of its numbers and texts; of a list, that of its items."""
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the arguments that must not be set with it; 0, false, null and an empty value set none."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the arguments of which one must be set with it."""
    reserved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the keys that must not be in its mapping, because the class sets them."""
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the endpoints whose calls it counts."""
    covers: tuple[str, ...] = ()
    """The arguments that should not be smaller than the number of their `calls`."""
    devices_per_worker: int | None = None
    """The most devices of a worker; None for any number."""
    device_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the types of device that it needs if it is set."""

    longest: str = ""
    """The argument with the most tokens of a sequence; with `pack`, a sequence contains several texts."""
    has_tokenizer: bool = False
    """True if `tokenizer` names a tokenizer."""
    renders_chats: bool = False
    """True if the tokenizer needs a template, unless the file `chat_template` has one."""
    has_models_tokenizer: bool = False
    """True if the tokenizer is that of `model` where `tokenizer` is left out."""
    suffixes: tuple[str, ...] = ()
    """The suffixes of the files that `path` names, of which `split` selects some; none for a class without
    data."""
    downloads_data: bool = False
    """True if a dataset of the hub is downloaded before the workers start."""
    forms: tuple[tuple[str, ...], ...] = ()
    """The forms of a row: a row must have all columns of one of them, beside those of `keep`. `fields` has
    other names for them."""

    choices: Mapping[str, str] = field(default_factory=dict)
    """Argument -> dotted path of the table with its names. A name with dots is that of a user's function."""
    trained_by: tuple[str, ...] | None = None
    """The endpoints that compute gradients; None if the bytes of the class are unknown. They follow from the
    arguments `dtype`, `compute_dtype`, `optimizer`, `optimizer_options`, `lora` and `head`."""
    samples: bool = False
    """True if it generates `group_size` answers to each prompt, at `temperature`."""
    dotted: tuple[str, ...] = ()
    """The arguments that are dotted paths of functions of users."""
    sampler: str = ""
    """The argument that names the component of the same group whose engine it calls, and which has the
    `temperature`."""
    learns: bool = False
    """True if it learns by `loss` and `advantage` with their options, at `temperature`."""

    def problems(self, arguments: Mapping[str, Any]) -> Iterator[Problem]:
        """Yields what is wrong with the arguments of a constructor, defaults included."""
        for name, text in self.ranges.items():
            value = value_of(arguments, name)
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if wrong := out_of_range(text, one):
                    yield Problem("MC457", name, f"`{name}`", wrong, one)
        for name, others in self.excludes.items():
            for other in others:
                if all(_is_set(value_of(arguments, one)) for one in (name, other)):
                    names, help = f"`{name}` and `{other}`", "leave one of them out"
                    yield Problem("MC458", name, names, "exclude each other", others=(other,), help=help)
        for name, others in self.needs.items():
            is_needed = name == ALWAYS or _is_set(value_of(arguments, name))
            if is_needed and not any(value_of(arguments, one) for one in others):
                names = " or ".join(f"`{one}`" for one in others)
                help = f"set {names}" + (f", or leave out `{name}`" if name else "")
                yield Problem(
                    "MC462", name, f"`{name}`" * bool(name), f"needs {names}", others=others, help=help
                )
        for name, keys in self.reserved.items():
            given = value_of(arguments, name)
            for key in given if isinstance(given, Mapping) else ():
                if key in keys:
                    follows = "follows from other arguments or from the mesh"
                    yield Problem("MC463", f"{name}.{key}", f"`{name}.{key}`", follows, help="leave it out")


NO_FACTS = Shipped()


def out_of_range(limits: str, value: object) -> str:
    """Returns what is wrong with a number or a text for limits such as `> 0, <= 1` or `nonempty`; empty if
    nothing is. A value of another type is not judged."""
    words = [word.strip() for word in limits.split(",")]
    if isinstance(value, str):
        return "is an empty text" if not value and NONEMPTY in words else ""
    bounds = [word.split() for word in words if word not in (NONEMPTY, WHOLE)]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not bounds:
        return ""
    is_within = all(COMPARISONS[sign][0](value, float(bound)) for sign, bound in bounds)
    if isfinite(value) and is_within and not (WHOLE in words and value % 1):
        return ""
    whole = "a whole number of " if WHOLE in words else ""
    allowed = " and ".join(f"{COMPARISONS[sign][1]} {bound}" for sign, bound in bounds)
    return f"is {value}; it must be {whole}{allowed}"


def check_arguments(facts: Shipped, arguments: Mapping[str, Any], error: type[Exception]) -> None:
    """Raises `error` for the first argument that a class does not accept. `arguments` are those of its
    constructor."""
    for problem in facts.problems(arguments):
        raise error(f"{problem.subject or 'the constructor'} {problem.rest}")


def value_of(arguments: Mapping[str, Any], path: str) -> Any:
    """Returns the value of an argument such as `lora.r`; None if it is not given."""
    value: Any = arguments
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_set(value: object) -> bool:
    return bool(value) and value is not UNKNOWN
