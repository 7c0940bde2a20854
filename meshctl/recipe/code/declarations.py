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
        MEMORY = {                                 # what its bytes on a rank depend on, beside its model
            "dtype": "args.dtype",                 # an argument, or a value such as "bfloat16"
            "optimizer": "args.optimizer",
            "optimizer_options": "args.optimizer_options",
            "lora": "args.lora",                   # {"r": 8, "target": "all-linear"}
            "head": "lm",                          # or "score"
            "trained_by": ("update",),             # the endpoints that compute gradients
        }
        ROLLOUT = {                                # how it samples, or learns from sampled answers
            "temperature": "args.temperature",     # the divisor of the logits
            "group_size": "args.group_size",       # of a sampler: the answers to each prompt
            "loss": "args.loss",                   # functions, whose parameters name their inputs
            "loss_options": "args.loss_options",
            "advantage": "args.advantage",
            "advantage_options": "args.advantage_options",
            "advantages": "losses.ADVANTAGES",     # loss -> advantage, where that argument is left out
            "estimates": ("advantages",),          # the inputs of a loss that the advantage computes
            "computes": ("losses.OUTPUTS",),       # tables with the inputs that the model computes
            "reference": "args.lora",              # with it, the model also computes the inputs `ref_...`
            "switches": "losses.SWITCHES",         # {optional input: {option: (values that need it,)}}
            "providers": "losses.PROVIDERS",       # input -> where it comes from, for messages
        }
        RETURNS = {                                  # endpoint -> the columns of its batch
            "values": ("values",),
            "score": ("*", "rewards"),             # `*`: and all columns of its inputs
            "next": ("prompt_ids", "args.keep"),   # and those that an argument lists
            "teach": ("logprobs", {"args.top": ("top_ids",)}),  # and others where an argument is given
        }

        CHOICES = {"args.filter": "chats.FILTERS"} # an argument, and the table with its names

They are literals and may be inherited. All keys of `LAYOUTS`, `MEMORY` and `ROLLOUT` may be left out.
Where a subclass overrides a method, its columns are unknown until it declares `RETURNS` again.
`MODEL` may be a list of arguments: values of a later one replace those of the model's config.
`MEMORY = None` is for a class whose
bytes are not those of its base class. `names.py` describes the tables of `CHOICES` and `lora_styles`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

from meshctl.argument_limits import NO_FACTS, Shipped
from meshctl.dataclass import dataclass
from meshctl.recipe.code.layouts import LAYOUT_DIMS, LAYOUT_KEYS, LAYOUT_WORDS, WITHOUT, KeyPath, Layouts

ARGUMENT = re.compile(r"args(\.\w+)+", re.ASCII)
DOTTED = re.compile(r"\w+(\.\w+)+", re.ASCII)
WITHDRAWN = (
    *("RANGES", "EXCLUDES", "NEEDS", "RESERVED", "CALLS", "DEVICES"),
    *("SEQUENCE_LENGTH", "TOKENIZER", "DATA", "COLUMNS"),
)
"""Class attributes of ready-made components of earlier versions."""
NONE = ast.Constant(None)
TP_PLANS = ("transformers",)
"""The libraries whose plans are read."""
TRAINED_BY = "trained_by"
MEMORY_KEYS = ("dtype", "compute_dtype", "optimizer", "optimizer_options", "lora", "head", TRAINED_BY)
ROLLOUT_ARGUMENTS = (
    "temperature",
    "group_size",
    "loss",
    "loss_options",
    "advantage",
    "advantage_options",
    "reference",
)
ROLLOUT_TABLES = ("advantages", "switches", "providers")
EVERY_INPUT = "*"
"""In `RETURNS`: all columns of the inputs."""


@dataclass(frozen=True)
class Rollout:
    """The arguments of sampling, and of learning from samples."""

    temperature: KeyPath = ()
    group_size: KeyPath = ()
    """The number of answers to each prompt; empty for a class that does not sample."""
    loss: KeyPath = ()
    loss_options: KeyPath = ()
    advantage: KeyPath = ()
    advantage_options: KeyPath = ()
    reference: KeyPath = ()
    """The argument with which the model computes the inputs `ref_...`."""
    advantages: str = ""
    """Dotted path of the table from a loss to its advantage, where `advantage` is not given."""
    switches: str = ""
    """Dotted path of the table of optional inputs that options require."""
    providers: str = ""
    """Dotted path of the table from an input to what provides it."""
    estimates: tuple[str, ...] = ()
    """The inputs of a loss that the advantage computes."""
    computes: tuple[str, ...] = ()
    """Dotted paths of the tables with the inputs that the model computes; none if they are unknown."""


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
    memory: Mapping[str, Any] | None = None
    """Key of `MEMORY` -> the key path of an argument as a tuple, or a value; None if the bytes of the
    component are unknown."""
    choices: Mapping[KeyPath, str] = field(default_factory=dict)
    """Argument -> dotted path of the table with its names."""
    rollout: Rollout = Rollout()
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


def _mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not value.keys() <= {*keys}:
        named = ", ".join(f'"{key}"' for key in keys[:-1])
        raise Wrong(f'it is not a literal mapping of {named} and "{keys[-1]}"')
    return value


def _arguments(value: Any, *keys: str) -> dict[str, KeyPath]:
    """Returns key -> argument, of a mapping or of the first key's argument alone."""
    given = {keys[0]: value} if isinstance(value, str) else _mapping(value, *keys)
    return {key: _argument(name) for key, name in given.items()}


def _rollout(value: Any) -> Rollout:
    if not isinstance(value, dict):  # the name may mean something else
        return Rollout()
    given = dict(_mapping(value, *ROLLOUT_ARGUMENTS, *ROLLOUT_TABLES, "estimates", "computes"))
    tables = {key: given.pop(key) for key in ROLLOUT_TABLES if key in given}
    lists = {key: given.pop(key) for key in ("estimates", "computes") if key in given}
    for key, table in tables.items():
        if not _is_dotted(table):
            raise Wrong(f'"{key}" is not the dotted path of a table')
    if not _is_texts(lists.get("estimates", ())):
        raise Wrong('"estimates" is not a list of columns')
    if not _is_texts(lists.get("computes", ())) or not all(map(_is_dotted, lists.get("computes", ()))):
        raise Wrong('"computes" is not a list of dotted paths of tables')
    found: dict[str, Any] = {key: _argument(name) for key, name in given.items()}
    found |= {key: tuple(names) for key, names in lists.items()}
    return Rollout(**found, **tables)


def _returned_columns(value: Any) -> Mapping[str, Returned]:
    if not isinstance(value, dict):  # the name may mean something else
        return {}
    return {str(endpoint): _columns_returned(columns) for endpoint, columns in value.items()}


def _columns_returned(value: Any) -> Returned:
    listed = value if isinstance(value, (list, tuple)) else [None]
    names = [one for one in listed if isinstance(one, str)]
    mappings = [one for one in listed if isinstance(one, dict)]
    added = {argument: columns for mapping in mappings for argument, columns in mapping.items()}
    if len(names) + len(mappings) < len(listed) or not all(map(_is_texts, added.values())):
        raise Wrong("it does not map endpoints to lists of columns")
    arguments = [name for name in names if _is_argument(name)]
    return Returned(
        tuple(name for name in names if name not in (EVERY_INPUT, *arguments)),
        EVERY_INPUT in names,
        tuple(map(_argument, arguments)),
        {_argument(argument): tuple(columns) for argument, columns in added.items()},
    )


def _choices(value: Any) -> Mapping[KeyPath, str]:
    if not isinstance(value, dict) or not all(map(_is_argument, value)):  # something else of this name
        return {}
    if not all(map(_is_dotted, value.values())):
        raise Wrong("it does not map arguments to dotted paths of tables")
    return {_argument(name): table for name, table in value.items()}


def _extra(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    return tuple(names) if _is_texts(names) else ()


def _layouts(value: Any) -> Layouts:
    given = _mapping(value, *LAYOUT_KEYS)
    dims, excludes = given.get("dims"), given.get("excludes", ())
    if dims is not None and not _is_dims(dims):
        raise Wrong(f'"dims" is not a list of {", ".join(LAYOUT_DIMS)}')
    if not isinstance(excludes, (list, tuple)) or not all(
        _is_dims(pair) and len(pair) == 2 for pair in excludes
    ):
        raise Wrong('"excludes" is not a list of pairs of dims')
    tp_plan = given.get("tp_plan", "")
    if "tp_plan" in given and tp_plan not in TP_PLANS:
        raise Wrong(f'"tp_plan" is not "{" or ".join(TP_PLANS)}"')
    if "lora_styles" in given and not _is_dotted(given["lora_styles"]):
        raise Wrong('"lora_styles" is not the dotted path of a table')
    if "split" in given and not _is_argument(given["split"]):
        raise Wrong('"split" is not an argument such as "args.split"')
    if "cache" in given and given["cache"] != "args" and not _is_argument(given["cache"]):
        raise Wrong('"cache" is not an argument such as "args.share_prompts", or "args"')
    for key, word in LAYOUT_WORDS.items():
        if given.get(key, word) != word:
            raise Wrong(f'"{key}" is not "{word}"')
    pairs = tuple((pair[0], pair[1]) for pair in excludes)
    return Layouts(
        dims=None if dims is None else tuple(dims),
        excludes=pairs,
        tp_plan=tp_plan,
        lora_styles=given.get("lora_styles", ""),
        tied_shards=given.get("tied_shards", ""),
        attention=given.get("attention", ""),
        experts=given.get("experts", ""),
        ulysses=given.get("ulysses", ""),
        pp_plan=given.get("pp_plan", ""),
        split=_argument(given["split"]) if "split" in given else (),
        cache=tuple(given.get("cache", "").split(".")) if "cache" in given else (),
        without=_without(given.get("without", {})),
    )


def _without(value: Any) -> Mapping[KeyPath, tuple[str, ...]]:
    is_mapping = isinstance(value, dict) and all(map(_is_argument, value))
    if not is_mapping or not all(_is_texts(dims) and {*dims} <= {*WITHOUT} for dims in value.values()):
        raise Wrong('"without" does not map arguments to lists of dims')
    return {_argument(name): tuple(dims) for name, dims in value.items()}


def _memory(value: Any) -> Mapping[str, Any] | None:
    if not isinstance(value, dict):  # None, or something else of this name
        return None
    given = _mapping(value, *MEMORY_KEYS)
    if not _is_texts(given.get(TRAINED_BY, ())):
        raise Wrong(f'"{TRAINED_BY}" is not a list of endpoints')
    return {key: _argument(item) if _is_argument(item) else item for key, item in given.items()}


def _is_argument(value: Any) -> bool:
    return isinstance(value, str) and ARGUMENT.fullmatch(value) is not None


def _is_dotted(value: Any) -> bool:
    return isinstance(value, str) and DOTTED.fullmatch(value) is not None


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)


def _is_dims(value: Any) -> bool:
    return _is_texts(value) and all(dim in LAYOUT_DIMS for dim in value)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "MODEL": _model,
    "LAYOUTS": _layouts,
    "MEMORY": _memory,
    "CHOICES": _choices,
    "ROLLOUT": _rollout,
    "RETURNS": _returned_columns,
    "EXTRA": _extra,
}
"""Class attribute -> the function that reads its literal. The attribute in lower case is the field of
`Declarations`."""
