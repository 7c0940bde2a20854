"""A digest of the user's code of a component: the module of its class, and all modules that it imports from
the same folders. Installed packages are no part of it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

OWN = "meshctl"


def code_digest(target: str, folders: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits; empty if the class of the dotted path `target` is not in `folders`."""
    pending, read = [target.rpartition(".")[0].replace(":", ".")], dict[str, bytes]()
    while pending:
        name = pending.pop()
        if name in read or name.partition(".")[0] == OWN or (path := module_file(name, folders)) is None:
            continue
        read[name] = path.read_bytes()
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        pending += imported_modules(read[name], package)
    found = hashlib.sha256()
    for name in sorted(read):
        found.update(name.encode() + b"\0" + read[name] + b"\0")
    return found.hexdigest()[:16] if read else ""


def module_file(module: str, folders: Sequence[str]) -> Path | None:
    """Returns the file of a module in one of some folders; None for another module."""
    parts = module.split(".")
    for folder in folders:
        for path in (Path(folder, *parts[:-1], f"{parts[-1]}.py"), Path(folder, *parts, "__init__.py")):
            if parts[-1] and path.is_file():
                return path
    return None


def imported_modules(source: bytes, package: str) -> Iterator[str]:
    """Yields the modules that a module may import, and names in them that may be modules."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
