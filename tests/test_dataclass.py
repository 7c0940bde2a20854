"""`meshctl.dataclass` gives a frozen class the behaviour that the standard library gives it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import field
from pydoc import plaintext, render_doc
from typing import Any, get_type_hints

import pytest

from meshctl.dataclass import dataclass
from tests.paths import PACKAGE


def classes(decorator: Callable[..., Any]) -> Any:
    """Returns a class with all kinds of fields that the package has, and one that is derived from it."""

    @decorator(frozen=True)
    class Point:
        x: int
        y: list[int] = field(default_factory=list, compare=False)
        secret: str = field(default="", repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", int(self.x))

    @decorator(frozen=True)
    class Named(Point):
        """A point with a name."""

        name: str = "here"

        def __hash__(self) -> int:
            return 7

    return Point, Named


@dataclass(frozen=True)
class Kept:
    value: int = 0


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "repr": lambda point, named: repr([point(1), point("2", [3]), named(4, name="n", secret="s")]),
    "equal": lambda point, named: [point(1) == point(1, [2]), point(1) == point(2), point(1) == named(1)],
    "hash": lambda point, named: [hash(point(1)), hash(named(1)), len({point(1), point(1), point(2)})],
    "assign": lambda point, named: setattr(point(1), "x", 2),
    "assign another": lambda point, named: setattr(point(1), "z", 2),
    "delete": lambda point, named: delattr(named(1), "name"),
    "missing argument": lambda point, named: point(),
    "unknown argument": lambda point, named: named(1, z=2),
    "too many arguments": lambda point, named: point(1, [], "", 4),
    "replace": lambda point, named: repr(dataclasses.replace(named(1, [2]), x=3)),
    "as dict": lambda point, named: dataclasses.asdict(named(1, [2])),
    "fields": lambda point, named: [one.name for one in dataclasses.fields(named)],
    "defaults are not shared": lambda point, named: point(1).y is point(1).y,
    "copy": lambda point, named: copy.deepcopy(point(1, [2])) == point(1, [3]),
    "docstring": lambda point, named: named.__doc__,
    "subclass": lambda point, named: repr(_derived(named)(1, name="a", more=2)),
    "plain subclass": lambda point, named: vars(_with_attribute(type("Plain", (point,), {})(1))),
}


READINGS: dict[str, Callable[[Any], object]] = {
    "signature of the class": lambda kind: str(inspect.signature(kind)),
    "signature of the method": lambda kind: str(inspect.signature(kind.__init__)),
    "annotations": lambda kind: inspect.get_annotations(kind.__init__),
    "types": lambda kind: get_type_hints(kind.__init__, localns={"list": list}),
    "comparison": lambda kind: str(inspect.signature(kind.__eq__)),
    "help": lambda kind: set(re.findall(r"\w+\(\W*self,\W*x:[^)]*", render_doc(kind, renderer=plaintext))),
}
"""What tools show of a class before its first instance."""


@pytest.mark.parametrize("what", READINGS)
def test_tools_show_a_class_without_instances_as_one_of_the_standard_library(what: str) -> None:
    for ours, standard in zip(classes(dataclass), classes(dataclasses.dataclass), strict=True):
        shown = READINGS[what](ours)
        assert shown == READINGS[what](standard) and shown


def _derived(base: Any) -> Any:
    """A user may derive a class of the standard library's kind from a public one, such as `DispatchMode`."""

    @dataclasses.dataclass(frozen=True)
    class Derived(base):
        more: int = 0

    return Derived


def _with_attribute(instance: Any) -> Any:
    instance.extra = 1
    return instance


@pytest.mark.parametrize("what", CALLS)
def test_same_as_the_standard_library(what: str) -> None:
    ours, standard = classes(dataclass), classes(dataclasses.dataclass)
    assert outcome(lambda: CALLS[what](*ours)) == outcome(lambda: CALLS[what](*standard))
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3)


MADE_HERE = re.compile(r"^from meshctl\.dataclass import (\w+, )*dataclass\b", re.M)


def test_every_frozen_class_of_the_package_is_made_here() -> None:
    """The time of `validate` depends on it. Starters and recipes are code of users."""
    wrong = [
        str(path)
        for path in PACKAGE.rglob("*.py")
        if not {"starters", "recipes"} & set(path.parts)
        and "@dataclass(frozen=True)" in (text := path.read_text(encoding="utf-8"))
        and not MADE_HERE.search(text)
    ]
    assert not wrong
