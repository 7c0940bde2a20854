"""Classes read as text: through packages, imports and bases, and never imported."""

import sys
from pathlib import Path

import pytest

from meshctl.recipe.code import Class, Code, Constructor, NotFound, Unread

FILES = {
    "plain.py": """
        from meshctl import Component as Base, endpoint as call
        import meshctl
        class Direct(meshctl.Component):
            @meshctl.endpoint(collect="mean", execute="first")
            def go(self, batch, extra=1, *, scale): ...
            @staticmethod
            def no(self): ...
        class Aliased(Base):
            def __init__(self, size, *, depth=2, **more): ...
            @call
            def go(self, batch): ...
        class Unrelated: ...
        Other = Direct
        def make(): ...
        Made = make()
        try:
            import fast
            class Either(Base): ...
        except ImportError:
            class Either(Base): ...
    """,
    "house/__init__.py": "from .rooms import Kitchen\nfrom house.attic.box import Box as Chest\n",
    "house/rooms.py": """
        from __future__ import annotations
        from .walls import Wall
        from plain import Aliased
        import house.walls as walls
        class Kitchen(Wall, Aliased):
            def go(self): "no endpoint any more"
        class Bath(walls.Wall): ...
    """,
    "house/walls.py": """
        from meshctl.runtime.component import Component, endpoint
        class Wall(Component):
            @endpoint
            def stand(self): ...
    """,
    "house/attic/box.py": "from nowhere import Thing\nclass Box(Thing): ...\n",
    "broken.py": "class X(:\n",
    "star.py": "from plain import *\n",
    "circle_a.py": "from circle_b import X\n",
    "circle_b.py": "from circle_a import X\n",
    "cycle.py": "class A(B): ...\nclass B(A): ...\n",
    "compiled.cpython-311-x86_64-linux-gnu.so": "",
    "data.py": "from dataclasses import dataclass\nfrom meshctl import Component\n@dataclass\nclass D(Component):\n    x: int\n",
    "generic.py": "from typing import Generic\nfrom meshctl import Component\nclass G(Component, Generic[int]):\n    def run(self): ...\n",
    "torchy.py": "from meshctl import Component\nfrom torch import nn\nclass M(Component, nn.Module):\n    def __init__(self, a): ...\n",
}


@pytest.fixture
def code(tmp_path: Path) -> Code:
    from textwrap import dedent

    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return Code((str(tmp_path),))


def test_a_component_and_its_endpoints(code: Code) -> None:
    found = code.find("plain.Direct")
    assert isinstance(found, Class) and found.is_component and found.whole
    assert set(found.endpoints) == {"go"}
    go = found.endpoints["go"]
    assert (go.dispatch, go.collect, go.execute) == ("slice_dp", "mean", "first")
    assert go.parameters == ("batch", "extra", "scale")
    assert found.constructor == Constructor()


def test_names_are_followed_through_packages_imports_and_bases(code: Code) -> None:
    kitchen = code.find("house.Kitchen")
    assert isinstance(kitchen, Class) and kitchen.is_component
    assert set(kitchen.endpoints) == {"stand"}
    assert kitchen.constructor == Constructor(("size", "depth"), ("size",), True)
    for target in ("house.rooms.Bath", "plain.Aliased", "plain.Other", "plain.Either", "generic.G"):
        found = code.find(target)
        assert isinstance(found, Class) and found.is_component, target


def test_what_is_no_component_is_told_from_what_cannot_be_told(code: Code) -> None:
    plain, chest, torchy = code.find("plain.Unrelated"), code.find("house.Chest"), code.find("torchy.M")
    assert isinstance(plain, Class) and plain.is_component is False
    assert isinstance(chest, Class) and chest.is_component is None and chest.constructor is None
    assert isinstance(torchy, Class) and torchy.is_component and not torchy.whole
    assert isinstance(code.find("cycle.A"), Class)


@pytest.mark.parametrize("target", ["broken.X", "star.X", "circle_a.X", "compiled.X", "plain.Made"])
def test_what_cannot_be_read_is_said_to_be_so(code: Code, target: str) -> None:
    assert isinstance(code.find(target), Unread)


def test_what_is_not_there(code: Code) -> None:
    assert code.find("nowhere.at.X") == NotFound("nowhere")
    assert code.find("house.cellar.X") == NotFound("house.cellar")
    found = code.find("plain.Direkt")
    assert isinstance(found, NotFound) and found.has_module and "Direct" in found.names


def test_a_dataclass_has_a_constructor_that_cannot_be_told(code: Code) -> None:
    found = code.find("data.D")
    assert isinstance(found, Class) and found.constructor is None


def test_the_first_folder_wins(tmp_path: Path) -> None:
    for folder, name in (("one", "A"), ("two", "B")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mod.py").write_text(f"from meshctl import Component\nclass {name}(Component): ...\n")
    code = Code((str(tmp_path / "one"), str(tmp_path / "two")))
    assert isinstance(code.find("mod.A"), Class) and isinstance(code.find("mod.B"), NotFound)


def test_installed_code_is_found() -> None:
    found = Code(tuple(sys.path)).find("omegaconf.DictConfig")
    assert isinstance(found, Class) and found.is_component is not True
