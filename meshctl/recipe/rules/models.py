"""MC430 to MC438, MC440, MC441, MC466, MC468, MC469, MC473 and MC475: checks the sizes of a component's
model, also against its layout, its pipeline stages and the lengths of its sequences.

    model: llama/config.json      model: llama      model: {num_heads: 32, sequence_length: 4096}

If the component's class declares `MODEL = "args.model"`, the config that this argument names or contains is
also read. Unknown sizes are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import gcd

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.files import ADAPTER, adapter_config
from meshctl.recipe.code.model_config import POSITIONS
from meshctl.recipe.compose.yaml_tree import plain
from meshctl.recipe.model import Component
from meshctl.recipe.rules.facts import Facts, named_by
from meshctl.recipe.rules.meshes import Placed, lacking, nearest_that_fit, sequence_parts
from meshctl.text.english import counted, listed
from meshctl.topology.sizes import divisors
from meshctl.topology.stage_split import SPLITS, by_count

DIVIDED_BY_TP = {"num_heads": "heads", "num_kv_heads": "kv heads", "hidden_size": "hidden size"}


def config_is_readable(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The file that `model` names exists and is a valid config. An argument that `MODEL` names may also be
    the name of a model on a hub."""
    stated = facts.stated_config(component.name)
    path: tuple[str, ...] = ("components", component.name, "model", "config")
    files = [(path, stated)] if stated else []
    files += [(path, file) for path, file in facts.declared_configs(component.name) if not file.missing]
    for path, file in files:
        if file.wrong:
            span = facts.value(*(path if facts.is_named(*path) else path[:-1]))
            help = "models are not downloaded: write the path of a config.json or of its folder, "
            help += "or the sizes: {num_heads: 32}"
            yield Diagnostic("MC430", file.wrong, span, (file.at,) if file.at else (), help)


def config_is_on_this_machine(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The config of a model that an argument names can be read here, unless the recipe states its sizes."""
    is_stated = component.model.given or component.model.config
    for path, file in () if is_stated else facts.declared_configs(component.name):
        if file.missing:
            message = f"{file.wrong}, so its sizes are not compared with the layout"
            help = "state them: model: {num_heads: 32, num_kv_heads: 8, num_layers: 32}"
            yield Diagnostic("MC438", message, facts.value(*path), help=help, severity="note")


def adapter_fits(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The adapter of `lora.from` exists and has the options of `lora`. A `model` is no folder of an
    adapter."""
    name, path = component.name, ("args", "lora", "from")
    node, model = named_by(facts, name, path), named_by(facts, name, ("args", "model"))
    if model is not None and (values := adapter_config(model.value, facts.code.path)) is not None:
        base = values.get("base_model_name_or_path") or "BASE"
        message = f"`{model.value}` has an adapter, not a model"
        help = f"write `model: {base}` and `lora: {{from: {model.value}}}`"
        yield Diagnostic("MC475", message, model.span, help=help)
    if node is None or not facts.declares(name).shipped.choices.get("lora"):
        return
    values = adapter_config(node.value, facts.code.path)
    if values is None:
        message = f"`{node.value}` does not name an adapter: the folder has no {ADAPTER}"
        help = f"searched in {listed(facts.code.own)}; an adapter of the hub is downloaded first: hf download"
        yield Diagnostic("MC475", message, node.span, help=help)
        return
    for key, own in (("r", "r"), ("alpha", "lora_alpha")):
        given, written = facts.argument(name, ("args", "lora", key)), values.get(own)
        if given is not None and written is not None and given.value != written:
            message = f"`lora.{key}` of `{name}` is {given.value}, and that of the adapter is {written}"
            yield Diagnostic("MC475", message, given.span, (node.span,), help="leave it out")


def model_is_not_quantized(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """A model of transformers has its full weights."""
    name = component.name
    tree = facts.declared_values(name) if facts.declares(name).layouts.cache else None
    if tree and (found := tree.get("quantization_config")) and found.value:
        message = f"the model of `{name}` is quantized"
        span = facts.value("components", name, "args", "model")
        help = "name the model with its full weights"
        yield Diagnostic("MC473", message, span, (found.span.with_word("its quantization"),), help)


def heads_share_kv_heads(facts: Facts) -> Iterator[Diagnostic]:
    """The same number of heads share each kv head. Each pair of sizes is reported once."""
    reported: set[tuple[Span, ...]] = set()
    for name, model in facts.models.items():
        heads, kv_heads = model.get("num_heads"), model.get("num_kv_heads")
        stated = model.stated("num_kv_heads", "num_heads")
        if not heads or not kv_heads or heads % kv_heads == 0 or stated in reported:
            continue
        reported.add(stated)
        message = f"`{name}` has {counted(heads, 'head')} for {counted(kv_heads, 'kv head')}"
        fitting = _nearest_to(kv_heads, divisors(heads))
        help = f"the kv heads must divide the heads; nearest that fit: {', '.join(map(str, fitting[:3]))}"
        yield Diagnostic("MC466", message, stated[0], stated[1:], help)


class Fitted(Placed):
    """A component with a model and a mesh."""


def fitted_models(facts: Facts) -> Iterator[Fitted]:
    """Yields the components with a model and a mesh; only the first of those with the same layout and model
    sizes."""
    seen: dict[tuple[str, tuple[tuple[str, int], ...]], Fitted] = {}
    for name in facts.meshes:
        one = Fitted(facts, facts.recipe.components[name])
        if one.model.sizes:
            seen.setdefault((one.owner, tuple(sorted(one.model.sizes.items()))), one)
    yield from seen.values()


def _nearest_to(size: int, others: Iterable[int]) -> list[int]:
    return sorted(others, key=lambda other: (abs(other - size), other))


def tp_divides_model(facts: Facts, one: Fitted) -> Iterator[Diagnostic]:
    """Tp divides the heads and the hidden size. A vocabulary may be padded."""
    tp, model, name = one.mesh.size("tp"), one.model, one.name
    span, vocabulary = one.span("tp_size"), model.get("vocab_size")
    if undivided := model.undivided_by_tp(tp):
        what = listed([f"{DIVIDED_BY_TP[size]} ({model.get(size)})" for size in undivided]).replace("`", "")
        message = f"`tp_size` {tp} does not divide the {what} of `{name}`"
        yield Diagnostic("MC431", message, span, model.stated(*undivided), one.help)
    elif 0 < (kv_heads := model.get("num_kv_heads")) < tp and tp % kv_heads == 0:
        message = f"`tp_size` {tp} exceeds the {counted(kv_heads, 'kv head')} of `{name}`"
        help = f"the component must replicate each on {tp // kv_heads} ranks; to avoid it: tp {kv_heads}"
        yield Diagnostic("MC431", message, span, model.stated("num_kv_heads"), help, "warning")
    elif vocabulary % tp and not model.has_tp_plan:
        padded = -(-vocabulary // tp) * tp
        undivided_text = f"`tp_size` {tp} does not divide the vocabulary of `{name}`"
        message = f"{undivided_text}: it must be padded to {padded}"
        yield Diagnostic("MC433", message, span, model.stated("vocab_size"), severity="warning")


def ulysses_divides_heads(facts: Facts, one: Fitted) -> Iterator[Diagnostic]:
    """Ulysses divides the heads. Otherwise the class must have ring attention, which is slower."""
    tp, ulysses, heads = one.mesh.size("tp"), one.mesh.ulysses_size, one.model.get("num_heads")
    heads_per_rank = heads // tp
    if not heads or heads % tp or heads_per_rank % ulysses == 0:
        return
    by_heads = gcd(heads_per_rank, ulysses)
    of_rank = f"{counted(heads_per_rank, 'head')} of a tp rank of `{one.name}`"
    message = f"`ulysses_size` {ulysses} does not divide the {of_rank}"
    help = f"ulysses splits {by_heads} ways by heads, and a ring of {ulysses // by_heads} ranks the rest"
    has_ring = not facts.declares(one.name).layouts.ulysses
    data = one.mesh.size("dp") * one.mesh.size("fsdp")
    needs = one.needs_if(with_ring=False)
    without_ring = [size for size in divisors(data) if one.fits_with(needs, ulysses=size)]
    nearest = [f"ulysses {size}" for size in _nearest_to(ulysses, without_ring)[:1]]
    if not has_ring:
        help = nearest_that_fit(nearest)
    elif nearest:
        help = f"{help}; nearest that needs no ring: {nearest[0]}"
    span = one.span("ulysses_size")
    found = Diagnostic("MC432", message, span, one.model.stated("num_heads"), help)
    yield replace(found, severity="warning") if has_ring else found


def ep_divides_experts(facts: Facts, one: Fitted) -> Iterator[Diagnostic]:
    """Every rank has the same number of experts."""
    ep, experts, given = one.mesh.ep_size, one.model.get("num_experts"), dict(one.sizes.given)
    if experts % ep == 0:
        return
    is_etp_inferred = given.get("etp_size") == "auto"
    ranks = one.mesh.world_size // one.mesh.size("pp")
    if not is_etp_inferred:
        ranks //= one.mesh.etp_size
    fitting = _nearest_to(ep, (size for size in divisors(ranks) if experts % size == 0))
    is_rest_stated = isinstance(given.get("ep_fsdp_size"), int) and not is_etp_inferred
    options = [f"ep {size}" + (f" x ep_fsdp {ranks // size}" if is_rest_stated else "") for size in fitting]
    message = f"`ep_size` {ep} does not divide the {counted(experts, 'expert')} of `{one.name}`"
    span, seconds = one.span("ep_size"), one.model.stated("num_experts")
    yield Diagnostic("MC435", message, span, seconds, nearest_that_fit(options))


def sequences_split_evenly(facts: Facts, one: Fitted) -> Iterator[Diagnostic]:
    """A sequence is split into equal parts over cp, ulysses and, with sequence_parallel, tp."""
    mesh = one.mesh
    length = one.model.get("sequence_length")
    along_tp = one.sizes.sequence_parallel
    layout = {"cp": mesh.size("cp"), "ulysses": mesh.ulysses_size, "tp": mesh.size("tp")}
    parts = sequence_parts(layout, along_tp)
    if length % parts == 0:
        return
    factors = {
        "2 x cp": layout["cp"],
        "ulysses": layout["ulysses"],
        "tp": layout["tp"] if along_tp else 1,
    }
    product = " x ".join(f"{name} {size}" for name, size in factors.items() if size > 1)
    size = next(f"{dim}_size" for dim in layout if layout[dim] > 1)
    span = one.span(size).with_word(f"{product} = {parts}" if " x " in product else product)
    name = one.name
    message = f"sequences of {length} tokens cannot be split into {parts} equal parts in `{name}`"
    help = f"sequences of {-(-length // parts) * parts} tokens can be split"
    if one.help:
        help = f"{help}; {one.help}"
    yield Diagnostic("MC436", message, span, one.model.stated("sequence_length"), help)


def stages_have_layers(facts: Facts, one: Fitted) -> Iterator[Diagnostic]:
    """Every pipeline stage has at least one layer, and the numbers that an argument states fit. Warns if the
    numbers of layers differ, and no argument states that."""
    pp, vpp = one.mesh.size("pp"), one.mesh.vpp_size
    layers, stages = one.model.get("num_layers"), pp * vpp
    if not layers or stages == 1:
        return
    split = facts.argument(one.name, facts.declares(one.name).layouts.split)
    if layers < stages:
        yield _too_few(one, layers)
    elif split is not None:
        wrong = _wrong_split(plain(split), layers, stages)
        if wrong:
            name, fitting = one.name, [len(own) for own in by_count(layers, stages)]
            message = f"`split` of `{name}` {wrong}"
            seconds = (_drawn(one), *one.model.stated("num_layers"))
            yield Diagnostic("MC468", message, split.span, seconds, f"nearest that fits: {fitting}")
    elif layers % stages:
        least, more = divmod(layers, stages)
        others = "the other" if more + 1 == stages else "the others"
        numbers = f"{more} {'has' if more == 1 else 'have'} {least + 1}, {others} {least}"
        message = f"the {layers} layers of `{one.name}` cannot be divided evenly over {stages} stages"
        help = "the component must distribute them in this way"
        if argument := facts.declares(one.name).layouts.split:
            help = f"`{'.'.join(argument)}: cost` also counts the head, which the last stage has"
        seconds = one.model.stated("num_layers")
        yield Diagnostic("MC437", f"{message}: {numbers}", _drawn(one), seconds, help, "warning")


def _drawn(one: Fitted) -> Span:
    pp, vpp = one.mesh.size("pp"), one.mesh.vpp_size
    drawn = f"pp {pp} x vpp {vpp} = {pp * vpp}" if vpp > 1 else f"pp {pp}"
    return one.span("vpp_size" if vpp > 1 else "pp_size").with_word(drawn)


def _too_few(one: Fitted, layers: int) -> Diagnostic:
    pp, vpp = one.mesh.size("pp"), one.mesh.vpp_size
    has = f"`{one.name}` has {counted(layers, 'layer')} for {counted(pp * vpp, 'pipeline stage')}"
    message, fewer = f"{has}, so some stages would have none", layers // pp
    is_possible = vpp > 1 and fewer > 0 and one.fits_with(one.needs_if(with_ring=True), vpp=fewer)
    options = [f"vpp {fewer}"] if is_possible else []
    help = nearest_that_fit([*options, *one.proposals])
    return Diagnostic("MC434", message, _drawn(one), one.model.stated("num_layers"), help)


def _wrong_split(split: object, layers: int, stages: int) -> str:
    """Returns why a value of `split` is wrong; empty if it is right."""
    if isinstance(split, str):
        return "" if split in SPLITS else f"is none of {' and '.join(SPLITS)}, and no list of numbers"
    if not isinstance(split, Sequence) or not all(type(one) is int and one > 0 for one in split):
        return "contains a value other than a positive integer"
    if len(split) != stages:
        return f"has {counted(len(split), 'number')} for {counted(stages, 'pipeline stage')}"
    if sum(split) != layers:
        return f"has {counted(sum(split), 'layer')}, and the model has {layers}"
    return ""


def architecture_has_stages(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """The library has a plan by which pipeline stages divide the architecture."""
    pp = one.mesh.size("pp")
    if pp > 1 and (found := one.lacks_stages):
        whether = f"pp can divide the layers of `{found[0]}` in `{one.name}`"
        message = f"`pp_size` is {pp}, but transformers has no plan that divides `{found[0]}`"
        yield lacking(one, "pp_size", found, whether, "MC469", message)


def sequences_fit_positions(facts: Facts) -> Iterator[Diagnostic]:
    """A model has a position for each token of the longest sequence."""
    for name, model in facts.models.items():
        positions = model.get(POSITIONS)
        lengths = dict.fromkeys(_lengths(facts, name)) if positions else {}
        for length, span in lengths:
            if length > positions:
                fitting = f"the {positions} positions of the model of `{name}`"
                message = f"sequences of up to {length} tokens exceed {fitting}"
                help = f"at most {positions} tokens fit"
                yield Diagnostic("MC441", message, span, model.stated(POSITIONS), help, "warning")


def _lengths(facts: Facts, component: str) -> Iterator[tuple[int, Span]]:
    """Yields (number, span) of the lengths of the sequences on which a component computes."""
    model, pipeline = facts.models[component], facts.recipe.pipeline
    if length := model.get("sequence_length"):
        yield length, model.spans["sequence_length"]
    calls = [stage for stage in pipeline.values() if stage.component == component and stage.kind == "call"]
    sources = [pipeline[taken].component for stage in calls for taken in stage.takes if taken in pipeline]
    for source in (component, *sources):
        stated = facts.sequence_length(source) if source in facts.recipe.components else None
        if stated is not None:
            yield stated
