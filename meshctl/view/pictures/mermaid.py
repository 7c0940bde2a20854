"""The pipeline as a Mermaid flowchart, for a README, a ticket or a wiki.

    flowchart TB
      subgraph g0["rollout: 4 workers on cuda"]
        s2["B rollouts<br>sampler.sample<br>dp 2 x tp 2"]
      end
      s1 -->|"4 → 2<br>flatten, slice_dp<br>8.19 MB, tcp"| s2

A subgraph is a device group, a box is a stage, and an arrow is a route with the numbers of producer and
consumer ranks and the transport; a dotted one moves weights. Components that no stage calls, and programs,
are boxes without arrows. Ids are numbers, and names are quoted with special characters as codes, so no name
can be taken for a keyword of Mermaid.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.plan.views.topology import PlacedGroup, Topology
from meshctl.topology.modes import shown_mode
from meshctl.view.formatting import count, size
from meshctl.view.pictures import transports_of
from meshctl.view.pictures.colors import COLORS, HUES
from meshctl.view.pictures.text.letters import Marks
from meshctl.view.pictures.text.styled import cut

MAX_NAME = 48
"""Maximum length of a name in characters."""
PLAIN = set(" _-.,/()+=")
"""Characters that need no code in Mermaid."""


def draw(topology: Topology) -> str:
    marks = Marks(topology)
    lines = [
        "flowchart TB",
        f"  accTitle: {_words(topology.name)}, plan {topology.digest}",
        f"  accDescr: {count(len(topology.groups), 'device group')}, {count(len(topology.stages), 'stage')}, "
        f"{count(len(topology.routes), 'route')}",
        *(
            line
            for number, group in enumerate(topology.groups)
            for line in _subgraph(marks, topology, group, number)
        ),
        *_arrows(topology),
        f"  class {','.join(f'g{number}' for number in range(len(topology.groups)))} group",
        f"  classDef group fill:transparent,stroke:{COLORS['edge'].light}",
        *(
            f"  classDef h{number} fill:{hue.tint.light},stroke:{hue.line.light},color:{hue.text.light}"
            for number, hue in enumerate(HUES)
        ),
    ]
    return "\n".join(lines) + "\n"


def _subgraph(marks: Marks, shown: Topology, group: PlacedGroup, number: int) -> Iterator[str]:
    """Yields a group with its stages. A sync is a box in each of its two groups."""
    workers = f"{group.workers:,} worker{'s' * (group.workers != 1)} on {group.device_type}"
    nodes = f", {group.nodes:,} nodes" if group.nodes > 1 else ""
    nodes += f" of {', '.join(map(_name, group.pools))}" if group.pools else ""
    yield f"  subgraph g{number}[{_quoted(f'{_name(group.name)}: {workers}{nodes}')}]"
    called = set[str]()
    for stage in shown.stages:
        ends = (("s", stage.component, stage.method), ("t", stage.to, stage.to_method))
        for prefix, name, method in ends:
            if name in group.components:
                lines = [_name(stage.name), f"{_name(name)}.{_name(method)}"]
                lines += ["ends the run"] * (stage.name in shown.ends_run)
                lines += filter(None, [_name(shown.repeat_of(stage))])
                yield _box(f"{prefix}{stage.after}", lines, marks, name)
        called |= {stage.component, stage.to}
    idle = [name for name in group.components if name not in called]
    for index, name in enumerate(idle):
        yield _box(f"c{number}_{index}", [_name(name)], marks, name)
    if not group.components:
        letter = marks.group_letter(group.name)
        text = _quoted(f"{letter.text} {_name(group.program)}")
        yield f"    p{number}[{text}]:::h{letter.style.removeprefix('C')}"
    yield "  end"


def _box(id: str, lines: list[str], marks: Marks, component: str) -> str:
    letter = marks.letter(component)
    text = _quoted([f"{letter.text} {lines[0]}", *lines[1:], marks.components[component].layout])
    return f"    {id}[{text}]:::h{letter.style.removeprefix('C')}"


def _arrows(shown: Topology) -> Iterator[str]:
    ids = {stage.name: stage.after for stage in shown.stages}
    for flow in shown.routes:
        arrow, prefix = ("-->", "s") if flow.kind == "data" else ("-.->", "t")
        counts = " → ".join(f"{count:,}" if count else "?" for count in (flow.producers, flow.consumers))
        label = [f"weights {counts}", transports_of(flow)]
        if flow.kind == "data":
            by = f" by {flow.dispatch.balance}" if flow.dispatch.balance else ""
            home = f" home of {flow.dispatch.home}" if flow.dispatch.home else ""
            moves = _name(f"{shown_mode(flow.collect)}, {shown_mode(flow.dispatch.mode)}{by}{home}")
            bytes = f"{size(flow.bytes)}, " if flow.bytes else ""
            label = [_name(flow.parameter)] * bool(flow.parameter)
            label += [counts, moves, f"{bytes}{transports_of(flow)}"]
        yield f"  s{ids[flow.source]} {arrow}|{_quoted(label)}| {prefix}{ids[flow.target]}"


def _name(text: str) -> str:
    """Returns a name, with all characters except letters, digits and `PLAIN` as codes."""
    printable = "".join(each if each.isprintable() else " " for each in cut(text, MAX_NAME))
    return "".join(each if each.isalnum() or each in PLAIN else f"#{ord(each)};" for each in printable)


def _words(text: str) -> str:
    """Returns a name in which spaces replace the characters that `_name` writes as codes such as `#35;`. It
    is for places in which Mermaid does not read codes."""
    return " ".join(
        "".join(each if each.isalnum() or each in PLAIN else " " for each in cut(text, MAX_NAME)).split()
    )


def _quoted(lines: str | list[str]) -> str:
    return '"' + (lines if isinstance(lines, str) else "<br>".join(lines)) + '"'
