"""Classes with annotations, for recipes that contradict them. The file is only read as text."""

from __future__ import annotations

import abc
from typing import Literal, Optional

from meshctl import Batch, Component, endpoint


class Source(Component):
    def __len__(self) -> int: ...

    @endpoint
    def next(self, samples: range) -> Batch | None: ...

    @endpoint
    def nothing(self) -> Batch: ...

    @endpoint
    def more(self, samples: range, seed: int) -> Batch: ...


class Model(Component):
    def __init__(
        self,
        name: str,
        layers: int = 2,
        lr: float = 1e-3,
        bias: bool = False,
        widths: list[int] | None = None,
        kind: Literal["dense", "moe"] = "dense",
        depth: Optional[int] = None,  # noqa: UP045
        extra=None,
    ) -> None: ...

    def state_dict(self) -> dict: ...

    def load_state_dict(self, state) -> None: ...

    @endpoint
    def work(self, batch: Batch) -> Batch: ...

    @endpoint
    def pair(self, one: Batch, other: Batch) -> Batch: ...

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        self.log({"reward": 1.0, "time": {"wait": 2.0}})
        return {"loss": 1.0}

    @endpoint
    def scaled(self, batch: Batch, scale: float = 1.0) -> Batch: ...

    @endpoint
    def by_name(self, *, batch: Batch) -> Batch: ...

    @endpoint
    def dispatched(self, samples: range) -> Batch: ...

    @endpoint
    def numbers(self, batch: Batch) -> dict[str, float]: ...

    @endpoint("slice", colect="mean")
    def decorated(self, batch: Batch) -> Batch: ...

    @endpoint
    async def later(self, batch: Batch) -> Batch: ...

    again = work

    def weights(self): ...

    def load_weights(self, stream) -> None: ...


class Shape(Component, abc.ABC):
    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    def area(self) -> float: ...


class Nameless(Component):
    def __init__(self, path: str, /) -> None: ...


def function(batch: Batch) -> Batch: ...
