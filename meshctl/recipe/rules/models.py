"""MC430 to MC437: what a component's model has, where it says so in `model`, against its layout; and what
that asks of other layouts.

    model: llama/config.json      model: llama      model: {num_heads: 32, sequence_length: 4096}

What is not said is not known: no rule needs it. Where sizes do not fit, the layouts that are proposed (here,
and where sizes do not make up the ranks) fit the model and the samples as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.meshes import NoMesh, sizes_of
from meshctl.recipe.model import Component, Sizes
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, listed
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.sizes import DIMS, NONE, SHOWN, Needs, divisors, drawn, keeping

SPLIT_BY_TP = {"num_heads": "heads", "num_kv_heads": "kv heads", "hidden_size": "hidden size"}


@dataclass(frozen=True)
class Known:
    """What is known of a component's model."""

    sizes: Mapping[str, int]
    spans: Mapping[str, Span]

    def get(self, size: str) -> int:
        return self.sizes.get(size, 0)

    def says(self, *sizes: str) -> tuple[Span, ...]:
        """The places of those that are known, each with its number."""
        return tuple(
            self.spans[size].with_word(f"`{size}` is {self.sizes[size]}")
            for size in sizes
            if size in self.sizes
        )


NOTHING = Known({}, {})
ENDLESS = 1 << 40
"""More data ranks than there are."""


def known(facts: Facts, name: str) -> Known:
    """What a component says of its model, before what its config file does."""
    model = facts.recipe.components[name].model
    if not facts.is_valid("components", name, "model"):
        return NOTHING
    sizes, spans = (
        dict(model.given),
        {size: facts.value("components", name, "model", size) for size, _ in model.given},
    )
    if model.config and not (found := facts.config(model.config)).wrong:
        for size, (number, span) in found.sizes.items():
            sizes.setdefault(size, number)
            spans.setdefault(size, span)
    return Known(sizes, spans)


def readable(facts: Facts) -> Iterator[Diagnostic]:
    """The file is there, and is one."""
    for name, component in facts.recipe.components.items():
        path = component.model.config
        if path and (found := facts.config(path)).wrong and facts.is_valid("components", name, "model"):
            where = ("components", name, "model", "config")
            span = facts.value(*(where if facts.is_named(*where) else where[:-1]))
            help = "nothing is fetched: name a config.json, or its folder, beside the recipe, or say the numbers: {num_heads: 32}"
            yield Diagnostic("MC430", found.wrong, span, (found.at,) if found.at else (), help)


# What it asks of a layout


def fits_tp(model: Known, tp: int) -> bool:
    """Heads are shared out, and where there are fewer heads of keys and values than ranks, each goes to as
    many."""
    kv = model.get("num_kv_heads") or model.get("num_heads")
    return not (model.get("num_heads") % tp or model.get("hidden_size") % tp or (kv % tp and tp % max(kv, 1)))


def parts_of_a_sequence(layout: Mapping[str, int], along_tp: bool) -> int:
    """Into how many equal parts a sequence must go: two for each cp rank, so that all have as much to do
    under a causal mask."""
    cp, tp = layout.get("cp", 1), layout.get("tp", 1) if along_tp else 1
    return (2 * cp if cp > 1 else 1) * layout.get("ulysses", 1) * tp


@dataclass(frozen=True)
class Layout:
    """The sizes of a component, and what all that have them ask of these: found once, since many may have
    them."""

    facts: Facts
    component: Component
    sizes: Sizes

    @cached_property
    def without_ring(self) -> Needs:
        return asked(self.facts, self.component, self.sizes)

    @cached_property
    def with_ring(self) -> Needs:
        return asked(self.facts, self.component, self.sizes, ring=True)

    @cached_property
    def needs(self) -> Needs:
        """That ulysses goes around no ring, where some layout is so."""
        return self.without_ring if self._keeping(self.without_ring) else self.with_ring

    @cached_property
    def that_fit(self) -> tuple[str, ...]:
        """Complete layouts that keep everything, nearest first."""
        return tuple(map(drawn, self._keeping(self.needs)))

    def _keeping(self, needs: Needs) -> list[dict[str, int]]:
        given = dict(self.sizes.given)
        said = {
            size.removesuffix("_size"): number for size, number in given.items() if isinstance(number, int)
        }
        inferred = next(
            (dim for dim in DIMS if given.get(f"{dim}_size") == "auto"), None if "dp" in said else "dp"
        )
        return keeping(said, inferred, self.facts.recipe.groups[self.component.group].workers, needs)


def needs_of(facts: Facts, component: Component, sizes: Sizes) -> Needs:
    """What is asked of a layout."""
    return Layout(facts, component, sizes).needs


def asked(facts: Facts, component: Component, sizes: Sizes, ring: bool = False) -> Needs:
    """What the models and the samples of all that share a layout ask of it; `ring` lets ulysses go around
    one."""
    owner = _owner(facts, component)
    sharing = {name: None for name, other in facts.recipe.components.items() if _owner(facts, other) == owner}
    models = [model for model in (known(facts, name) for name in sharing) if model.sizes]
    most = _most_shares(facts, sharing)
    carved = sizes.sequence_parallel or any(size.removesuffix("_size") not in DIMS for size, _ in sizes.given)
    return _needs(sizes, models, most, ring) if models or most < ENDLESS or carved else NONE


def _owner(facts: Facts, component: Component) -> str:
    """Whose sizes it has; nobody's where they are wrong."""
    try:
        return sizes_of(facts.recipe, component)[0].name
    except NoMesh:
        return ""


def _needs(sizes: Sizes, models: Sequence[Known], most: int, ring: bool) -> Needs:
    said = dict(sizes.given)

    def size(dim: str, number: int) -> bool:
        if dim == "tp":
            return all(fits_tp(model, number) for model in models)
        if dim == "ep":
            return all(model.get("num_experts") % number == 0 for model in models)
        return dim != "ulysses" or ring or all(model.get("num_heads") % number == 0 for model in models)

    def layout(whole: Mapping[str, int]) -> bool:
        tp, ulysses, stages = (
            whole.get("tp", 1),
            whole.get("ulysses", 1),
            whole.get("pp", 1) * whole.get("vpp", 1),
        )
        inner = prod(whole.get(dim, 1) for dim in DIMS if dim != "pp")
        experts = (
            max(1, inner // (whole.get("etp", 1) * whole.get("ep_fsdp", 1)))
            if said.get("ep_size") == "auto"
            else 1
        )
        parts = parts_of_a_sequence(whole, sizes.sequence_parallel)
        few = whole.get("dp", 1) * whole.get("fsdp", 1) // ulysses > most
        if few or (sizes.sequence_parallel and tp == 1):
            return False
        return all(
            (ring or model.get("num_heads") % (tp * ulysses) == 0)
            and (not model.get("num_layers") or stages <= model.get("num_layers"))
            and model.get("num_experts") % experts == 0
            and model.get("sequence_length") % parts == 0
            for model in models
        )

    return Needs(size, layout)


def _most_shares(facts: Facts, components: Collection[str]) -> int:
    """The fewest samples that any stage shares out among the data ranks of these components."""
    counts = [ENDLESS]
    for stage in facts.recipe.pipeline.values():
        if (
            stage.component not in components
            or stage.kind != "call"
            or not facts.is_valid("pipeline", stage.name)
        ):
            continue
        given = stage.inputs[0] if stage.inputs else None
        words = (given.dispatch if given else None) or stage.dispatch
        mode = words.with_default(facts.endpoint(stage).dispatch).mode
        source = stage if given is None else facts.recipe.pipeline.get(given.stages[0])
        shared = mode == "slice_dp" and (stage.execute or facts.endpoint(stage).execute) == "all"
        if source is not None and source.samples and shared and not words.allow_empty and not words.home:
            counts.append(source.samples)
    return min(counts)


def proposals(facts: Facts, component: Component, sizes: Sizes) -> str:
    """A help: the nearest complete layouts that keep everything."""
    return nearest_that_fit(Layout(facts, component, sizes).that_fit)


def nearest_that_fit(options: Iterable[str]) -> str:
    shown = list(dict.fromkeys(options))[:SHOWN]
    return f"nearest that fit: {'; '.join(shown)}" if shown else ""


def nearest_to(size: int, others: Iterable[int]) -> list[int]:
    return sorted(others, key=lambda other: (abs(other - size), other))


# The rules


@dataclass(frozen=True)
class Fitted:
    """A component with a model and a mesh."""

    component: Component
    owner: Component
    """Whose sizes it has."""
    layout: Layout
    model: Known
    mesh: DeviceMesh

    def span(self, facts: Facts, size: str) -> Span:
        return facts.value("components", self.owner.name, "parallel", size)

    @property
    def sizes(self) -> Sizes:
        return self.layout.sizes

    @property
    def help(self) -> str:
        return nearest_that_fit(self.layout.that_fit)

    def fits(self, needs: Needs, **other: int) -> bool:
        """Whether its layout keeps everything with these sizes instead."""
        said = {
            size.removesuffix("_size"): number for size, number in self.sizes.given if isinstance(number, int)
        }
        dims = {dim: self.mesh.size(dim) for dim in DIMS}
        return needs.size("tp", dims["tp"]) and needs.layout({**said, **dims, **other})


def _fitted(facts: Facts) -> Iterator[Fitted]:
    """Of several that share a layout and are alike, the first."""
    seen: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    layouts: dict[str, Layout] = {}
    for name, component in facts.recipe.components.items():
        mesh, model = facts.meshes.get(name), known(facts, name)
        if mesh is None or not model.sizes:
            continue
        try:
            owner, sizes = sizes_of(facts.recipe, component)
        except NoMesh:
            continue
        alike = owner.name, tuple(sorted(model.sizes.items()))
        if alike in seen:
            continue
        seen.add(alike)
        yield Fitted(
            component, owner, layouts.setdefault(owner.name, Layout(facts, component, sizes)), model, mesh
        )


def split_by_tp(facts: Facts) -> Iterator[Diagnostic]:
    """tp divides heads and hidden size; the vocabulary may be padded."""
    for one in _fitted(facts):
        tp, model = one.mesh.size("tp"), one.model
        if not fits_tp(model, tp):
            kv = model.get("num_kv_heads")
            wrong = [
                size
                for size in SPLIT_BY_TP
                if model.get(size) % tp and not (size == "num_kv_heads" and tp % max(kv, 1) == 0)
            ]
            what = listed([f"{SPLIT_BY_TP[size]} ({model.get(size)})" for size in wrong]).replace("`", "")
            message = f"`tp_size` {tp} does not divide the {what} of `{one.component.name}`"
            help = one.help
            yield Diagnostic("MC431", message, one.span(facts, "tp_size"), model.says(*wrong), help)
        elif model.get("vocab_size") % tp:
            padded = -(-model.get("vocab_size") // tp) * tp
            message = f"`tp_size` {tp} does not divide the vocabulary of `{one.component.name}`: it must be padded to {padded}"
            yield Diagnostic(
                "MC433", message, one.span(facts, "tp_size"), model.says("vocab_size"), severity="warning"
            )


def split_by_ulysses(facts: Facts) -> Iterator[Diagnostic]:
    """What ulysses does not share out by heads goes around a ring, which is slower."""
    for one in _fitted(facts):
        tp, ulysses, heads = one.mesh.size("tp"), one.mesh.ulysses_size, one.model.get("num_heads")
        if not heads or heads % tp or (heads // tp) % ulysses == 0:
            continue
        left = heads // tp
        by_heads = gcd(left, ulysses)
        message = f"`ulysses_size` {ulysses} does not divide the {counted(left, 'head')} of a tp rank of `{one.component.name}`"
        help = f"{by_heads} by heads, and a ring of {ulysses // by_heads}"
        data, needs = one.mesh.size("dp") * one.mesh.size("fsdp"), one.layout.without_ring
        if right := nearest_to(ulysses, (size for size in divisors(data) if one.fits(needs, ulysses=size)))[
            :1
        ]:
            help = f"{help}; nearest that needs no ring: ulysses {right[0]}"
        yield Diagnostic(
            "MC432", message, one.span(facts, "ulysses_size"), one.model.says("num_heads"), help, "warning"
        )


def split_by_stages(facts: Facts) -> Iterator[Diagnostic]:
    """Every pipeline stage has a layer, and better as many as the others."""
    for one in _fitted(facts):
        pp, vpp, layers = one.mesh.size("pp"), one.mesh.vpp_size, one.model.get("num_layers")
        if not layers or layers % (pp * vpp) == 0:
            continue
        sum_of = f"pp {pp} x vpp {vpp} = {pp * vpp}" if vpp > 1 else f"pp {pp}"
        span = one.span(facts, "vpp_size" if vpp > 1 else "pp_size").with_word(sum_of)
        if layers < pp * vpp:
            message = f"`{one.component.name}` has {counted(layers, 'layer')} for {counted(pp * vpp, 'stage')}: some have none"
            fewer = layers // pp
            options = (
                [f"vpp {fewer}"] if vpp > 1 and fewer and one.fits(one.layout.with_ring, vpp=fewer) else []
            )
            help = nearest_that_fit([*options, *one.layout.that_fit])
            yield Diagnostic("MC434", message, span, one.model.says("num_layers"), help)
        else:
            least, more = divmod(layers, pp * vpp)
            shares = f"{more} {'has' if more == 1 else 'have'} {least + 1}, {'the other' if more + 1 == pp * vpp else 'the others'} {least}"
            message = (
                f"the {layers} layers of `{one.component.name}` are not even over {pp * vpp} stages: {shares}"
            )
            yield Diagnostic(
                "MC437",
                message,
                span,
                one.model.says("num_layers"),
                "the component must share them out so",
                "warning",
            )


def split_by_ep(facts: Facts) -> Iterator[Diagnostic]:
    """Every rank has as many experts as any other."""
    for one in _fitted(facts):
        ep, experts, given = one.mesh.ep_size, one.model.get("num_experts"), dict(one.sizes.given)
        if experts % ep:
            stage = one.mesh.world_size // one.mesh.size("pp")
            left = stage if given.get("etp_size") == "auto" else stage // one.mesh.etp_size
            right = nearest_to(ep, (size for size in divisors(left) if experts % size == 0))
            rest = isinstance(given.get("ep_fsdp_size"), int) and given.get("etp_size") != "auto"
            options = [f"ep {size} x ep_fsdp {left // size}" if rest else f"ep {size}" for size in right]
            message = (
                f"`ep_size` {ep} does not divide the {counted(experts, 'expert')} of `{one.component.name}`"
            )
            help = nearest_that_fit(options)
            yield Diagnostic(
                "MC435", message, one.span(facts, "ep_size"), one.model.says("num_experts"), help
            )


def split_sequences(facts: Facts) -> Iterator[Diagnostic]:
    """A sequence goes into equal parts over cp, ulysses and, with sequence_parallel, tp."""
    for one in _fitted(facts):
        mesh, length = one.mesh, one.model.get("sequence_length")
        layout = {"cp": mesh.size("cp"), "ulysses": mesh.ulysses_size, "tp": mesh.size("tp")}
        parts = parts_of_a_sequence(layout, one.sizes.sequence_parallel)
        if length % parts:
            factors = [
                ("2 x cp", layout["cp"]),
                ("ulysses", layout["ulysses"]),
                ("tp", layout["tp"] if one.sizes.sequence_parallel else 1),
            ]
            sum_of = " x ".join(f"{name} {size}" for name, size in factors if size > 1)
            size = next(
                key
                for key, size in (("cp_size", "cp"), ("ulysses_size", "ulysses"), ("tp_size", "tp"))
                if layout[size] > 1
            )
            message = (
                f"sequences of {length} tokens do not go into {parts} equal parts in `{one.component.name}`"
            )
            near = -(-length // parts) * parts
            help = f"sequences of {near} tokens would"
            if options := one.help:
                help = f"{help}; {options}"
            span = one.span(facts, size).with_word(f"{sum_of} = {parts}" if " x " in sum_of else sum_of)
            yield Diagnostic("MC436", message, span, one.model.says("sequence_length"), help)


RULES = (readable, split_by_tp, split_by_ulysses, split_by_stages, split_by_ep, split_sequences)
