"""Expands Hydra's sweeps, which are overrides with several values, into the jobs of a multirun.

    key=1,2    key=choice(a,b)    key=range(1,4)    group@package=glob(*)   tag, sort, shuffle of these

Hydra's own grammar is used. Jobs are the product of all sweeps, in Hydra's order: the last sweep varies
fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice, product
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.overrides import MAX_LENGTH, hydra_errors, is_too_deep

MAX_JOBS = 1000


class CannotSweep(Exception):
    """The sweeps cannot be expanded. The message names an override without values, or the number of jobs if
    it is too large."""


@dataclass(frozen=True)
class Job:
    """One combination of a multirun."""

    overrides: tuple[str, ...]
    swept: tuple[str, ...]
    """The overrides that differ between jobs."""


def expand(texts: Sequence[str], options: Callable[[str], Sequence[str]]) -> list[Job]:
    """Returns the jobs of a command line. `options` returns the configs of a group, for `glob`.

    An override that cannot be parsed is passed to every job, where it is reported. Raises `CannotSweep`.
    """
    values = [_values(text, options) for text in texts]
    count = math.prod(len(some) for some in values)
    if count > MAX_JOBS:
        raise CannotSweep(f"the sweeps make more than {MAX_JOBS:,} jobs")
    is_swept = [len(some) > 1 for some in values]
    jobs = []
    for overrides in product(*values):
        swept = tuple(text for text, varies in zip(overrides, is_swept, strict=True) if varies)
        jobs.append(Job(overrides, swept))
    return jobs


def _values(text: str, options: Callable[[str], Sequence[str]]) -> list[str]:
    """Returns an override for each value of a sweep. Returns a text that is not a sweep unchanged."""
    if is_too_deep(text) or len(text) > MAX_LENGTH:
        return [text]
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create(config_loader=_GroupOptions(options))  # type: ignore[arg-type]
    try:
        (parsed,) = parser.parse_overrides([text])
        if not parsed.is_sweep_override():
            return [text]
        key = parsed.get_key_element()
        values = [f"{key}={value}" for value in islice(parsed.sweep_string_iterator(), MAX_JOBS + 1)]
    except hydra_errors():
        return [text]
    if not values:
        raise CannotSweep(f"`{text}` has no value")
    return values


@dataclass(frozen=True)
class _GroupOptions:
    """The part of Hydra's config loader that is used to expand a `glob`."""

    options: Callable[[str], Sequence[str]]

    def get_group_options(self, group_name: str, results_filter: Any = None) -> list[str]:
        return list(self.options(group_name))
