"""Classes read as text: through packages, imports and bases, and never imported."""

from pathlib import Path
from textwrap import dedent

import pytest

from meshctl.recipe.code.classes import Class, Code, NoClass, NotFound
from meshctl.recipe.code.modules import Unread
from meshctl.recipe.code.signatures import Hint, Signature

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
    "net.py": """
        import threading
        import torch.nn as tnn
        import torch
        from torch import nn
        from torch.nn import Module as Base
        from compiled_only import Unknown
        from plain import *
        Alias = nn.Module
        class Direct(nn.Module): ...
        class Renamed(Base): ...
        class Dotted(torch.nn.Module): ...
        class Under(tnn.Module): ...
        class Assigned(Alias): ...
        class Far(Direct): ...
        class Threads(threading.local): ...
        class Both(Unknown, nn.Module): ...
        class Star(Aliased): ...
    """,
    "built.py": "class Mapping(dict): ...\nclass Wrong(ValueError): ...\nclass Plain(object): ...\n",
    "both.py": "from plain import *\nclass Old(Aliased, object): ...\n",
    "farther.py": "import net\nclass Farther(net.Far): ...\nclass Starred(net.Star): ...\n",
    "torchy.py": "from meshctl import Component\nfrom torch import nn\nclass M(Component, nn.Module):\n    def __init__(self, a): ...\n",
}


def write(folder: Path, files: dict[str, str]) -> Code:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return Code((str(folder),))


@pytest.fixture
def code(tmp_path: Path) -> Code:
    return write(tmp_path, FILES)


def found_in(code: Code, target: str) -> Class:
    found = code.find(target)
    assert isinstance(found, Class) and code.find(target) is found, found
    return found


def test_a_component_and_its_endpoints(code: Code) -> None:
    found = found_in(code, "plain.Direct")
    assert found.is_component and found.is_complete and set(found.endpoints) == {"go"}
    go = found.endpoints["go"]
    assert (go.dispatch, go.collect, go.execute) == ("slice_dp", "mean", "first")
    assert go.signature.keywords == ("batch", "extra", "scale") and found.constructor == Signature()


def test_names_are_followed_through_packages_imports_and_bases(code: Code) -> None:
    kitchen = found_in(code, "house.Kitchen")
    takes = kitchen.constructor
    assert kitchen.is_component and set(kitchen.endpoints) == {"stand"} and takes
    assert (takes.keywords, takes.required, takes.has_kwargs) == (("size", "depth"), ("size",), True)


@pytest.mark.parametrize(
    ("is_component", "targets"),
    [
        (True, "house.rooms.Bath plain.Aliased plain.Other plain.Either generic.G torchy.M"),
        (True, "star.Aliased net.Star farther.Starred both.Old"),  # names that come with all others
        (False, "plain.Unrelated farther.Farther net.Threads built.Mapping built.Wrong built.Plain"),
        # A class of a library is none, whether the library is installed or not.
        (False, "net.Direct net.Renamed net.Dotted net.Under net.Assigned net.Far"),
        (None, "house.Chest net.Both cycle.A"),
    ],
)
def test_which_classes_are_components(code: Code, is_component: bool | None, targets: str) -> None:
    for target in targets.split():
        found = found_in(code, target)
        assert found.target == target and (found.is_component is is_component or target == "cycle.A"), target
        if target.startswith("net.") and is_component is False and target != "net.Threads":
            assert found.foreign_base == "torch.nn.Module"
        if target in ("star.Aliased", "net.Star", "farther.Starred", "both.Old"):
            assert set(found.endpoints) == {"go"}
    assert found_in(code, "house.Chest").constructor is None and not found_in(code, "torchy.M").is_complete


def test_a_library_of_the_recipe_itself_is_read(code: Code, tmp_path: Path) -> None:
    own = "import ray\nclass A(ray.Ray): ...\nclass B(ray.Else): ...\n"
    code = write(
        tmp_path,
        {"ray.py": "from meshctl import Component as Ray\nfrom nowhere import Else\n", "mine.py": own},
    )
    assert found_in(code, "mine.A").is_component and found_in(code, "mine.B").is_component is None


MANY = ", ".join("abcdefghij")
HOSTILE = {
    "circle.py": "A = B\nB = A\nclass X(A): ...\n",
    "wide.py": "".join(f"class {name}({MANY}): ...\n" for name in "abcdefghij") + f"class X({MANY}): ...\n",
    "stars.py": "".join(f"from star{number} import *\n" for number in range(9)) + "class X(Nowhere): ...\n",
    **{
        f"star{number}.py": "".join(f"from star{other} import *\n" for other in range(9))
        for number in range(9)
    },
    "long.py": f"import a\nclass X(a{'.b' * 1500}): ...\n",
    "elifs.py": "if 1: ...\n" + "".join(f"elif {number}: ...\n" for number in range(900)) + "class X: ...\n",
}


@pytest.mark.parametrize("name", ["circle", "wide", "stars", "long", "elifs"])
def test_source_that_goes_in_circles_ends(tmp_path: Path, name: str) -> None:
    assert isinstance(write(tmp_path, HOSTILE).find(f"{name}.X"), Class | Unread)


@pytest.mark.parametrize("target", ["broken.X", "star.X", "circle_a.X", "compiled.X", "plain.Made"])
def test_what_cannot_be_read_is_reported(code: Code, target: str) -> None:
    assert isinstance(code.find(target), Unread)


def test_what_is_not_there_or_unknown(code: Code) -> None:
    assert code.find("nowhere.at.X") == NotFound("nowhere")
    assert code.find("house.cellar.X") == NotFound("house.cellar")
    found = code.find("plain.Direkt")
    assert isinstance(found, NotFound) and found.has_module and "Direct" in found.names
    assert found_in(code, "data.D").constructor is None  # of a dataclass


SIGNATURES = """
    from __future__ import annotations
    import abc
    import typing as t
    from typing import Any, Literal, Optional
    import meshctl
    from meshctl import Batch, Component, endpoint

    class Takes(Component):
        def __init__(self, a: int, /, b: "str" = "", *more: int, c: float = None, d: Optional[bool] = None, e: Literal["x", 3] | None,
                     f: list[int], g: t.Mapping[str, Any], h: Any, i: Unknown, j: int | Unknown, k: dict = {}, **rest: int) -> None: ...

        @endpoint
        def named(self, batch: Batch, *, numbers: range) -> meshctl.Batch | None: ...

        @endpoint("mean", colect="sum", dispatch=MODE)
        def wrong(self, batch) -> dict[str, float]:
            self.log({"a": 1, "deep": {"b": 2, key: 3}, **rest})
            return {"loss": 1.0}

        @endpoint(collect="mean")
        async def later(self, batch: Batch): ...

        same = named

    class Shape(Component, abc.ABC):
        @abc.abstractmethod
        def area(self): ...
        @abc.abstractmethod
        def name(self): ...

    class Square(Shape):
        def area(self): ...

    class Whole(Square):
        def name(self): ...

    def function(): ...
"""


@pytest.fixture
def signatures(tmp_path: Path) -> Code:
    return write(tmp_path, {"sig.py": SIGNATURES})


def test_the_parameters_of_a_constructor(signatures: Code) -> None:
    takes = found_in(signatures, "sig.Takes").constructor
    assert takes and takes.positional == ("a", "b") and takes.has_varargs and takes.has_kwargs
    assert takes.keywords == ("b", "c", "d", "e", "f", "g", "h", "i", "j", "k")
    assert takes.required == ("a", "e", "f", "g", "h", "i", "j")
    assert {name: (sorted(hint.kinds), hint.words) for name, hint in takes.hints.items()} == {
        "a": (["int"], ()),
        "b": (["text"], ()),
        "c": (["float", "nothing"], ()),
        "d": (["bool", "nothing"], ()),
        "e": (["nothing"], ("x", 3)),
        "f": (["list"], ()),
        "g": (["mapping"], ()),
        "k": (["mapping"], ()),
    }


def test_the_inputs_results_and_metrics_of_endpoints(signatures: Code) -> None:
    found = found_in(signatures, "sig.Takes")
    named, wrong = found.endpoints["named"], found.endpoints["wrong"]
    assert {name: set(hint.kinds) for name, hint in named.signature.hints.items()} == {
        "batch": {"batch"},
        "numbers": {"range"},
    }
    assert named.signature.returns and named.signature.returns.kinds == {"batch", "nothing"}
    assert wrong.signature.returns and wrong.signature.returns.kinds == {"mapping"}
    assert wrong.unknown_arguments == ("colect", "") and wrong.unread_parameter == "dispatch"
    assert wrong.metrics == ("loss", "a", "deep/b")
    assert found.endpoints["later"].collect == "mean" and found.assigned_members == {"same"}


def test_what_no_object_can_be_made_of(signatures: Code) -> None:
    for name, methods in {"Shape": ("area", "name"), "Square": ("name",), "Whole": ()}.items():
        assert found_in(signatures, f"sig.{name}").abstract_methods == methods
    assert signatures.find("sig.function") == NoClass("a function")


REEXPORTS = {
    "common.py": "import meshctl\nfrom meshctl import Batch, Component, endpoint\n",
    "all_names.py": "from meshctl import *\n",
    "assigned.py": "import meshctl\nComponent = meshctl.Component\nendpoint = meshctl.endpoint\nBatch = meshctl.Batch\n",
    "kit/__init__.py": "from .inner import *\nfrom kit import inner as deep\n",
    "kit/inner/__init__.py": "from kit.inner.most import Batch, Component, endpoint\n",
    "kit/inner/most.py": "from all_names import *\n",
    "guarded.py": """
        try:
            from meshctl import Batch, Component, endpoint
        except ImportError:
            Component, Batch = object, list
            def endpoint(method): return method
    """,
}
IMPORTS = {
    "from common import Batch, Component, endpoint": "",
    "from common import *": "",
    "import common": "common.",
    "import common as c": "c.",
    "import common  # and the module that it imports": "common.meshctl.",
    "from all_names import *": "",
    "import all_names": "all_names.",
    "from assigned import Batch, Component, endpoint": "",
    "from kit import Batch, Component, endpoint": "",
    "from kit import deep": "deep.",
    "import kit.inner.most": "kit.inner.most.",
    "from guarded import Batch, Component, endpoint": "",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_names_that_the_users_modules_export_again_are_followed(tmp_path: Path, line: str) -> None:
    prefix = IMPORTS[line]
    decorated = f"@{prefix}endpoint(collect='mean')\n    def go(self, batch: {prefix}Batch): ..."
    mine = f"{line}\nclass X({prefix}Component):\n    {decorated}\n"
    found = found_in(write(tmp_path, {**REEXPORTS, "mine.py": mine}), "mine.X")
    assert found.is_component and found.is_complete
    assert found.endpoints["go"].collect == "mean"
    assert found.endpoints["go"].signature.hints["batch"] == Hint(frozenset({"batch"}))


def test_a_function_that_is_only_named_endpoint_is_none(tmp_path: Path) -> None:
    own = "def endpoint(method): return method\n"
    text = "from meshctl import Component\nfrom own import endpoint\nclass X(Component):\n    @endpoint\n    def go(self): ...\n"
    found = found_in(write(tmp_path, {"own.py": own, "mine.py": text}), "mine.X")
    assert found.is_component and not found.endpoints
