"""Properties of stages that follow from the recipe and the endpoints' decorators together: their modes, and
the steps in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import lcm
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.recipe.code.classes import Endpoint
from meshctl.recipe.model import Stage
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import (
    COLLECT,
    DISPATCH,
    EXECUTE,
    CollectMode,
    Dispatch,
    ExecuteMode,
    RankSet,
    producer_set,
)


@dataclass(frozen=True)
class StageModes:
    """The modes of a stage: those in the recipe, otherwise those in the decorator of the called endpoint."""

    execute: str
    collect: str
    inputs: tuple[Dispatch, ...]
    """The dispatch of each input, in the order of the stage's inputs."""

    @property
    def are_known(self) -> bool:
        """True if all modes are built in. The properties of user-defined or misspelt modes are unknown."""
        return self.collect in COLLECT and self.are_known_to_receive

    @property
    def are_known_to_receive(self) -> bool:
        """True if the modes that decide which samples a rank receives are built in."""
        return self.execute in EXECUTE and all(given.mode in DISPATCH for given in self.inputs)

    @property
    def execute_mode(self) -> ExecuteMode:
        """The execute mode; it must be known."""
        return EXECUTE[self.execute]

    @property
    def collect_mode(self) -> CollectMode:
        """The collect mode; it must be known."""
        return COLLECT[self.collect]

    @property
    def producers(self) -> RankSet:
        """The ranks that produce the stage's value; `collect` and `execute` must be known."""
        return producer_set(self.collect_mode, self.execute_mode)

    def producer_count(self, mesh: DeviceMesh | None) -> int:
        """Returns the number of producers; 0 if the mesh, `collect` or `execute` is not known."""
        is_known = self.collect in COLLECT and self.execute in EXECUTE
        return self.producers.count(mesh) if mesh is not None and is_known else 0


def modes_of(stage: Stage, declared: Endpoint) -> StageModes:
    return StageModes(
        execute=stage.execute or declared.execute,
        collect=stage.collect or declared.collect,
        inputs=tuple(
            (given.dispatch or stage.dispatch).with_default(declared.dispatch) for given in stage.inputs
        ),
    )


@dataclass(frozen=True)
class Times:
    """The steps in which a stage runs together with all stages whose values reach it."""

    period: int = 1
    """The stage runs in multiples of this step only."""
    at: frozenset[str] = frozenset()
    """The stage runs at these times only (`start`, `end`, `checkpoint`)."""

    def __and__(self, other: Times) -> Times:
        return Times(lcm(self.period, other.period), self.at | other.at)

    def __str__(self) -> str:
        if self.at:
            return f"at the {' and the '.join(sorted(self.at))}"
        return "in every step" if self.period == 1 else f"every {self.period} steps"


def times_by_stage(
    pipeline: Mapping[str, Any], inputs_of: Callable[[Any], Iterable[str]]
) -> dict[str, Times]:
    """Returns the times of every stage of a recipe or of a plan. `inputs_of` returns the stages with which a
    stage runs. Circles and unknown inputs are passed over; rules report them."""
    known: dict[str, Times] = {}
    for name in pipeline:
        times, pending, seen = Times(), [name], set[str]()
        while pending:
            stage = pipeline.get(pending.pop())
            if stage is None or stage.name in seen:
                continue
            seen.add(stage.name)
            if stage.name in known:
                times = times & known[stage.name]
            else:
                times = times & Times(1 if stage.when else stage.every, frozenset({stage.when} - {""}))
                pending += inputs_of(stage)
        known[name] = times
    return known
