"""Sizes said -> sizes that hold: what is inferred, which rule is broken, and the nearest sizes that keep all
rules.

    pp x dp x fsdp x cp x tp   are the ranks
    ulysses                    divides dp x fsdp: it is carved out of them
    ep x etp x ep_fsdp         are the ranks of a pipeline stage, once more
    vpp                        is stages per pp rank, so it needs pp
    sequence_parallel          is along tp, so it needs tp

A rule that is broken is a `Misfit`, data: `DeviceMesh` makes an exception of the first, a recipe's check a
diagnostic of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite, isqrt, prod
from operator import index
from typing import Any, Literal

DIMS = ("pp", "dp", "fsdp", "cp", "tp")
"""Every dim of a mesh, in the standard order, outermost first."""
EXPERT_DIMS = ("ep_fsdp", "ep", "etp")
"""The dims of a pipeline stage for experts, outermost first."""
CARVED = ("ulysses", "vpp", *EXPERT_DIMS)
"""What is no dim of its own, but makes rules for the dims."""
SIZES = (*(f"{dim}_size" for dim in DIMS), "ulysses_size", "ep_size", "etp_size", "ep_fsdp_size", "vpp_size")
"""The sizes that may be said."""
MAY_BE_AUTO = (*(f"{dim}_size" for dim in DIMS), *(f"{dim}_size" for dim in EXPERT_DIMS))
MAX_PROPOSALS = 2
"""How many layouts that fit are proposed."""
KEPT = 4
"""Ways to a partial layout that are followed, when one that fits is searched."""
KEPT_WITH_NEEDS = 64
"""The same where more is asked of a layout than to make up the ranks: by needs, or in a world of few divisors
by what is carved out."""
FEW = 64

Dims = dict[str, int]
Way = tuple[int, int, tuple[int, ...]]
"""To a partial layout: how many sizes it changes, by how much together, and what it chose, the last first."""


@dataclass(frozen=True)
class Needs:
    """What is asked of a layout beside its own rules, by a model or by the samples: those that are proposed
    keep it."""

    size: Callable[[str, int], bool] = lambda dim, size: True
    """Whether a dim, or ulysses or ep, may have that size."""
    layout: Callable[[Mapping[str, int]], bool] = lambda layout: True
    """Whether all sizes together may be so."""


NO_NEEDS = Needs()


@dataclass(frozen=True)
class Misfit:
    """A rule that the sizes break."""

    rule: Literal["number", "auto", "product", "ulysses", "experts", "vpp", "sequence_parallel"]
    size: str
    """The key to change, e.g. `tp_size`."""
    message: str
    """For whoever sees the sizes alone; no help in it."""
    drawn: str = ""
    """The sum that does not come out, `dp 2 x tp 3 = 6`."""
    fits: tuple[str, ...] = ()
    """What would, nearest first: `dp 4 x tp 2`, or `ulysses 2`."""

    @property
    def text(self) -> str:
        return f"{self.message}; nearest that fit: {'; '.join(self.fits)}" if self.fits else self.message


@dataclass(frozen=True)
class Settled:
    sizes: Dims = field(default_factory=dict)
    """Every dim, ulysses, the dims of experts and vpp, with numbers; only where nothing is wrong."""
    misfits: tuple[Misfit, ...] = ()


def whole(value: Any) -> int | None:
    """A whole number as Python's own, also one of numpy or torch; none for what is no such number, and for
    true and false."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def settle(
    said: Mapping[str, object],
    world_size: object = None,
    sequence_parallel: object = False,
    needs: Needs = NO_NEEDS,
) -> Settled:
    """`said` is size -> a number or "auto"; what is None was not said. `needs` hold for what is proposed, and
    are not checked."""
    given = {size: value for size, value in said.items() if value is not None}
    if wrong := tuple(_numbers(given, world_size, sequence_parallel)):
        return Settled(misfits=wrong)
    sizes = {
        size.removesuffix("_size"): number
        for size, value in given.items()
        if (number := whole(value)) is not None
    }
    world = whole(world_size)
    if wrong := tuple(_autos(given, world)):
        return Settled(misfits=wrong)
    dims = {dim: sizes[dim] for dim in DIMS if dim in sizes}
    inferred = next(
        (dim for dim in DIMS if given.get(f"{dim}_size") == "auto"), None if "dp" in dims else "dp"
    )
    if world is not None and not _makes_up(dims, inferred, world):
        return Settled(misfits=(_product(sizes, dims, inferred, world, needs),))
    if world is not None and inferred:
        dims[inferred] = world // prod(dims.values())
    dims = {dim: dims.get(dim, 1) for dim in DIMS}
    held = {
        **dims,
        "ulysses": sizes.get("ulysses", 1),
        "vpp": sizes.get("vpp", 1),
        **_experts(given, sizes, dims),
    }
    wider = partial(_wider, sizes, inferred, world, needs)
    misfits = tuple(_derived(given, sizes, held, bool(sequence_parallel), wider, needs))
    return Settled(misfits=misfits) if misfits else Settled(held)


def drawn(sizes: Mapping[str, int]) -> str:
    """`dp 2 x tp 4`, outermost first; a dim of size 1 is no dim."""
    return " x ".join(f"{dim} {sizes[dim]}" for dim in DIMS if sizes.get(dim, 1) > 1) or "one rank"


def divisors(number: int) -> list[int]:
    low = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return low + [number // size for size in reversed(low) if size * size != number]


def nearest(
    sizes: Mapping[str, int], inferred: str | None, world: int, needs: Needs = NO_NEEDS
) -> list[Dims]:
    """Complete layouts of `world` ranks, those that change least of what was said first; if any can, they
    keep all rules and needs."""
    layouts = _near(sizes, DIMS, inferred, world)
    return (
        keeping(sizes, inferred, world, needs)
        or [layout for layout in layouts if _parts(layout, sizes)]
        or layouts
    )


def keeping(sizes: Mapping[str, int], inferred: str | None, world: int, needs: Needs) -> list[Dims]:
    """The same, where they keep all rules and needs; none where no layout does."""
    layouts = _near(sizes, DIMS, inferred, world, needs)
    return [layout for layout in layouts if _parts(layout, sizes) and needs.layout({**sizes, **layout})]


def _near(
    sizes: Mapping[str, int], family: Sequence[str], inferred: str | None, total: int, needs: Needs = NO_NEEDS
) -> list[Dims]:
    """Sizes of a family of dims that multiply to `total`, those that change fewest of what was said first,
    and these by least.

    Dim by dim, and of all ways that leave equally much the best few go on: so there is an answer whatever the
    sizes, and soon.
    """
    dims, whole = [dim for dim in family if dim in sizes], divisors(total)
    asked = needs is not NO_NEEDS or (len(whole) <= FEW and any(sizes.get(size, 1) > 1 for size in CARVED))
    kept = KEPT_WITH_NEEDS if asked else KEPT
    ways: dict[int, list[Way]] = {total: [(0, 0, ())]}
    for dim in dims:
        further: dict[int, list[Way]] = {}
        for left, some in ways.items():
            for size in whole:
                if left % size == 0 and needs.size(dim, size):
                    more, by = size != sizes[dim], abs(size - sizes[dim])
                    further.setdefault(left // size, []).extend(
                        (count + more, way + by, (size, *choice)) for count, way, choice in some
                    )
        ways = {left: sorted(some)[:kept] for left, some in further.items()}
    fits = {
        left: some for left, some in ways.items() if (needs.size(inferred, left) if inferred else left == 1)
    }
    found = sorted((way, left) for left, some in fits.items() for way in some)
    layouts = [
        {**dict(zip(dims, choice[::-1], strict=True)), **({inferred: left} if inferred else {})}
        for (*_, choice), left in found
    ]
    return [{dim: layout[dim] for dim in family if dim in layout} for layout in layouts]


def _parts(layout: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Whether what is carved out of a layout divides it."""
    data, stage, experts = _data(layout), _stage(layout), prod(sizes.get(dim, 1) for dim in EXPERT_DIMS)
    if data % sizes.get("ulysses", 1) or (sizes.get("vpp", 1) > 1 and layout.get("pp", 1) == 1):
        return False
    return stage == experts if "ep_fsdp" in sizes else stage % experts == 0


def _numbers(given: Mapping[str, object], world_size: object, sequence_parallel: object) -> Iterator[Misfit]:
    for size, value in (*given.items(), *((("world_size", world_size),) if world_size is not None else ())):
        auto = size in MAY_BE_AUTO
        if not (auto and isinstance(value, str) and value == "auto") and (whole(value) or 0) < 1:
            message = f"{size} must be a whole number from 1{' or auto' if auto else ''}, it is {value!r}"
            yield Misfit("number", size, message, fits=_nearest_number(size, value, whole(world_size) or 0))
    if not isinstance(sequence_parallel, bool):
        message = f"sequence_parallel must be true or false, it is {sequence_parallel!r}"
        yield Misfit("number", "sequence_parallel", message)


def _nearest_number(size: str, value: object, ranks: int) -> tuple[str, ...]:
    """What a size may be in place of a number that it may not be: one that divides the ranks, where they are
    known."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, float) and not isfinite(value))
    ):
        return ()
    may = divisors(ranks) if ranks > 0 and size not in ("world_size", "vpp_size") else [max(1, round(value))]
    return (
        f"{size if size == 'world_size' else size.removesuffix('_size')} {min(may, key=lambda number: abs(number - value))}",
    )


def _autos(given: Mapping[str, object], world: int | None) -> Iterator[Misfit]:
    for dims in (DIMS, EXPERT_DIMS):
        autos = [f"{dim}_size" for dim in dims if given.get(f"{dim}_size") == "auto"]
        if len(autos) > 1:
            yield Misfit("auto", autos[1], f"only one size can be auto, here are {', '.join(autos)}")
        elif autos and dims is DIMS and world is None:
            yield Misfit("auto", autos[0], f"{autos[0]} is auto, and the number of ranks is not known")


def _makes_up(dims: Mapping[str, int], inferred: str | None, world: int) -> bool:
    rest = prod(dims.values())
    return world % rest == 0 if inferred else rest == world


def _product(sizes: Dims, dims: Dims, inferred: str | None, world: int, needs: Needs) -> Misfit:
    """The size to change is the one that the nearest layout changes."""
    options = nearest(sizes, inferred, world, needs)
    wrong = next(
        (dim for dim in reversed(dims) if options and options[0][dim] != dims[dim]),
        next(reversed(dims), "dp"),
    )
    total, said = prod(dims.values()), " x ".join(f"{dim} {size}" for dim, size in dims.items())
    room = world // total
    filled = {**dims, inferred: room} if inferred and room > 1 else dims
    product = f"{drawn(filled)} = {prod(filled.values())}"
    if prod(filled.values()) == dims.get(wrong):
        product = f"{drawn(filled)} {'is more than' if total > world else 'does not divide'} {world}"
    message = (
        f"{said} = {total} does not divide the {world} ranks"
        if inferred
        else f"{said} = {total}, and there are {world} ranks"
    )
    return Misfit("product", f"{wrong}_size", message, product, tuple(map(drawn, options[:MAX_PROPOSALS])))


def _data(dims: Mapping[str, int]) -> int:
    return dims.get("dp", 1) * dims.get("fsdp", 1)


def _stage(dims: Mapping[str, int]) -> int:
    return prod(dims.get(dim, 1) for dim in DIMS if dim != "pp")


def _experts(given: Mapping[str, object], sizes: Dims, dims: Dims) -> Dims:
    """The dims of experts; what is auto, or else `ep_fsdp`, is the rest where that comes out even."""
    said = {dim: sizes[dim] for dim in EXPERT_DIMS if dim in sizes}
    inferred = next(
        (dim for dim in EXPERT_DIMS if given.get(f"{dim}_size") == "auto"),
        None if "ep_fsdp" in said else "ep_fsdp",
    )
    if inferred:
        said[inferred] = max(1, _stage(dims) // prod(said.values()))
    return {dim: said.get(dim, 1) for dim in EXPERT_DIMS}


def _wider(sizes: Dims, inferred: str | None, world: int | None, needs: Needs, dim: str) -> tuple[str, ...]:
    """The nearest layout in which a dim has more than one rank."""
    if world is None:
        return (f"{dim} 2",)
    options = keeping({**sizes, dim: 2}, None if inferred == dim else inferred, world, needs)
    return tuple(drawn(layout) for layout in options if layout[dim] > 1)[:1]


def _derived(
    given: Mapping[str, object],
    sizes: Dims,
    held: Dims,
    sequence_parallel: bool,
    wider: Callable[[str], tuple[str, ...]],
    needs: Needs,
) -> Iterator[Misfit]:
    """The rules of what is no dim of its own."""
    data, stage, ulysses = _data(held), _stage(held), held["ulysses"]
    if data % ulysses:
        message = f"ulysses_size {ulysses} is carved out of dp x fsdp and does not divide {data}"
        right = [
            size
            for size in divisors(data)
            if needs.size("ulysses", size) and needs.layout({**held, "ulysses": size})
        ] or divisors(data)
        fits = tuple(
            f"ulysses {size}"
            for size in sorted(right, key=lambda size: (abs(size - ulysses), size))[:MAX_PROPOSALS]
        )
        yield Misfit(
            "ulysses", "ulysses_size", message, f"dp {held['dp']} x fsdp {held['fsdp']} = {data}", fits
        )
    experts = prod(held[dim] for dim in EXPERT_DIMS)
    if experts != stage:
        yield _misfit_of_experts(given, sizes, held, stage, needs)
    if held["vpp"] > 1 and held["pp"] == 1:
        message = f"vpp_size {held['vpp']} is stages per pp rank, and there is no pp"
        yield Misfit("vpp", "vpp_size", message, "pp 1", (*wider("pp"), "vpp 1"))
    if sequence_parallel and held["tp"] == 1:
        fits = wider("tp") or ("sequence_parallel false",)
        yield Misfit(
            "sequence_parallel",
            "sequence_parallel",
            "sequence_parallel is along tp, and tp_size is 1",
            "tp 1",
            fits,
        )


def _misfit_of_experts(
    given: Mapping[str, object], sizes: Dims, held: Dims, stage: int, needs: Needs
) -> Misfit:
    said = {dim: sizes[dim] for dim in EXPERT_DIMS if dim in sizes}
    inferred = next(
        (dim for dim in EXPERT_DIMS if given.get(f"{dim}_size") == "auto"),
        None if "ep_fsdp" in said else "ep_fsdp",
    )
    total, sum_of = prod(said.values()), " x ".join(f"{dim} {size}" for dim, size in said.items())
    verb = (
        f"does not divide the {stage} ranks of a pipeline stage"
        if inferred
        else f"= {total}, and a pipeline stage has {stage} ranks"
    )
    rest = prod(size for dim, size in said.items() if dim != "ep_fsdp")
    layouts = _near(said, EXPERT_DIMS, inferred, stage, needs) or _near(said, EXPERT_DIMS, inferred, stage)
    if not inferred and stage % rest == 0:
        layouts = [{**said, "ep_fsdp": stage // rest}]
    options = [{dim: layout[dim] for dim in said if layout[dim] != said[dim]} for layout in layouts]
    wrong = next((dim for dim in EXPERT_DIMS if options and dim in options[0]), next(reversed(said)))
    fits = tuple(
        " x ".join(f"{dim} {size}" for dim, size in option.items()) for option in options[:MAX_PROPOSALS]
    )
    return Misfit(
        "experts", f"{wrong}_size", f"{sum_of} {verb}", f"{drawn(held)}: {stage} ranks a stage", fits
    )
