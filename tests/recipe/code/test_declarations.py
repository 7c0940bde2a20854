"""The literals of component classes are read as text."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.recipe.code.classes import Class, Code
from meshctl.recipe.code.declarations import Layouts

DECLARED = """
    from typing import ClassVar
    from meshctl import Component
    class Base(Component):
        MODEL = "args.model.path"
        LAYOUTS = {"dims": ["dp", "fsdp"], "excludes": [("dp", "fsdp")]}
    class Inherits(Base): ...
    class Overrides(Base):
        LAYOUTS: ClassVar = {"excludes": (("tp", "cp"),)}
    class Plain(Component): ...
    class Changed(Component):
        MODEL = ["args.model", "args.config"]
    class Wrong(Component):
        MODEL = "gpt2"
        LAYOUTS = {"dims": ["dp", "zero"]}
    class Computed(Component):
        MODEL = make()
        LAYOUTS = dict(dims=["dp"])
    class Listed(Component):
        MODEL = ("args.model", "gpt2")
    class Withdrawn(Component):
        SEQUENCE_LENGTH = "args.max_length"
        DATA = 7
    class Planned(Component):
        LAYOUTS = {"tp_plan": "transformers"}
    class Unplanned(Component):
        LAYOUTS = {"tp_plan": ["transformers"]}
    class Unpaired(Component):
        LAYOUTS = {"excludes": [["dp"]]}
"""


@pytest.mark.parametrize(
    ("name", "model", "layouts", "wrong"),
    [
        ("Base", (("args", "model", "path"),), Layouts(("dp", "fsdp"), (("dp", "fsdp"),)), ()),
        ("Inherits", (("args", "model", "path"),), Layouts(("dp", "fsdp"), (("dp", "fsdp"),)), ()),
        ("Overrides", (("args", "model", "path"),), Layouts(None, (("tp", "cp"),)), ()),
        ("Plain", (), Layouts(), ()),
        ("Changed", (("args", "model"), ("args", "config")), Layouts(), ()),
        ("Listed", (), Layouts(), ("MODEL",)),
        ("Wrong", (), Layouts(), ("MODEL", "LAYOUTS")),
        ("Computed", (), Layouts(), ("MODEL", "LAYOUTS")),
        ("Withdrawn", (), Layouts(), ("SEQUENCE_LENGTH",)),
        ("Planned", (), Layouts(tp_plan="transformers"), ()),
        ("Unplanned", (), Layouts(), ("LAYOUTS",)),
        ("Unpaired", (), Layouts(), ("LAYOUTS",)),
    ],
)
def test_what_a_class_declares(
    tmp_path: Path, name: str, model: tuple[tuple[str, ...], ...], layouts: Layouts, wrong: tuple[str, ...]
) -> None:
    (tmp_path / "declared.py").write_text(dedent(DECLARED), encoding="utf-8")
    found = Code((str(tmp_path),)).find(f"declared.{name}")
    assert isinstance(found, Class)
    assert (found.declares.model, found.declares.layouts) == (model, layouts)
    assert tuple(attribute for attribute, _ in found.declares.wrong) == wrong
