"""Partitions a batch into the shares of a dispatch. Three rules decide which samples a share holds:

    even        contiguous and equal in counts: the first shares have one sample more
    home        each sample returns to the data rank that made it in an earlier stage
    balanced    equal in tokens (`balance.py`)

Samples of one group stay together unless the dispatch has `split_groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise, repeat
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.topology.mesh import even_split
from meshctl.topology.samples import Id, RouteError, Run, SampleTable, sample_name


@dataclass(frozen=True)
class Dispatch:
    """The distribution of an input over the ranks of the called component: a mode, and its options."""

    mode: str = "slice_dp"
    """A key of `DISPATCH`, or `module:NAME` of a user's `DispatchMode`."""
    balance: Literal["", "tokens"] = ""
    """Makes token counts equal instead of sample counts."""
    home: str = ""
    """The earlier stage to whose data ranks samples return."""
    allow_empty: bool = False
    """Gives empty batches where there are fewer samples than shares, instead of an error."""
    split_groups: bool = False
    """True if shares may divide the samples of one `group_id`."""
    equal_counts: bool = field(default=False, metadata={"sparse": True})
    """With `balance`: whether all shares have the same number of groups (without groups, of samples), or one
    more than others."""


def partition(table: SampleTable, parts: int, options: Dispatch) -> list[list[Run]]:
    """The runs of each of `parts` shares, in sample order.

    Raises `RouteError` if a share would be empty and `allow_empty` is not set, or where the home of a
    sample is not one of the shares.
    """
    depth = 0 if options.split_groups else table.group_depth
    bounds = group_bounds(table, depth)
    if options.home and table.homes:
        shares = _by_home(table, table.homes, parts)
    elif options.balance and table.lengths:
        shares = _by_tokens(table, table.lengths, bounds, parts, options.equal_counts)
    else:
        spans = [even_split(len(bounds) - 1, parts, part) for part in range(parts)]
        shares = [table.between([(bounds[span.start], bounds[span.stop])]) for span in spans]
    empty, units = len(shares) - sum(map(bool, shares)), len(bounds) - 1
    if empty and not options.allow_empty:
        what = "groups" if units < table.total else "samples"
        least = f"write dispatch: {{allow_empty: true}}, or produce at least {len(shares)}"
        raise RouteError(f"{units} {what} for {len(shares)} shares: {empty} of them would be empty; {least}")
    return shares


def minibatches(bounds: Sequence[int], order: Sequence[int], size: int) -> list[list[int]]:
    """Cuts samples into minibatches of at most `size`, which are lists of positions in sample order.

    `bounds` are those of `group_bounds`: groups stay whole, so a group of more than `size` samples is a
    minibatch of its own. `order` are the numbers of the groups in the order in which they are taken. Without
    samples there is one minibatch, which is empty.
    """
    found: list[list[int]] = [[]]
    for group in order:
        samples = range(bounds[group], bounds[group + 1])
        if found[-1] and len(found[-1]) + len(samples) > size:
            found.append([])
        found[-1] += samples
    return [sorted(positions) for positions in found]


def group_bounds(table: SampleTable, depth: int) -> Sequence[int]:
    """The position in sample order at which each group begins, and after them the number of samples. A group
    has the same first `depth` numbers in its ids; with depth 0, each sample counts as a group."""
    if size := table.group_size(depth):
        return range(0, table.total + 1, size)
    bounds: list[int] = []
    last: Id | None = None
    for position, id in enumerate(table.ids_of(table.in_order)):
        if id[:depth] != last:
            bounds.append(position)
        last = id[:depth]
    return [*bounds, table.total]


def _by_home(table: SampleTable, homes: Sequence[Sequence[int]], parts: int) -> list[list[Run]]:
    positions: list[list[int]] = [[] for _ in range(parts)]
    in_order = (home for run in table.in_order for home in homes[run.producer][run.start : run.stop])
    for position, home in enumerate(in_order):
        if not 0 <= home < parts:
            [id] = table.ids_of(table.select([position]))
            raise RouteError(f"sample {sample_name(id)} does not come from a rank of these {parts} shares")
        positions[home].append(position)
    return [table.select(some) for some in positions]


def _by_tokens(
    table: SampleTable,
    lengths: Sequence[Sequence[int]],
    bounds: Sequence[int],
    parts: int,
    with_equal_counts: bool,
) -> list[list[Run]]:
    runs = table.in_order
    if not runs:
        return [[] for _ in range(parts)]
    import numpy

    from meshctl.topology.balance import equal_counts, equal_loads

    weights = numpy.concatenate(
        [numpy.asarray(lengths[run.producer], numpy.int64)[run.start : run.stop] for run in runs]
    )
    begins: Any = bounds[:-1]
    if isinstance(begins, range):
        begins = numpy.arange(begins.start, begins.stop, begins.step)
    first_of_unit = numpy.asarray(begins, numpy.int64)
    if len(first_of_unit) < len(weights):
        weights = numpy.add.reduceat(weights, first_of_unit)
    part_of_unit = (equal_counts if with_equal_counts else equal_loads)(weights, parts)
    return _runs_of_parts(part_of_unit, first_of_unit, runs, parts)


def _runs_of_parts(part_of_unit: Any, first_of_unit: Any, runs: Sequence[Run], parts: int) -> list[list[Run]]:
    """The runs of each part. A unit is a sample, or a group of samples that stays together.

    `part_of_unit` has the part of each unit, and `first_of_unit` the position of its first sample in sample
    order. `runs` are all samples in sample order.
    """
    import numpy

    producers, starts, stops = numpy.array(runs, numpy.int64).T
    ends = (stops - starts).cumsum()
    begins = ends - (stops - starts)
    changes = numpy.flatnonzero(part_of_unit[1:] != part_of_unit[:-1]) + 1
    cuts = numpy.concatenate([begins, first_of_unit[changes]])
    cuts.sort(kind="stable")
    cuts = cuts[numpy.diff(cuts, prepend=-1) > 0]
    part = part_of_unit[first_of_unit.searchsorted(cuts, side="right") - 1]
    run = begins.searchsorted(cuts, side="right") - 1
    order = part.argsort(kind="stable")
    part, producer = part[order], producers[run[order]]
    start = (starts[run] - begins[run] + cuts)[order]
    stop = start + numpy.diff(cuts, append=ends[-1])[order]
    is_new = (part[1:] != part[:-1]) | (producer[1:] != producer[:-1]) | (start[1:] != stop[:-1])
    first = numpy.flatnonzero(numpy.concatenate([[True], is_new]))
    last = numpy.concatenate([first[1:], [len(order)]]) - 1
    fields = zip(producer[first].tolist(), start[first].tolist(), stop[last].tolist(), strict=True)
    found = list(map(tuple.__new__, repeat(Run), fields))  # a third of the time of a call of `Run`
    bounds = part[first].searchsorted(numpy.arange(parts + 1)).tolist()
    return [found[start:stop] for start, stop in pairwise(bounds)]
