"""Reads the class attributes in which a component class declares its model, its data, and the layouts that it
supports.

    class Trainer(Component):
        EXTRA = "hf"                               # the extra, or a list of extras, whose libraries it needs
        MODEL = "args.model"                       # the argument that names the model
        LAYOUTS = {                                # the layouts that the class supports
            "dims": ("dp", "fsdp", "tp"),          # other dims have size 1
            "excludes": (("fsdp", "tp"),),         # in each pair, one dim must have size 1
            "tp_plan": "transformers",             # tp needs the plan that the library has for the model
            "lora_styles": "adapters.STYLES",      # on tp, `lora` adapts layers with these styles in the plan
            "tied_shards": "equal",                # tied embeddings on fsdp and cp need shards of equal size
            "attention": "transformers",           # cp and ulysses replace the library's attention
            "experts": "transformers",             # ep needs the plan that the library has for the experts
            "ulysses": "heads",                    # ulysses must divide the heads: there is no ring attention
            "pp_plan": "transformers",             # pp needs the plan that the library has for the model
            "split": "args.split",                 # how pipeline stages divide layers: count, cost, or a list
            "cache": "args.share_prompts",         # with this argument it needs a cache of texts
            "without": {"args.compile": ("cp",)},  # an argument, and the dims that must have size 1 with it
        }
        RETURNS = {                                  # endpoint -> the columns of its batch
            "values": ("values",),
            "score": ("*", "rewards"),             # `*`: and all columns of its inputs
            "next": ("prompt_ids", "args.keep"),   # and those that an argument lists
            "teach": ("logprobs", {"args.top": ("top_ids",)}),  # and others where an argument is given
        }


They are literals and may be inherited. All keys of `LAYOUTS` may be left out.
Where a subclass overrides a method, its columns are unknown until it declares `RETURNS` again.
`MODEL` may be a list of arguments: values of a later one replace those of the model's config.
`tables.py` describes the table of `lora_styles`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from functools import partial
from typing import Any

from meshctl.argument_limits import NO_FACTS, Shipped
from meshctl.dataclass import dataclass
from meshctl.topology.sizes import DIMS

LAYOUT_DIMS = (*DIMS, "ulysses", "ep", "etp", "vpp")
"""The dims that `LAYOUTS` can name."""
SEQUENCE = "sequence_parallel"
WITHOUT = (*LAYOUT_DIMS, SEQUENCE)
"""The dims, and the further key of a mesh, without which an argument can be supported."""
KeyPath = tuple[str, ...]
"""The key path of an argument below the component; empty if none is declared."""


@dataclass(frozen=True)
class Layouts:
    """The layouts that a class supports: the keys of `LAYOUTS`, empty for those that are left out."""

    dims: tuple[str, ...] | None = None
    """None for all dims."""
    excludes: tuple[tuple[str, str], ...] = ()
    tp_plan: str = ""
    lora_styles: str = ""
    tied_shards: str = ""
    attention: str = ""
    experts: str = ""
    ulysses: str = ""
    pp_plan: str = ""
    split: KeyPath = ()
    cache: KeyPath = ()
    without: Mapping[KeyPath, tuple[str, ...]] = field(default_factory=dict)

    def supports(self, dim: str) -> bool:
        return self.dims is None or dim not in LAYOUT_DIMS or dim in self.dims

    def conflict(self, sizes: Mapping[str, int]) -> tuple[str, str] | None:
        """Returns the first excluded pair whose dims both have a size above 1; None if there is none."""
        for one, other in self.excludes:
            if sizes.get(one, 1) > 1 and sizes.get(other, 1) > 1:
                return one, other
        return None


ARGUMENT = re.compile(r"args(\.\w+)+", re.ASCII)
DOTTED = re.compile(r"\w+(\.\w+)+", re.ASCII)
WITHDRAWN = (
    *("RANGES", "EXCLUDES", "NEEDS", "RESERVED", "CALLS", "DEVICES"),
    *("SEQUENCE_LENGTH", "TOKENIZER", "DATA", "COLUMNS", "MEMORY", "CHOICES", "ROLLOUT"),
)
"""Class attributes of ready-made components of earlier versions."""
NONE = ast.Constant(None)
EVERY_INPUT = "*"
"""In `RETURNS`: all columns of the inputs."""


@dataclass(frozen=True)
class Returned:
    """The columns of the batch that an endpoint returns."""

    names: tuple[str, ...] = ()
    keeps_inputs: bool = False
    """True if all columns of its inputs are among them."""
    listed_by: tuple[KeyPath, ...] = ()
    """The arguments that list further columns."""
    added_by: Mapping[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> the columns that there are if it is given."""


@dataclass(frozen=True)
class Declarations:
    model: tuple[KeyPath, ...] = ()
    """The values that name the model or contain values of its config. Later ones take precedence."""
    layouts: Layouts = Layouts()
    returns: Mapping[str, Returned] = field(default_factory=dict)
    """Endpoint -> the columns that it returns."""
    extra: tuple[str, ...] = ()
    """The extras of meshctl whose libraries the class needs."""
    shipped: Shipped = NO_FACTS
    """The facts about the nearest ready-made class from which the class derives."""
    own_arguments: frozenset[str] = frozenset()
    """The arguments that a constructor of the user names, about which `shipped` says nothing."""
    wrong: tuple[tuple[str, str], ...] = ()
    """(attribute, reason why it is ignored) of each wrong declaration."""


class Wrong(ValueError):
    """A literal is not a valid declaration. The text is the reason."""


def declarations_of(values: Mapping[str, ast.expr | None], own: Collection[str] = ()) -> Declarations:
    """Reads the declarations among class attributes. `values` maps their names to their values; None for an
    attribute without a value. `own` are the attributes of classes of the user."""
    found: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    for name, read in READERS.items():
        if name in values:
            try:
                found[name.lower()] = read(literal(values[name]))
            except Wrong as error:
                wrong.append((name, str(error)))
    for name in WITHDRAWN:
        if name in own and "args." in ast.unparse(values.get(name) or NONE):
            wrong.append((name, "limits of arguments are type hints, such as `Literal`"))
    return Declarations(**found, wrong=tuple(wrong))


def _argument(name: Any) -> KeyPath:
    """Returns the key path of an argument, `("args", "model")`."""
    if not _is_argument(name):
        raise Wrong('it is not the name of an argument, such as "args.model"')
    return tuple(str(name).split("."))


def literal(value: ast.expr | None) -> Any:
    """Returns the value of a literal; None for another expression."""
    try:
        return ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _model(value: Any) -> tuple[KeyPath, ...]:
    names = value if isinstance(value, (list, tuple)) and value else [value]
    return tuple(_argument(name) for name in names)


def _returned_columns(value: Any) -> Mapping[str, Returned]:
    found: dict[str, Returned] = {}
    for endpoint, columns in (
        value.items() if isinstance(value, dict) else ()
    ):  # the name may mean something else
        listed = columns if isinstance(columns, (list, tuple)) else [None]
        names = [one for one in listed if isinstance(one, str)]
        mappings = [one for one in listed if isinstance(one, dict)]
        added = {argument: more for mapping in mappings for argument, more in mapping.items()}
        if len(names) + len(mappings) < len(listed) or not all(map(_is_texts, added.values())):
            raise Wrong("it does not map endpoints to lists of columns")
        arguments = [name for name in names if _is_argument(name)]
        found[str(endpoint)] = Returned(
            tuple(name for name in names if name not in (EVERY_INPUT, *arguments)),
            EVERY_INPUT in names,
            tuple(map(_argument, arguments)),
            {_argument(argument): tuple(more) for argument, more in added.items()},
        )
    return found


def _extra(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    return tuple(names) if _is_texts(names) else ()


def _layouts(value: Any) -> Layouts:
    if not isinstance(value, dict) or not value.keys() <= LAYOUT_KEYS.keys():
        *others, last = (f'"{key}"' for key in LAYOUT_KEYS)
        raise Wrong(f"it is not a literal mapping of {', '.join(others)} and {last}")
    for key, one in value.items():
        is_valid, _, wanted = LAYOUT_KEYS[key]
        if not is_valid(one):
            raise Wrong(f'"{key}" is not {wanted}')
    return Layouts(**{key: LAYOUT_KEYS[key][1](one) for key, one in value.items()})


def _is_argument(value: Any) -> bool:
    return isinstance(value, str) and ARGUMENT.fullmatch(value) is not None


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)


def _is_dims(value: Any) -> bool:
    return _is_texts(value) and all(dim in LAYOUT_DIMS for dim in value)


LAYOUT_KEYS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any], Any], str]] = {
    "dims": (
        lambda value: value is None or _is_dims(value),
        lambda value: None if value is None else tuple(value),
        f"a list of {', '.join(LAYOUT_DIMS)}",
    ),
    "excludes": (
        lambda value: (
            isinstance(value, (list, tuple)) and all(_is_dims(one) and len(one) == 2 for one in value)
        ),
        lambda value: tuple(map(tuple, value)),
        "a list of pairs of dims",
    ),
    "lora_styles": (
        lambda value: isinstance(value, str) and DOTTED.fullmatch(value) is not None,
        str,
        "the dotted path of a table",
    ),
    "split": (_is_argument, _argument, 'an argument such as "args.split"'),
    "cache": (
        lambda value: value == "args" or _is_argument(value),
        lambda value: tuple(value.split(".")),
        'an argument such as "args.share_prompts", or "args"',
    ),
    "without": (
        lambda value: (
            isinstance(value, dict)
            and all(map(_is_argument, value))
            and all(_is_texts(dims) and {*dims} <= {*WITHOUT} for dims in value.values())
        ),
        lambda value: {_argument(name): tuple(dims) for name, dims in value.items()},
        "a mapping of arguments to lists of dims",
    ),
    **{
        key: (partial(operator.eq, word), str, f'"{word}"')
        for key, word in {
            **dict.fromkeys(("tp_plan", "attention", "experts", "pp_plan"), "transformers"),
            **{"tied_shards": "equal", "ulysses": "heads"},
        }.items()
    },
}
"""Key of `LAYOUTS` -> (whether its value is valid, the value of `Layouts`, what a valid one is)."""
READERS: Mapping[str, Callable[[Any], Any]] = {
    "MODEL": _model,
    "LAYOUTS": _layouts,
    "RETURNS": _returned_columns,
    "EXTRA": _extra,
}
"""Class attribute -> the function that reads its literal. The attribute in lower case is the field of
`Declarations`."""
