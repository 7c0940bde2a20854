"""What a `_target_` is, read as text: found as source on the import path and never imported.

    code = Code((recipe's folder, cwd), sys.path)
    found = code.find("arithmetic.Sampler")     -> Class with its endpoints and its constructor, or NotFound,
                                                or Unread

`importlib.util.find_spec("a.b")` would import `a`, so folders are walked here. Names are followed through
imports and bases as far as they stand in source; where that ends, an answer is "cannot tell" and nothing is
said about it.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from meshctl.package import PACKAGE_DIR
from meshctl.recipe.code.signatures import Signature, signature
from meshctl.recipe.compose.folders import contents, files, is_dir, is_file

ROOTS = {"meshctl.Component", "meshctl.runtime.component.Component"}
DECORATORS = {"meshctl.endpoint", "meshctl.runtime.component.endpoint"}
BUILT_IN = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))
PLAIN = {"builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol"}
"""Bases that bring nothing."""
LIBRARIES = {
    *sys.stdlib_module_names,
    *(
        "torch",
        "torchvision",
        "torchaudio",
        "numpy",
        "transformers",
        "tokenizers",
        "datasets",
        "accelerate",
        "peft",
        "trl",
        "diffusers",
    ),
    *(
        "deepspeed",
        "megatron",
        "lightning",
        "pytorch_lightning",
        "torchtitan",
        "vllm",
        "sglang",
        "ray",
        "jax",
        "flax",
        "gymnasium",
    ),
    *("hydra", "omegaconf", "pydantic", "attr", "attrs"),
}
"""Packages that know nothing of meshctl: no class of theirs is a Component, whether or not they are installed
here."""
WORDS = ("dispatch", "collect", "execute")
"""What the decorator takes."""
EXTENSIONS = (".so", ".pyd", ".pyc")
MAX_BYTES = 1 << 22
"""Of a file that is read; more is nobody's source."""
MAX_DEPTH = 12
"""Of bases and re-exports that are followed."""


@dataclass(frozen=True)
class Endpoint:
    """What a method's decorator says, and what the method takes."""

    dispatch: str = "slice_dp"
    collect: str = "flatten"
    execute: str = "all"
    signature: Signature = Signature(more=True, any_name=True)
    unread: str = ""
    """A word of the decorator that is no literal."""
    strange: tuple[str, ...] = ()
    """Words of the decorator that it does not have; an empty one for each that is given without its name."""
    metrics: tuple[str, ...] = ()
    """The names of the numbers that it gives or logs, as far as they are literals."""
    says: frozenset[str] = field(default=frozenset(), compare=False)
    """The words that the decorator says; the others are the defaults."""
    place: tuple[str, int, int] = field(default=("", 0, 0), compare=False)
    """File, line and column of the decorator."""


@dataclass(frozen=True)
class Class:
    target: str
    file: str
    is_component: bool | None
    """None where a base cannot be read."""
    endpoints: dict[str, Endpoint]
    methods: frozenset[str]
    """All that can be read, endpoints among them."""
    constructor: Signature | None
    """None where it cannot be told."""
    whole: bool
    """Every base was read: what is not in `methods` is not there."""
    unwritten: tuple[str, ...] = ()
    """Abstract methods that nothing overrides: no object can be made."""
    awaited: frozenset[str] = frozenset()
    """The methods that are `async`."""
    made: frozenset[str] = frozenset()
    """What is assigned in the class, `go = other`: it may be anything."""
    foreign_base: str = ""
    """A base of it that a library has, if it has one."""


@dataclass(frozen=True)
class NotFound:
    """There is no such module, or no such name in it."""

    module: str
    """The module that was found, or the first part that was not."""
    names: tuple[str, ...] = ()
    """What the module defines; empty where there is no module."""
    has_module: bool = False


@dataclass(frozen=True)
class Unread:
    """It may be there; source that says so was not found."""

    why: str
    broken: bool = False
    """It is there, and no Python: importing it can only fail."""


@dataclass(frozen=True)
class NoClass:
    """It is there, and something else."""

    what: str


Found = Class | NotFound | Unread | NoClass
"""What a `_target_` may lead to."""


@dataclass
class Module:
    """One source file, parsed."""

    name: str
    file: Path
    tree: ast.Module

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """What stands at module level, under `if` and `try` too."""
        return {name: statement for statement in _statements(self.tree.body) for name in _bound(statement)}

    @property
    def package(self) -> str:
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def stars(self) -> tuple[str, ...]:
        """The modules all of whose names it takes, the last one first."""
        found = [
            one
            for one in _statements(self.tree.body)
            if isinstance(one, ast.ImportFrom) and one.names[0].name == "*"
        ]
        return tuple(self.origin(statement) for statement in reversed(found))

    def origin(self, statement: ast.ImportFrom) -> str:
        """The module that it takes names from."""
        base = statement.module or ""
        if not statement.level:
            return base
        parts = self.package.split(".")
        parts = parts[: len(parts) - statement.level + 1]
        return ".".join([*parts, base] if base else parts)


@dataclass
class Code:
    own: Sequence[str]
    """Folders of the recipe, which come first."""
    installed: Sequence[str] = ()
    """The rest of Python's path, in its order."""
    _modules: dict[str, Module | Unread | None] = field(default_factory=dict)
    _found: dict[str, Found] = field(default_factory=dict)

    def find(self, target: str) -> Found:
        """What the dotted path of a class leads to; many components may be of one class."""
        if target not in self._found:
            try:
                self._found[target] = self._find(target)
            except RecursionError:
                self._found[target] = Unread("its source is nested too deeply, or goes in circles")
        return self._found[target]

    def _find(self, target: str) -> Found:
        module_name, _, name = target.rpartition(".")
        module = self.module(module_name)
        if module is None:
            return NotFound(self._missing(module_name))
        if isinstance(module, Unread):
            return module
        if name not in module.names and (starred := self._starred(module, name)):
            there = self._find(starred)
            return replace(there, target=target) if isinstance(there, Class) else there
        if name not in module.names:
            if module.stars or "__getattr__" in module.names:
                return Unread(f"`{module_name}` does not say all its names")
            own = (key for key, statement in module.names.items() if isinstance(statement, ast.ClassDef))
            return NotFound(module_name, tuple(own), True)
        if isinstance(module.names[name], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return NoClass("a function")
        found = self._follow(module, name, 0)
        if isinstance(found, Unread):
            return found
        if isinstance(found, str):
            return Unread(f"`{target}` is `{found}`, whose source is not on the path")
        return self._described(target, *found)

    @property
    def path(self) -> tuple[str, ...]:
        return (*self.own, *self.installed)

    # Modules

    def module(self, name: str) -> Module | Unread | None:
        """A module's source; None where there is no such module."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | Unread | None:
        parts = name.split(".")
        for file in self._files(parts):
            if file.suffix != ".py":
                return Unread(f"`{name}` is compiled (`{file.name}`)")
            try:
                source = contents(file, MAX_BYTES)
                if len(source) > MAX_BYTES:
                    return Unread(f"`{file}` is larger than {MAX_BYTES >> 20} MiB")
                return Module(name, file, ast.parse(source, str(file)))
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None)
                return Unread(f"`{file}` is not Python{f': line {line}' if line else ''}", broken=True)
            except OSError as error:
                return Unread(f"cannot read `{file}`: {error.strerror}")
            except RecursionError:
                return Unread(f"`{file}` is nested too deeply")
        return None

    def _files(self, parts: Sequence[str]) -> Iterator[Path]:
        """Where a module lies: the first folder that has its first part decides, as in Python."""
        folders = [Path(folder) for folder in self.path]
        if parts[0] == "meshctl":
            folders = [PACKAGE_DIR.parent]
        for part in parts[:-1]:
            packages = [folder / part for folder in folders if is_dir(folder / part)]
            regular = [folder for folder in packages if is_file(folder / "__init__.py")]
            folders = regular[:1] or packages
        for folder in folders:
            for file in (folder / parts[-1] / "__init__.py", folder / f"{parts[-1]}.py"):
                if is_file(file):
                    yield file
            yield from (file for file in files(folder, *EXTENSIONS) if _stem(file) == parts[-1])

    def _missing(self, name: str) -> str:
        """The first part of a dotted name that is nowhere."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            here = parts[:length]
            if not any(self._files(here)) and not any(is_dir(Path(folder, *here)) for folder in self.path):
                return ".".join(here)
        return name

    # Names

    def _follow(self, module: Module, name: str, depth: int) -> tuple[Module, ast.ClassDef] | str | Unread:
        """The class that a name in a module means, or the dotted path where it leaves what can be read."""
        statement = module.names.get(name)
        if depth > MAX_DEPTH or statement is None:
            return Unread(f"`{name}` is not said in `{module.name}`")
        if isinstance(statement, ast.ClassDef):
            return module, statement
        dotted = self._imported(module, statement, name)
        if dotted is None:
            return Unread(f"`{module.name}.{name}` is no class statement")
        return self._by_path(dotted, depth)

    def _by_path(self, dotted: str, depth: int) -> tuple[Module, ast.ClassDef] | str | Unread:
        if dotted in ROOTS or dotted in DECORATORS or dotted in PLAIN:
            return dotted
        owner, _, last = dotted.rpartition(".")
        module = self.module(owner) if owner else None
        if not isinstance(module, Module):
            return dotted
        found = self._follow(module, last, depth + 1)
        return dotted if isinstance(found, Unread) else found

    def _starred(self, module: Module, name: str) -> str | None:
        """The dotted path of a name that a module takes with all others of some module."""
        open, seen = [*reversed(module.stars)], {module.name}
        while open and not name.startswith("_"):
            here = open.pop()
            source = None if here in seen else self.module(here)
            seen.add(here)
            if isinstance(source, Module):
                if name in source.names:
                    return f"{here}.{name}"
                open += reversed(source.stars)
        return None

    def _imported(self, module: Module, statement: ast.stmt, name: str) -> str | None:
        """The dotted path that an import binds to a name."""
        if isinstance(statement, ast.ImportFrom):
            real = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
            return f"{module.origin(statement)}.{real}"
        if isinstance(statement, ast.Import):
            return next(
                (alias.name if alias.asname else name for alias in statement.names if _first(alias) == name),
                None,
            )
        if isinstance(statement, ast.Assign) and (dotted := _dotted(statement.value)):
            return self._resolved(module, dotted)
        return None

    def _resolved(self, module: Module, dotted: str) -> str | None:
        """The full path of an expression like `base.Actor` in a module."""
        first, _, rest = dotted.partition(".")
        statement = module.names.get(first)
        if statement is None:
            builtin = f"builtins.{first}" if first in BUILT_IN else None
            return (
                f"{starred}.{rest}"
                if (starred := self._starred(module, first)) and rest
                else starred or builtin
            )
        if isinstance(statement, ast.ClassDef):
            return f"{module.name}.{dotted}"
        found = self._imported(module, statement, first)
        return f"{found}.{rest}" if found and rest else found

    # Classes

    def _described(self, target: str, module: Module, node: ast.ClassDef) -> Class:
        line = list(self._line(module, node, 0, set()))
        classes = [found for found in line if not isinstance(found, str)]
        ends = {found for found in line if isinstance(found, str)}
        unknown = ends - ROOTS - PLAIN
        libraries = sorted(
            end for end in unknown if end.partition(".")[0] in LIBRARIES and not self._is_own(end)
        )
        members: dict[str, tuple[Module, ast.stmt]] = {}
        for owner, found in classes:
            own = {name: item for item in _statements(found.body) for name in _bound(item)}
            members = {**{name: (owner, item) for name, item in own.items()}, **members}
        methods = {
            name: (owner, item)
            for name, (owner, item) in members.items()
            if isinstance(item, ast.FunctionDef)
        }
        awaited = frozenset(
            name for name, (_, item) in members.items() if isinstance(item, ast.AsyncFunctionDef)
        )
        logged = tuple(dict.fromkeys(name for _, item in methods.values() for name in _logged(item)))
        endpoints = {
            name: said
            for name, (owner, item) in methods.items()
            if (said := self._endpoint(owner, item, logged))
        }
        is_component = True if ends & ROOTS else None if unknown.difference(libraries) else False
        inherited = {"setup", "close"} if is_component else set()
        constructor = None if unknown and "__init__" not in methods else self._constructor(classes, methods)
        abstract = (
            tuple(name for name, (_, item) in methods.items() if _is_abstract(item))
            if "abc.ABC" in ends
            else ()
        )
        return Class(
            target=target,
            file=str(module.file),
            is_component=is_component,
            endpoints=endpoints,
            methods=frozenset(members) | inherited,
            constructor=constructor,
            whole=not unknown,
            unwritten=abstract,
            awaited=awaited,
            made=frozenset(members) - methods.keys() - awaited,
            foreign_base=libraries[0].removeprefix("builtins.") if libraries else "",
        )

    def _is_own(self, dotted: str) -> bool:
        """Whether the recipe's folders have a package of this name, and so not the library."""
        first = dotted.partition(".")[0]
        return any(is_file(Path(folder, f"{first}.py")) or is_dir(Path(folder, first)) for folder in self.own)

    def _line(
        self, module: Module, node: ast.ClassDef, depth: int, seen: set[ast.ClassDef]
    ) -> Iterator[tuple[Module, ast.ClassDef] | str]:
        """The class and its bases, nearest first and each once; a dotted path where one leaves what can be
        read."""
        if node in seen:
            return
        seen.add(node)
        yield module, node
        for base in node.bases:
            dotted = _dotted(base.value if isinstance(base, ast.Subscript) else base)
            full = self._resolved(module, dotted) if dotted else None
            if full is None:
                yield dotted or "an expression"
                continue
            found = self._by_path(full, depth) if depth < MAX_DEPTH else full
            if isinstance(found, (str, Unread)):
                yield found if isinstance(found, str) else full
            else:
                yield from self._line(*found, depth + 1, seen)

    def _endpoint(self, module: Module, method: ast.FunctionDef, logged: tuple[str, ...]) -> Endpoint | None:
        for decorator in method.decorator_list:
            called = decorator if isinstance(decorator, ast.Call) else None
            dotted = _dotted(called.func if called else decorator)
            if dotted is None or self._resolved(module, dotted) not in DECORATORS:
                continue
            words = {keyword.arg: keyword.value for keyword in called.keywords} if called else {}
            texts = {
                key: value.value for key, value in words.items() if key and isinstance(value, ast.Constant)
            }
            said = {key: str(texts[key]) for key in WORDS if key in texts}
            unread = next(
                (key or "**" for key in words if key not in texts and (key in WORDS or key is None)), ""
            )
            place = (str(module.file), decorator.lineno, decorator.col_offset + 1)
            strange = (
                *(key for key in words if key and key not in WORDS),
                *("" for _ in (called.args if called else ())),
            )
            return Endpoint(
                **said,
                signature=signature(method, partial(self._resolved, module)),
                unread=unread,
                strange=strange,
                metrics=(*_returned(method), *logged),
                says=frozenset(said),
                place=place,
            )
        return None

    def _constructor(
        self, classes: list[tuple[Module, ast.ClassDef]], methods: dict[str, tuple[Module, ast.FunctionDef]]
    ) -> Signature | None:
        if any(node.decorator_list or node.keywords for _, node in classes):
            return None
        if "__init__" not in methods:
            return None if "__new__" in methods else Signature()
        module, method = methods["__init__"]
        return signature(method, partial(self._resolved, module))


def _is_abstract(method: ast.FunctionDef) -> bool:
    return any(
        (_dotted(decorator) or "").rpartition(".")[2] == "abstractmethod"
        for decorator in method.decorator_list
    )


def _returned(method: ast.FunctionDef) -> Iterator[str]:
    """The keys of the mappings that it returns, where they are written out."""
    for node in ast.walk(method):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield from _keys(node.value)


def _logged(method: ast.FunctionDef) -> Iterator[str]:
    """The keys of what it gives to `self.log`, where they are written out."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "log":
            for argument in node.args:
                yield from _keys(argument) if isinstance(argument, ast.Dict) else ()


def _keys(mapping: ast.Dict, before: str = "") -> Iterator[str]:
    for key, value in zip(mapping.keys, mapping.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield from (
                _keys(value, f"{before}{key.value}/")
                if isinstance(value, ast.Dict)
                else [f"{before}{key.value}"]
            )


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run when a module or a class is made."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            yield from _statements(statement.body)
        if isinstance(statement, (ast.If, ast.Try)):
            yield from _statements(statement.orelse)
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _statements(handler.body)
            yield from _statements(statement.finalbody)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement makes."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, ast.Import):
        yield from map(_first, statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names if alias.name != "*")
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id


def _first(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an expression that is only that."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]
