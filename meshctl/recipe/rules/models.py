"""MC430 to MC437: what a component's model has, where it says so in `model`, against its layout; and what that asks of other layouts.

    model: llama/config.json      model: llama      model: {num_heads: 32, sequence_length: 4096}

What is not said is not known: no rule needs it. Where sizes do not fit, the layouts that are proposed (here, and where sizes do not make
up the ranks) fit the model and the samples as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from meshctl.diagnostics import Diagnostic, Span
from meshctl.mesh import DeviceMesh
from meshctl.recipe.model import Component, Sizes
from meshctl.recipe.placement import NoMesh, sizes_of
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.words import counted, listed
from meshctl.routes import DISPATCH
from meshctl.sizes import DIMS, NONE, SHOWN, Needs, divisors, drawn, keeping

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
        return tuple(self.spans[size].with_word(f"`{size}` is {self.sizes[size]}") for size in sizes if size in self.sizes)


NOTHING = Known({}, {})
ENDLESS = 1 << 40
"""More data ranks than there are."""


def known(facts: Facts, name: str) -> Known:
    """What a component says of its model, before what its config file does."""
    model = facts.recipe.components[name].model
    if not facts.right("components", name, "model"):
        return NOTHING
    sizes, spans = dict(model.given), {size: facts.value("components", name, "model", size) for size, _ in model.given}
    if model.config and not (found := facts.config(model.config)).wrong:
        for size, (number, span) in found.sizes.items():
            sizes.setdefault(size, number)
            spans.setdefault(size, span)
    return Known(sizes, spans)


def readable(facts: Facts) -> Iterator[Diagnostic]:
    """The file is there, and is one."""
    for name, component in facts.recipe.components.items():
        path = component.model.config
        if path and (found := facts.config(path)).wrong and facts.right("components", name, "model"):
            where = ("components", name, "model", "config")
            span = facts.value(*(where if facts.names(*where) else where[:-1]))
            help = "nothing is fetched: name a config.json, or its folder, beside the recipe, or say the numbers: {num_heads: 32}"
            yield Diagnostic("MC430", found.wrong, span, help=help)


# What it asks of a layout


def fits_tp(model: Known, tp: int) -> bool:
    """Heads are shared out, and where there are fewer heads of keys and values than ranks, each goes to as many."""
    kv = model.get("num_kv_heads") or model.get("num_heads")
    return not (model.get("num_heads") % tp or model.get("hidden_size") % tp or (kv % tp and tp % max(kv, 1)))


def parts_of_a_sequence(layout: Mapping[str, int], along_tp: bool) -> int:
    """Into how many equal parts a sequence must go: two for each cp rank, so that all have as much to do under a causal mask."""
    cp, tp = layout.get("cp", 1), layout.get("tp", 1) if along_tp else 1
    return (2 * cp if cp > 1 else 1) * layout.get("ulysses", 1) * tp


def needs_of(facts: Facts, component: Component, sizes: Sizes) -> Needs:
    """What a component's model and its samples ask of any layout of it."""
    model, most = known(facts, component.name), _most_shares(facts, component)

    def size(dim: str, number: int) -> bool:
        if dim == "tp":
            return fits_tp(model, number)
        if dim == "ep":
            return model.get("num_experts") % number == 0
        return dim != "ulysses" or model.get("num_heads") % number == 0

    def layout(whole: Mapping[str, int]) -> bool:
        stages = whole.get("pp", 1) * whole.get("vpp", 1)
        data = whole.get("dp", 1) * whole.get("fsdp", 1) // whole.get("ulysses", 1)
        heads = model.get("num_heads") % (whole.get("tp", 1) * whole.get("ulysses", 1)) == 0
        layers = not model.get("num_layers") or stages <= model.get("num_layers")
        return heads and layers and data <= most and model.get("sequence_length") % parts_of_a_sequence(whole, sizes.sequence_parallel) == 0

    return Needs(size, layout) if model.sizes or most < ENDLESS else NONE


def _most_shares(facts: Facts, component: Component) -> int:
    """The fewest samples that any stage shares out among the component's data ranks."""
    counts = [ENDLESS]
    for stage in facts.recipe.pipeline.values():
        execute = stage.execute or facts.endpoint(stage).execute
        if stage.component != component.name or stage.kind != "call" or execute != "all" or not facts.right("pipeline", stage.name):
            continue
        given = stage.inputs[0] if stage.inputs else None
        words = (given.dispatch if given else None) or stage.dispatch
        mode = words.with_default(facts.endpoint(stage).dispatch).mode
        source = stage if given is None else facts.recipe.pipeline.get(given.stages[0])
        if source is not None and source.samples and not words.allow_empty and not words.home and mode == "slice_dp" and mode in DISPATCH:
            counts.append(source.samples)
    return min(counts)


def proposals(facts: Facts, component: Component, sizes: Sizes) -> str:
    """A help: the nearest complete layouts that keep everything."""
    group = facts.recipe.groups[component.group]
    said = {size.removesuffix("_size"): number for size, number in sizes.given if isinstance(number, int)}
    auto = next(
        (size.removesuffix("_size") for size, number in sizes.given if number == "auto" and size.removesuffix("_size") in DIMS), None
    )
    inferred = auto or (None if "dp" in said else "dp")
    options = keeping(said, inferred, group.workers, needs_of(facts, component, sizes))
    shown = list(dict.fromkeys(map(drawn, options)))[:SHOWN]
    return f"nearest that fit: {'; '.join(shown)}" if shown else ""


# The rules


@dataclass(frozen=True)
class Fitted:
    """A component with a model and a mesh."""

    component: Component
    owner: Component
    """Whose sizes it has."""
    sizes: Sizes
    model: Known
    mesh: DeviceMesh

    def span(self, facts: Facts, size: str) -> Span:
        return facts.value("components", self.owner.name, "parallel", size)


def _fitted(facts: Facts) -> Iterator[Fitted]:
    """Of several that share a layout and are alike, the first."""
    seen: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
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
        yield Fitted(component, owner, sizes, model, mesh)


def split_by_tp(facts: Facts) -> Iterator[Diagnostic]:
    """tp divides heads and hidden size; the vocabulary may be padded."""
    for one in _fitted(facts):
        tp, model = one.mesh.size("tp"), one.model
        if not fits_tp(model, tp):
            kv = model.get("num_kv_heads")
            wrong = [size for size in SPLIT_BY_TP if model.get(size) % tp and not (size == "num_kv_heads" and tp % max(kv, 1) == 0)]
            what = listed([f"{SPLIT_BY_TP[size]} ({model.get(size)})" for size in wrong]).replace("`", "")
            message = f"`tp_size` {tp} does not divide the {what} of `{one.component.name}`"
            help = proposals(facts, one.component, one.sizes)
            yield Diagnostic("MC431", message, one.span(facts, "tp_size"), model.says(*wrong), help)
        elif model.get("vocab_size") % tp:
            padded = -(-model.get("vocab_size") // tp) * tp
            message = f"`tp_size` {tp} does not divide the vocabulary of `{one.component.name}`: it must be padded to {padded}"
            yield Diagnostic("MC433", message, one.span(facts, "tp_size"), model.says("vocab_size"), severity="warning")


def split_by_ulysses(facts: Facts) -> Iterator[Diagnostic]:
    """What ulysses does not share out by heads goes around a ring, which is slower."""
    for one in _fitted(facts):
        tp, ulysses, heads = one.mesh.size("tp"), one.mesh.ulysses_size, one.model.get("num_heads")
        if not heads or heads % tp or (heads // tp) % ulysses == 0:
            continue
        left = heads // tp
        by_heads = gcd(left, ulysses)
        message = f"`ulysses_size` {ulysses} does not divide the {counted(left, 'head')} of a tp rank of `{one.component.name}`"
        fits = [size for size in divisors(ulysses) if left % size == 0]
        help = f"{by_heads} by heads, and a ring of {ulysses // by_heads}; nearest that needs no ring: ulysses {fits[-1]}"
        yield Diagnostic("MC432", message, one.span(facts, "ulysses_size"), one.model.says("num_heads"), help, "warning")


def split_by_stages(facts: Facts) -> Iterator[Diagnostic]:
    """Every pipeline stage has a layer, and better as many as the others."""
    for one in _fitted(facts):
        pp, vpp, layers = one.mesh.size("pp"), one.mesh.vpp_size, one.model.get("num_layers")
        if not layers or layers % (pp * vpp) == 0:
            continue
        sum_of = f"pp {pp} x vpp {vpp} = {pp * vpp}" if vpp > 1 else f"pp {pp}"
        span = one.span(facts, "vpp_size" if vpp > 1 else "pp_size").with_word(sum_of)
        if layers < pp * vpp:
            message = f"`{one.component.name}` has {counted(layers, 'layer')} for {pp * vpp} stages: some have none"
            help = proposals(facts, one.component, one.sizes)
            yield Diagnostic("MC434", message, span, one.model.says("num_layers"), help)
        else:
            least, more = divmod(layers, pp * vpp)
            shares = f"{more} have {least + 1}, the others {least}"
            message = f"the {layers} layers of `{one.component.name}` are not even over {pp * vpp} stages: {shares}"
            yield Diagnostic("MC437", message, span, one.model.says("num_layers"), "the component must share them out so", "warning")


def split_by_ep(facts: Facts) -> Iterator[Diagnostic]:
    for one in _fitted(facts):
        ep, experts = one.mesh.ep_size, one.model.get("num_experts")
        if experts % ep:
            stage = one.mesh.world_size // one.mesh.size("pp")
            fits = sorted((size for size in divisors(stage) if experts % size == 0), key=lambda size: (abs(size - ep), size))[:SHOWN]
            message = f"`ep_size` {ep} does not divide the {experts} experts of `{one.component.name}`"
            help = f"nearest that fit: {'; '.join(f'ep {size}' for size in fits)}"
            yield Diagnostic("MC435", message, one.span(facts, "ep_size"), one.model.says("num_experts"), help)


def split_sequences(facts: Facts) -> Iterator[Diagnostic]:
    """A sequence goes into equal parts over cp, ulysses and, with sequence_parallel, tp."""
    for one in _fitted(facts):
        mesh, length = one.mesh, one.model.get("sequence_length")
        layout = {"cp": mesh.size("cp"), "ulysses": mesh.ulysses_size, "tp": mesh.size("tp")}
        parts = parts_of_a_sequence(layout, one.sizes.sequence_parallel)
        if length % parts:
            factors = [("2 x cp", layout["cp"]), ("ulysses", layout["ulysses"]), ("tp", layout["tp"] if one.sizes.sequence_parallel else 1)]
            sum_of = " x ".join(f"{name} {size}" for name, size in factors if size > 1)
            size = next(key for key, size in (("cp_size", "cp"), ("ulysses_size", "ulysses"), ("tp_size", "tp")) if layout[size] > 1)
            message = f"sequences of {length} tokens do not go into {parts} equal parts in `{one.component.name}`"
            near = -(-length // parts) * parts
            help = f"sequences of {near} tokens would"
            if options := proposals(facts, one.component, one.sizes):
                help = f"{help}; {options}"
            span = one.span(facts, size).with_word(f"{sum_of} = {parts}" if " x " in sum_of else sum_of)
            yield Diagnostic("MC436", message, span, one.model.says("sequence_length"), help)


RULES = (readable, split_by_tp, split_by_ulysses, split_by_stages, split_by_ep, split_sequences)
