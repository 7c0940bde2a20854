"""Finds and parses Python source on the import path, and follows names to their definitions. It imports
nothing.

`importlib.util.find_spec("a.b")` would import `a`, so this module searches the folders itself. A name is
followed through imports, star imports, assignments (`Base = other.Actor`), package `__init__` files and
re-exported modules, until its definition is found or a source cannot be read.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property, lru_cache
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.package import PACKAGE_DIR
from meshctl.recipe.compose.folders import contents, files, is_dir, is_file

COMPONENTS = {"meshctl.Component", "meshctl.runtime.component.Component"}
ENDPOINTS = {"meshctl.endpoint", "meshctl.runtime.component.endpoint"}
BATCHES = {"meshctl.Batch", "meshctl.runtime.batch.batch.Batch"}
PLAIN_BASES = {"builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol"}
"""Base classes without methods of their own."""
KNOWN = COMPONENTS | ENDPOINTS | BATCHES | PLAIN_BASES
"""Dotted paths whose meaning is known. They are not followed further."""
LIBRARIES = {
    *sys.stdlib_module_names,
    *("torch", "torchvision", "torchaudio", "numpy", "transformers", "tokenizers", "datasets", "accelerate"),
    *("peft", "trl", "diffusers", "deepspeed", "megatron", "lightning", "pytorch_lightning", "torchtitan"),
    *("vllm", "sglang", "ray", "jax", "flax", "gymnasium", "hydra", "omegaconf", "pydantic", "attr", "attrs"),
}
"""Packages that do not use meshctl, so that none of their classes is a Component, whether they are installed
or not."""
BUILTIN_TYPES = frozenset(name for name, value in vars(builtins).items() if isinstance(value, type))
COMPILED_SUFFIXES = (".so", ".pyd", ".pyc")
MAX_BYTES = 1 << 22
"""Maximum size of a source file that is read."""
MAX_HOPS = 12
"""Maximum number of imports, re-exports and base classes that are followed one after another."""
MAX_STARRED = 64
"""Maximum number of modules in which a name of star imports is searched. A package such as transformers has
thousands."""


@dataclass(frozen=True)
class Unread:
    """The reason why the source of a name cannot be read. The name may exist."""

    why: str
    broken: bool = False
    """True if the source is not valid Python, so that an import would fail."""


@dataclass
class Module:
    """One parsed source file."""

    name: str
    file: Path
    tree: ast.Module

    @cached_property
    def names(self) -> dict[str, ast.stmt]:
        """Name -> the statement that binds it at module level, including below `if` and `try`."""
        return {name: found for found in statements(self.tree.body) for name in bound_names(found)}

    @property
    def package(self) -> str:
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def stars(self) -> tuple[str, ...]:
        """The modules of star imports, the last one first."""
        found = [one for one in statements(self.tree.body) if isinstance(one, ast.ImportFrom)]
        return tuple(self.origin(one) for one in reversed(found) if one.names[0].name == "*")

    def origin(self, statement: ast.ImportFrom) -> str:
        """Returns the absolute name of the module in a `from ... import` statement."""
        base = statement.module or ""
        if not statement.level:
            return base
        parts = self.package.split(".")
        parts = parts[: len(parts) - statement.level + 1]
        return ".".join([*parts, base] if base else parts)


Definition = tuple[Module, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]


@dataclass
class Sources:
    """The source files on a path."""

    own: Sequence[str]
    """The folders of the recipe, which come first on the path."""
    installed: Sequence[str] = ()
    """The rest of Python's import path, in its order."""
    _modules: dict[str, Module | Unread | None] = field(default_factory=dict)

    # Modules

    @property
    def path(self) -> tuple[str, ...]:
        return (*self.own, *self.installed)

    def module(self, name: str) -> Module | Unread | None:
        """Returns the source of a module; None if the module does not exist."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | Unread | None:
        file = next(self._files(name.split(".")), None)
        if file is None:
            return None
        if file.suffix != ".py":
            return Unread(f"`{name}` is compiled (`{file.name}`)")
        try:
            source = contents(file, MAX_BYTES)
            if len(source) > MAX_BYTES:
                return Unread(f"`{file}` is larger than {MAX_BYTES >> 20} MiB")
            return _parsed(source, name, file)
        except (SyntaxError, ValueError) as error:
            line, why = getattr(error, "lineno", None), getattr(error, "msg", str(error))
            place = f"line {line} of `{file}`" if line else f"`{file}`"
            return Unread(f"{place} is not valid Python: {why}", broken=True)
        except OSError as error:
            return Unread(f"cannot read `{file}`: {error.strerror}")
        except RecursionError:
            return Unread(f"`{file}` is nested too deeply")

    def _files(self, parts: Sequence[str]) -> Iterator[Path]:
        """Yields the possible files of a module. As in Python, only the first folder that contains the first
        part of the name is searched."""
        folders = [Path(folder) for folder in self.path]
        if parts[0] == "meshctl":
            folders = [PACKAGE_DIR.parent]
        for part in parts[:-1]:
            packages = [folder / part for folder in folders if is_dir(folder / part)]
            regular = [folder for folder in packages if is_file(folder / "__init__.py")]
            folders = regular[:1] or packages
        last = parts[-1]
        for folder in folders:
            for file in (folder / last / "__init__.py", folder / f"{last}.py"):
                if is_file(file):
                    yield file
            compiled = files(folder, *COMPILED_SUFFIXES)
            yield from (file for file in compiled if file.name.partition(".")[0] == last)

    def statement(self, dotted: str) -> ast.stmt | None:
        """Returns the statement that binds the last name of a dotted path in its module."""
        owner, _, name = dotted.rpartition(".")
        module = self.module(owner) if owner else None
        return module.names.get(name) if isinstance(module, Module) else None

    def assigned(self, dotted: str) -> ast.expr | None:
        """Returns the expression that a module assigns to the last name of a dotted path."""
        statement = self.statement(dotted)
        return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None

    def first_missing(self, name: str) -> str:
        """Returns the shortest prefix of a dotted name that does not exist."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            beginning = parts[:length]
            is_folder = any(is_dir(Path(folder, *beginning)) for folder in self.path)
            if not is_folder and not any(self._files(beginning)):
                return ".".join(beginning)
        return name

    def is_library(self, dotted: str) -> bool:
        """Returns whether a name belongs to a library, and not to a module in the recipe's folders."""
        first = dotted.partition(".")[0]
        if first not in LIBRARIES:
            return False
        own = (Path(folder) for folder in self.own)
        return not any(is_file(folder / f"{first}.py") or is_dir(folder / first) for folder in own)

    # Names

    def follow(self, dotted: str, *, libraries: bool = True) -> Definition | str:
        """Returns the class or function that a dotted path names, or the last dotted path that was reached.
        If `libraries` is False, the source of libraries is not read."""
        seen: set[str] = set()
        while dotted not in KNOWN and dotted not in seen and len(seen) <= MAX_HOPS:
            seen.add(dotted)
            owner, _, name = dotted.rpartition(".")
            if not owner or owner.count(".") > MAX_HOPS or (not libraries and self.is_library(dotted)):
                return dotted
            module = self.module(owner)
            if isinstance(module, Module):
                statement = module.names.get(name)
                if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    return module, statement
                target = self._target(module, name)
            else:  # `owner` may be a name by which another module re-exports a module
                origin = self.follow(owner, libraries=libraries) if "." in owner else owner
                target = f"{origin}.{name}" if isinstance(origin, str) and origin != owner else None
            if target is None:
                return dotted
            dotted = target
        return dotted

    def _target(self, module: Module, name: str) -> str | None:
        """Returns the dotted path that an import or an assignment in a module binds to a name."""
        match statement := module.names.get(name):
            case None:
                return self._starred(module, name)
            case ast.ImportFrom():
                real = next(one.name for one in statement.names if (one.asname or one.name) == name)
                return f"{module.origin(statement)}.{real}"
            case ast.Import():
                imported = next(one for one in statement.names if _first_name(one) == name)
                return imported.name if imported.asname else name
            case ast.Assign():
                dotted = dotted_name(statement.value)
                return self.absolute(module, dotted) if dotted else None
        return None

    def _starred(self, module: Module, name: str) -> str | None:
        """Returns the dotted path of a name that a star import binds in a module; None if the first
        `MAX_STARRED` modules do not have it."""
        pending, seen = [*reversed(module.stars)], {module.name}
        while pending and not name.startswith("_") and len(seen) <= MAX_STARRED:
            here = pending.pop()
            source = None if here in seen else self.module(here)
            seen.add(here)
            if isinstance(source, Module):
                if name in source.names:
                    return f"{here}.{name}"
                pending += reversed(source.stars)
        return None

    def absolute(self, module: Module, dotted: str) -> str | None:
        """Returns the absolute dotted path of an expression such as `base.Actor` in a module."""
        first, _, rest = dotted.partition(".")
        if isinstance(module.names.get(first), ast.ClassDef):
            return f"{module.name}.{dotted}"
        found = self._target(module, first)
        if found is None and first not in module.names and first in BUILTIN_TYPES and not rest:
            found = f"builtins.{first}"
        return f"{found}.{rest}" if found and rest else found

    def meaning(self, module: Module, dotted: str) -> str | None:
        """Returns the dotted path in `KNOWN` that an expression in a module refers to, otherwise its absolute
        path."""
        absolute = self.absolute(module, dotted)
        found = self.follow(absolute, libraries=False) if absolute else None
        return found if isinstance(found, str) else absolute


@lru_cache(maxsize=64)
def _parsed(source: bytes, name: str, file: Path) -> Module:
    """Parses a source file, whose tree nobody changes. Recipes that are checked one after another often name
    the same classes."""
    return Module(name, file, ast.parse(source, str(file)))


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run when a module or a class is created. The handlers of a `try` come before
    its body, so that the binding of the body, which is the usual one, is the last."""
    for one in body:
        yield one
        if isinstance(one, ast.Try):
            yield from (inner for handler in one.handlers for inner in statements(handler.body))
        if isinstance(one, (ast.If, ast.Try, ast.With)):
            parts = (one.body, getattr(one, "orelse", ()), getattr(one, "finalbody", ()))
            yield from (inner for part in parts for inner in statements(part))


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement binds."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Import(names=names):
            yield from map(_first_name, names)
        case ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names if alias.name != "*")
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _first_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def dotted_name(node: ast.expr) -> str | None:
    """Returns `a.b.c` for an expression of this form; None for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted_name(node.value)):
        return f"{owner}.{node.attr}"
    return None
