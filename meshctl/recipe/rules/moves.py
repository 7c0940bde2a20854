"""MC561: samples and weights that nearly all move to other workers of the same group, although equal layouts
would keep them.

A warning: it is right, and costs more than it must. Who has what is arithmetic on two meshes
(`resharding.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Input, Sizes, Stage
from meshctl.recipe.placement import Runs
from meshctl.recipe.rules.costs import changed, layout, length
from meshctl.recipe.rules.facts import Facts
from meshctl.topology.mesh import DIMS, DeviceMesh
from meshctl.topology.resharding import BUDGET, holding, kept

LITTLE = Fraction(1, 4)
"""If no more than this stays where it is, nearly everything moves."""
Stays = Callable[[DeviceMesh, DeviceMesh, Sequence[int]], Fraction | None]
"""How much stays where it is, of what one mesh gives to another."""
ORDERS = (DIMS, ("dp", "fsdp", "pp", "cp", "tp"), ("dp", "pp", "fsdp", "cp", "tp"))
"""Orders of dims that may keep samples where they are."""


def kept_samples(facts: Facts) -> Iterator[Diagnostic]:
    """Two components on the same workers cut a batch alike, or nearly."""
    for giver, taker, given in _routes(facts):
        if giver.component != taker.component and _cuts(facts, giver, None) and _cuts(facts, taker, given):
            yield from _moved_samples(facts, giver, taker, given)


def _routes(facts: Facts) -> Iterator[tuple[Stage, Stage, Input]]:
    """Who gives, who takes, and as which input."""
    pipeline = facts.recipe.pipeline
    for taker in pipeline.values():
        yield from (
            (pipeline[source], taker, given)
            for given in taker.inputs
            for source in given.stages
            if source in pipeline
        )


def _cuts(facts: Facts, stage: Stage, given: Input | None) -> bool:
    """Whether its workers' samples are even shares in sample order: of an input, or of the value that it
    gives."""
    found = facts.class_of(stage.component)
    endpoint = found.endpoints.get(stage.method) if found else None
    if (
        stage.kind != "call"
        or endpoint is None
        or endpoint.unread
        or (stage.execute or endpoint.execute) != "all"
    ):
        return False
    if given is None and (stage.collect or endpoint.collect) != "flatten":
        return False
    taken = given or (stage.inputs[0] if stage.inputs else None)
    words = ((taken.dispatch if taken else None) or stage.dispatch).with_default(endpoint.dispatch)
    return stage.is_source or (words.mode == "slice_dp" and not words.balance and not words.home)


def _moved_samples(facts: Facts, giver: Stage, taker: Stage, given: Input) -> Iterator[Diagnostic]:
    ends = _ends(facts, giver.component, taker.component)
    stays = kept(ends.one, ends.other, ends.seats) if ends else None
    if ends is None or stays is None or stays > LITTLE:
        return
    message = f"`{taker.name}` takes `{giver.name}` on the same workers, and {_share(1 - stays, giver.samples)} move to another one"
    path = ("in", given.parameter) if given.parameter else ("in",)
    reads = facts.value("pipeline", taker.name, *path).with_word(f"`{taker.name}` takes `{giver.name}`")
    yield _moves(facts, message, ends, kept, reads)


def _share(moved: Fraction, samples: int) -> str:
    """`384 of its 512 samples`."""
    if moved == 1:
        return "all of its samples"
    if samples and samples % moved.denominator == 0:
        return f"{moved * samples} of its {samples} samples"
    return f"{moved.numerator} of {moved.denominator} samples"


def held_weights(facts: Facts) -> Iterator[Diagnostic]:
    """A sync between components on the same workers leaves weights where they are, or some of them."""
    for name, stage in facts.recipe.pipeline.items():
        ends = (
            _ends(facts, stage.component, stage.to)
            if stage.kind == "sync" and stage.component != stage.to
            else None
        )
        stays = _held(ends.one, ends.other, ends.seats) if ends else None
        if ends is None or stays is None or stays > LITTLE:
            continue
        world = ends.one.world_size
        who = f"{world - stays * world} of {world} hold none" if stays else "none of them holds any"
        message = f"sync `{name}` stays on the same workers, and {who} of the weights that they load"
        yield _moves(facts, message, ends, _held, facts.value("pipeline", name, "to"))


def _held(giver: DeviceMesh, taker: DeviceMesh, seats: Sequence[int]) -> Fraction | None:
    """The part of the ranks that hold something of the weights that they load."""
    ranks = holding(giver, taker, seats)
    return None if ranks is None else Fraction(ranks, giver.world_size)


@dataclass(frozen=True)
class Ends:
    """Two components on the same workers."""

    giver: str
    taker: str
    one: DeviceMesh
    other: DeviceMesh
    seats: Sequence[int] = ()
    """The taker's rank where each rank of the giver is; empty where it is the same."""


def _moves(facts: Facts, message: str, ends: Ends, stays: Stays, route: Span) -> Diagnostic:
    """Blames the order of devices where that alone makes it, else the taker's layout."""
    recipe, one, other = (
        facts.recipe,
        facts.recipe.components[ends.giver],
        facts.recipe.components[ends.taker],
    )
    if ends.seats and (stays(ends.one, ends.other, ()) or 0) > LITTLE:
        first, last = (
            (one.group, other.group)
            if isinstance(recipe.groups[other.group].ranks, tuple)
            else (other.group, one.group)
        )
        span = facts.value("groups", last, "ranks").with_word(f"`{last}` takes its devices in another order")
        help = f"list them in the order of `{first}`"
        says = facts.value("groups", first, "ranks").with_word(f"`{first}` has them too")
        return Diagnostic("MC561", message, span, (says, route), help, "warning")
    blamed, help = _remedy(facts, ends, stays)
    layouts = {ends.giver: layout(ends.one), ends.taker: layout(ends.other)}
    innocent = ends.giver if blamed == ends.taker else ends.taker
    said = recipe.components[blamed].parallel
    ordered = isinstance(said, Sizes) and said.order
    span = (
        facts.value("components", blamed, "parallel", "order")
        if ordered
        else facts.key("components", blamed, "parallel")
    )
    says = facts.key("components", innocent, "parallel").with_word(f"`{innocent}`: {layouts[innocent]}")
    return Diagnostic(
        "MC561", message, span.with_word(f"`{blamed}`: {layouts[blamed]}"), (says, route), help, "warning"
    )


def _remedy(facts: Facts, ends: Ends, stays: Stays) -> tuple[str, str]:
    """Which component to change, and what to write: the other's mesh where it says none, another order of its
    dims, else equal sizes."""
    same = facts.recipe.components[ends.giver].group == facts.recipe.components[ends.taker].group
    for silent, other in ((ends.giver, ends.taker), (ends.taker, ends.giver)):
        if same and not facts.names("components", silent, "parallel"):
            return silent, f"write `parallel: {other}` in `{silent}`"
    for reordered, order in _orders(ends, stays):
        return reordered, f"nearest that keeps them: `order: [{', '.join(order)}]` in `{reordered}`"
    if same:
        return ends.taker, f"nearest that keeps them: `parallel: {ends.giver}` in `{ends.taker}`"
    return ends.taker, f"give `{ends.taker}` the sizes of `{ends.giver}`: {layout(ends.one)}"


def _orders(ends: Ends, stays: Stays) -> Iterator[tuple[str, Sequence[str]]]:
    """Which of the components needs only another order of its dims."""
    yield from (
        (ends.taker, order)
        for order in ORDERS
        if stays(ends.one, changed(ends.other, order), ends.seats) == 1
    )
    yield from (
        (ends.giver, order)
        for order in ORDERS
        if stays(changed(ends.one, order), ends.other, ends.seats) == 1
    )


def _ends(facts: Facts, giver: str, taker: str) -> Ends | None:
    """None where their workers are not the same."""
    meshes, seats = facts.meshes, None
    if giver in meshes and taker in meshes:
        seats = _together(facts, giver, taker)
    return None if seats is None else Ends(giver, taker, meshes[giver], meshes[taker], seats)


def _together(facts: Facts, one: str, other: str) -> Sequence[int] | None:
    """Which rank of the other component is where each rank of the first one is; empty where it is the same,
    none if there is none."""
    groups, placed = facts.recipe.groups, facts.placed
    mine, theirs = (
        groups.get(facts.recipe.components[one].group),
        groups.get(facts.recipe.components[other].group),
    )
    if mine is None or theirs is None:
        return None
    if mine.name == theirs.name:
        return ()
    if (
        placed is None
        or mine.device_type != theirs.device_type
        or "cpu" in (mine.device_type, theirs.device_type)
    ):
        return None
    runs, others = placed.devices[mine.name], placed.devices[theirs.name]
    if mine.gpus_per_worker != theirs.gpus_per_worker or not mine.devices == theirs.devices == length(
        runs
    ) == length(others):
        return None
    if runs == others:
        return ()
    return _seats_of(runs, others, mine.gpus_per_worker) if mine.workers <= BUDGET else None


def _seats_of(runs: Runs, others: Runs, each: int) -> Sequence[int] | None:
    """For lists of devices in another order."""
    first = [number for start, stop in runs for number in range(start, stop)][::each]
    where = {
        number: rank
        for rank, number in enumerate(
            [number for start, stop in others for number in range(start, stop)][::each]
        )
    }
    return [where[number] for number in first] if set(first) == set(where) else None


def moves(facts: Facts) -> Iterator[Diagnostic]:
    """What goes to and fro between two layouts is said once for each that must change."""
    blamed: set[tuple[str, int, int]] = set()
    for one in (*kept_samples(facts), *held_weights(facts)):
        where = (one.primary.file, one.primary.line, one.primary.column) if one.primary else ("", 0, 0)
        if where not in blamed:
            blamed.add(where)
            yield one


RULES = (moves,)
