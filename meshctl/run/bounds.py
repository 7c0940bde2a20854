"""Finds the sources that bound a run: the run ends when they have no more data.

A source that is called in every step bounds the run. One that is called less often, such as the data of an
evaluation, does not: its sample numbers run on past its length. Where no source is called in every step,
those that are called most often bound the run. `ends_run` of the stage overrides this. A source in a block
bounds only the block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Source(Protocol):
    """The properties of a stage that decide whether it bounds a run."""

    @property
    def name(self) -> str: ...
    @property
    def is_source(self) -> bool: ...
    @property
    def every(self) -> int: ...
    @property
    def when(self) -> str: ...
    @property
    def ends_run(self) -> bool | None: ...
    @property
    def block(self) -> str: ...


def bounding_sources(stages: Iterable[Source]) -> tuple[str, ...]:
    """Returns the names of the sources that bound a run, in the order of the stages."""
    sources = [stage for stage in stages if stage.is_source and not stage.block]
    least = min((source.every for source in sources if not source.when), default=0)

    def is_bounding(source: Source) -> bool:
        if source.ends_run is not None:
            return source.ends_run
        return not source.when and source.every == least

    return tuple(source.name for source in sources if is_bounding(source))


def end_of_data(source: str) -> str:
    """Returns the reason that is reported where a run ends with the data of a source."""
    return f"the data of `{source}` ended"
