"""Reads component classes as text: the class that a `_target_` names, its endpoints, its constructor and its
declarations.

    code = Code((recipe's folder, cwd), sys.path)
    found = code.find("arithmetic.Sampler")     -> Class, or NotFound, NoClass or Unread

If a base class or a decorator cannot be read, facts that depend on it are unknown, and rules do not report
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from meshctl.argument_limits import NO_FACTS, Shipped
from meshctl.dataclass import dataclass
from meshctl.recipe.code.declarations import READERS, Declarations, declarations_of
from meshctl.recipe.code.modules import (
    COMPONENTS,
    ENDPOINTS,
    MAX_HOPS,
    PLAIN_BASES,
    Definition,
    Module,
    Sources,
    Unread,
    bound_names,
    dotted_name,
    statements,
)
from meshctl.recipe.code.signatures import FUNCTIONS, Function, Signature, signature
from meshctl.recipe.code.tables import mode_text

if TYPE_CHECKING:
    from meshctl.recipe.code.interpreters import Interpreter

WORDS = ("dispatch", "collect", "execute")
"""The parameters of the `endpoint` decorator that name modes."""
RETRY = "retry"
"""A parameter of the decorator that no plan contains."""
ROOMS = ("agents", "data", "hf", "rewards", "vllm")
"""The folders with ready-made components, each with a module `checks`, which imports no library."""
PLACES = ("step", "rank", "world_size", "mesh", "torch_mesh", "device", "devices", "seed", "run_dir")
"""Attributes of `Component` that are values."""
MAX_METHODS = 4096
"""Maximum number of methods whose text is walked only once, however many recipes name their class."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint: the modes in the decorator of a method, and the method's signature."""

    dispatch: str = "slice_dp"
    collect: str = "flatten"
    execute: str = "all"
    signature: Signature = Signature(has_varargs=True, has_kwargs=True)
    unread_parameter: str = ""
    """A parameter of the decorator whose value is neither a literal nor a mode; empty if there is none."""
    unknown_arguments: tuple[str, ...] = ()
    """Arguments of the decorator that it does not accept: unknown names, and an empty string for each
    positional one."""
    metrics: tuple[str, ...] = ()
    """The names of metrics that the method returns or logs, if they are literals."""
    stated_parameters: frozenset[str] = field(default=frozenset(), compare=False)
    """The parameters that the decorator states. The others have their defaults."""
    place: tuple[str, int, int] = field(default=("", 0, 0), compare=False)
    """File, line and column of the decorator."""


@dataclass(frozen=True)
class Class:
    target: str
    file: str
    is_component: bool | None
    """True if the class derives from `Component`; None if a base class cannot be read."""
    endpoints: dict[str, Endpoint]
    methods: frozenset[str]
    """The names of all members that can be read, including endpoints."""
    constructor: Signature | None
    """The signature of `__init__`; None if it cannot be read."""
    is_complete: bool
    """True if every base class was read. If so, `methods` lists all members."""
    abstract_methods: tuple[str, ...] = ()
    """Abstract methods without an implementation."""
    assigned_members: frozenset[str] = frozenset()
    """Members that are assigned (`go = other`), whose kind is unknown."""
    logs: bool = True
    """True if a method may call `self.log`."""
    trains: frozenset[str] = frozenset()
    """The methods that compute gradients, by themselves or by a method that they call."""
    foreign_base: str = ""
    """The first base class from a library; empty if there is none."""
    declares: Declarations = Declarations()
    hidden_values: frozenset[str] = frozenset()
    """Values of `Component`, such as `step`, that a method uses although a method of this name hides them."""
    overrides_returns: bool = False
    """True if it overrides methods of the class that declares `RETURNS`, so that its columns are unknown."""
    overrides_shipped: bool = False
    """True if it overrides methods of the ready-made class from which it derives."""


@dataclass(frozen=True)
class NotFound:
    """The module, or the name in it, does not exist."""

    module: str
    """The module that was found, or the first part that does not exist."""
    names: tuple[str, ...] = ()
    """The classes that the module defines, and the components of its package that it imports."""
    has_module: bool = False


@dataclass(frozen=True)
class NoClass:
    """The name exists and is not a class. `what` describes it."""

    what: str


Found = Class | NotFound | Unread | NoClass
"""The result of following a `_target_`."""
Members = dict[str, tuple[Module, ast.stmt]]
"""The members of a class and its bases by name, each with the module that defines it."""


@dataclass
class Code(Sources):
    _found: dict[str, Found] = field(default_factory=dict)

    def find(self, target: str) -> Found:
        """Follows the dotted path of a class. Each path is read once."""
        if target not in self._found:
            try:
                self._found[target] = self._find(target)
            except RecursionError:
                self._found[target] = Unread("its source is nested too deeply, or goes in circles")
        return self._found[target]

    def _find(self, target: str) -> Found:
        found = self.follow(target)
        if isinstance(found, str):
            return self._unread(target, found)
        module, definition = found
        if not isinstance(definition, ast.ClassDef):
            return NoClass("a function")
        return self._described(target, module, definition)

    def _unread(self, target: str, reached: str) -> Found:
        """Returns why following `target` ended at the dotted path `reached`, which is not a class that can be
        read."""
        owner, _, name = reached.rpartition(".")
        module = self.module(owner) if owner else None
        if isinstance(module, Unread):
            return module
        if module is None and reached == target:
            return NotFound(self.first_missing(owner))
        if module is None:
            return Unread(f"`{target}` is `{reached}`, whose source is not on the path")
        if name in module.names:
            return Unread(f"`{reached}` is not a class statement")
        if reached != target:
            return Unread(f"`{name}` is not defined in `{owner}`")
        is_lazy = bool(module.stars) or "__getattr__" in module.names
        if is_lazy and owner.partition(".")[0] != "meshctl":  # whose packages import their names for types
            return Unread(f"`{owner}` does not list all its names")
        return NotFound(owner, tuple(self._classes_of(module)), True)

    def _classes_of(self, module: Module) -> Iterator[str]:
        """Yields the names of the classes that a module defines, and of the components that it imports from
        its own package."""
        package = module.name.partition(".")[0]
        for name, statement in module.names.items():
            if isinstance(statement, ast.ClassDef):
                yield name
            elif isinstance(statement, ast.ImportFrom):
                is_own = statement.level > 0 or (statement.module or "").partition(".")[0] == package
                found = self.find(f"{module.name}.{name}") if is_own else None
                if isinstance(found, Class) and found.is_component:
                    yield name

    def _described(self, target: str, module: Module, node: ast.ClassDef) -> Class:
        line = list(self._line(module, node, 0, set()))
        classes = [found for found in line if not isinstance(found, str)]
        ends = {found for found in line if isinstance(found, str)}
        unknown = ends - COMPONENTS - PLAIN_BASES
        libraries = sorted(end for end in unknown if self.is_library(end))
        # Nearer members override farther ones.
        bodies = [(owner, item) for owner, one in reversed(classes) for item in statements(one.body)]
        members: Members = {name: (owner, item) for owner, item in bodies for name in bound_names(item)}
        functions = {
            name: (owner, item) for name, (owner, item) in members.items() if isinstance(item, FUNCTIONS)
        }
        texts = {name: _body(item) for name, (_, item) in functions.items()}
        # an endpoint has the metrics that it returns, and those that any of the methods logs
        logged = tuple(dict.fromkeys(key for one in texts.values() for key in one.logged))
        endpoints = {
            name: endpoint
            for name, method in functions.items()
            if (endpoint := self._endpoint(*method, (*texts[name].returned, *logged)))
        }
        abstract = [name for name, (_, item) in functions.items() if _is_abstract(item)]
        is_component = True if ends & COMPONENTS else None if unknown.difference(libraries) else False
        is_constructor_known = not unknown or "__init__" in functions
        return Class(
            target=target,
            file=str(module.file),
            is_component=is_component,
            endpoints=endpoints,
            methods=frozenset(members) | ({"setup", "close"} if is_component else set()),
            constructor=self._constructor(classes, functions) if is_constructor_known else None,
            is_complete=not unknown,
            abstract_methods=tuple(abstract) if "abc.ABC" in ends else (),
            assigned_members=frozenset(members) - frozenset(functions),
            logs=any(one.may_log for one in texts.values()),
            trains=_training(texts),
            foreign_base=libraries[0].removeprefix("builtins.") if libraries else "",
            declares=_declared(classes, members, functions),
            hidden_values=_hidden_values(functions),
            overrides_returns=_is_overridden(classes, "RETURNS"),
            overrides_shipped=_is_overridden(classes, ""),
        )

    def _line(
        self, module: Module, node: ast.ClassDef, depth: int, seen: set[ast.ClassDef]
    ) -> Iterator[tuple[Module, ast.ClassDef] | str]:
        """Yields the class and its base classes, nearest first and each once. A base class that cannot be
        read is a dotted path."""
        if node in seen:
            return
        seen.add(node)
        yield module, node
        for base in node.bases:
            dotted = dotted_name(base.value if isinstance(base, ast.Subscript) else base)
            absolute = self.absolute(module, dotted) if dotted else None
            if absolute is None:
                yield dotted or "an expression"
                continue
            found: Definition | str = self.follow(absolute) if depth < MAX_HOPS else absolute
            if isinstance(found, str):
                yield found
            elif isinstance(found[1], ast.ClassDef):
                yield from self._line(found[0], found[1], depth + 1, seen)
            else:
                yield absolute

    def _endpoint(self, module: Module, method: Function, metrics: tuple[str, ...]) -> Endpoint | None:
        """Reads the `endpoint` decorator of a method with these metrics; returns None if it has none."""
        for decorator in method.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            dotted = dotted_name(call.func if call else decorator)
            if dotted is None or self.meaning(module, dotted) not in ENDPOINTS:
                continue
            given = {keyword.arg: keyword.value for keyword in call.keywords} if call else {}
            literals = {key: value.value for key, value in given.items() if isinstance(value, ast.Constant)}
            stated = {key: str(literals[key]) for key in WORDS if key in literals}
            for key in WORDS:
                if key in given and key not in stated and (text := mode_text(self, module, given[key])):
                    stated[key] = text
            unread = [key or "**" for key in given if key not in stated and key in (*WORDS, None)]
            strange = [key for key in given if key and key not in (*WORDS, RETRY)]
            nameless = [""] * len(call.args) if call else []
            return Endpoint(
                **stated,
                signature=signature(method, partial(self.meaning, module)),
                unread_parameter=unread[0] if unread else "",
                unknown_arguments=(*strange, *nameless),
                metrics=metrics,
                stated_parameters=frozenset(stated),
                place=(str(module.file), decorator.lineno, decorator.col_offset + 1),
            )
        return None

    def _constructor(
        self, classes: list[tuple[Module, ast.ClassDef]], methods: dict[str, tuple[Module, Function]]
    ) -> Signature | None:
        if any(node.decorator_list or node.keywords for _, node in classes):
            return None
        if "__init__" not in methods:
            return None if "__new__" in methods else Signature()
        module, method = methods["__init__"]
        return signature(method, partial(self.meaning, module))


def _declared(
    classes: list[tuple[Module, ast.ClassDef]],
    members: Members,
    functions: Mapping[str, tuple[Module, Function]],
) -> Declarations:
    """Returns the declarations of a class, and the facts about the nearest ready-made one."""
    own = {name for name, (owner, _) in members.items() if not owner.name.startswith("meshctl.")}
    shipped = next(filter(None, (_shipped(module.name, node.name) for module, node in classes)), NO_FACTS)
    named: list[ast.arg] = []
    if "__init__" in functions and "__init__" in own:
        arguments = functions["__init__"][1].args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    items = {name: item for name, (_, item) in members.items()}
    values = {name: one.value for name, one in items.items() if isinstance(one, (ast.Assign, ast.AnnAssign))}
    declared = declarations_of(values, own)
    return replace(declared, shipped=shipped, own_arguments=frozenset(one.arg for one in named))


def _shipped(module: str, name: str) -> Shipped | None:
    package, room, *_ = (*module.split("."), "")
    if package != "meshctl" or room not in ROOMS:
        return None
    facts: Shipped | None = import_module(f"meshctl.{room}.checks").SHIPPED.get(name)
    return facts


def _is_overridden(classes: list[tuple[Module, ast.ClassDef]], declaration: str) -> bool:
    """Returns whether a class that is nearer than the one with a declaration, or than a ready-made one if it
    is empty, overrides a member of that class or of its bases, other than declarations."""
    bound = [{name for item in statements(node.body) for name in bound_names(item)} for _, node in classes]
    is_place = [declaration in names for names in bound]
    if not declaration:
        is_place = [_shipped(module.name, node.name) is not None for module, node in classes]
    place = is_place.index(True) if any(is_place) else 0
    nearer, others = set().union(*bound[:place]), set().union(*bound[place:])
    return any(name in others for name in nearer if name not in READERS)


def _is_abstract(method: Function) -> bool:
    decorators = [dotted_name(one) or "" for one in method.decorator_list]
    return any(one.rpartition(".")[2] == "abstractmethod" for one in decorators)


def _hidden_values(functions: Mapping[str, tuple[Module, Function]]) -> frozenset[str]:
    """Returns the values of `Component` with which a method compares or computes, or which it formats,
    although a method of this name hides them."""
    hidden = [name for name in PLACES if name in functions]
    used: list[ast.expr] = []
    for node in (node for _, item in functions.values() for node in ast.walk(item)) if hidden else ():
        match node:
            case ast.Compare():
                used += [node.left, *node.comparators]
            case ast.BinOp():
                used += [node.left, node.right]
            case ast.FormattedValue():
                used.append(node.value)
    names = {dotted_name(one) for one in used}
    return frozenset(name for name in hidden if f"self.{name}" in names)


class _Body(NamedTuple):
    """The facts in the text of a method about its metrics and its training."""

    returned: tuple[str, ...]
    """The literal keys of the mappings that it returns."""
    logged: tuple[str, ...]
    """The literal keys of the mappings that it passes to `self.log`."""
    may_log: bool
    """True if it mentions an attribute `log`, or hands its component to something that may."""
    attributes: frozenset[tuple[str, str | None]]
    """(name, dotted path) of each attribute that it mentions."""


@lru_cache(maxsize=MAX_METHODS)
def _body(method: Function) -> _Body:
    nodes = list(ast.walk(method))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    logs = {id(node) for node in attributes if node.attr == "log"}
    owners = {id(node.value) for node in attributes}
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and id(node.func) in logs]
    logged = [argument for call in calls for argument in call.args]
    is_handed_on = any(
        isinstance(node, ast.Name) and node.id == "self" and id(node) not in owners for node in nodes
    )
    named = frozenset((node.attr, dotted_name(node)) for node in attributes)
    return _Body(_keys_of(returned), _keys_of(logged), is_handed_on or bool(logs), named)


def _training(bodies: Mapping[str, _Body]) -> frozenset[str]:
    """Returns the methods that call `backward` of anything, or a method of `self` that does."""
    used = {name: body.attributes for name, body in bodies.items()}
    found = {name for name, each in used.items() if "backward" in {attribute for attribute, _ in each}}
    while more := {name for name in used if used[name] & {(one, f"self.{one}") for one in found}} - found:
        found |= more
    return frozenset(found)


def _keys_of(values: Sequence[ast.expr | None]) -> tuple[str, ...]:
    """Returns the literal keys of the mappings among some expressions."""
    return tuple(key for value in values if isinstance(value, ast.Dict) for key in _keys(value))


def _keys(mapping: ast.Dict, prefix: str = "") -> Iterator[str]:
    for key, value in zip(mapping.keys, mapping.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if isinstance(value, ast.Dict):
            yield from _keys(value, f"{prefix}{key.value}/")
        else:
            yield f"{prefix}{key.value}"


# The code of each group


@dataclass(frozen=True)
class GroupCode:
    """The source that the workers of each group import: the files on the path of the group's interpreter."""

    launcher: Code
    """The code that the launcher's interpreter imports."""
    interpreters: Mapping[str, Interpreter] = field(default_factory=dict)
    """Group -> its interpreter, for groups that name one."""
    _codes: dict[str, Code] = field(default_factory=dict)
    """Interpreter -> its code."""

    def of(self, group: str) -> Code:
        """Returns the code of a group; that of the launcher if the packages of the group's interpreter are
        not on this machine."""
        interpreter = self.interpreters.get(group)
        if interpreter is None or not interpreter.folders:
            return self.launcher
        if interpreter.path not in self._codes:
            self._codes[interpreter.path] = Code(self.launcher.own, interpreter.folders)
        return self._codes[interpreter.path]

    def find(self, group: str, target: str) -> Found:
        """Follows the dotted path of a class of a group. A class of another interpreter whose module is not
        found is unread: its packages may be on another machine, or be found by code."""
        found = self.of(group).find(target)
        if group in self.interpreters and isinstance(found, NotFound) and not found.has_module:
            return Unread("its module was not found among the packages of its interpreter")
        return found


def group_code(
    pythons: Mapping[str, str], own: Sequence[str], installed: Sequence[str], environ: Mapping[str, str]
) -> GroupCode:
    """Returns the code of all groups. `pythons` is group -> the `python` that it names, empty for none; `own`
    are the folders of the recipe, and `installed` is the path of the launcher's interpreter."""
    named = {group: python for group, python in pythons.items() if python}
    if not named:
        return GroupCode(Code(own, installed))
    from meshctl.recipe.code.interpreters import read_interpreter  # most recipes name none

    home = own[0] if own else ""
    read = {group: read_interpreter(python, home, environ) for group, python in named.items()}
    return GroupCode(Code(own, installed), read)
