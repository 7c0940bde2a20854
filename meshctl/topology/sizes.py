"""Checks the sizes of a mesh, infers missing ones, and finds the nearest sizes that satisfy all rules.

    pp x dp x fsdp x cp x tp   equals the number of ranks
    ulysses                    divides dp x fsdp: it is carved out of them
    ep x etp x ep_fsdp         equals the ranks of a pipeline stage
    vpp                        is the number of stages per pp rank, so it needs pp
    sequence_parallel          works along tp, so it needs tp

A broken rule is a `Misfit`. `DeviceMesh` raises an error for the first one, `validate` reports each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import isqrt, prod
from operator import index
from typing import Any, Literal

from meshctl.dataclass import dataclass

DIMS = ("pp", "dp", "fsdp", "cp", "tp")
"""Every dim of a mesh in the standard order, outermost first."""
EXPERT_DIMS = ("ep_fsdp", "ep", "etp")
"""The dims of a pipeline stage for experts, outermost first."""
SIZES = (*(f"{dim}_size" for dim in DIMS), "ulysses_size", "ep_size", "etp_size", "ep_fsdp_size", "vpp_size")
"""The keys of all sizes."""
MAY_BE_AUTO = (*(f"{dim}_size" for dim in DIMS), *(f"{dim}_size" for dim in EXPERT_DIMS))
MAX_PROPOSALS = 2
"""The largest number of proposals for one broken rule."""
MAX_PATHS = 4
"""The number of partial layouts with the same remainder that the search for the nearest layouts keeps."""
MAX_PATHS_OF_FEW = 64
"""The same limit if the number of ranks has at most `FEW_DIVISORS` divisors."""
FEW_DIVISORS = 64

Dims = dict[str, int]
Path = tuple[int, int, tuple[int, ...]]
"""A partial layout: (number of sizes that differ from the stated ones, sum of these differences, the layout's
sizes with the last one first)."""


@dataclass(frozen=True)
class Needs:
    """Conditions that models and samples impose on a layout, beyond the rules of sizes. Proposed layouts
    satisfy them."""

    size: Callable[[str, int], bool] = lambda dim, size: True
    """Returns whether a dim, ulysses or ep may have this size."""
    layout: Callable[[Mapping[str, int]], bool] = lambda layout: True
    """Returns whether all sizes together are possible."""


NO_NEEDS = Needs()


@dataclass(frozen=True)
class Misfit:
    """A rule that the sizes break."""

    rule: Literal["number", "auto", "product", "ulysses", "experts", "vpp", "sequence_parallel"]
    size: str
    """The key to change, such as `tp_size`."""
    message: str
    """The error message without proposals; keys are in backquotes."""
    drawn: str = ""
    """The calculation that fails, such as `dp 2 x tp 3 = 6`."""
    fits: tuple[str, ...] = ()
    """Sizes that satisfy the rule, such as `dp 4 x tp 2`, the nearest to the stated ones first."""

    @property
    def text(self) -> str:
        """The message for programmers, with the proposals."""
        plain = self.message.replace("`", "")
        return f"{plain}; nearest that fit: {'; '.join(self.fits)}" if self.fits else plain


@dataclass(frozen=True)
class Settled:
    """The result of `settle`."""

    sizes: Dims = field(default_factory=dict)
    """The size of every dim, of ulysses, of the expert dims and of vpp; empty if a rule is broken."""
    misfits: tuple[Misfit, ...] = ()


def whole(value: Any) -> int | None:
    """Returns an integer, also of numpy or torch, as an `int`; None for any other value, also for a
    boolean."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def settle(
    stated: Mapping[str, object],
    world_size: object = None,
    sequence_parallel: object = False,
    needs: Needs = NO_NEEDS,
) -> Settled:
    """Checks sizes and infers the missing ones.

    `stated` maps keys of `SIZES` to a number, to "auto", or to None for a size that is left out. Whether the
    sizes satisfy `needs` is not checked; `needs` only restricts the proposals.
    """
    given = {size: value for size, value in stated.items() if value is not None}
    if misfits := tuple(_wrong_numbers(given, world_size, sequence_parallel)):
        return Settled(misfits=misfits)
    world = whole(world_size)
    if misfits := tuple(_wrong_autos(given, world)):
        return Settled(misfits=misfits)
    numbers = {size.removesuffix("_size"): whole(value) for size, value in given.items()}
    sizes = {dim: number for dim, number in numbers.items() if number is not None}
    dims = {dim: sizes[dim] for dim in DIMS if dim in sizes}
    inferred = _auto_of(DIMS, given) or (None if "dp" in dims else "dp")

    def held(dims: Dims) -> Dims:
        dims = {dim: dims.get(dim, 1) for dim in DIMS}
        carved = {"ulysses": sizes.get("ulysses", 1), "vpp": sizes.get("vpp", 1)}
        stated = {dim: sizes[dim] for dim in EXPERT_DIMS if dim in sizes}
        if inferred := _inferred_expert_dim(given, stated):
            stated[inferred] = max(1, _stage(dims) // prod(stated.values()))
        return {**dims, **carved, **{dim: stated.get(dim, 1) for dim in EXPERT_DIMS}}

    def carved_misfits(dims: Dims) -> tuple[Misfit, ...]:
        return _Checked(given, sizes, held(dims), inferred, world, needs).all(bool(sequence_parallel))

    total = prod(dims.values())
    if world is not None and (world % total if inferred else world != total):
        layouts = nearest(sizes, inferred, world, needs)
        product = _product_misfit(dims, inferred, world, layouts)
        # A rule that is broken both by the stated dims and in the nearest layout is a mistake of its own.
        broken = {one.rule for one in carved_misfits({**dims, inferred: world} if inferred else dims)}
        others = carved_misfits(layouts[0]) if layouts else ()
        return Settled(misfits=(product, *(one for one in others if one.rule in broken)))
    if world is not None and inferred:
        dims[inferred] = world // total
    misfits = carved_misfits(dims)
    return Settled(misfits=misfits) if misfits else Settled(held(dims))


def drawn(sizes: Mapping[str, int]) -> str:
    """Returns a layout as text, `dp 2 x tp 4`, outermost first and without dims of size 1."""
    return _product({dim: sizes[dim] for dim in DIMS if sizes.get(dim, 1) > 1}) or "one rank"


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{dim} {size}" for dim, size in sizes.items())


def divisors(number: int) -> list[int]:
    """Returns all divisors in rising order."""
    low = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return low + [number // size for size in reversed(low) if size * size != number]


def nearest(
    sizes: Mapping[str, int], inferred: str | None, world: int, needs: Needs = NO_NEEDS
) -> list[Dims]:
    """Returns complete layouts of `world` ranks, those with the smallest changes first. If possible they
    satisfy all rules and needs."""
    if layouts := keeping(sizes, inferred, world, needs):
        return layouts
    layouts = _near(sizes, DIMS, inferred, world)
    return [layout for layout in layouts if _carved_fit(layout, sizes)] or layouts


def keeping(sizes: Mapping[str, int], inferred: str | None, world: int, needs: Needs) -> list[Dims]:
    """Returns the nearest complete layouts that satisfy all rules and needs; none if no layout does."""
    layouts = _near(sizes, DIMS, inferred, world, needs)
    return [layout for layout in layouts if _carved_fit(layout, sizes) and needs.layout({**sizes, **layout})]


def _near(
    sizes: Mapping[str, int], family: Sequence[str], inferred: str | None, total: int, needs: Needs = NO_NEEDS
) -> list[Dims]:
    """Returns sizes for the dims of `family` whose product is `total`. Layouts that change the fewest of
    `sizes` come first, and among them those with the smallest changes.

    The search goes dim by dim. Of all partial layouts that leave the same remainder for the other dims, it
    keeps the best few, so that it is fast for all sizes.
    """
    dims, possible = [dim for dim in family if dim in sizes], divisors(total)
    max_paths = MAX_PATHS if len(possible) > FEW_DIVISORS else MAX_PATHS_OF_FEW
    paths: dict[int, list[Path]] = {total: [(0, 0, ())]}
    for dim in dims:
        allowed = [size for size in possible if needs.size(dim, size)]
        longer: dict[int, list[Path]] = {}
        for remainder, some in paths.items():
            for size in allowed:
                if remainder % size == 0:
                    longer.setdefault(remainder // size, []).extend(
                        (changed + (size != sizes[dim]), far + abs(size - sizes[dim]), (size, *chosen))
                        for changed, far, chosen in some
                    )
        paths = {remainder: sorted(some)[:max_paths] for remainder, some in longer.items()}
    found: list[tuple[Path, int]] = []
    for remainder, some in paths.items():
        if needs.size(inferred, remainder) if inferred else remainder == 1:
            found += [(path, remainder) for path in some]
    layouts: list[Dims] = []
    for (_, _, chosen), remainder in sorted(found):
        layout = dict(zip(dims, reversed(chosen), strict=True))
        if inferred:
            layout[inferred] = remainder
        layouts.append({dim: layout[dim] for dim in family if dim in layout})
    return layouts


def _carved_fit(layout: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    if _data(layout) % sizes.get("ulysses", 1):
        return False
    if sizes.get("vpp", 1) > 1 and layout.get("pp", 1) == 1:
        return False
    stage, experts = _stage(layout), prod(sizes.get(dim, 1) for dim in EXPERT_DIMS)
    return stage == experts if "ep_fsdp" in sizes else stage % experts == 0


def _data(dims: Mapping[str, int]) -> int:
    return dims.get("dp", 1) * dims.get("fsdp", 1)


def _stage(dims: Mapping[str, int]) -> int:
    return prod(dims.get(dim, 1) for dim in DIMS if dim != "pp")


def _auto_of(family: Sequence[str], given: Mapping[str, object]) -> str | None:
    """Returns the first dim of a family with the size "auto"; None if there is none."""
    return next((dim for dim in family if given.get(f"{dim}_size") == "auto"), None)


def _wrong_numbers(
    given: Mapping[str, object], world_size: object, sequence_parallel: object
) -> Iterator[Misfit]:
    world = {"world_size": world_size} if world_size is not None else {}
    for size, value in {**given, **world}.items():
        may_be_auto = size in MAY_BE_AUTO
        is_auto = may_be_auto and isinstance(value, str) and value == "auto"
        if not is_auto and (whole(value) or 0) < 1:
            rule = f"must be a positive integer{' or auto' if may_be_auto else ''}"
            yield Misfit("number", size, f"`{size}` {rule}, not {value!r}")
    if not isinstance(sequence_parallel, bool):
        message = f"`sequence_parallel` must be true or false, not {sequence_parallel!r}"
        yield Misfit("number", "sequence_parallel", message)


def _wrong_autos(given: Mapping[str, object], world: int | None) -> Iterator[Misfit]:
    for dims in (DIMS, EXPERT_DIMS):
        autos = [f"{dim}_size" for dim in dims if given.get(f"{dim}_size") == "auto"]
        if len(autos) > 1:
            listed = ", ".join(f"`{size}`" for size in autos)
            yield Misfit("auto", autos[1], f"only one size can be auto, not {listed}")
        elif autos and dims is DIMS and world is None:
            yield Misfit("auto", autos[0], f"`{autos[0]}` is auto, but the number of ranks is not known")


def _product_misfit(dims: Dims, inferred: str | None, world: int, layouts: Sequence[Dims]) -> Misfit:
    """Returns the misfit for sizes whose product is not the number of ranks. Its `size` is the last one that
    the nearest fitting layout changes."""
    changed = [dim for dim in reversed(dims) if layouts and layouts[0][dim] != dims[dim]]
    wrong = changed[0] if changed else next(reversed(dims), "dp")
    total, stated = prod(dims.values()), _product(dims)
    filled = {**dims, inferred: world // total} if inferred and world // total > 1 else dims
    calculation = f"{drawn(filled)} = {prod(filled.values())}"
    if prod(filled.values()) == dims.get(wrong):
        calculation = f"{drawn(filled)} {'is more than' if total > world else 'does not divide'} {world}"
    message = f"{stated} = {total}, but the number of ranks is {world}"
    if inferred:
        message = f"{stated} = {total} does not divide the {world} ranks"
    fits = tuple(map(drawn, layouts[:MAX_PROPOSALS]))
    return Misfit("product", f"{wrong}_size", message, calculation, fits)


def _inferred_expert_dim(given: Mapping[str, object], stated: Dims) -> str | None:
    return _auto_of(EXPERT_DIMS, given) or (None if "ep_fsdp" in stated else "ep_fsdp")


@dataclass(frozen=True)
class _Checked:
    """Checks of the carved sizes, for dims whose product is the number of ranks. Each method checks one rule
    and yields its misfit."""

    given: Mapping[str, object]
    stated: Dims
    """The sizes that were given as numbers."""
    held: Dims
    """All sizes, also inferred ones."""
    inferred: str | None
    world: int | None
    needs: Needs

    def all(self, sequence_parallel: bool) -> tuple[Misfit, ...]:
        carved = (*self.ulysses(), *self.experts(), *self.vpp())
        return (*carved, *self.sequence_parallel()) if sequence_parallel else carved

    def ulysses(self) -> Iterator[Misfit]:
        data, ulysses = _data(self.held), self.held["ulysses"]
        if data % ulysses == 0:
            return
        message = f"`ulysses_size` {ulysses} does not divide dp x fsdp, which is {data}"
        needs = self.needs
        fitting = [
            size
            for size in divisors(data)
            if needs.size("ulysses", size) and needs.layout({**self.held, "ulysses": size})
        ] or divisors(data)
        fitting.sort(key=lambda size: (abs(size - ulysses), size))
        fits = tuple(f"ulysses {size}" for size in fitting[:MAX_PROPOSALS])
        calculation = f"dp {self.held['dp']} x fsdp {self.held['fsdp']} = {data}"
        yield Misfit("ulysses", "ulysses_size", message, calculation, fits)

    def experts(self) -> Iterator[Misfit]:
        ranks = _stage(self.held)
        if prod(self.held[dim] for dim in EXPERT_DIMS) == ranks:
            return
        stated = {dim: self.stated[dim] for dim in EXPERT_DIMS if dim in self.stated}
        inferred = _inferred_expert_dim(self.given, stated)
        message = _product(stated)
        if inferred:
            message += f" does not divide the {ranks} ranks of a pipeline stage"
        else:
            message += f" = {prod(stated.values())}, but a pipeline stage has {ranks} ranks"
        rest = prod(size for dim, size in stated.items() if dim != "ep_fsdp")
        if not inferred and ranks % rest == 0:
            layouts = [{**stated, "ep_fsdp": ranks // rest}]
        else:
            layouts = _near(stated, EXPERT_DIMS, inferred, ranks, self.needs)
            layouts = layouts or _near(stated, EXPERT_DIMS, inferred, ranks)
        changes = [{dim: layout[dim] for dim in stated if layout[dim] != stated[dim]} for layout in layouts]
        changed = [dim for dim in EXPERT_DIMS if changes and dim in changes[0]]
        wrong = changed[0] if changed else next(reversed(stated))
        fits = tuple(map(_product, changes[:MAX_PROPOSALS]))
        calculation = f"{drawn(self.held)}: {ranks} ranks a stage"
        yield Misfit("experts", f"{wrong}_size", message, calculation, fits)

    def vpp(self) -> Iterator[Misfit]:
        vpp = self.held["vpp"]
        if vpp > 1 and self.held["pp"] == 1:
            message = f"`vpp_size` {vpp} needs a pipeline, but `pp_size` is 1"
            yield Misfit("vpp", "vpp_size", message, "pp 1", (*self._wider("pp"), "vpp 1"))

    def sequence_parallel(self) -> Iterator[Misfit]:
        if self.held["tp"] == 1:
            message = "`sequence_parallel` needs tensor parallelism, but `tp_size` is 1"
            fits = self._wider("tp") or ("sequence_parallel false",)
            yield Misfit("sequence_parallel", "sequence_parallel", message, "tp 1", fits)

    def _wider(self, dim: str) -> tuple[str, ...]:
        """Proposes the nearest layout in which the size of a dim is above 1."""
        if self.world is None:
            return (f"{dim} 2",)
        inferred = None if self.inferred == dim else self.inferred
        for layout in keeping({**self.stated, dim: 2}, inferred, self.world, self.needs):
            if layout[dim] > 1:
                return (drawn(layout),)
        return ()
