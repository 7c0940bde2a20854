"""The pipeline as a Mermaid flowchart, for a README, a ticket or a wiki.

    flowchart TB
      subgraph g0["rollout: 4 workers on cuda"]
        s1["B rollouts<br>sampler.sample<br>dp 2 x tp 2"]
      end
      s0 -->|"4 → 2<br>flatten, slice_dp<br>8.19 MB, tcp"| s1

A subgraph is a device group, a box is a stage, and an arrow is a route with the numbers of producer and
consumer ranks and the transport; a dotted one moves weights. Components that no stage calls, and programs,
are boxes without arrows. Ids are numbers, and names are quoted with special characters as codes, so no name
can be taken for a keyword of Mermaid.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.plan.views.topology import Flow, PlacedComponent, PlacedGroup, PlacedStage, Topology
from meshctl.topology.modes import shown_mode
from meshctl.view.formatting import size
from meshctl.view.pictures import OVER
from meshctl.view.pictures.colors import COLORS, HUES
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import cut

MAX_GROUPS, MAX_STAGES, MAX_ROUTES, MAX_UNUSED = 24, 60, 150, 8
"""The last is for the components of a group that no stage calls. Mermaid accepts at most 500 arrows."""
MAX_NAME = 48
"""Letters."""
PLAIN = set(" _-.,/()+=")


def draw(topology: Topology) -> str:
    return "\n".join(_lines(topology)) + "\n"


def _lines(topology: Topology) -> Iterator[str]:
    groups = topology.groups[:MAX_GROUPS]
    ids = {group.name: f"g{number}" for number, group in enumerate(groups)}
    home = {component.name: component.group for component in topology.components}
    running = sorted(topology.stages, key=lambda stage: stage.after)
    stages = [
        (number, stage) for number, stage in enumerate(running[:MAX_STAGES]) if home[stage.component] in ids
    ]
    yield "flowchart TB"
    yield f"  accTitle: {_words(topology.name)}, plan {topology.digest}"
    yield (
        f"  accDescr: {len(topology.groups)} device groups, {len(topology.stages)} stages, "
        f"{len(topology.routes)} routes"
    )
    for group in groups:
        yield f"  subgraph {ids[group.name]}[{_quoted(_about(group))}]"
        yield from _boxes(topology, group, ids[group.name], stages)
        yield "  end"
    flows = list(_flows(topology, stages, ids, home))
    yield from flows[:MAX_ROUTES]
    drawn = {
        "group": (topology.groups, groups),
        "stage": (running, stages),
        "route": (topology.routes, flows[:MAX_ROUTES]),
    }
    left = {thing: len(all) - len(some) for thing, (all, some) in drawn.items()}
    if words := [
        f"{number:,} more {thing}{'s' * (number > 1)}" for thing, number in left.items() if number > 0
    ]:
        yield f"  more[{_quoted('and ' + ', '.join(words))}]"
    yield f"  class {','.join(ids.values())} group"
    yield f"  classDef group fill:transparent,stroke:{COLORS['edge'].light}"
    for number, hue in enumerate(HUES):
        yield f"  classDef h{number} fill:{hue.tint.light},stroke:{hue.line.light},color:{hue.ink.light}"


def _about(group: PlacedGroup) -> list[str]:
    workers = f"{group.workers:,} {'worker' if group.workers == 1 else 'workers'} on {group.device_type}"
    return [f"{_name(group.name)}: {workers}" + (f", {group.nodes:,} nodes" if group.nodes > 1 else "")]


def _boxes(
    topology: Topology, group: PlacedGroup, id: str, stages: list[tuple[int, PlacedStage]]
) -> Iterator[str]:
    """Yields the stages of a group. A sync is a box in each of its two groups."""
    members = {
        each.name: (number, each)
        for number, each in enumerate(topology.components)
        if each.group == group.name
    }
    called = set[str]()
    for number, stage in stages:
        if stage.component in members:
            yield _box(
                f"s{number}",
                [_name(stage.name), _call(stage.component, stage.method)],
                *members[stage.component],
            )
        if stage.to in members:
            yield _box(
                f"t{number}", [_name(stage.name), _call(stage.to, stage.to_method)], *members[stage.to]
            )
        called |= {stage.component, stage.to}
    idle = [each for name, each in members.items() if name not in called]
    for number, component in idle[:MAX_UNUSED]:
        yield _box(f"c{number}", [], number, component)
    if len(idle) > MAX_UNUSED:
        yield f"    c_{id}[{_quoted(f'and {len(idle) - MAX_UNUSED} more components')}]"
    if not members:
        letter = Marks(topology).group_letter(group.name)
        text = _quoted(f"{letter.text} {_name(group.program)}")
        yield f"    p_{id}[{text}]:::h{letter.style.removeprefix('C')}"


def _box(id: str, lines: list[str], number: int, component: PlacedComponent) -> str:
    about = lines or [_name(component.name)]
    text = _quoted([f"{component.letter} {about[0]}", *about[1:], component.layout])
    return f"    {id}[{text}]:::h{number % len(HUES)}"


def _flows(
    topology: Topology, stages: list[tuple[int, PlacedStage]], groups: dict[str, str], home: dict[str, str]
) -> Iterator[str]:
    """Yields the routes between stages that are drawn."""
    ids = {stage.name: number for number, stage in stages}
    for flow in topology.routes:
        if flow.source in ids and flow.target in ids:
            if flow.kind == "data":
                yield f"  s{ids[flow.source]} -->|{_quoted(_label(flow))}| s{ids[flow.target]}"
            elif home[flow.consumer] in groups:
                yield f"  s{ids[flow.source]} -.->|{_quoted(_label(flow))}| t{ids[flow.target]}"


def _label(flow: Flow) -> list[str]:
    counts = " → ".join(f"{count:,}" if count else "?" for count in (flow.producers, flow.consumers))
    if flow.kind == "weights":
        return [f"weights {counts}", OVER[flow.over]]
    parameter = [_name(flow.parameter)] if flow.parameter else []
    return [
        *parameter,
        counts,
        _name(_moves(flow)),
        ", ".join([*([size(flow.bytes)] if flow.bytes else []), OVER[flow.over]]),
    ]


def _moves(flow: Flow) -> str:
    """Returns collect and dispatch of a route: `flatten, slice_dp by tokens`."""
    dispatch = flow.dispatch
    by = f" by {dispatch.balance}" if dispatch.balance else ""
    home = f" home of {dispatch.home}" if dispatch.home else ""
    return f"{shown_mode(flow.collect)}, {shown_mode(dispatch.mode)}{by}{home}"


def _call(component: str, method: str) -> str:
    return f"{_name(component)}.{_name(method)}"


def _name(text: str) -> str:
    """Returns a name, with all characters except letters, digits and `PLAIN` as codes."""
    printable = "".join(each if each.isprintable() else " " for each in cut(text, MAX_NAME))
    return "".join(each if each.isalnum() or each in PLAIN else f"#{ord(each)};" for each in printable)


def _words(text: str) -> str:
    """Returns the letters of a name, for places without codes."""
    return " ".join(
        "".join(each if each.isalnum() or each in PLAIN else " " for each in cut(text, MAX_NAME)).split()
    )


def _quoted(lines: str | list[str]) -> str:
    return '"' + (lines if isinstance(lines, str) else "<br>".join(lines)) + '"'
