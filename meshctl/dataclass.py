"""The decorator `dataclass`, of which a frozen class costs less at import.

The standard one compiles six methods of a frozen class from text, which took 40 % of the instructions of
`meshctl validate`. Here a method is compiled when it is read first, by a call or by `inspect`. The methods
have the same results, signatures and speed, and `fields`, `replace` and `asdict` of the standard library
work.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, FrozenInstanceError, fields, is_dataclass
from dataclasses import dataclass as standard
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

SPARSE = {"sparse": True}
"""Metadata of a field that is stored only where it differs from its default, so that plans without it keep
their digest."""

if TYPE_CHECKING:  # type checkers know the standard decorator
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, **options):
        """Makes a dataclass. All but plain frozen ones are made by the standard library."""
        return _frozen if options == {"frozen": True} else standard(cls, **options)


def _frozen(cls: type[Any]) -> type[Any]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # without a text, `standard` inspects the signature
    defined = {name for name, value in cls.__dict__.items() if value is not None}
    # The standard library derives only frozen classes from frozen ones.
    is_derived = any(map(is_dataclass, cls.__bases__))
    standard(init=False, repr=False, eq=False, frozen=is_derived)(cls)
    cls.__dataclass_params__.frozen = True
    methods: dict[str, Any] = {name: _Uncompiled(cls, name) for name in SOURCES}
    methods["__repr__"] = _repr
    methods["__setattr__"] = _refused(cls, "__setattr__", "assign to")
    methods["__delattr__"] = _refused(cls, "__delattr__", "delete")
    for name, method in methods.items():
        if name not in defined:
            setattr(cls, name, method)
    return cls


class _Uncompiled:
    """A method that replaces itself by a compiled one when it is read from its class or an instance."""

    def __init__(self, cls: type[Any], name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        cls, name = self._cls, self._name
        names = dict(vars(sys.modules[cls.__module__]))  # the annotations refer to them
        exec(SOURCES[name](cls, names), names)
        method = names[name]
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        if name == "__init__":
            method.__annotations__ = {field.name: field.type for field in fields(cls)} | {"return": None}
        setattr(cls, name, method)
        return method.__get__(instance, owner)


class _Factory:
    """The default of a parameter that a factory makes, as `inspect` shows it."""

    def __repr__(self) -> str:
        return "<factory>"


def _init_source(cls: type[Any], names: dict[str, Any]) -> str:
    """Returns the text of `__init__`, and adds the objects that it refers to to `names`."""
    names |= {"_set": object.__setattr__, "_missing": _Factory()}
    parameters, lines = ["self"], []
    for field in fields(cls):
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _missing else {name}"
            name += "=_missing"
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            name += f"=_default_{name}"
        parameters.append(name)
        lines.append(f"    _set(self, {field.name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()\n")
    return f"def __init__({', '.join(parameters)}):\n{''.join(lines) or '    pass'}"


def _eq_source(cls: type[Any], names: dict[str, Any]) -> str:
    return f"""def __eq__(self, other):
    if other.__class__ is not self.__class__:
        return NotImplemented
    return {_values(cls, "self")} == {_values(cls, "other")}"""


def _hash_source(cls: type[Any], names: dict[str, Any]) -> str:
    return f"def __hash__(self):\n    return hash({_values(cls, 'self')})"


SOURCES = {"__init__": _init_source, "__eq__": _eq_source, "__hash__": _hash_source}


def _values(cls: type[Any], name: str) -> str:
    return f"({''.join(f'{name}.{field.name},' for field in fields(cls) if field.compare)})"


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refused(cls: type[Any], name: str, action: str) -> Any:
    """Returns `__setattr__` or `__delattr__`, which serves only attributes of a subclass."""

    def method(self: Any, attribute: str, *value: object) -> None:
        if type(self) is cls or attribute in cls.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot {action} field {attribute!r}")
        getattr(super(cls, self), name)(attribute, *value)

    return method
