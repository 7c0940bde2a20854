"""Libraries that an extra of meshctl installs, and the message where they are missing.

    with extra("hf"):
        from transformers import AutoTokenizer

The import stays inside a function, so that a process that does not use the library does not load it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshctl.package import install_command
from meshctl.runtime.component import ComponentError


class MissingExtra(ComponentError):
    """A library of an extra is not installed. The message says how it is installed."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turns a failed import in its body into a `MissingExtra` that says how it is installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{error.name} is not installed: {install_command(name)}") from None
